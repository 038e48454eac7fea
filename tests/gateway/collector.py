"""The OpenTelemetry Collector as a neighbour: where it is, and processes of it."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.gateway.telemetry import Arrivals
from tests.patience import PATIENCE_S, until
from tests.ports import free_port

from holdfast.prove.journal import whole_lines
from holdfast.prove.runner import listens
from holdfast.signals.otlp.kinds import OtlpKind

BUILT = Path(__file__).parents[2] / "build" / "collectors" / "otelcol"
OTELCOL = Path(os.environ.get("HOLDFAST_OTELCOL", BUILT))

needs_collector = pytest.mark.skipif(
    not OTELCOL.exists(), reason="needs the OpenTelemetry Collector: make setup-collectors"
)


class Collector:
    """A process that receives OTLP, over gRPC and HTTP, and hands it to one exporter.

    With another receiver, what that takes, over gRPC alone.
    """

    def __init__(
        self, folder: Path, exporter: str, settings: dict[str, Any], receiver: str = "otlp"
    ) -> None:
        folder.mkdir()
        self.grpc_port, self.http_port = free_port(), free_port()
        self._log = folder / "collector.log"
        self._config = folder / "collector.yaml"
        self._process: subprocess.Popen[bytes] | None = None
        ports = {"grpc": self.grpc_port}
        if receiver == "otlp":
            ports["http"] = self.http_port
        self._ports = tuple(ports.values())
        protocols = {name: {"endpoint": f"127.0.0.1:{port}"} for name, port in ports.items()}
        pipeline = {"receivers": [receiver], "exporters": [exporter]}
        whole = {
            "receivers": {receiver: {"protocols": protocols}},
            "exporters": {exporter: settings},
            "service": {
                "pipelines": {kind.value: pipeline for kind in OtlpKind},
                "telemetry": {"metrics": {"level": "none"}},
            },
        }
        self._config.write_text(yaml.safe_dump(whole))

    def start(self) -> None:
        """Start it, and wait until it listens."""
        with self._log.open("ab") as log:
            process = self._process = subprocess.Popen(
                [OTELCOL, "--config", f"file:{self._config}"], stdout=log, stderr=log
            )
        until(lambda: all(map(listens, self._ports)) or process.poll() is not None, "listening")
        assert process.poll() is None, self.log()

    def stop(self) -> None:
        """SIGTERM, and wait until it has written all it has."""
        if self._process is not None:
            self._process.terminate()
            assert self._process.wait(PATIENCE_S) == 0, self.log()
            self._process = None

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def log(self) -> str:
        """Return everything that it said."""
        return self._log.read_text()


def ids_in_file(path: Path) -> Arrivals:
    """Return the ids of all items that the Collector's `file` exporter wrote."""
    found: Arrivals = {kind: Counter() for kind in OtlpKind}
    for line in whole_lines(path) if path.exists() else ():
        request = json.loads(line)
        found[OtlpKind.TRACES].update(
            span["spanId"] for span in _items(request, "resourceSpans", "scopeSpans", "spans")
        )
        logs = _items(request, "resourceLogs", "scopeLogs", "logRecords")
        found[OtlpKind.LOGS].update(map(_id_of, logs))
        for metric in _items(request, "resourceMetrics", "scopeMetrics", "metrics"):
            found[OtlpKind.METRICS].update(map(_id_of, metric["gauge"]["dataPoints"]))
    return found


def _items(request: dict[str, Any], *names: str) -> Iterator[dict[str, Any]]:
    first, second, third = names
    for resource in request.get(first, ()):
        for scope in resource[second]:
            yield from scope[third]


def _id_of(item: dict[str, Any]) -> str:
    (one,) = [one["value"]["stringValue"] for one in item["attributes"] if one["key"] == "id"]
    return str(one)
