"""Memory: of an idle gateway, and of one with a large backlog for a backend that is dead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from holdfast.bench.figures import Figures
from holdfast.bench.gateway_accept import run_load
from holdfast.bench.gateway_forward import fill, post_paced
from holdfast.bench.gateway_load import EVENT_BYTES, Load
from holdfast.bench.gateway_process import MeasuredGateway, free_ports, http_exporter, running
from holdfast.bench.scale import GatewayScale

SENDERS = 16


def measure_memory(
    folder: Path, scale: GatewayScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Measure resident memory; `anonymous` leaves out mapped files, which the kernel may drop."""
    progress(f"memory: idle, and with a backlog of {scale.backlog_mb:,} MB")
    (dead,) = free_ports(1)
    exporters = {"backend": http_exporter(dead)}
    idle = MeasuredGateway(folder / "idle-memory", exporters=exporters)
    with running(idle):
        asyncio.run(post_paced(idle.port, 3, 0.01))
        figures.add("rss_mb", [idle.rss_mb()])
        figures.add("anonymous_mb", [idle.anonymous_mb()])
    place = folder / "backlog-memory"
    fill(place / "quiver" / "core-00", scale.backlog_mb * 1_000_000 // EVENT_BYTES)
    loaded = MeasuredGateway(place, exporters=exporters)
    with running(loaded):
        run_load(Load("http", loaded.port, scale.seconds, SENDERS))
        figures.add("rss_backlog_mb", [loaded.rss_mb()])
        figures.add("anonymous_backlog_mb", [loaded.anonymous_mb()])
