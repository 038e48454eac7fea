"""Who the data nodes are while a gateway runs: a watched file, DNS, and what can be wrong there."""

from __future__ import annotations

from functools import partial
from pathlib import Path, PurePath

import pytest

from holdfast.errors import BadConfig
from holdfast.handoff.discovery import FILE_BYTES_MAX, NodeSources
from holdfast.handoff.fake import FakeNode, FakeTransport
from holdfast.handoff.membership import Membership
from holdfast.handoff.owners import Placement
from holdfast.handoff.settings import NODES_MAX, Config
from holdfast.replica.transport import Transport
from holdfast.seam.disk import RealDisk

UUID = "00000000-0000-4000-8000-00000000000{}"


class Service:
    """A headless service: addresses, and the data nodes behind them."""

    def __init__(self) -> None:
        self.at: dict[str, FakeNode] = {}
        self.is_down = False

    def resolve(self, host: str) -> list[str]:
        if self.is_down:
            raise OSError(f"no answer for {host}")
        return list(self.at)

    def connect(self, address: str) -> Transport:
        return FakeTransport(partial(self.at.get, address.removesuffix(":1").strip("[]")))


@pytest.fixture
def membership(tmp_path: Path) -> Membership:
    (tmp_path / "quiver").mkdir()
    return Membership(RealDisk(), PurePath(tmp_path / "quiver"))


def sources(folder: Path, service: Service | None = None, **config: object) -> NodeSources:
    service = service or Service()
    settings = Config.model_validate(config)
    return NodeSources(settings, folder, RealDisk(), service.connect, service.resolve)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "names no data node"),
        (b"[]", "names no data node"),
        (b"a: [1]", "a: Input should be a valid string"),
        (b"a: nowhere", "a: Value error, 'nowhere' is not an address"),
        (b"'no name': 'h:1'", "no name: Value error, a data node's name has"),
        (b"a: b: c", "mapping values are not allowed"),
        (b"\xff\xfe\x00", "cannot be used"),
        (b"a: h:1\n" + b" " * FILE_BYTES_MAX, "more than 262144 bytes"),
        (b"\n".join(b"- h:%d" % (n + 1) for n in range(NODES_MAX + 1)), "at most 256 items"),
    ],
)
def test_a_wrong_file_is_refused_at_the_start_and_changes_nothing_later(
    tmp_path: Path,
    membership: Membership,
    text: bytes,
    problem: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_bytes(text)
    with pytest.raises(BadConfig, match=problem):
        sources(tmp_path, nodes_file="nodes.yaml")
    file.write_text("a: h:1")
    watched = sources(tmp_path, nodes={"b": "h:2"}, nodes_file="nodes.yaml")
    file.write_bytes(text)
    for _ in range(3):
        assert watched.look(membership) == {"a": "h:1", "b": "h:2"}
    file.unlink()
    assert watched.look(membership) == {"a": "h:1", "b": "h:2"}
    assert [problem in line or "No such file" in line for line in caplog.messages] == [True, True]
    file.write_text("- h:3")
    assert watched.look(membership) == {"h_3": "h:3", "b": "h:2"}


def test_a_data_node_of_dns_is_known_by_its_id_wherever_it_is(
    tmp_path: Path, membership: Membership, caplog: pytest.LogCaptureFixture
) -> None:
    service, (first, second) = Service(), (FakeNode(UUID.format(n)) for n in (1, 2))
    watched = sources(tmp_path, service, nodes={"own": "10.0.0.9:1"}, nodes_dns="service:1")
    one, two = (f"dns-{UUID.format(n)}" for n in (1, 2))

    def look() -> dict[str, str | None]:
        found = watched.look(membership)
        for name in sorted(found.keys() - membership.bound.keys()):
            membership.add(name, Placement(0, (*sorted({*membership.bound, name}),)))
        return found

    service.at = {"10.0.0.1": first, "10.0.0.9": FakeNode(UUID.format(9))}
    assert look() == {"own": "10.0.0.9:1", one: "10.0.0.1:1"}
    # Neither a node that does not answer, nor one that is not listed, nor a DNS that fails is gone.
    service.at = {"10.0.0.2": second}
    first.is_up = False
    assert look() == {"own": "10.0.0.9:1", one: "10.0.0.1:1", two: "10.0.0.2:1"}
    service.is_down = True
    assert look() == look() == {"own": "10.0.0.9:1", one: "10.0.0.1:1", two: "10.0.0.2:1"}
    assert len(caplog.messages) == 1
    # One comes back at the other's address.
    service.is_down, first.is_up = False, True
    service.at = {"10.0.0.2": first, "::3": second}
    assert look() == {"own": "10.0.0.9:1", one: "10.0.0.2:1", two: "[::3]:1"}
    # One that is forgotten and not listed any more is not known any more.
    service.at = {"::3": second}
    membership.forget(one, membership.owners)
    assert look() == {"own": "10.0.0.9:1", two: "[::3]:1"}
    # An id that cannot be a name is nobody.
    service.at = {"10.0.0.4": FakeNode("../" * 30)}
    assert look() == {"own": "10.0.0.9:1", two: "[::3]:1"}


def test_a_data_node_that_has_a_name_is_not_found_once_more_by_dns(
    tmp_path: Path, membership: Membership
) -> None:
    service, node = Service(), FakeNode(UUID.format(1))
    service.at = {"10.0.0.1": node}
    # The same node by another way to write where it is, before anybody met it.
    found = {"own": "host-1:1"}
    service.at["host-1"] = node
    service.resolve = lambda host: ["10.0.0.1"]  # type: ignore[method-assign]
    watched = sources(tmp_path, service, nodes=found, nodes_dns="service:1")
    assert watched.look(membership) == found
    membership.add("own", Placement(0, ("own",)))
    assert watched.look(membership) == found
    membership.bind("own", node.node_id)
    assert watched.look(membership) == found


def test_there_are_no_more_data_nodes_than_their_bound(
    tmp_path: Path, membership: Membership
) -> None:
    (tmp_path / "nodes.yaml").write_text("".join(f"n{i}: h:{i + 1}\n" for i in range(NODES_MAX)))
    assert len(sources(tmp_path, nodes_file="nodes.yaml").look(membership)) == NODES_MAX
    watched = sources(tmp_path, nodes={"zz": "h:9"}, nodes_file="nodes.yaml")
    assert len(watched.look(membership)) == NODES_MAX
