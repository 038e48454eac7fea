"""`holdfast up` as a real process: it takes, delivers, stops, resumes, and says what it does."""

from __future__ import annotations

import json
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.graph.lineage import post, request, run_event
from tests.operate.processes import GatewayFolder, run_cli
from tests.patience import PATIENCE_S, until
from tests.support.backend import HttpBackend
from tests.support.statsd import Statsd

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def gateway(tmp_path: Path, backend: HttpBackend) -> GatewayFolder:
    return GatewayFolder(tmp_path, backend)


@pytest.fixture
def statsd() -> Iterator[Statsd]:
    with closing(Statsd()) as server:
        yield server


def test_it_takes_delivers_tells_and_stops(
    gateway: GatewayFolder, backend: HttpBackend, statsd: Statsd
) -> None:
    gateway.tree["statsd"] = {"address": statsd.address, "interval": "200ms"}
    gateway.write()
    run_id = "0193a000-0000-7000-8000-000000000001"
    with gateway.running() as process:
        status, answer = post(gateway.address, run_event(run_id, job="first"))
        assert (status, answer["status"]) == (200, "accepted")
        until(lambda: backend.jobs == ["first"], "delivered")
        assert post(gateway.address, {"wrong": 1})[0] == 400
        assert request(gateway.admin, "GET", "/healthz") == (200, {"status": "ok"})
        until(lambda: gateway.metric("gateway_destination_sent_events_total") == 1, "sent")
        assert gateway.metric("gateway_receiver_rejected_events_total", reason="invalid") == 1
        sent = "gateway.destination.sent_events_total"
        until(lambda: statsd.figures.get(sent) == 1, "told to statsd")

        # Tools speak to it over its socket, by its file or by its directory.
        told = run_cli("destination", "ls", str(gateway.config), "--json")
        assert [one["sent_events"] for one in json.loads(told.stdout)] == [1]
        until(lambda: fate_of(run_id, gateway) == ("backend", "acked"), "acked")

        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    messages = gateway.messages()
    assert messages[-1] == "stopped; nothing waits"
    limits = [line for line in messages if "as long as the quiver has room" in line]
    assert ["backend" in line for line in limits] == [True]


def fate_of(run_id: str, gateway: GatewayFolder) -> tuple[str, str]:
    """Return what `holdfast explain` says of an event with one destination."""
    story = run_cli("explain", run_id, str(gateway.config), "--json")
    assert story.returncode == 0, story.stderr
    (explained,) = [
        one for quiver in json.loads(story.stdout)["quivers"] for one in quiver["explanations"]
    ]
    (fate,) = explained["subscribers"]
    return fate["subscriber"], fate["state"]


def test_a_bad_file_ends_with_78_and_every_error(gateway: GatewayFolder) -> None:
    gateway.config.write_text("wrokers: 2\nnodes:\n  in: {kind: receiver, type: openlinage}\n")
    result = run_cli("up", str(gateway.config))
    assert result.returncode == 78
    assert f"{gateway.config}:1:1: error: there is no key 'wrokers' here" in result.stderr
    assert "did you mean 'workers'?" in result.stderr
    error = json.loads(run_cli("up", str(gateway.config), "--json").stderr)
    assert error["error"] == "BadConfig"
    assert [(one["line"], one["column"]) for one in error["findings"]] == [(1, 1), (3, 30)]
    assert error["findings"][0]["hint"] == "did you mean 'workers'?"


def test_systemd_hears_of_its_start_its_life_its_reload_and_its_end(
    gateway: GatewayFolder, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))

        # Read at once: what comes while ten are waiting is lost, and every fifth of a second the
        # gateway says that it lives.
        said: queue.Queue[str] = queue.Queue()

        def listen() -> None:
            while message := manager.recv(4096):
                said.put(message.decode())

        listening = threading.Thread(target=listen)
        listening.start()

        def hear(wanted: str) -> str:
            while True:
                heard = said.get(timeout=PATIENCE_S)
                if wanted in heard.split("\n"):
                    return heard

        variables = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
        try:
            with gateway.running(**variables) as process:
                assert "0 events wait for backend" in hear("READY=1")
                hear("WATCHDOG=1")
                process.send_signal(signal.SIGHUP)
                hear("RELOADING=1")
                hear("READY=1")
                process.send_signal(signal.SIGTERM)
                hear("STOPPING=1")
                assert process.wait(PATIENCE_S) == 0
        finally:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
                end.sendto(b"", str(tmp_path / "notify"))
            listening.join()


