"""The processes of the benchmark of telemetry.

OtelGateway     `holdfast up` with a receiver of OTLP and a quiver
PassThrough     receives and forwards with the same code, without a quiver
PlainServicer   grpcio: parses and forgets
OtelSink        the same, and notes what came
OtelCollector   the OpenTelemetry Collector, with its queue on disk
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

from holdfast.bench.gateway_process import POLL_SECONDS, ServerProcess, free_ports
from holdfast.bench.otel_load import ARRIVAL, OtelLoad, backend_command, client_command
from holdfast.errors import CheckFailed
from holdfast.signals.otlp.kinds import OtlpKind

# Enough for all rounds; what is over may be dropped again.
OTEL_QUIVER = {"retention": {"size_cap": "16GB", "size_cap_policy": "drop_oldest"}}
_ARRIVAL_SECONDS_MAX = 300.0
# Beyond what any run of this benchmark leaves unsent.
_QUEUED_REQUESTS_MAX = 10_000_000


def otlp_exporter(port: int, **config: object) -> dict[str, Any]:
    """Return a node that sends requests on to a backend here, as they are."""
    url = f"http://127.0.0.1:{port}"
    return {
        "kind": "exporter",
        "type": "otlp",
        "config": {"url": url, "compression": "none", **config},
        "delivery": {"retention_size": "8GB", "signals": [kind.value for kind in OtlpKind]},
    }


class OtelGateway(ServerProcess):
    """A gateway that receives OTLP over both transports; started again, it has what it had."""

    def __init__(
        self,
        folder: Path,
        *,
        exporters: Mapping[str, Mapping[str, Any]] | None = None,
        receivers: Mapping[str, Mapping[str, Any]] | None = None,
        ports: tuple[int, int] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.grpc_port, self.http_port = ports or tuple(free_ports(2))
        listening = {
            "listening_addr": f"127.0.0.1:{self.grpc_port}",
            "http_listening_addr": f"127.0.0.1:{self.http_port}",
        }
        ends = exporters or {}
        config = {"path": "quiver", **OTEL_QUIVER}
        nodes = {
            "otlp": {"kind": "receiver", "type": "otlp", "to": ["buffer"], "config": listening},
            **(receivers or {}),
            "buffer": {
                "kind": "processor",
                "type": "quiver",
                "to": list(ends),
                "config": config,
            },
            **ends,
        }
        graph = folder / "gateway.yaml"
        admin = {"listen": f"127.0.0.1:{free_ports(1)[0]}"}
        graph.write_text(json.dumps({"data_dir": "data", "admin": admin, "nodes": nodes}))
        super().__init__([sys.executable, "-m", "holdfast", "up", str(graph)], folder / "log")
        self.wait_for_port(self.grpc_port)
        self.wait_for_port(self.http_port)


class PlainServicer(ServerProcess):
    """The peer that parses and forgets."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (self.grpc_port,) = free_ports(1)
        super().__init__(backend_command(self.grpc_port), folder / "log")
        self.wait_for_port(self.grpc_port)


class PassThrough(ServerProcess):
    """A gateway without a quiver."""

    def __init__(self, folder: Path, backend_port: int) -> None:
        folder.mkdir(parents=True)
        (self.grpc_port,) = free_ports(1)
        module = "holdfast.bench.otel_pass"
        command = [sys.executable, "-m", module, str(self.grpc_port), str(backend_port)]
        super().__init__(command, folder / "log")
        self.wait_for_port(self.grpc_port)


@dataclass(frozen=True)
class OtelArrival:
    """One request at its destination."""

    number: int
    sent_ns: int
    came_ns: int

    @property
    def delay_ms(self) -> float:
        """From when it was sent."""
        return (self.came_ns - self.sent_ns) / 1e6


