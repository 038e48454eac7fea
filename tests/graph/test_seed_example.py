"""The proposal's example forwards OTLP and OTAP to both of its exporters."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path

import pytest
from tests.graph.gateways import running
from tests.graph.test_before_buffer import export
from tests.graph.test_telemetry import graph_file
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.signals.otlp.telemetry import request

from holdfast.graph.loader import load
from holdfast.graph.runtime import Gateway
from holdfast.signals.otlp import codec
from holdfast.signals.otlp.kinds import OtlpKind

EXAMPLE = Path(__file__).parents[2] / "examples" / "seed.yaml"
PORTS = (4317, 4318, 1235, 14317)


def test_it_is_sound_and_says_how_it_is_read() -> None:
    (warning,) = load(EXAMPLE).warnings
    assert "is read as broadcast" in warning.message


@pytest.mark.slow
def test_each_exporter_s_receiver_counts_the_same_spans(tmp_path: Path) -> None:
    ports = {port: free_port() for port in PORTS}
    text = EXAMPLE.read_text()
    for port, free in ports.items():
        assert f"127.0.0.1:{port}" in text
        text = re.sub(rf"127\.0\.0\.1:{port}\b", f"127.0.0.1:{free}", text)
    text = text.replace("500GB", "1GB").replace("32MB", "1MB")
    backends = f"""\
nodes:
  otap_backend:
    kind: receiver
    type: otap
    config: {{listening_addr: "127.0.0.1:{ports[1235]}"}}
    to: [out]
  otlp_backend:
    kind: receiver
    type: otlp
    config: {{listening_addr: "127.0.0.1:{ports[14317]}"}}
    to: [out]
  out: {{kind: exporter, type: files, config: {{directory: out}}}}
"""
    sender = f"""\
nodes:
  telemetry:
    kind: receiver
    type: otlp
    config: {{listening_addr: "127.0.0.1:0"}}
    to: [tables]
  tables: {{kind: exporter, type: otap, config: {{url: "http://127.0.0.1:{ports[4318]}"}}}}
"""
    gateways = []
    for name, graph in (("there", backends), ("here", text), ("sender", sender)):
        (tmp_path / name).mkdir()
        gateways.append(Gateway(load(graph_file(tmp_path / name, graph)).graph))
    there, here, converts = gateways
    bodies = [request(OtlpKind.TRACES, random.Random(seed)) for seed in range(6)]
    spans = sum(codec.check(OtlpKind.TRACES, body) for body in bodies)

    async def counted() -> list[int]:
        told = (await there.statistics()).receivers
        return [told[name].items["traces"].accepted for name in ("otap_backend", "otlp_backend")]

    async def play() -> None:
        async with running(there), running(here), running(converts):
            ways = [here.addresses["otlp_receiver"][0], converts.addresses["telemetry"][0]]
            for number, body in enumerate(bodies):
                told = await asyncio.to_thread(export, ways[number % 2], OtlpKind.TRACES, body)
                assert told == "OK"
            async with asyncio.timeout(PATIENCE_S):
                while min(await counted()) < spans:
                    pass
            assert await counted() == [spans, spans]

    asyncio.run(play())
