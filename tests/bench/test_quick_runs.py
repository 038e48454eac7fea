"""`holdfast bench NAME --quick` runs all its sections against real processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.support.sessions import run_apart

from holdfast.bench.scale import HANDOFF_FULL

_HANDOFF = (
    *("drain_vs_flight", "adopt_vs_append", "adopt_vs_transactions", "adopt_vs_bulk"),
    *("healthy_node_ratio", "store_amplification", "fairness"),
)
# What issue and documentation name; each has a median and a spread.
FIGURES = {
    "dataflow": {
        "plain_rows_per_s",
        "parquet_rows_per_s",
        "plain_vs_parquet",
        "plain_cpu_us_per_row",
        "parquet_cpu_us_per_row",
        "flight_vs_mmap",
        "batch_p50_ms",
        "batch_p99_ms",
        "python_map_rows_per_s",
        "python_reducer_rows_per_s",
        "native_window_rows_per_s",
        "native_window_control",
        "plain_vs_parquet_control",
        "window_vs_parquet",
        "window_vs_parquet_control",
        "stream_window_rows_per_s",
        "stream_window_by_rows_rows_per_s",
        "stream_window_vs_batch",
        "stream_window_vs_rows",
        "stream_window_control",
        "arrow_reduce_rows_per_s",
        "event_to_result_p50_s",
        "event_to_result_p99_s",
    },
    "gateway": {
        "durable_events_per_s",
        "cpu_us_per_event",
        "syncs_per_event",
        "p50_ms",
        "p99_ms",
        "memory_level_ratio",
        "vs_jetstream_sync",
        "jetstream_client_cpu_ratio",
        "rss_mb",
        "rss_backlog_mb",
        "idle_forward_ms",
        "deliver_events_per_s",
        "deliver_vs_bare_client",
        "dead_neighbour_p50_ratio",
        "validation_vs_parse",
    },
    "handoff": {
        *_HANDOFF,
        *(f"{name}_control" for name in _HANDOFF),
        "startup_s",
        "startup_segments_s",
        "node_startup_s",
        "health_bytes",
    },
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_measured(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast", "bench", name, "--quick", "--json"]
    done = run_apart([*command, "--dir", str(tmp_path)], timeout_s=None)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["spread"].keys() >= FIGURES[name]
    assert all(found[figure] > 0 for figure in FIGURES[name])
    assert not list(tmp_path.iterdir())
    if name == "dataflow":
        assert found["idle_batches_per_minute"] == 0
        bars = {"plain_vs_parquet", "window_vs_parquet", "stream_window_vs_batch"}
        assert found["bars"].keys() == {*bars, "idle_batches_per_minute"}
    if name == "handoff":
        assert found["store_amplification"] < 1.1
        assert found["fairness"] >= 1
        assert found["health_known_bytes"] <= found["health_bytes"]


def test_a_backlog_has_enough_quanta_for_fairness_to_be_more_than_their_size() -> None:
    assert HANDOFF_FULL.fairness_quanta >= 20
    assert HANDOFF_FULL.parts >= HANDOFF_FULL.fairness_quanta
    assert (HANDOFF_FULL.waiting_bundles, HANDOFF_FULL.waiting_segments) == (1_000_000, 100_000)
