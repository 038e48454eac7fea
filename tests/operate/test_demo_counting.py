"""The pipeline of the demo as its audience sees it, without Spark."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tests.operate.test_drivers import FIGURES

from holdfast.dataflow.driver.wire import DriverFigures
from holdfast.dataflow.spec import PipelineSettings, check
from holdfast.demo.results import PIPELINES, Counting, PipelineView, can_count
from holdfast.operate.gateway_metrics import driver_records, render_records


def test_its_pipeline_is_sound() -> None:
    for pipeline in PIPELINES.values():
        assert list(check(PipelineSettings.model_validate(pipeline))) == []
    assert can_count(), "the tests have Spark and Java"


def test_what_it_counted_is_in_windows_or_late(tmp_path: Path) -> None:
    counting = Counting(tmp_path, tmp_path / "gateway.yaml", 0)
    assert counting.counted() == 0
    for name, rows in (("counts", [{"events": 3}, {"events": 4}]), ("late", [{"job": "a"}])):
        (tmp_path / name).mkdir()
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name / "part.parquet")
    pq.write_table(pa.Table.from_pylist([{"events": 5}]), tmp_path / "counts" / "more.parquet")
    assert counting.counted() == 13


def test_it_shows_what_the_admin_port_says(tmp_path: Path) -> None:
    text = render_records(driver_records(DriverFigures(True, 1, FIGURES))).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    view = PipelineView()
    try:
        Counting(tmp_path, tmp_path / "gateway.yaml", server.server_port).look(view)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    moment = datetime(2026, 5, 1, 10, tzinfo=UTC)
    assert view == PipelineView("running", 100, 12.5, moment)
    # The gateway is dead: the driver went with it.
    Counting(tmp_path, tmp_path / "gateway.yaml", server.server_port).look(view)
    assert view == PipelineView()
