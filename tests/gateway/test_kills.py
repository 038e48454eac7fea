"""The gateway itself is killed and restarted: what a client was told is accepted still arrives."""

from __future__ import annotations

import hashlib
import json
import signal
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from openlineage.client.transport.async_http import AsyncHttpTransport
from tests.gateway.conftest import MakeBackend, MakeGateway
from tests.gateway.processes import Gateway, exporter
from tests.gateway.producer import STATES, digest, event, producer
from tests.patience import until

from holdfast.operate.cli import cli

# Tried for long enough that a gateway which is killed is back: with the client's own pauses.
PATIENT: dict[str, Any] = {"retry": {"total": 10, "connect": 10, "read": 10, "backoff_factor": 0.1}}
TRANSPORTS: dict[str, dict[str, Any]] = {
    "http": {**PATIENT, "compression": "gzip"},
    "async_http": PATIENT,
    "composite": {"continue_on_failure": False},
}


# One of the backend, one of the gateway; each may bring back what was in flight, one event.
KILLS = 2


def options_of(kind: str, url: str) -> dict[str, Any]:
    """Return the settings of a transport; a composite one leads to the gateway by HTTP."""
    inner = {"transports": [{"type": "http", "url": url, **PATIENT}]}
    return {**TRANSPORTS[kind], **(inner if kind == "composite" else {})}


@pytest.mark.parametrize(
    "kind",
    ["http", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("async_http", "composite"))],
)
def test_a_killed_gateway_goes_on_where_it_was(
    kind: str, make_gateway: MakeGateway, make_backend: MakeBackend
) -> None:
    backend = make_backend()
    gateway = make_gateway({"marquez": exporter(backend.url)})
    sent: list[str] = []
    with producer(gateway.url, kind, **options_of(kind, gateway.url)) as client:

        def emit_runs(name: str) -> None:
            for number in range(6):
                run_id = str(uuid.uuid4())
                for state in STATES:
                    one = event(f"{name}-{number}", state, run_id)
                    client.send(one)
                    sent.append(digest(one))

        emit_runs("before")
        until(backend.taken, "delivery")
        backend.kill()
        # The client goes on while nobody listens, and so does the gateway without its backend.
        emitting = threading.Thread(target=emit_runs, args=("between",))
        emitting.start()
        gateway.kill()
        gateway.start()
        emitting.join()
        emit_runs("after")
        backend.start()
    if isinstance(client.client.transport, AsyncHttpTransport):  # which raises nothing
        assert client.client.transport.get_stats()["failed"] == 0
    until(lambda: set(sent) <= set(backend.taken()), "delivery")
    gateway.stop()
    check_order(gateway, kind, sent, backend.taken())


def check_order(gateway: Gateway, kind: str, sent: list[str], taken: list[str]) -> None:
    """See that what was received went out in that order, and nothing came from nowhere."""
    received = stored(gateway)
    assert set(received) == set(sent)
    # A client that saw no answer sends again, so an event may have been received twice. What was
    # in flight when the gateway or the backend was killed may have been delivered twice.
    assert first_of(taken) == first_of(received)
    more_than_received = [one for one in set(taken) if taken.count(one) > received.count(one)]
    assert len(more_than_received) <= KILLS
    if kind != "async_http":  # which does not keep the order of its events itself
        assert first_of(received) == sent


def first_of(digests: list[str]) -> list[str]:
    return list(dict.fromkeys(digests))


def stored(gateway: Gateway) -> list[str]:
    """Return the digests of everything that was received, in that order, by the files alone."""
    result = CliRunner().invoke(cli, ["quiver", "cat", str(gateway.core)], catch_exceptions=False)
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    return [hashlib.sha256(row["payload"].encode()).hexdigest() for row in rows]


def test_sigterm_waits_for_what_is_under_way_and_keeps_the_rest(
    make_gateway: MakeGateway, make_backend: MakeBackend
) -> None:
    backend = make_backend()
    never = exporter(backend.url, send_timeout="1h")
    gateway = make_gateway({"marquez": never}, drain="1h")
    backend.feel(hang=True)
    with producer(gateway.url) as client:
        client.emit("under-way", "waits-1", "waits-2")
        until(lambda: backend.attempts(0), "a send")
        gateway.send_signal(signal.SIGTERM)
        until(lambda: "stopping" in gateway.log(), "stopping")
        assert gateway.is_alive(), "a send is under way"
        # Its connection breaks: not taken, so it is sent again after the next start.
        backend.kill()
        gateway.wait_ended()
        assert gateway.messages()[-1] == "stopped; kept for the next start: marquez 3"

        # Once more, and this time nobody has patience.
        backend.start()
        gateway.start()
        until(lambda: backend.attempts(0) >= 2, "a send")
        gateway.send_signal(signal.SIGTERM)
        until(lambda: gateway.log().count("stopping, within") == 2, "stopping")
        gateway.stop()
        assert gateway.messages()[-2:] == [
            "stopping without draining",
            "stopped; what waits is kept for the next start",
        ]
        backend.feel()
        gateway.start()
        client.emit("after")
        until(lambda: len(backend.taken()) == 4, "delivery")
        assert backend.taken() == client.accepted
    gateway.stop()
    assert gateway.messages()[-1] == "stopped; nothing waits"


@pytest.mark.slow
def test_a_second_gateway_cannot_have_the_data_directory(
    tmp_path: Path, make_gateway: MakeGateway, make_backend: MakeBackend
) -> None:
    gateway = make_gateway({"marquez": exporter(make_backend().url)})
    second = Gateway(tmp_path, {"marquez": exporter("http://127.0.0.1:9")})
    with pytest.raises(AssertionError, match="in use"):
        second.start()
    assert gateway.is_ready()
    gateway.stop()
