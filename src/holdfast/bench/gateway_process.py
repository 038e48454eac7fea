"""The gateway under measurement: `holdfast up` in a process of its own, with its figures.

Nothing of it is measured from inside. CPU and memory are the kernel's account of the process, and
counts come from `/metrics`, as they would for anybody who operates it.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from holdfast.errors import CheckFailed

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
POLL_SECONDS = 0.02
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ServerProcess:
    """A server in a process of its own: what it costs."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._log = log
        with log.open("ab") as output:
            self._child = subprocess.Popen(command, stdout=output, stderr=output)

    def cpu_s(self) -> float:
        """Return the CPU time it has used, in user and system mode, all threads included.

        Its children are not.

        From the kernel's account of the process, in ticks of usually 10 ms: loads run for seconds,
        so that one tick more or less does not matter.
        """
        fields = Path(f"/proc/{self._child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def rss_mb(self) -> float:
        """Return its resident memory, pages of mapped files included."""
        return self._memory_mb("VmRSS")

    def anonymous_mb(self) -> float:
        """Return its resident memory without mapped files, whose pages the kernel may drop."""
        return self._memory_mb("RssAnon")

    def tree_rss_mb(self) -> float:
        """Return its resident memory and that of its children; what they share counts for each."""
        pids = [self._child.pid]
        with contextlib.suppress(OSError):  # a child may end while it is looked at
            for task in Path(f"/proc/{self._child.pid}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
        return sum(_status_mb(pid, "VmRSS") for pid in pids)

    def _memory_mb(self, field: str) -> float:
        """Return a field of the kernel's own account of the process."""
        return _status_mb(self._child.pid, field)

    def wait_for_port(self, port: int) -> None:
        """Wait until somebody listens there."""
        deadline_s = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline_s and self._child.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(POLL_SECONDS)
        raise CheckFailed("a server did not start", hint="its log says why", path=str(self._log))

    def kill(self) -> None:
        """End it at once."""
        self._child.kill()
        self._child.wait()

    def stop(self) -> None:
        """Ask it to stop, as a service manager does; kill it if it does not."""
        self._child.send_signal(signal.SIGTERM)
        try:
            self._child.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


def _status_mb(pid: int, field: str) -> float:
    """Return a size that the kernel says of a process; 0 if it has ended."""
    try:
        found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        found = None
    return 0.0 if found is None else int(found[1]) / 1024


class MeasuredGateway(ServerProcess):
    """A gateway: one receiver, one quiver, and the exporters that are asked for."""

    def __init__(
        self,
        folder: Path,
        *,
        level: str = "fsynced",
        exporters: dict[str, dict[str, Any]] | None = None,
        quiver: dict[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.port, self.admin_port = free_ports(2)
        exporters = exporters or {}
        nodes: dict[str, Any] = {
            "lineage": {
                "kind": "receiver",
                "type": "openlineage",
                "config": {"listen": f"127.0.0.1:{self.port}", "level": level},
                "to": ["buffer"],
            },
            "buffer": {
                "kind": "processor",
                "type": "quiver",
                "config": {"path": "quiver", **(quiver or {})},
                "to": list(exporters),
            },
            **exporters,
        }
        admin = {"listen": f"127.0.0.1:{self.admin_port}"}
        config = folder / "gateway.yaml"
        config.write_text(yaml.safe_dump({"data_dir": "data", "admin": admin, "nodes": nodes}))
        super().__init__([sys.executable, "-m", "holdfast", "up", str(config)], folder / "log")
        self.wait_for_port(self.port)

    def metric(self, name: str) -> float:
        """Return a metric, summed over its labels."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=30)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        values = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        if not values:
            raise CheckFailed(f"there is no metric {name}", hint="see docs/reference/metrics.md")
        return sum(map(float, values))


@contextmanager
def running(*servers: ServerProcess) -> Iterator[None]:
    """Stop all servers in the end, the last one first, also if a measurement failed."""
    with ExitStack() as stack:
        for server in servers:
            stack.callback(server.stop)
        yield


def http_exporter(port: int, **config: object) -> dict[str, Any]:
    """Return a node that sends single events to a backend here, and does not wait long."""
    return {
        "kind": "exporter",
        "type": "http",
        "config": {"url": f"http://127.0.0.1:{port}", "dialect": "single", **config},
        "delivery": {"retention_size": "8GB"},
    }


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback that nobody uses at this moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
