"""Telemetry through a graph: in over OTLP, out to what can take it, and refused elsewhere."""

from __future__ import annotations

import asyncio
import json
import random
import re
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import orjson
import pyarrow.parquet as pq
import pytest
from tests.graph.gateways import running
from tests.patience import PATIENCE_S, until_async
from tests.signals.otlp.telemetry import request

from holdfast.deliver import delivery
from holdfast.deliver.statistics import DeliveredItems
from holdfast.errors import BadConfig
from holdfast.graph.control import gateway_verbs
from holdfast.graph.loader import load
from holdfast.graph.runtime import Gateway
from holdfast.signals.otlp import codec
from holdfast.signals.otlp.json_form import request_document
from holdfast.signals.otlp.kinds import OtlpKind

EXAMPLES = Path(__file__).parents[2] / "examples"
GRAPH = """\
nodes:
  telemetry:
    kind: receiver
    type: otlp
    config: {listening_addr: "127.0.0.1:0", http_listening_addr: "127.0.0.1:0"}
    to: [all, spans]
  all: {kind: exporter, type: files, config: {directory: all, max_file_age: 10ms}}
  spans:
    kind: exporter
    type: files
    config: {directory: spans, format: parquet, max_file_age: 10ms}
    delivery: {signals: [traces]}
"""


def graph_file(folder: Path, text: str = GRAPH) -> Path:
    path = folder / "graph.yaml"
    path.write_text(text)
    return path


def send(address: str, kind: OtlpKind, body: bytes) -> int:
    headers = {"content-type": "application/x-protobuf", "x-scope-orgid": "tenant-1"}
    sent = Request(f"{address}{kind.http_path}", body, headers)
    with urlopen(sent, timeout=PATIENCE_S) as reply:
        status: int = reply.status
        return status


def lines(folder: Path) -> list[object]:
    files = sorted(folder.glob("*.ndjson"))
    return [orjson.loads(line) for file in files for line in file.read_bytes().splitlines()]


async def until_settled(gateway: Gateway) -> None:
    """Wait for the ledger: what has arrived is in it a moment later."""

    async def is_settled() -> bool:
        return not any((await gateway.lag_events()).values())

    await until_async(is_settled)


def test_all_signals_are_written_as_otlp_json_and_one_as_it_came(tmp_path: Path) -> None:
    sent = {kind: request(kind, random.Random(1)) for kind in OtlpKind}
    gateway = Gateway(load(graph_file(tmp_path)).graph)

    async def play() -> None:
        async with running(gateway):
            _, address = gateway.addresses["telemetry"]
            for kind, body in sent.items():
                assert await asyncio.to_thread(send, address, kind, body) == 200
            await until_async(lambda: len(lines(tmp_path / "all")) == len(sent))
            await until_async(lambda: bool(list((tmp_path / "spans").glob("*.parquet"))))
            await until_settled(gateway)
            (everything, spans) = (await gateway.statistics()).destinations
            items = {kind: codec.check(kind, body) for kind, body in sent.items()}
            assert everything.figures.items == {
                kind.value: DeliveredItems(sent=count) for kind, count in items.items()
            }
            # What `delivery.signals` leaves out was never meant for it, and is not counted.
            assert spans.figures.items == {"traces": DeliveredItems(sent=items[OtlpKind.TRACES])}
            assert everything.figures.queue_age_s == {}
            ask = gateway_verbs(gateway, asyncio.get_running_loop())["status"]
            status = json.loads(json.dumps(await asyncio.to_thread(ask, {})))
            spans_sent = status["destinations"][1]["items"]["traces"]["sent"]
            assert spans_sent == items[OtlpKind.TRACES]

    documents = [request_document(kind, body) for kind, body in sent.items()]
    asyncio.run(play())
    assert lines(tmp_path / "all") == documents
    (file,) = (tmp_path / "spans").glob("*.parquet")
    assert pq.read_table(file).column("payload").to_pylist() == [sent[OtlpKind.TRACES]]


PROCESSED = """\
nodes:
  telemetry:
    kind: receiver
    type: otlp
    config: {listening_addr: "127.0.0.1:0", http_listening_addr: "127.0.0.1:0"}
    to: [buffer]
  buffer: {kind: processor, type: quiver, to: [useful]}
  useful:
    kind: processor
    type: filter_items
    config: {drop: [{signals: [traces], name: ["GET *"]}, {service: ["service-1"]}]}
    to: [marked]
  marked:
    kind: processor
    type: attributes
    config: {actions: [{action: insert, key: env, value: prod, at: resource}]}
    to: [all]
  all: {kind: exporter, type: files, config: {directory: all, max_file_age: 10ms}}
"""


