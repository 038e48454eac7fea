"""A sender that runs: what it makes of a disk that fails, and of being told the same again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from tests.node.serving import served
from tests.patience import PATIENCE_S

from holdfast.errors import BadInput, NotAllowed, StorageFailed
from holdfast.handoff.points import HandoffPoint
from holdfast.handoff.runner import HandoffRunner, NodeCalls
from holdfast.handoff.sender import HandoffSettings
from holdfast.quiver import Quiver, QuiverConfig
from holdfast.remote import ClientSettings, FlightToken
from holdfast.seam import Seam
from holdfast.seam.disk import RealDisk
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.settings import Secret

CALLS = NodeCalls("grpc", ClientSettings(), PATIENCE_S)


@pytest.fixture
def quiver(tmp_path: Path) -> Iterator[Quiver]:
    with Quiver.open(tmp_path / "quiver", QuiverConfig(control=False)) as opened:
        yield opened


def runner_of(quiver: Quiver, *faults: Fault) -> HandoffRunner:
    disk = FaultyDisk(RealDisk(), list(faults), _die)
    return HandoffRunner("copies", 0, quiver, Seam(disk), HandoffSettings(), CALLS)


def _die() -> NoReturn:
    raise AssertionError("nothing kills here")


def test_a_disk_that_fails_is_told_and_the_same_said_again_is_taken_over(quiver: Quiver) -> None:
    # The second write of MEMBERS is the one of `b`.
    runner = runner_of(quiver, Fault(HandoffPoint.MEMBERS_SYNC, FaultKind.EIO, 2))
    runner.configure({"a": "h:1"})
    with pytest.raises(StorageFailed, match="cannot be written"):
        runner.configure({"a": "h:9", "b": "h:2"})
    assert runner.connect("a")._connection.location == "grpc://h:1"
    runner.configure({"a": "h:9", "b": "h:2"})
    assert {*runner.handoff.membership.bound} == {"a", "b"}
    assert runner.connect("a")._connection.location == "grpc://h:9"
    # Said once more it changes nothing: one that was forgotten meanwhile stays so.
    runner.handoff.forget("b", "drop")
    runner.configure({"a": "h:9", "b": "h:2"})
    assert {*runner.handoff.membership.bound} == {"a"}
    runner.close(0.0)
    runner.configure({"c": "h:3"})
    assert {*runner.handoff.membership.bound} == {"a"}


def test_members_that_cannot_be_read_are_told(quiver: Quiver) -> None:
    runner_of(quiver).configure({"a": "h:1"})
    members = Path(quiver.directory) / "handoff" / "MEMBERS"
    members.unlink()
    members.mkdir()
    with pytest.raises(StorageFailed, match="cannot be read"):
        runner_of(quiver)


def test_a_node_that_is_added_is_known_until_it_is_forgotten_or_configured(quiver: Quiver) -> None:
    runner = runner_of(quiver, Fault(HandoffPoint.MEMBERS_SYNC, FaultKind.ENOSPC, 2))
    runner.configure({"a": "h:1"})
    quiver.append_raw([b"before"])
    with pytest.raises(StorageFailed, match="cannot be written"):
        runner.add("b", "127.0.0.1:9")
    assert {*runner.handoff.membership.bound} == {"a"}
    planned = runner.add("b", "127.0.0.1:9", is_planned=True)
    assert {*runner.handoff.membership.bound} == {"a"}
    added = runner.add("b", "127.0.0.1:9")
    assert added == planned
    assert (added.is_new, added.node_id, added.from_seq) == (True, None, 1)
    assert added.problem is not None
    # What came before is others', by the placements.
    owners = runner.handoff.membership.owners
    assert owners.owners(quiver.quiver_id, 0, 1) == {"a"}
    assert owners.owners(quiver.quiver_id, 1, 2) == {"a", "b"}
    assert not runner.add("b", "127.0.0.1:9").is_new
    # The configuration said again, one that was forgotten meanwhile included: nothing changes.
    runner.forget("a", "drop")
    runner.configure({"a": "h:1"})
    assert {*runner.handoff.membership.bound} == {"b"}
    runner.close(0.0)
    again = runner_of(quiver)
    again.configure({"a": "h:1"})
    assert again.handoff.membership.bound.keys() == again.handoff.workers.keys() == {"a", "b"}
    assert again.address_of("b") == "127.0.0.1:9"
    # A configuration that names it says where it is, from then on, and when it does so no more.
    again.configure({"a": "h:1", "b": "h:2"})
    assert (again.address_of("b"), again.handoff.membership.added) == ("h:2", {})
    again.configure({"a": "h:1"})
    assert "b" not in again.handoff.workers  # an orphan
    again.add("b", "127.0.0.1:9")
    again.forget("b", "drop")
    again.configure({"a": "h:1"})
    assert {*again.handoff.membership.bound} == {"a"}
    again.close(0.0)


def test_a_node_that_could_get_nothing_is_not_added(quiver: Quiver, tmp_path: Path) -> None:
    runner = runner_of(quiver)
    token = FlightToken(name="t", token=Secret("s" * 20), rights=("read", "append"))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with served(tmp_path / "a") as (node, location), served(tmp_path / "b", tokens=(token,)) as b:
        address = location.partition("://")[2]
        port = address.rpartition(":")[2]
        runner.configure({"a": address})
        assert runner.add("c", f"localhost:{port}", is_planned=True).node_id == node.node_id
        runner.handoff.membership.bind("a", node.node_id)
        for name, where, problem in [
            ("a", "127.0.0.1:9", "already, at"),
            ("c", address, "is the data node 'a'"),
            ("c", f"localhost:{port}", "is known as 'a'"),
            ("c", "127.0.0.1", "host:port"),
            ("c", "127.0.0.1:0", "cannot be called"),
            ("c/d", "127.0.0.1:9", "name"),
            ("dns-7", "127.0.0.1:9", "a node of DNS"),
        ]:
            with pytest.raises(BadInput, match=problem):
                runner.add(name, where)
        with pytest.raises(NotAllowed):
            runner.add("b", b[1].partition("://")[2])
        # One that left the configuration comes back as itself only.
        runner.configure({"d": "h:4"})
        assert runner.add("a", f"localhost:{port}").node_id == node.node_id
        runner.configure({"a": address, "d": "h:4"})
        runner.configure({"d": "h:4"})
        runner.handoff.membership.bind("a", "another")
        with pytest.raises(BadInput, match="another"):
            runner.add("a", address)
    assert {*runner.handoff.membership.bound} == {"a", "d"}
    runner.close(0.0)


def test_what_a_crash_left_half_done_is_told_and_rewrites_no_placement(
    quiver: Quiver, caplog: pytest.LogCaptureFixture
) -> None:
    runner = runner_of(quiver)
    runner.configure({"a": "h:1"})
    quiver.register("node.c", start="latest")  # an addition that got no further
    for number in range(3):
        quiver.append_raw([f"{number}".encode()])
    runner.close(0.0)
    again = runner_of(quiver)
    again.configure({"a": "h:1"})
    assert "add it again, or forget it" in caplog.text
    assert again.handoff.monitor.state("c") == "orphaned"
    again.add("c", "127.0.0.1:9")
    owners = again.handoff.membership.owners
    assert owners.owners(quiver.quiver_id, 0, 3) == {"a"}
    assert owners.owners(quiver.quiver_id, 3, 4) == {"a", "c"}
    # Without MEMBERS nobody knows who owned what: all that data is kept for own all of it.
    again.close(0.0)
    (Path(quiver.directory) / "handoff" / "MEMBERS").unlink()
    last = runner_of(quiver)
    last.configure({"a": "h:1"})
    assert last.handoff.membership.owners.owners(quiver.quiver_id, 0, 3) == {"a", "c"}
    assert last.handoff.monitor.state("c") == "orphaned"
    last.close(0.0)
