"""A real S3 server process for tests: moto's, on a port of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

START_TIMEOUT_S = 60.0
BUCKET = "holdfast"


@dataclass(frozen=True)
class S3Server:
    """A running server, and what a client needs in its environment to reach it."""

    endpoint: str
    url: str

    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }


@contextlib.contextmanager
def running_s3(log: Path) -> Iterator[S3Server]:
    """Start a server with one bucket; stop it afterwards."""
    port = _free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        _wait_for(endpoint, process, log)
        create = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")
        urllib.request.urlopen(create, timeout=30).close()
        yield S3Server(endpoint, f"s3://{BUCKET}")
    finally:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(endpoint: str, process: subprocess.Popen[bytes], log: Path) -> None:
    give_up_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < give_up_s and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(endpoint, timeout=5).close()
            return
        time.sleep(0.05)
    raise AssertionError(f"the S3 server did not start: {log.read_text()}")


@contextlib.contextmanager
def in_environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
