"""Without a buffer: a receiver answers when every destination has it, and says so at the start."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from pathlib import Path
from urllib.error import HTTPError

import pytest
from tests.graph.files import findings
from tests.graph.gateways import address, gateway_of, running, send
from tests.graph.lineage import post, run_event
from tests.graph.test_telemetry import GRAPH as OTLP
from tests.graph.test_telemetry import graph_file
from tests.graph.test_telemetry import send as send_otlp
from tests.graph.toys import exporter as toy
from tests.graph.toys.exporter import DELIVERED, REFUSING
from tests.ports import free_port
from tests.signals.otlp.telemetry import request

from holdfast.dead_letters.stored import letters_in
from holdfast.deliver.direct import DirectInlet
from holdfast.deliver.exporter import Answer, Failure, FailureClass, all_failed
from holdfast.deliver.exporters.files import FilesExporter
from holdfast.graph.loader import load
from holdfast.graph.printing import as_text
from holdfast.graph.reload import reload
from holdfast.graph.runtime import Gateway
from holdfast.seam.clock import RealClock
from holdfast.signals.event import Event, Unit
from holdfast.signals.otap import to_otlp
from holdfast.signals.otap.from_otlp import otap_of
from holdfast.signals.otap.to_otlp import otlp_of
from holdfast.signals.otap_units import HEADERS_SLOT, headers_table
from holdfast.signals.otlp import codec
from holdfast.signals.otlp.kinds import OtlpKind

GRAPH = """\
data_dir: data
persistence: none
nodes:
  lineage:
    kind: receiver
    type: openlineage
    config: {listen: "127.0.0.1:0"}
    to: [one, clean]
  clean: {kind: processor, type: drop, config: {drop: "secret", fail: "broken"}, to: [two]}
  one: {kind: exporter, type: memory}
  two: {kind: exporter, type: memory}
"""


@pytest.fixture(autouse=True)
def nothing_delivered() -> None:
    DELIVERED.clear()
    REFUSING.clear()


def test_an_event_is_answered_when_all_have_it_and_nothing_is_on_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "holdfast.graph")
    gateway = gateway_of(tmp_path, GRAPH)

    async def play() -> None:
        async with running(gateway):
            assert await send(gateway, run_event(job="a"), run_event(job="secret")) == [200, 200]
            assert (len(DELIVERED["one"]), len(DELIVERED["two"])) == (2, 1)
            told = await gateway.statistics()
            assert told.quivers == {}
            assert told.receivers["lineage"].accepted == 2
            one, two = (found.figures for found in told.destinations)
            assert (one.sent_events, two.sent_events, two.filtered) == (2, 1, 1)
            assert await gateway.not_ready() == []

    asyncio.run(play())
    assert "persistence is off: nothing is kept, and receivers answer when one, two have" in (
        caplog.text
    )
    assert {path.name for path in (tmp_path / "data").iterdir()} == {"dead_letters"}


def test_a_destination_that_does_not_take_it_is_a_503(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = gateway_of(tmp_path, GRAPH)
    away = Failure(FailureClass.TRANSIENT, "away", code="502", retry_after_s=7.0)
    real = toy.MemoryExporter.send

    async def send_once(self: toy.MemoryExporter, events: list[object]) -> Answer:
        if self._name == "two":
            return all_failed(len(events), away)
        return await real(self, events)  # type: ignore[arg-type]

    async def play() -> None:
        async with running(gateway):
            with monkeypatch.context() as patched:
                patched.setattr(toy.MemoryExporter, "send", send_once)
                status, told = await asyncio.to_thread(post, address(gateway), run_event())
            assert (status, told["reason"]) == (503, "unavailable")
            assert "the destination two did not take it: transient 502: away" in told["message"]
            statistics = await gateway.statistics()
            assert statistics.receivers["lineage"].accepted == 0
            assert statistics.destinations[1].figures.state == "backing_off"
            assert await send(gateway, run_event()) == [200]
            # A processor that raises is none that took it.
            assert await send(gateway, run_event(job="broken")) == [503]

    asyncio.run(play())


def test_what_is_refused_for_good_is_a_dead_letter_and_can_be_sent_again(tmp_path: Path) -> None:
    gateway = gateway_of(tmp_path, GRAPH)
    REFUSING.add("one")

    async def play() -> None:
        async with running(gateway):
            assert await send(gateway, run_event()) == [200]
            letters = letters_in(gateway._quivers.letters.undelivered_quiver, "undelivered")
            (letter,) = [stored.letter for stored in letters]
            assert (letter.destination, letter.reason) == ("one", "permanent")
            assert len(DELIVERED["two"]) == 1
            REFUSING.clear()
            assert gateway.tap("one", 0)["passed"] == 0
            again = await gateway.replay_dead_letters({"destination": "one"})
            assert (again["delivered"], len(DELIVERED["one"])) == (1, 1)
            assert gateway.tap("one", 0)["passed"] == 1

    asyncio.run(play())


@pytest.mark.parametrize("kind", list(OtlpKind))
def test_tables_are_sent_as_from_a_quiver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: OtlpKind
) -> None:
    graph = """\
