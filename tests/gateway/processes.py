"""The processes of an end-to-end test: `holdfast up`, backends, and commands beside them."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from click.testing import CliRunner
from tests.patience import PATIENCE_S, until
from tests.ports import free_port

from holdfast.operate.cli import cli

BACKEND = Path(__file__).with_name("backend.py")


class Arrival(NamedTuple):
    """A line of a backend's journal."""

    status: int
    digest: str
    job: str
    type: str


class Backend:
    """A backend process: it may be told to misbehave, stopped, killed and started again."""

    def __init__(self, folder: Path, name: str = "backend") -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._journal = folder / f"{name}.journal"
        self._mood = folder / f"{name}.mood"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, on the port and with the journal that it had."""
        command = [sys.executable, str(BACKEND), str(self.port), str(self._journal)]
        self._process = subprocess.Popen([*command, str(self._mood)], stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        self._process.stdout.close()

    def feel(self, **mood: Any) -> None:
        """Say what it answers from now on; nothing: all is well."""
        new = self._mood.with_suffix(".new")
        new.write_text(json.dumps(mood))
        new.replace(self._mood)

    def send_signal(self, number: signal.Signals) -> None:
        """Stop it, or let it go on."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def arrivals(self) -> list[Arrival]:
        """Return everything that reached it, answered well or not, in order."""
        if not self._journal.exists():
            return []
        lines = self._journal.read_text().splitlines()
        return [Arrival(int(line.split()[0]), *line.split()[1:]) for line in lines]

    def taken(self) -> list[str]:
        """Return the digests of the events that it took, in order."""
        return [one.digest for one in self.arrivals() if one.status == http.HTTPStatus.OK]

    def attempts(self, status: int) -> int:
        """Return how many events it answered so."""
        return sum(one.status == status for one in self.arrivals())


class Gateway:
    """A `holdfast up` process."""

    def __init__(self, folder: Path, nodes: dict[str, Any], **settings: Any) -> None:
        self.folder = folder
        self.config = folder / "gateway.yaml"
        self.port, self.admin = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.core = folder / "data" / "quiver" / "core-00"
        self._settings = {
            "data_dir": "data",
            "drain": "10s",
            "admin": {"listen": f"127.0.0.1:{self.admin}"},
            **settings,
        }
        self._log = folder / "gateway.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.configure(nodes)

    def configure(self, nodes: dict[str, Any]) -> None:
        """Write the graph file; a receiver stands before what has none."""
        receiver = {"kind": "receiver", "type": "openlineage"}
        listen = {"listen": f"127.0.0.1:{self.port}"}
        given = nodes.get("lineage", {})
        to = [name for name, node in nodes.items() if node.get("kind") == "exporter"]
        lineage = {
            **receiver,
            "to": given.get("to", to),
            "config": {**listen, **given.get("config", {})},
        }
        whole = {**self._settings, "nodes": {**nodes, "lineage": lineage}}
        self.config.write_text(yaml.safe_dump(whole, sort_keys=False))

    def start(self) -> None:
        """Start it, and wait until it takes events."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", "up", str(self.config)],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        until(lambda: self.is_ready() or not self.is_alive(), "ready")
        assert self.is_alive(), self.log()

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def is_ready(self) -> bool:
        """Whether `/readyz` says so."""
        with contextlib.suppress(OSError):
            return self.admin_page("/readyz")[0] == http.HTTPStatus.OK
        return False

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """SIGTERM, and wait for a clean end."""
        self.send_signal(signal.SIGTERM)
        self.wait_ended()

    def wait_ended(self) -> None:
        """Wait for a clean end."""
        assert self._process is not None
        assert self._process.wait(PATIENCE_S) == 0, self.log()
        self._process = None

    def log(self) -> str:
        """Return everything that it said."""
        return self._log.read_text()

    def messages(self) -> list[str]:
        """Return what its log says, line by line."""
        return [json.loads(line)["message"] for line in self.log().splitlines()]

    # ------------------------------------------------------------------- asking

    def request(
        self, port: int, method: str, path: str, body: bytes | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Send one request; return status, headers and body."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            headers = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, headers, answer.read()
        finally:
            connection.close()

    def post(self, body: bytes) -> tuple[int, dict[str, str], Any]:
        """Post one event; return status, headers, and the answer's JSON."""
        status, headers, answer = self.request(self.port, "POST", "/api/v1/lineage", body)
        return status, headers, json.loads(answer)

    def admin_page(self, path: str) -> tuple[int, str]:
        """Return status and text of a page on the admin port."""
        status, _, body = self.request(self.admin, "GET", path)
        return status, body.decode()

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric over all lines that have these labels; 0 without any."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        found = 0.0
        for line in self.admin_page("/metrics")[1].splitlines():
            if line.startswith(f"{name}{{") and all(one in line for one in wanted):
                found += float(line.rpartition(" ")[2])
        return found

    def destination(self, name: str) -> dict[str, Any]:
        """Return what `holdfast destination ls` says of one destination."""
        told = holdfast("destination", "ls", self.config)
        (one,) = [one for one in told if one["name"] == name]
        return dict(one)

    def balance(self, name: str) -> dict[str, Any]:
        """Return what `holdfast quiver ledger --balance` says of one destination."""
        told = holdfast("quiver", "ledger", self.core, "--balance")
        (one,) = [one for one in told if one["subscriber"] == name]
        return dict(one)


def holdfast(*words: object, code: int = 0) -> Any:
    """Run a command with `--json`; return what it prints."""
    result = CliRunner().invoke(
        cli, [*map(str, words), "--json"], standalone_mode=False, catch_exceptions=False
    )
    assert (result.return_value or 0) == code, result.output
    return json.loads(result.stdout)


def exporter(url: str, **delivery: Any) -> dict[str, Any]:
    """Return an exporter that tries often, so that tests need not wait."""
    config = {"url": url}
    delivery = {"retry_max": "50ms", **delivery}
    return {"kind": "exporter", "type": "http", "config": config, "delivery": delivery}
