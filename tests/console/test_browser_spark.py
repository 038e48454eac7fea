"""Pipelines, data nodes and traces in a real browser; what Spark would report is given."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.console.browser import CHROMIUM, WITHOUT_CHROMIUM, Page, page
from tests.console.running import RunningConsole, receiver
from tests.console.test_browser import WIDTHS, bars_nobody, click, says
from tests.graph.lineage import run_event
from tests.patience import PATIENCE_S
from tests.ports import free_port

from holdfast.dataflow.compiler.continuation import planned
from holdfast.dataflow.driver.wire import DriverFigures, PipelineFigures, QueryStatistics
from holdfast.demo.results import PIPELINES
from holdfast.operate.cli.dataflow.show import choose

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason=WITHOUT_CHROMIUM),
]

TRACE = "5b8efff798038103d269b633813fc60c"
SPAN = {
    "traceId": TRACE,
    "spanId": "eee19b7ec3c1b174",
    "name": "pay",
    "startTimeUnixNano": "1763200000000000000",
    "endTimeUnixNano": "1763200000001000000",
}
WHY = "gateway shop has a bundle that is not claimed yet"
FIGURES = DriverFigures(
    is_running=True,
    starts_total=2,
    pipelines={
        "counting": PipelineFigures(
            "running",
            restarts_total=1,
            queries=(
                QueryStatistics(
                    name="per_job",
                    is_running=True,
                    batch=41,
                    batches_total=12,
                    batch_s=1.25,
                    rows_total=12_304,
                    rows_per_s=310.5,
                    watermark="2026-11-15T10:00:00.000Z",
                    lag_s=4.2,
                    state_rows=8,
                    state_bytes=4096,
                    left_out_total=0,
                    counts={"written.counts": 96, "late.per_job": 7, "failed.parse": 3},
                ),
            ),
        ),
        "broken": PipelineFigures("refused", error="the plan was edited: the key of per_job"),
    },
)


@pytest.fixture
def console(tmp_path: Path) -> Iterator[RunningConsole]:
    """A gateway with two pipelines, a data node that does not answer, and telemetry."""
    copies = {"nodes": {"node-a": f"127.0.0.1:{free_port()}"}, "probe_interval": "100ms"}
    archive = {"kind": "exporter", "type": "files", "config": {"directory": "archive"}}
    listen = {"http_listening_addr": "127.0.0.1:0"}
    nodes: dict[str, Any] = {
        "lineage": receiver("buffer"),
        "telemetry": {"kind": "receiver", "type": "otlp", "config": listen, "to": ["spans"]},
        "buffer": {"kind": "processor", "type": "quiver", "to": ["copies", "archive"]},
        "spans": {"kind": "processor", "type": "quiver", "to": ["traces"]},
        "copies": {"kind": "exporter", "type": "nodes", "config": copies},
        "archive": archive,
        "traces": {**archive, "config": {"directory": "traces"}},
    }
    pipelines = {"counting": PIPELINES["counting"], "broken": PIPELINES["counting"]}
    running = RunningConsole(tmp_path, nodes, pipelines=pipelines)
    running.driver = FIGURES
    with running:
        assert running.send(json.dumps(run_event()).encode()) == [200]
        _send_span(running)
        _note_what_holds(running)
        yield running


def _send_span(console: RunningConsole) -> None:
    (address,) = console.gateway.addresses["telemetry"]
    port = int(address.rpartition(":")[2])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [SPAN]}]}]})
    connection.request("POST", "/v1/traces", body, {"Content-Type": "application/json"})
    assert connection.getresponse().status == 200
    connection.close()


def _note_what_holds(console: RunningConsole) -> None:
    """Write what a stream notes about its watermark."""
    chosen = choose(str(console.file), "counting")
    (query, *_) = planned(chosen.name, chosen.pipeline, chosen.places.state_dir).queries
    folder = Path(str(chosen.places.checkpoint(query))) / "holdfast"
    folder.mkdir(parents=True)
    now_us = time.time_ns() // 1000
    hold = {"gateway": "shop", "bound_us": now_us - 4_000_000, "reason": "unclaimed"}
    note = {
        "claim_us": now_us - 4_000_000,
        "explanation": WHY,
        "holds": [{**hold, "silent_since_us": None}],
        "is_released": False,
        "written_us": now_us,
    }
    (folder / "counting.events.watermark.json").write_text(json.dumps(note))


def test_pipelines_nodes_and_traces(console: RunningConsole) -> None:
    async def look() -> None:
        async with page() as tab:
            await tab.open(f"{console.address}/#token={console.token}")
            for width in WIDTHS:
                await tab.resize(width, 900, dark=width == WIDTHS[1])
                await _pipelines(tab, console, width)
                await _nodes(tab, console, width)
                await _trace(tab, console, width)
            await _keep_pictures(tab, console)
            assert tab.errors == []

    asyncio.run(look())


async def _fits(tab: Page, width: int, path: str) -> None:
    assert await tab.run("document.documentElement.scrollWidth") <= width, path
    await bars_nobody(tab, path)


async def _pipelines(tab: Page, console: RunningConsole, width: int) -> None:
    await tab.open(f"{console.address}/pipelines")
    for text in ("per_job", "2026-11-15T10:00:00.000Z", "4.2 s", "8 rows", "late per job 7"):
        await says(tab, text)
    for text in ("failed parse 3", "the plan was edited", "Restarted 1 time."):
        await says(tab, text)
    await click(tab, "What holds the watermark")
    await says(tab, WHY)
    await says(tab, "unclaimed")
    await _fits(tab, width, "/pipelines")


async def _nodes(tab: Page, console: RunningConsole, width: int) -> None:
    await tab.open(f"{console.address}/nodes")
    await says(tab, "node-a")
    await click(tab, "Pause")
    await says(tab, "node-a is paused. Parts wait for it.")
    await tab.open(f"{console.address}/nodes")
    await click(tab, "Resume")
    await says(tab, "node-a is resumed.")
    await _fits(tab, width, "/nodes")


async def _trace(tab: Page, console: RunningConsole, width: int) -> None:
    await tab.open(f"{console.address}/events?q={TRACE}")
    await says(tab, "traces: acked")
    await _fits(tab, width, "/events")


async def _keep_pictures(tab: Page, console: RunningConsole) -> None:
    """Keep pictures, for whoever wants to look: HOLDFAST_PICTURES names a folder."""
    folder = os.environ.get("HOLDFAST_PICTURES")
    for width in WIDTHS if folder else ():
        await tab.resize(width, 900, dark=width == WIDTHS[1])
        for path in ("/pipelines", "/nodes", f"/events?q={TRACE}"):
            await tab.open(f"{console.address}{path}")
            if path == "/pipelines":
                await click(tab, "What holds the watermark")
                await says(tab, WHY)
            if TRACE in path:
                await says(tab, "traces: acked")
            name = path.partition("?")[0].strip("/")
            picture = await tab.screenshot()
            await asyncio.to_thread(Path(f"{folder}/{name}-{width}.png").write_bytes, picture)
