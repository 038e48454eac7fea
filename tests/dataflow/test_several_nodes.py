"""A batch over several data nodes, asked as Spark asks: each part once, from any that has it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType
from tests.dataflow.quivers import CONFIG_NAME, at, fill
from tests.dataflow.test_batch_reader import numbers, reader, segments
from tests.node.handing_over import hand_over
from tests.node.serving import served
from tests.patience import PATIENCE_S
from tests.replica.parts import sealed_parts

from holdfast.dataflow.source.options import parse_options
from holdfast.dataflow.source.quiver_location import connect
from holdfast.dataflow.source.stored import BatchReader
from holdfast.dataflow.source.stream import StreamReader
from holdfast.errors import BadConfig, Damaged, OwnerGone
from holdfast.node.data_node import DataNode
from holdfast.seam.disk import RealDisk

# Which of the five parts each node has; together all but the last, which is nowhere.
HELD = {"a": (0, 1, 3), "b": (0, 2, 3), "c": (1, 2, 3)}


class Nodes:
    """Three data nodes, each without some parts of the same quiver."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        connect.cache_clear()
        self.quiver = folder / "quiver"
        bundles = [[(10.0 * i + j, "k", 10 * i + j) for j in range(10)] for i in range(5)]
        self.quiver_id = fill(self.quiver, *bundles, seal_each=True)
        self.parts = sealed_parts(RealDisk(), self.quiver)
        self.locations: dict[str, str] = {}
        self.nodes: dict[str, DataNode] = {}
        self.stops: dict[str, ExitStack] = {}
        for name, held in HELD.items():
            self.stops[name] = stack.enter_context(ExitStack())
            node, location = self.stops[name].enter_context(served(folder / name))
            self.nodes[name], self.locations[name] = node, location
            for place in held:
                assert hand_over(node, self.parts[place]).kind == "ack"

    def options(self, names: str = "abc", **given: Any) -> dict[str, str]:
        nodes = ",".join(self.locations[name] for name in names)
        given = {"nodes": nodes, "local_reads": False, "call_timeout": PATIENCE_S, **given}
        return {name: str(value) for name, value in given.items()}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with ExitStack() as stack:
        yield Nodes(tmp_path, stack)


def test_each_part_is_read_once_from_any_that_has_it(nodes: Nodes) -> None:
    made = reader(nodes.options())
    assert numbers(made) == list(range(40))
    places = {piece.place.location for part in made.partitions() for piece in part.pieces}  # type: ignore[attr-defined]
    assert len(places) > 1, "the nodes share the work"
    one = reader(nodes.options("a"))
    assert numbers(one) == [*range(20), *range(30, 40)]
    timed = reader(nodes.options(since=at(15).isoformat(), until=at(20).isoformat()))
    assert (segments(timed), numbers(timed)) == (1, list(range(15, 20)))
    assert numbers(reader(nodes.options(columns="number"))) == list(range(40))


def test_replicas_and_the_quiver_itself_are_one_whichever_way_they_are_named(nodes: Nodes) -> None:
    addresses = [f"{nodes.locations[name]}/{nodes.quiver_id}" for name in "ab"]
    assert numbers(reader({"quiver": ",".join(addresses)})) == list(range(40))
    folders = [str(nodes.nodes[name].replica(nodes.quiver_id).folder) for name in "bc"]
    assert numbers(reader({"path": ",".join(folders)})) == list(range(40))
    everything = nodes.options(path=str(nodes.quiver), quiver_config=CONFIG_NAME)
    assert numbers(reader(everything)) == list(range(50))


def test_a_node_that_dies_after_the_plan_is_replaced(nodes: Nodes) -> None:
    made = reader(nodes.options())
    planned = made.partitions()
    nodes.stops["a"].close()

    def read() -> list[int]:
        batches = [rows for part in planned for rows in made.read(part)]
        return [number for rows in batches for number in rows.column("number").to_pylist()]

    assert read() == list(range(40))
    nodes.stops["b"].close()
    with pytest.raises(OwnerGone, match="2 copies of a part cannot be read"):
        read()


def test_a_damaged_copy_is_replaced(nodes: Nodes) -> None:
    for name in "ab":
        (first, *_) = nodes.nodes[name].replica(nodes.quiver_id).parts()
        path = Path(first.folder) / first.summary.files[0].name
        data = bytearray(path.read_bytes())
        data[first.summary.files[0].batches[0].offset + 100] ^= 1
        path.write_bytes(data)
        if name == "a":
            assert numbers(reader(nodes.options())) == list(range(40))
    with pytest.raises(Damaged, match="2 copies"):
        numbers(reader(nodes.options()))


def test_a_node_that_does_not_answer_is_an_error_unless_it_may_be_away(nodes: Nodes) -> None:
    nodes.stops["c"].close()
    with pytest.raises(OwnerGone, match="1 data nodes do not answer"):
        reader(nodes.options())
    with pytest.raises(OwnerGone, match="1 data nodes do not answer"):
        BatchReader(parse_options(nodes.options()), StructType()).partitions()
    assert numbers(reader(nodes.options(nodes_away=1))) == list(range(40))


def test_what_has_no_meaning_for_nodes_is_refused() -> None:
    named = {"nodes": "grpc://a:1,grpc://b:1"}
    with pytest.raises(BadConfig, match="sealed parts only"):
        parse_options({**named, "seal": "true"})
    with pytest.raises(BadConfig, match="numbers of its own"):
        parse_options({**named, "since_seq": "3"})
    with pytest.raises(BadConfig, match="not the address of a data node"):
        parse_options({"nodes": "grpc://a:1/name"})
    with pytest.raises(BadConfig, match="no subscribers"):
        StreamReader(parse_options({**named, "subscriber": "s"}), StructType())