persistence: none
nodes:
  in: {kind: receiver, type: otap, config: {listening_addr: "127.0.0.1:0"}, to: [one]}
  one: {kind: exporter, type: files, config: {directory: out}}
"""
    body = request(kind, random.Random(3))
    (tables,) = otap_of(kind, [body])
    taken: list[Unit] = []
    threads: list[threading.Thread] = []

    async def send_files(_: object, events: list[Unit]) -> Answer:
        taken.extend(events)
        return Answer()

    def convert(*given: object) -> list[bytes]:
        threads.append(threading.current_thread())
        return otlp_of(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(FilesExporter, "send", send_files)
    monkeypatch.setattr(to_otlp, "otlp_of", convert)
    gateway = Gateway(load(graph_file(tmp_path, graph)).graph)

    async def play() -> None:
        async with running(gateway):
            inlet = DirectInlet(gateway._quivers.direct, RealClock())
            stored = {**tables, HEADERS_SLOT: headers_table({"x-tenant": "one"})}
            await inlet.append_async(stored)
            (counted,) = (await gateway.statistics()).destinations
            assert counted.figures.items[kind.value].sent == codec.check(kind, body)

    asyncio.run(play())
    (event,) = taken
    assert isinstance(event, Event)
    assert dict(event.headers) == {"x-tenant": "one"}
    assert codec.contents(kind, event.payload) == codec.contents(kind, body)
    assert all(one is not threading.main_thread() for one in threads), "it took the event loop"


def test_telemetry_goes_from_one_gateway_to_another(tmp_path: Path) -> None:
    port = free_port()
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    sent = {kind: request(kind, random.Random(1)) for kind in OtlpKind}
    first = f"""\
persistence: none
nodes:
  telemetry:
    kind: receiver
    type: otlp
    config: {{listening_addr: "127.0.0.1:0", http_listening_addr: "127.0.0.1:0"}}
    to: [backend]
  backend: {{kind: exporter, type: otlp, config: {{url: "http://127.0.0.1:{port}"}}}}
"""
    backend = OTLP.replace("127.0.0.1:0", f"127.0.0.1:{port}", 1)
    near = Gateway(load(graph_file(tmp_path / "first", first)).graph)
    far = Gateway(load(graph_file(tmp_path / "second", backend)).graph)

    async def play() -> None:
        async with running(near):
            _, http_address = near.addresses["telemetry"]
            body = sent[OtlpKind.LOGS]
            with pytest.raises(HTTPError, match="503"):
                await asyncio.to_thread(send_otlp, http_address, OtlpKind.LOGS, body)
            async with running(far):
                for kind, body in sent.items():
                    assert await asyncio.to_thread(send_otlp, http_address, kind, body) == 200
                accepted = (await far.statistics()).receivers["telemetry"].items
                assert {name: counts.accepted for name, counts in accepted.items()} == {
                    kind.value: codec.check(kind, body) for kind, body in sent.items()
                }

    asyncio.run(play())


def test_what_needs_a_quiver_is_refused_and_none_is_drawn(tmp_path: Path) -> None:
    nodes = """\
persistence: none
nodes:
  in: {kind: receiver, type: toy, to: [hold]}
  hold: {kind: processor, type: quiver, to: [out]}
  out: {kind: exporter, type: memory}
flight: {listen: "127.0.0.1:0"}
"""
    assert [one.partition(" error ")[2] for one in findings(tmp_path, nodes)] == [
        "'hold' is a quiver, and the file says `persistence: none`",
        "there is nothing to be served: the file says `persistence: none`",
    ]
    gateway = gateway_of(tmp_path, GRAPH)
    assert as_text(gateway.graph).splitlines() == ["lineage -> one", "lineage -> clean",
                                                   "clean -> two"]  # fmt: skip


def test_what_waits_in_a_quiver_that_the_file_no_longer_has_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def start(gateway: Gateway) -> None:
        async with running(gateway):
            pass

    for graph in (GRAPH.replace("persistence: none\n", ""), GRAPH):
        assert "what waits in it" not in caplog.text
        asyncio.run(start(gateway_of(tmp_path, graph)))
    core = tmp_path / "data" / "quiver" / "core-00"
    assert f"{core} is no quiver of the file: what waits in it" in caplog.text


def test_a_change_of_its_nodes_needs_a_restart(tmp_path: Path) -> None:
    gateway = gateway_of(tmp_path, GRAPH)

    async def play() -> None:
        async with running(gateway):
            other = gateway_of(tmp_path, GRAPH.replace('"secret"', '"hidden"')).graph
            report = await reload(gateway, other)
            assert report.needs_restart == ["the nodes of a graph that keeps nothing"]

    asyncio.run(play())
