"""Telemetry through a graph: in over OTLP, out to what can take it, and refused elsewhere."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from urllib.request import Request, urlopen

import orjson
import pyarrow.parquet as pq
import pytest
from tests.graph.gateways import running
from tests.patience import PATIENCE_S, until_async
from tests.signals.otlp.telemetry import request

from holdfast.errors import BadConfig
from holdfast.graph.loader import load
from holdfast.graph.runtime import Gateway
from holdfast.signals.otlp.json_form import request_document
from holdfast.signals.otlp.kinds import OtlpKind

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
    headers = {"content-type": "application/x-protobuf"}
    sent = Request(f"{address}{kind.http_path}", body, headers)
    with urlopen(sent, timeout=PATIENCE_S) as reply:
        status: int = reply.status
        return status


def lines(folder: Path) -> list[object]:
    files = sorted(folder.glob("*.ndjson"))
    return [orjson.loads(line) for file in files for line in file.read_bytes().splitlines()]


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

    documents = [request_document(kind, body) for kind, body in sent.items()]
    asyncio.run(play())
    assert lines(tmp_path / "all") == documents
    (file,) = (tmp_path / "spans").glob("*.parquet")
    assert pq.read_table(file).column("payload").to_pylist() == [sent[OtlpKind.TRACES]]


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