@pytest.mark.slow
def test_what_waits_at_a_stop_or_a_kill_is_delivered_after_the_next_start(
    gateway: GatewayFolder, backend: HttpBackend
) -> None:
    gateway.tree["drain"] = "200ms"
    gateway.write()
    backend.status = 503
    with gateway.running() as process:
        assert [post(gateway.address, run_event(job=f"a{n}"))[0] for n in range(5)] == [200] * 5
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    assert gateway.messages()[-1] == "stopped; kept for the next start: backend 5"
    with gateway.running() as process:
        assert [post(gateway.address, run_event(job=f"b{n}"))[0] for n in range(5)] == [200] * 5
        process.kill()
        process.wait()
    assert backend.jobs == []
    backend.status = 200
    expected = [*(f"a{n}" for n in range(5)), *(f"b{n}" for n in range(5))]
    with gateway.running():
        until(lambda: len(backend.jobs) >= 10, "everything is delivered")
        assert backend.jobs == expected


@pytest.mark.slow
def test_a_second_signal_stops_at_once(gateway: GatewayFolder, backend: HttpBackend) -> None:
    gateway.tree["drain"] = "600s"
    gateway.write()
    backend.answers.clear()
    with gateway.running() as process:
        assert post(gateway.address, run_event(job="stuck"))[0] == 200
        assert backend.asked.wait(PATIENCE_S)
        process.send_signal(signal.SIGTERM)
        until(lambda: "stopping, within 600 s" in gateway.messages(), "it stops")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    assert "stopping without draining" in gateway.messages()
    backend.answers.set()
    until(lambda: backend.jobs == ["stuck"], "the backend had it after all")
    with gateway.running():
        until(lambda: backend.jobs == ["stuck", "stuck"], "sent again: nobody saw its answer")


@pytest.mark.slow
def test_a_reload_applies_what_it_can(gateway: GatewayFolder, backend: HttpBackend) -> None:
    other = HttpBackend()
    try:
        with gateway.running() as process:
            assert post(gateway.address, run_event(job="one"))[0] == 200
            until(lambda: backend.jobs == ["one"], "delivered")
            gateway.tree["nodes"]["backend"]["config"]["url"] = other.url
            gateway.tree["workers"] = 2
            gateway.tree["nodes"]["backend"]["delivery"]["order"] = "key"
            gateway.write()
            process.send_signal(signal.SIGHUP)
            until(lambda: "reloaded: the destination backend" in gateway.messages(), "reload")
            assert "not reloaded, needs a restart: workers" in gateway.messages()
            assert post(gateway.address, run_event(job="two"))[0] == 200
            until(lambda: other.jobs == ["two"], "delivered elsewhere")
            gateway.config.write_text("nodes: 5")
            process.send_signal(signal.SIGHUP)
            until(lambda: "not reloaded: the configuration has 1 error" in gateway.messages(), "no")
            assert post(gateway.address, run_event(job="three"))[0] == 200
            until(lambda: other.jobs == ["two", "three"], "as before")
    finally:
        other.close()
    assert backend.jobs == ["one"]


@pytest.mark.slow
def test_a_destination_is_paused_tapped_and_resumed_from_outside(
    gateway: GatewayFolder, backend: HttpBackend
) -> None:
    with gateway.running():
        assert run_cli("destination", "pause", "backend", str(gateway.config)).returncode == 0
        assert post(gateway.address, run_event(job="waits"))[0] == 200
        until(lambda: gateway.metric("gateway_destination_lag_events") == 1, "it waits")
        assert gateway.metric("gateway_destination_state", state="paused") == 1
        nobody = run_cli("destination", "pause", "nobody", str(gateway.config), "--json")
        assert nobody.returncode == 2
        assert "destinations of this gateway: backend" in nobody.stderr
        data = str(gateway.folder / "data")
        assert run_cli("destination", "resume", "backend", data).returncode == 0
        until(lambda: backend.jobs == ["waits"], "it goes on")

        command = [sys.executable, "-m", "holdfast", "tap", "backend", str(gateway.config)]
        tap = subprocess.Popen(
            [*command, "--limit", "1", "--json"], stdout=subprocess.PIPE, text=True
        )
        number = 0

        def seen() -> bool:
            nonlocal number
            number += 1
            assert post(gateway.address, run_event(job=f"seen-{number}"))[0] == 200
            return tap.poll() is not None

        until(seen, "the tap shows one")
        output, _ = tap.communicate()
        shown = json.loads(output)
        assert "seen-" in shown["payload"]
        assert shown["slot"] == "openlineage"
    gone = run_cli("destination", "ls", str(gateway.config))
    assert gone.returncode == 78
    assert "no gateway is running" in gone.stderr


@pytest.mark.slow
def test_the_machine_is_checked_before_a_start(gateway: GatewayFolder) -> None:
    assert run_cli("up", str(gateway.config), "--check").returncode == 0
    assert not (gateway.folder / "data").exists()
    (gateway.folder / "data").write_text("a file")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", gateway.port))
        taken.listen()
        result = run_cli("up", str(gateway.config), "--check")
        (gateway.folder / "data").unlink()
        started = run_cli("up", str(gateway.config))
    assert result.returncode == 78
    assert f"cannot listen on {gateway.address}: Address already in use" in result.stderr
    assert "cannot be written" in result.stderr
    assert started.returncode == 78
    assert "cannot listen" in started.stderr
