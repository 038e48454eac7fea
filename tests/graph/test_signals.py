"""Signals in a graph: what receivers produce, and what the components behind them take.

A signal of the tests stands for those to come. It is registered, and nothing in deliver or graph
is changed for it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from tests.graph.files import TOYS
from tests.graph.gateways import REGISTRY, gateway_of, running, send
from tests.graph.lineage import run_event
from tests.graph.toys.exporter import DELIVERED
from tests.patience import until_async

from holdfast.dead_letters.stored import letters_in
from holdfast.deliver.exporter import ALL_DELIVERED, Answer, ExporterContext
from holdfast.errors import BadConfig
from holdfast.graph.loader import load
from holdfast.graph.registry import COMPONENTS, Component, Registry
from holdfast.graph.runtime import Gateway
from holdfast.quiver import Position
from holdfast.remote import ClientSettings, RemoteQuiver
from holdfast.settings import Settings
from holdfast.signals import registry
from holdfast.signals.event import ArrowData
from holdfast.signals.signal import Form, Signal, Takes, in_raw_slot

ROWS = pa.record_batch({"n": [1, 2, 3]})
LINES = Signal(
    "toy-lines",
    Form.RAW,
    in_raw_slot("lines"),
    order_keys={"host": lambda event: event.payload.partition(b" ")[0].decode()},
)
TABLES = Signal("toy-tables", Form.ARROW, lambda kind, slots: {"spans", "attributes"} == {*slots})
TAKEN: list[ArrowData] = []


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    for one in (LINES, TABLES):
        registry.register(one)
    DELIVERED.clear()
    TAKEN.clear()
    yield
    for one in (LINES, TABLES):
        registry.unregister(one.name)


class NoSettings(Settings):
    """Nothing to set."""


class TableExporter:
    """Keeps bundles of record batches."""

    max_batch_events = 1
    max_batch_bytes = 1024 * 1024

    async def start(self) -> None:
        pass

    async def send(self, units: Sequence[ArrowData]) -> Answer:
        TAKEN.extend(units)
        return ALL_DELIVERED

    async def close(self) -> None:
        pass


def make(config: NoSettings, context: ExporterContext) -> TableExporter:
    return TableExporter()


def component(name: str, kind: Any, **members: Any) -> Component:
    """Return a component whose module has these members."""
    module = f"tests.graph.toys.made_{name}"
    sys.modules[module] = ModuleType(module)
    sys.modules[module].__dict__.update({"Config": NoSettings, **members})
    return Component(name, kind, module, "Of the tests.")


ARROW = Takes(frozenset({Form.ARROW}))
COMPONENTS_HERE = [
    component("agent", "receiver", produces=lambda config: ("toy-lines", "toy-tables")),
    component("lines", "receiver", produces=lambda config: ("toy-lines",)),
    component("odd", "receiver", produces=lambda config: ("lost",)),
    component("tables", "exporter", make=make, takes=lambda config: ARROW),
    component("all", "exporter", make=make, takes=lambda config: Takes(frozenset(Form))),
    component(
        "lineage_only", "exporter", make=make,
        takes=lambda config: Takes(signals=frozenset({"openlineage"})),
    ),
]  # fmt: skip
HERE = Registry([*TOYS, *COMPONENTS_HERE])


def errors(folder: Path, *lines: str) -> list[tuple[str, str]]:
    path = folder / "graph.yaml"
    path.write_text("\n".join(["nodes:", *(f"  {line}" for line in lines)]))
    try:
        load(path, registry=HERE)
    except BadConfig as error:
        return [(f"{one.line} {one.message}", one.hint) for one in error.findings]
    return []


# ----------------------------------------------------------------------------- validate


def test_a_destination_that_cannot_take_what_is_received_is_refused(tmp_path: Path) -> None:
    (found,) = errors(
        tmp_path,
        "in: {kind: receiver, type: agent, to: [out]}",
        "out: {kind: exporter, type: memory}",
    )
    message, hint = found
    assert message == (
        "3 'out' cannot take what 'in' receives: the exporter 'out' takes any signal (json, raw), "
        "not toy-tables (arrow)"
    )
    assert hint == "choose another one, or leave the signal out: `delivery: {signals: […]}`"


def test_a_processor_on_the_way_has_to_take_it_too(tmp_path: Path) -> None:
    (found,) = errors(
        tmp_path,
        "in: {kind: receiver, type: agent, to: [clean]}",
        "clean: {kind: processor, type: drop, to: [out]}",
        "out: {kind: exporter, type: all}",
    )
    assert "the processor 'clean' takes any signal (json, raw), not toy-tables (arrow)" in found[0]


@pytest.mark.parametrize("delivery", ["{signals: [toy-lines]}", "{signals: []}"])
def test_what_is_left_out_need_not_be_taken(tmp_path: Path, delivery: str) -> None:
    assert not errors(
        tmp_path,
        "in: {kind: receiver, type: agent, to: [out]}",
        f"out: {{kind: exporter, type: memory, delivery: {delivery}}}",
    )


def test_an_exporter_may_take_one_signal_alone(tmp_path: Path) -> None:
    (found,) = errors(
        tmp_path,
        "in: {kind: receiver, type: lines, to: [out]}",
        "out: {kind: exporter, type: lineage_only}",
    )
    assert "takes openlineage (json, raw), not toy-lines (raw)" in found[0]


def test_a_handler_of_dead_letters_has_to_take_what_is_received(tmp_path: Path) -> None:
    path = tmp_path / "graph.yaml"
    path.write_text(
        "nodes:\n"
        "  in: {kind: receiver, type: agent, to: [out]}\n"
        "  out: {kind: exporter, type: all}\n"
        "dead_letters: {handlers: {pager: {type: memory}}}\n"
    )
    with pytest.raises(BadConfig) as caught:
        load(path, registry=HERE)
    (found,) = caught.value.findings
    assert (found.line, found.message.partition(":")[0]) == (
        4,
        "'pager' cannot take what 'in' receives",
    )


def test_an_order_key_belongs_to_a_signal(tmp_path: Path) -> None:
    receiver = "in: {kind: receiver, type: lines, to: [out]}"
    out = "out: {{kind: exporter, type: memory, delivery: {{order: key{}}}}}"
    assert not errors(tmp_path, receiver, out.format(""))
    assert not errors(tmp_path, receiver, out.format(", key: host"))
    (found,) = errors(tmp_path, receiver, out.format(", key: root_job"))
    assert found == (
        "3 'out' has `order: key`, and toy-lines has no order key 'root_job'",
        "its order keys: host",
    )
    (found,) = errors(tmp_path, receiver, out.format(", key: hots"))
    assert "there is no order key 'hots'; known keys: host, job, root_job, run" in found[0]


def test_a_receiver_registers_its_signal_before_its_order_key_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "late_receiver.py").write_text(
        "from holdfast.settings import Settings as Config\n"
        "from holdfast.signals.registry import register\n"
        "from holdfast.signals.signal import Form, Signal, in_raw_slot\n"
        "register(Signal('late', Form.RAW, in_raw_slot('late'), {'hour': str}))\n"
        "def produces(config): return ('late',)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "graph.yaml"
    path.write_text(
        "nodes:\n"
        "  out: {kind: exporter, type: memory, "
        "delivery: {order: key, key: hour, signals: [late]}}\n"
        "  in: {kind: receiver, type: late, to: [out]}\n"
    )
    late = Component("late", "receiver", "late_receiver", "")
    try:
        graph = load(path, registry=Registry([late, *TOYS])).graph
    finally:
        registry.unregister("late")
        sys.modules.pop("late_receiver", None)
    assert graph.nodes["out"].delivery is not None
    assert graph.nodes["out"].delivery.key == "hour"


def test_a_signal_without_order_keys_is_delivered_as_received(tmp_path: Path) -> None:
    found = errors(
        tmp_path,
        "in: {kind: receiver, type: agent, to: [out]}",
        "out: {kind: exporter, type: all, delivery: {order: key}}",
    )
    assert found == [
        ("3 'out' has `order: key`, and toy-tables has no order key", "use `order: received`")
    ]


def test_a_receiver_of_an_unknown_signal_is_refused(tmp_path: Path) -> None:
    (found,) = errors(
        tmp_path,
        "in: {kind: receiver, type: odd, to: [out]}",
        "out: {kind: exporter, type: memory}",
    )
    assert found[0] == "2 'in' receives 'lost', which is not a signal"


def test_what_a_pipeline_of_the_file_writes_has_to_be_taken(tmp_path: Path) -> None:
    path = tmp_path / "graph.yaml"
    text = (
        "nodes:\n"
        "  in: {kind: receiver, type: lines, to: [held]}\n"
        "  held: {kind: processor, type: quiver, to: [out]}\n"
        "  results: {kind: processor, type: quiver, to: [far]}\n"
        "  out: {kind: exporter, type: memory}\n"
        "  far: {kind: exporter, type: memory}\n"
        "pipelines:\n"
        "  counts:\n"
        "    vertices:\n"
        "      events: {source: {quiver: held, decode: openlineage}}\n"
        "      write: {sink: {quiver: results}}\n"
        "    edges: [events -> write]\n"
    )
    path.write_text(text)
    with pytest.raises(BadConfig) as caught:
        load(path, registry=HERE)
    (found,) = (one for one in caught.value.findings if one.severity == "error")
    assert found.line == 6
    assert found.message == (
        "'far' cannot take what the pipeline sink 'counts.write' writes: the exporter 'far' takes "
        "any signal (json, raw), not rows (arrow)"
    )
    path.write_text(text.replace("type: memory}\npipelines", "type: tables}\npipelines"))
    load(path, registry=HERE)


def test_everything_that_comes_with_holdfast_takes_lineage(tmp_path: Path) -> None:
    lineage = registry.signal_named("openlineage")
    assert lineage is not None
    for one in COMPONENTS:
        if one.kind == "exporter" and one.extra is None:
            config = one.config_model.model_construct()
            assert one.takes(config).includes(lineage), one.type


# ------------------------------------------------------------------------------ running

GRAPH = """\
data_dir: data
flight: {listen: "127.0.0.1:0"}
nodes:
  lineage: {kind: receiver, type: openlineage, config: {listen: "127.0.0.1:0"}, to: [left]}
  left: {kind: exporter, type: memory}
