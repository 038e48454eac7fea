"""Real gateways in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from tests.graph.lineage import request
from tests.patience import PATIENCE_S, until
from tests.ports import free_port
from tests.support.backend import HttpBackend


class GatewayFolder:
    """A folder with a graph file, and the gateways that are started with it."""

    def __init__(self, folder: Path, backend: HttpBackend) -> None:
        self.folder = folder
        self.config = folder / "gateway.yaml"
        self.port, self.admin_port = free_port(), free_port()
        self.address, self.admin = f"127.0.0.1:{self.port}", f"127.0.0.1:{self.admin_port}"
        self.tree: dict[str, Any] = {
            "data_dir": "data",
            "drain": "10s",
            "admin": {"listen": self.admin},
            "logging": {"format": "json"},
            "nodes": {
                "lineage": {
                    "kind": "receiver",
                    "type": "openlineage",
                    "config": {"listen": self.address},
                    "to": ["backend"],
                },
                "backend": {
                    "kind": "exporter",
                    "type": "http",
                    "config": {"url": backend.url},
                    "delivery": {"retry_max": "50ms"},
                },
            },
        }  # fmt: skip
        self.write()

    def write(self) -> None:
        """Write the file as the tree is now."""
        self.config.write_text(yaml.safe_dump(self.tree, sort_keys=False))

    @contextmanager
    def running(self, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
        """Start a gateway, wait until it is ready, and end it whatever happens."""
        with (self.folder / "log").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", "up", str(self.config)],
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
            )
        try:
            until(lambda: process.poll() is not None or self.is_ready(), "ready")
            assert process.poll() is None, self.log()
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(PATIENCE_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def is_ready(self) -> bool:
        try:
            return request(self.admin, "GET", "/readyz")[0] == 200
        except OSError:
            return False

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def messages(self) -> list[str]:
        return [json.loads(line)["message"] for line in self.log().splitlines()]

    def metric(self, name: str, **labels: str) -> float:
        """Return a figure, summed over the samples that have these labels."""
        _, text = request(self.admin, "GET", "/metrics")
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.startswith(f"{name}{{") and all(one in line for one in wanted)
        )


def run_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    command = [sys.executable, "-m", "holdfast", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
