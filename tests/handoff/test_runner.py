"""A sender that runs: what it makes of a disk that fails, and of being told the same again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from holdfast.errors import StorageFailed
from holdfast.handoff.points import HandoffPoint
from holdfast.handoff.runner import HandoffRunner, NodeCalls
from holdfast.handoff.sender import HandoffSettings
from holdfast.quiver import Quiver, QuiverConfig
from holdfast.remote import ClientSettings
from holdfast.seam import Seam
from holdfast.seam.disk import RealDisk
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk

CALLS = NodeCalls("grpc", ClientSettings(), 1.0)


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
