"""`holdfast bench otel --quick` runs all its sections against real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.bench.otel_process import collector_program

FIGURES = {
    *(
        f"{name}{suffix}"
        for name in ("grpc_vs_plain", "http_vs_plain", "plain_control", "spans_per_s")
        for suffix in ("", "_1000")
    ),
    *("join_vs_single", "join_vs_single_control", "rss_mb", "rss_in_flight_mb"),
    *("scan_vs_parquet", "scan_vs_parquet_unkept", "scan_spans_per_s", "scan_first_spans_per_s"),
    "scan_vs_parquet_control",
    *(f"flat_vs_parse{suffix}" for suffix in ("", "_logs", "_points")),
    *(f"flat_vs_parse_control{suffix}" for suffix in ("", "_logs", "_points")),
    *(f"persistence_{what}_ratio" for what in ("cpu", "throughput", "p99")),
    *("otap_vs_otlp_bytes", "otap_vs_joined_otlp_bytes", "otap_vs_otlp_wire_bytes"),
    *(f"otap{way}_rows_per_s" for way in ("", "_from_otlp", "_to_otlp")),
}
COLLECTOR_FIGURES = {
    f"vs_otelcol_durable{ending}{suffix}"
    for ending in ("", "_control", "_cpu", "_1_senders", "_16_senders")
    for suffix in ("", "_1000")
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_figure_is_measured(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast", "bench", "otel", "--quick", "--json"]
    done = subprocess.run(
        [*command, "--dir", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    expected = FIGURES
    if collector_program() is None:
        assert found["vs_otelcol_durable"] == "skipped"
    else:
        assert found["otelcol_lost"] == found["holdfast_lost"] == 0
        expected = FIGURES | COLLECTOR_FIGURES
    assert found["spread"].keys() >= expected
    assert all(found[name] > 0 for name in expected)
    assert not list(tmp_path.iterdir())