"""


def append_rows(gateway: Gateway, rows: Any) -> int:
    access = gateway.access
    assert access is not None
    location, _, name = access.addresses["quiver"][0].rpartition("/")
    with RemoteQuiver.open(location, name, ClientSettings()) as quiver:
        return quiver.append(rows).seq


def test_rows_appended_over_flight_are_held_by_a_destination_that_cannot_take_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with running(gateway_of(tmp_path, GRAPH)) as gateway:
            assert await send(gateway, run_event()) == [200]
            seq = await asyncio.to_thread(append_rows, gateway, ROWS)
            assert await send(gateway, run_event()) == [200]

            async def is_held() -> bool:
                (one,) = (await gateway.statistics()).destinations
                # What was delivered is in the ledger a moment later: until then it waits, too.
                is_settled = one.figures.lag_events == ROWS.num_rows + 1
                return one.figures.state == "stalled" and is_settled

            await until_async(is_held)
            (one,) = (await gateway.statistics()).destinations
            assert one.figures.held is not None
            assert (one.figures.held.seq, one.figures.held.code) == (seq, "not_taken")
            assert (one.figures.filtered, len(DELIVERED["left"])) == (0, 1)
            assert one.figures.stalled_by == (
                f"event {seq}/0 is held: the exporter 'left' takes any signal (json, raw), "
                "not rows (arrow)"
            )
            await gateway.skip("left", Position(seq, 0), "a mistake")
            await until_async(lambda: len(DELIVERED["left"]) == 2)
            (stored,) = letters_in(gateway._quivers.letters.undelivered_quiver, "undelivered")
            unit = stored.letter.event()
            assert isinstance(unit, ArrowData)
            assert unit.slots == {"events": ROWS}

    with caplog.at_level(logging.ERROR, "holdfast.deliver"):
        asyncio.run(run())
    assert any("is held" in record.getMessage() for record in caplog.records)


def test_what_was_held_is_delivered_once_an_exporter_takes_it(tmp_path: Path) -> None:
    def gateway(kind: str) -> Gateway:
        path = tmp_path / "graph.yaml"
        path.write_text(GRAPH.replace("lineage: {kind", "unused: {kind").replace("memory", kind))
        return Gateway(load(path, registry=Registry([*REGISTRY, *COMPONENTS_HERE])).graph)

    slots = {"spans": ROWS, "attributes": ROWS}

    async def run() -> None:
        async with running(gateway("memory")) as before:
            seq = await asyncio.to_thread(append_rows, before, slots)

            async def is_held() -> bool:
                (one,) = (await before.statistics()).destinations
                return one.figures.held is not None

            await until_async(is_held)
        async with running(gateway("all")):
            await until_async(lambda: len(TAKEN) == 1)
        assert (TAKEN[0].position, TAKEN[0].signal) == (Position(seq, 0), "toy-tables")
        assert TAKEN[0].slots == slots

    asyncio.run(run())