@pytest.mark.parametrize("inline_bytes", [0, 256 * 1024], ids=["in a thread", "on the loop"])
def test_what_item_processors_drop_is_filtered_and_counted_in_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline_bytes: int
) -> None:
    monkeypatch.setattr(delivery, "PREPARED_INLINE_BYTES", inline_bytes)
    # The seed makes two resources, one for each service.
    sent = {kind: request(kind, random.Random(5)) for kind in OtlpKind}
    halves = {kind: codec.split(body, 1)[0] for kind, body in sent.items()}
    assert all(len(codec.split(body, 1)) == 2 for body in sent.values())
    gateway = Gateway(load(graph_file(tmp_path, PROCESSED)).graph)

    async def play() -> None:
        async with running(gateway):
            _, address = gateway.addresses["telemetry"]
            for kind, body in sent.items():
                assert await asyncio.to_thread(send, address, kind, body) == 200
            await until_async(lambda: len(lines(tmp_path / "all")) == 2)
            await until_settled(gateway)
            told = await gateway.statistics()
            items = {kind: codec.check(kind, body) for kind, body in sent.items()}
            kept = {kind: codec.check(kind, body) for kind, body in halves.items()}
            kept[OtlpKind.TRACES] = 0
            assert told.destinations[0].figures.items == {
                kind.value: DeliveredItems(sent=kept[kind], filtered=items[kind] - kept[kind])
                for kind in OtlpKind
            }
            ((quiver,),) = told.quivers.values()
            (account,) = quiver.subscribers
            assert account.outcomes["filtered"].events == 1, "of the traces nothing is left"
            assert account.outcomes["acked"].events == 2

    asyncio.run(play())
    arrived: Any = lines(tmp_path / "all")
    for kind, document in zip((OtlpKind.METRICS, OtlpKind.LOGS), arrived, strict=True):
        (resource,) = document[kind.json_field]
        assert resource["resource"]["attributes"].pop() == {
            "key": "env",
            "value": {"stringValue": "prod"},
        }
        assert document == request_document(kind, halves[kind])


def test_data_points_are_not_sampled(tmp_path: Path) -> None:
    text = PROCESSED.replace("type: filter_items", "type: sample")
    text = re.sub("config: {drop.*", "config: {ratio: 0.1}", text)
    with pytest.raises(BadConfig) as caught:
        load(graph_file(tmp_path, text))
    (found,) = caught.value.findings
    assert "'useful' takes logs, traces (protobuf), not metrics" in found.message
    load(
        graph_file(tmp_path, text.replace("10ms}}", "10ms}, delivery: {signals: [traces, logs]}}"))
    )


@pytest.mark.parametrize(
    "other",
    [
        'kind: exporter, type: http, config: {url: "http://127.0.0.1:9"}',
        'kind: processor, type: filter, config: {drop: [{job_name: ["a*"]}]}, to: [all]',
    ],
)
def test_what_is_made_for_lineage_does_not_get_telemetry(tmp_path: Path, other: str) -> None:
    text = GRAPH.replace("to: [all, spans]", "to: [all, spans, other]")
    with pytest.raises(BadConfig) as caught:
        load(graph_file(tmp_path, f"{text}  other: {{{other}}}\n"))
    assert any("traces" in one.message for one in caught.value.findings)


def test_only_what_promises_no_order_comes_newest_first(tmp_path: Path) -> None:
    text = GRAPH.replace(
        "max_file_age: 10ms}}", "max_file_age: 10ms}, delivery: {after_outage: newest_first}}"
    )
    load(graph_file(tmp_path, text))
    lineage = "  lineage: {kind: receiver, type: openlineage, to: [all, spans]}\n"
    with pytest.raises(BadConfig) as caught:
        load(graph_file(tmp_path, text + lineage))
    (found,) = caught.value.findings
    assert (
        "'all' is delivered newest first after an outage, and openlineage promises" in found.message
    )


def test_workers_need_no_order_key_where_nothing_promises_an_order(tmp_path: Path) -> None:
    text = "workers: 2\n" + GRAPH.replace(":0", ":4317", 1).replace(":0", ":4318", 1)
    load(graph_file(tmp_path, text))
    lineage = """\
  lineage: {kind: receiver, type: openlineage, to: [all, spans]}
"""
    with pytest.raises(BadConfig) as caught:
        load(graph_file(tmp_path, text + lineage))
    # The other destination leaves lineage out.
    (found,) = [one for one in caught.value.findings if "order received" in one.message]
    assert "'all' is delivered in the order received" in found.message


def test_the_example_hands_on_what_it_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = {kind: request(kind, random.Random(2)) for kind in OtlpKind}
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    text = (EXAMPLES / "collector.yaml").read_text()
    for port in (4317, 4318):
        assert f"127.0.0.1:{port}\n" in text
        text = text.replace(f"127.0.0.1:{port}\n", "127.0.0.1:0\n")
    record = GRAPH.replace("directory: all,", "directory: all, content: record,")
    record = record.replace('listening_addr: "127.0.0.1:0", ', "keep_headers: [X-Scope-OrgID], ", 1)
    record = record.replace("{keep_headers", '{listening_addr: "127.0.0.1:0", keep_headers')
    second = Gateway(load(graph_file(tmp_path / "second", record)).graph)

    async def play() -> None:
        async with running(second):
            backend = second.addresses["telemetry"][0].replace("grpc://", "http://")
            monkeypatch.setenv("OTLP_BACKEND_URL", backend)
            first = Gateway(load(graph_file(tmp_path / "first", text)).graph)
            async with running(first):
                _, address = first.addresses["telemetry"]
                for kind, body in sent.items():
                    assert await asyncio.to_thread(send, address, kind, body) == 200
                await until_async(lambda: len(lines(tmp_path / "second" / "all")) == len(sent))

    asyncio.run(play())
    lake = tmp_path / "first" / "telemetry_lake"
    assert {path.relative_to(lake).parts[0] for path in lake.rglob("*.parquet")} == {
        *("spans", "logs", "points")
    }
    arrived: list[Any] = lines(tmp_path / "second" / "all")
    assert {one["slot"]: one["headers"] for one in arrived} == {
        kind.slot: {"x-scope-orgid": "tenant-1"} for kind in OtlpKind
    }
    assert [one["event"] for one in arrived] == [
        request_document(kind, body) for kind, body in sent.items()
    ]
