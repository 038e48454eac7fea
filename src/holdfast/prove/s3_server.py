"""A real S3 server process for a proof: moto's, on a port of its own, if it is installed."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from holdfast.errors import CheckFailed
from holdfast.prove.gateway import free_ports

START_SECONDS_MAX = 60.0
BUCKET = "holdfast"


def has_s3_server() -> bool:
    """Whether there is one to start."""
    return importlib.util.find_spec("moto") is not None


@contextlib.contextmanager
def running_s3(log: Path) -> Iterator[dict[str, str]]:
    """Start a server with one bucket, and give what its clients need in their environment."""
    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        _wait_for(port, log)
        create = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")
        urllib.request.urlopen(create, timeout=START_SECONDS_MAX).close()
        yield {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "prove",
            "AWS_SECRET_ACCESS_KEY": "prove",
            "AWS_REGION": "us-east-1",
        }
    finally:
        server.kill()
        server.wait()


def _wait_for(port: int, log: Path) -> None:
    give_up_s = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < give_up_s:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise CheckFailed("the S3 server did not start", hint=f"see {log}")