class OtelSink(ServerProcess):
    """A backend, and what it noted."""

    def __init__(self, folder: Path, port: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._notes = folder / f"arrivals-{time.monotonic_ns()}"
        self._notes.touch()
        self.port = port
        super().__init__(backend_command(port, str(self._notes)), folder / "backend-log")
        self.wait_for_port(port)

    @property
    def count(self) -> int:
        """How many requests came."""
        return self._notes.stat().st_size // ARRIVAL.size

    def wait_for(self, count: int) -> None:
        """Wait until so many requests have come."""
        deadline_s = time.monotonic() + _ARRIVAL_SECONDS_MAX
        while self.count < count:
            if time.monotonic() > deadline_s:
                raise CheckFailed(
                    f"{self.count} of {count} requests arrived", hint="see the server's log"
                )
            time.sleep(POLL_SECONDS)

    def arrivals(self, first: int = 0) -> list[OtelArrival]:
        """Return what came, from the `first` on."""
        data = self._notes.read_bytes()[first * ARRIVAL.size :]
        whole = len(data) // ARRIVAL.size * ARRIVAL.size
        return [OtelArrival(*fields) for fields in ARRIVAL.iter_unpack(data[:whole])]


def collector_program() -> Path | None:
    """Return the program of the OpenTelemetry Collector, if there is one."""
    program = Path(os.environ.get("HOLDFAST_OTELCOL", "build/collectors/otelcol"))
    return program.resolve() if os.access(program, os.X_OK) else None


class OtelCollector(ServerProcess):
    """The Collector as durable as it can be: answers when a request is in its queue, synced."""

    def __init__(self, folder: Path, backend_port: int, port: int | None = None) -> None:
        program = collector_program()
        assert program is not None, "BUG: no Collector"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "queue").mkdir(exist_ok=True)
        self.grpc_port = free_ports(1)[0] if port is None else port
        config = folder / "collector.yaml"
        config.write_text(yaml.safe_dump(self._config(folder, backend_port)))
        super().__init__([str(program), "--config", str(config)], folder / "log")
        self.wait_for_port(self.grpc_port)

    def _config(self, folder: Path, backend_port: int) -> dict[str, Any]:
        """Return its configuration: no batch processor, which would answer before the queue."""
        grpc = {"endpoint": f"127.0.0.1:{self.grpc_port}", "max_recv_msg_size_mib": 64}
        backend = {
            "endpoint": f"127.0.0.1:{backend_port}",
            "tls": {"insecure": True},
            "compression": "none",
            "sending_queue": {
                "enabled": True,
                "storage": "file_storage",
                "queue_size": _QUEUED_REQUESTS_MAX,
            },
            "retry_on_failure": {"enabled": True, "max_elapsed_time": 0, "max_interval": "2s"},
        }
        storage = {"directory": str(folder / "queue"), "fsync": True}
        service = {
            "extensions": ["file_storage"],
            "telemetry": {"metrics": {"level": "none"}, "logs": {"level": "error"}},
            "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["otlp"]}},
        }
        return {
            "extensions": {"file_storage": storage},
            "receivers": {"otlp": {"protocols": {"grpc": grpc}}},
            "exporters": {"otlp": backend},
            "service": service,
        }


@dataclass(frozen=True)
class AcceptedRequests:
    """One run of a load against one server."""

    requests: int
    wall_s: float
    client_cpu_s: float
    p50_ms: float
    p99_ms: float
    server_cpu_s: float

    @property
    def per_s(self) -> float:
        """Requests per second."""
        return self.requests / self.wall_s

    @property
    def cpu_us(self) -> float:
        """CPU of the server per request."""
        return self.server_cpu_s / self.requests * 1e6

    @property
    def client_cpu_us(self) -> float:
        """CPU of the client per request."""
        return self.client_cpu_s / self.requests * 1e6


class OtelClient:
    """The process that sends; one for all, so that starting it is no part of a round."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self._child = subprocess.Popen(client_command(), stdin=pipe, stdout=pipe, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.communicate()

    def begin(self, load: OtelLoad) -> None:
        """Let it send."""
        assert self._child.stdin is not None
        self._child.stdin.write(load.line())
        self._child.stdin.flush()

    def is_done(self) -> bool:
        """Whether it has said what it measured, or died."""
        assert self._child.stdout is not None
        return bool(select.select([self._child.stdout], [], [], 0)[0])

    def end(self) -> dict[str, Any]:
        """Wait for what it measured."""
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise CheckFailed("a load against a server failed", hint="what it said stands above")
        measured: dict[str, Any] = json.loads(line)
        return measured

    def accept(self, server: ServerProcess, load: OtelLoad) -> AcceptedRequests:
        """Run a load, and take the server's CPU over that time."""
        began_cpu_s = server.cpu_s()
        self.begin(load)
        measured = self.end()
        return AcceptedRequests(**measured, server_cpu_s=server.cpu_s() - began_cpu_s)
