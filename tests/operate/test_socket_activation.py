"""A restart refuses no connection where the service manager holds the port."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.graph.lineage import run_event
from tests.operate.processes import GatewayFolder
from tests.patience import PATIENCE_S, until
from tests.support.backend import HttpBackend

from holdfast.receive.listening import handed_over

# What systemd does with a socket: descriptor 3, named in two variables.
HAND_OVER = """\
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
os.execv(sys.executable, [sys.executable, "-m", "holdfast", "up", sys.argv[2]])
"""
SENDERS = 4
RESTARTS = 2


class Senders:
    """Clients that open a connection for every event, and send each until it is taken."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stop = threading.Event()
        self.accepted: list[str] = []
        self.refused = 0
        self._threads = [threading.Thread(target=self._send) for _ in range(SENDERS)]

    def _send(self) -> None:
        while not self._stop.is_set():
            event = run_event()
            while not self._is_taken(event):
                pass
            self.accepted.append(event["run"]["runId"])

    def _is_taken(self, event: dict[str, object]) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/api/v1/lineage", json.dumps(event), headers)
            return connection.getresponse().status == http.HTTPStatus.OK
        except ConnectionRefusedError:
            self.refused += 1
            return False
        except (OSError, http.client.HTTPException):
            return False  # it was cut off in the middle, by the stop
        finally:
            connection.close()

    def __enter__(self) -> Senders:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Let everybody send what is under way, and end."""
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)


def delivered(backend: HttpBackend) -> set[str]:
    return {one["run"]["runId"] for one in list(backend.events)}


@contextmanager
def running(gateway: GatewayFolder, port: socket.socket) -> Iterator[None]:
    command = [sys.executable, "-c", HAND_OVER, str(port.fileno()), str(gateway.config)]
    with (gateway.folder / "log").open("ab") as log:
        process = subprocess.Popen(command, pass_fds=[port.fileno()], stdout=log, stderr=log)
    try:
        until(lambda: process.poll() is not None or gateway.is_ready(), "ready")
        assert process.poll() is None, gateway.log()
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_a_restart_under_load_refuses_no_connection(tmp_path: Path, backend: HttpBackend) -> None:
    gateway = GatewayFolder(tmp_path, backend)
    gateway.tree["drain"] = "2s"
    gateway.write()
    senders = Senders(gateway.port)
    with socket.create_server(("127.0.0.1", gateway.port), backlog=1024) as port:
        # Before the first start already: what comes then waits in the queue of the port.
        with senders:
            for start in range(1 + RESTARTS):
                with running(gateway, port):
                    until(lambda: len(senders.accepted) > 20 * (start + 1), "events")  # noqa: B023
            with running(gateway, port):
                senders.stop()
        wanted = set(senders.accepted)
        with running(gateway, port):
            until(lambda: wanted <= delivered(backend), "delivered")
    assert senders.refused == 0
    assert len(wanted) == len(senders.accepted) > 20 * (RESTARTS + 1)


def test_only_the_process_that_is_meant_takes_what_is_handed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LISTEN_FDS", "1")
    monkeypatch.setenv("LISTEN_PID", str(os.getpid() + 1))
    assert handed_over(socket.AF_INET, ("127.0.0.1", 5000)) is None
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    monkeypatch.setenv("LISTEN_FDS", "0")
    assert handed_over(socket.AF_INET, ("127.0.0.1", 5000)) is None
