"""`workers: 2`: several processes behind one port, supervised, and one gateway to the outside."""

from __future__ import annotations

import json
import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.conftest import parent_of
from tests.graph.lineage import post, request, run_event
from tests.operate.processes import GatewayFolder, run_cli
from tests.patience import PATIENCE_S, until
from tests.ports import free_port
from tests.signals.otlp.telemetry import request as otlp_request
from tests.support.backend import HttpBackend
from tests.support.collector import Collector

from holdfast.signals.otlp.kinds import OtlpKind

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def gateway(tmp_path: Path, backend: HttpBackend) -> GatewayFolder:
    folder = GatewayFolder(tmp_path, backend)
    folder.tree["workers"] = 2
    folder.tree["nodes"]["backend"]["delivery"]["order"] = "key"
    folder.write()
    return folder


def children_of(pid: int) -> list[int]:
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [one for one in pids if parent_of(one) == pid]


def send(gateway: GatewayFolder, jobs: list[str]) -> None:
    """Send each event on a connection of its own, so that both workers get some."""

    def one(job: str) -> Any:
        try:
            return post(gateway.address, run_event(job=job))[0]
        except OSError:
            return None  # a connection to a worker that was killed

    with ThreadPoolExecutor(4) as pool:
        left = jobs
        while left:
            answers = list(pool.map(one, left))
            left = [job for job, status in zip(left, answers, strict=True) if status != 200]


def test_workers_share_a_port_are_restarted_and_stop_together(
    gateway: GatewayFolder, backend: HttpBackend
) -> None:
    with gateway.running() as process:
        workers = children_of(process.pid)
        assert len(workers) == 2
        first = [f"a{n}" for n in range(60)]
        send(gateway, first)
        until(lambda: set(first) <= set(backend.jobs), "delivered")
        for worker in ("0", "1"):
            accepted = gateway.metric("gateway_receiver_accepted_events_total", worker=worker)
            assert accepted > 0, "one worker got everything"
        assert gateway.metric("gateway_receiver_accepted_events_total") == 60

        until(lambda: gateway.metric("gateway_destination_sent_events_total") == 60, "sent")
        told = json.loads(run_cli("destination", "ls", str(gateway.config), "--json").stdout)
        assert sum(one["sent_events"] for one in told) == 60
        assert run_cli("destination", "pause", "backend", str(gateway.config)).returncode == 0
        assert gateway.metric("gateway_destination_state", state="paused") == 2
        assert run_cli("destination", "resume", "backend", str(gateway.config)).returncode == 0

        os.kill(workers[0], signal.SIGKILL)
        until(lambda: (now := children_of(process.pid)) != workers and len(now) == 2, "begun again")
        second = [f"b{n}" for n in range(20)]
        send(gateway, second)
        until(lambda: set(second) <= set(backend.jobs), "delivered after the kill")
        until(gateway.is_ready, "ready again")

        workers = children_of(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
        assert not any(os.path.exists(f"/proc/{pid}") for pid in workers)
    assert (gateway.folder / "data" / "quiver" / "core-01").is_dir()
    assert any("exited with -9" in line for line in gateway.messages())

    # One worker alone delivers what the other would have.
    gateway.tree["workers"] = 1
    gateway.write()
    with gateway.running():
        third = ["c"]
        send(gateway, third)
        until(lambda: "c" in backend.jobs, "delivered by one")
        assert request(gateway.admin, "GET", "/readyz")[0] == 200


def call(target: str, body: bytes) -> str:
    """Send a request of OTLP on a connection of its own; return the status."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(target, options) as channel:
        try:
            method: Any = channel.unary_unary(OtlpKind.TRACES.grpc_path)
            method(body, timeout=PATIENCE_S)
        except grpc.RpcError as error:
            code: str = error.code().name
            return code
    return "OK"


def test_calls_are_spread_over_the_workers_and_none_is_refused_for_good(
    gateway: GatewayFolder, tmp_path: Path
) -> None:
    port = free_port()
    gateway.tree["nodes"] = {
        "telemetry": {
            "kind": "receiver",
            "type": "otlp",
            "config": {"listening_addr": f"127.0.0.1:{port}"},
            "to": ["files"],
        },
        "files": {"kind": "exporter", "type": "files", "config": {"directory": "out"}},
    }
    gateway.write()
    bodies = [otlp_request(OtlpKind.TRACES, random.Random(n)) for n in range(60)]
    target = f"127.0.0.1:{port}"
    with gateway.running() as process:
        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(call, [target] * 60, bodies)) == {"OK"}
        for worker in ("0", "1"):
            accepted = gateway.metric("gateway_receiver_accepted_events_total", worker=worker)
            assert accepted > 0, "one worker got everything"
        until(lambda: gateway.metric("gateway_destination_sent_events_total") == 60, "sent")

        workers = children_of(process.pid)
        os.kill(workers[0], signal.SIGKILL)
        with ThreadPoolExecutor(4) as pool:
            said = list(pool.map(call, [target] * 60, bodies))
        # A connection to the worker that was killed: clients send that again.
        assert set(said) <= {"OK", "UNAVAILABLE"}
        until(lambda: (now := children_of(process.pid)) != workers and len(now) == 2, "begun again")
        until(gateway.is_ready, "ready again")
        assert call(target, bodies[0]) == "OK"


def test_workers_and_their_parent_tell_of_themselves_and_notice_a_loop(
    gateway: GatewayFolder, tmp_path: Path
) -> None:
    port, collector = free_port(), Collector()
    gateway.tree["nodes"] = {
        "telemetry": {
            "kind": "receiver",
            "type": "otlp",
            "config": {"listening_addr": f"0.0.0.0:{port}", "allow_anonymous": True},
            "to": ["files"],
        },
        "files": {"kind": "exporter", "type": "files", "config": {"directory": "out"}},
    }
    told = gateway.tree["telemetry"] = {"interval": "200ms", "config": {"url": collector.url}}
    gateway.write()
    try:
        with gateway.running():
            # Each worker its log, the parent the figures of both.
            wanted = [b"holdfast.worker\x12\x03\n\x010", b"holdfast.worker\x12\x03\n\x011"]
            until(lambda: all(any(w in b for b in collector.bodies) for w in wanted), "logs")
            metrics = [b for p, b, _ in collector.seen if p == OtlpKind.METRICS.grpc_path]
            assert b"gateway.receiver.accepted_items_total" in metrics[-1]
            assert gateway.metric("gateway_telemetry_sent_items_total", worker="parent") > 0
    finally:
        collector.server.stop(None).wait()
    # Nobody can see from the file that this is the same machine.
    told["config"] = {"url": f"http://127.0.0.2:{port}"}
    gateway.write()
    with gateway.running():
        until(lambda: gateway.metric("gateway_telemetry_looping", worker="parent") == 1, "noticed")
    assert any("telemetry came back" in line for line in gateway.messages())


def test_workers_stop_when_their_parent_is_gone(gateway: GatewayFolder) -> None:
    with gateway.running() as process:
        workers = children_of(process.pid)
        process.kill()
        process.wait()
        until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in workers), "they end")


def test_a_worker_that_cannot_start_for_its_configuration_ends_all(
    gateway: GatewayFolder,
) -> None:
    gateway.tree["nodes"]["lineage"]["config"]["token_file"] = "missing"
    gateway.write()
    result = run_cli("up", str(gateway.config))
    assert result.returncode == 78
    assert "a worker could not start" in result.stderr
    assert "missing" in result.stderr
