"""A gateway with pipelines beside it, in real processes; and finding everything it started."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml
from tests.patience import PATIENCE_S, SPARK_PATIENCE_S, until_spark
from tests.ports import free_port


def lineage(job: str, kind: str, *, seconds_ago: float = 0.0) -> dict[str, Any]:
    """Return an event of now."""
    return {
        "eventType": kind,
        "eventTime": (datetime.now(UTC) - timedelta(seconds=seconds_ago)).isoformat(),
        "run": {"runId": str(uuid.uuid4())},
        "job": {"namespace": "shop", "name": job},
        "producer": "https://example.org/tests",
        "schemaURL": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent",
    }


class Beside:
    """A folder with a graph file, and the gateway that runs it."""

    def __init__(self, folder: Path, tree: dict[str, Any]) -> None:
        self.folder = folder
        self.config = folder / "gateway.yaml"
        self.port, self.admin = free_port(), free_port()
        tree["admin"] = {"listen": f"127.0.0.1:{self.admin}"}
        tree["logging"] = {"format": "json"}
        tree.setdefault("nodes", {})["lineage"] = {
            "kind": "receiver",
            "type": "openlineage",
            "config": {"listen": f"127.0.0.1:{self.port}"},
            "to": ["buffer"],
        }
        tree["nodes"].setdefault("buffer", {"kind": "processor", "type": "quiver"})
        tree.setdefault("spark", {})["master"] = "local[1]"
        self.data = folder / tree.get("data_dir", "holdfast_data")
        self.config.write_text(yaml.safe_dump(tree, sort_keys=False))
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Beside:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        until_spark(lambda: not self.processes(), "the end of all its processes", self.log)

    def start(self) -> None:
        """Start it, and wait until it takes events."""
        with (self.folder / "log").open("ab") as log:
            # What it starts carries this along: that is how it is found again.
            environment = {**os.environ, "HOLDFAST_TEST_FOLDER": str(self.folder)}
            self.process = process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", "up", str(self.config)],
                stdout=log,
                stderr=log,
                env=environment,
            )
        until_spark(lambda: process.poll() is not None or self.is_ready(), "ready", self.log)
        assert process.poll() is None, self.log()

    def stop(self) -> None:
        """SIGTERM, and a clean end."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(SPARK_PATIENCE_S) == 0, self.log()

    def kill(self) -> None:
        """kill -9, the gateway alone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def processes(self, what: str = "") -> list[int]:
        """Return everything that it started and that still runs, by a part of its command line."""
        found = []
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            try:
                marks = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                command = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if f"HOLDFAST_TEST_FOLDER={self.folder}".encode() in marks and what in command:
                found.append(int(name))
        return found

    def log(self) -> str:
        """Return what it said."""
        path = self.folder / "log"
        return path.read_text(errors="replace")[-20_000:] if path.exists() else ""

    def messages(self) -> list[str]:
        """Return what it said, line by line."""
        return [json.loads(line)["message"] for line in self.log().splitlines()[1:]]

    # ------------------------------------------------------------------- asking

    def _request(self, port: int, method: str, path: str, body: bytes | None = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def is_ready(self) -> bool:
        """Whether `/readyz` says so."""
        try:
            return bool(self._request(self.admin, "GET", "/readyz")[0] == http.HTTPStatus.OK)
        except OSError:
            return False

    def post(self, *events: dict[str, Any]) -> int:
        """Send events; return how many were accepted."""
        for event in events:
            status, answer = self._request(
                self.port, "POST", "/api/v1/lineage", json.dumps(event).encode()
            )
            assert status == http.HTTPStatus.OK, answer
        return len(events)

    def metric(self, name: str, *marks: str) -> float:
        """Return the sum of a metric over the lines that have these labels."""
        try:
            text = self._request(self.admin, "GET", "/metrics")[1].decode()
        except OSError:
            return 0.0
        return sum(
            float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.startswith(f"{name}{{") and all(mark in line for mark in marks)
        )

    def holdfast(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "holdfast", *words],
            capture_output=True,
            text=True,
            timeout=SPARK_PATIENCE_S,
            check=False,
            env={**os.environ, "HOLDFAST_TEST_FOLDER": str(self.folder)},
        )

    def rows(self, folder: str) -> list[dict[str, Any]]:
        """Return the rows of a folder of Parquet files."""
        files = sorted((self.folder / folder).glob("*.parquet"))
        return [row for path in files for row in pq.read_table(path).to_pylist()]
