"""What an operator sees and does beside a running gateway: bad events, figures, taps, reloads."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import orjson
import pytest
from openlineage.client.serde import Serde
from requests import HTTPError
from tests.gateway.conftest import MakeBackend, MakeGateway
from tests.gateway.processes import Gateway, exporter, holdfast
from tests.gateway.producer import event, producer
from tests.patience import until
from tests.support.statsd import Statsd


@pytest.fixture
def statsd() -> Iterator[Statsd]:
    with closing(Statsd()) as server:
        yield server


def test_an_operator_beside_a_running_gateway(
    make_gateway: MakeGateway, make_backend: MakeBackend, statsd: Statsd
) -> None:
    marquez, datahub = make_backend("marquez"), make_backend("datahub")
    gateway = make_gateway(
        {"marquez": exporter(marquez.url), "datahub": exporter(datahub.url)},
        statsd={"address": statsd.address, "interval": "1s"},
    )
    with producer(gateway.url) as client:
        client.emit("first")
        until(lambda: marquez.taken() and datahub.taken(), "delivery")
        check_bad_events(gateway, client.client)
        check_figures(gateway, statsd)
        check_pause(gateway, client, marquez, datahub)
        check_tap_and_explain(gateway, client)
        check_reload(gateway, client, marquez)
    gateway.stop()


def check_bad_events(gateway: Gateway, client: Any) -> None:
    """An invalid event is a 400 with reasons, and a dead letter that can be mended."""
    no_text: Any = 7
    bad = event("bad", query=no_text)
    with pytest.raises(HTTPError) as refused:
        client.emit(bad)
    response: Any = refused.value.response
    assert response.status_code == 400
    answer = response.json()
    assert answer["kept"] is True
    pointers = {one["pointer"] for one in answer["errors"]}
    assert "/job/facets/sql/query" in pointers
    (letter,) = holdfast("dlq", "ls", gateway.config)["letters"]
    assert (letter["letter"], letter["reason"]) == ("rejected/0", "invalid")
    assert gateway.post(b"{")[0] == 400
    until(lambda: len(holdfast("dlq", "ls", gateway.config)["letters"]) == 2, "a second letter")
    name = "gateway_receiver_rejected_events_total"
    assert gateway.metric(name, receiver="lineage", reason="invalid") == 2


def check_figures(gateway: Gateway, statsd: Statsd) -> None:
    """Prometheus and statsd say the same, under the same names."""
    expected = {
        "gateway.receiver.accepted_events_total": 1,
        "gateway.receiver.rejected_events_total": 2,
        "gateway.destination.sent_events_total": 2,
        "gateway.destination.lag_events": 0,
    }
    until(lambda: expected.items() <= statsd.figures.items(), "statsd")
    # Of the lag, statsd has the last destination's here, and the page the sum of both.
    until(
        lambda: all(gateway.metric(n.replace(".", "_")) == v for n, v in expected.items()),
        "metrics",
    )
    assert gateway.metric("gateway_dead_letters_events", store="rejected") == 2


def check_pause(gateway: Gateway, client: Any, marquez: Any, datahub: Any) -> None:
    """A paused destination waits, the other one does not."""
    holdfast("destination", "pause", "marquez", gateway.config)
    client.emit("paused")
    until(lambda: datahub.taken() == client.accepted, "delivery to the other one")
    assert gateway.destination("marquez")["state"] == "paused"
    assert gateway.destination("marquez")["lag_events"] == 1
    holdfast("destination", "resume", "marquez", gateway.config)
    until(lambda: marquez.taken() == client.accepted, "delivery after the pause")


def check_tap_and_explain(gateway: Gateway, client: Any) -> None:
    """Events are seen on their way, and what became of them is known by their run."""
    command = [sys.executable, "-m", "holdfast", "tap", "marquez", str(gateway.config)]
    tap = subprocess.Popen([*command, "--limit", "1", "--json"], stdout=subprocess.PIPE)
    with tap:
        # A tap shows what passes from now on, and nobody can know when it has begun.
        one = event("tapped")
        while tap.poll() is None:
            client.send(one)
        assert tap.stdout is not None
        seen = json.loads(tap.stdout.readline())
    assert orjson.loads(seen["payload"]) == orjson.loads(Serde.to_json(one))
    until(lambda: gateway.destination("marquez")["lag_events"] == 0, "delivery")
    both = {"marquez": "acked", "datahub": "acked"}
    # The other one may still be at it, and outcomes are on disk a moment later.
    until(lambda: fates_of(one.run.runId, gateway) == both, "outcomes on disk")


def fates_of(run_id: str, gateway: Gateway) -> dict[str, str]:
    """Return what became of the first event of a run, by destination; it is in one quiver only."""
    quivers = holdfast("explain", run_id, gateway.config)["quivers"]
    assert all(one["explanations"] == [] for one in quivers if one["quiver"] != "quiver/core-00")
    stories = next(one for one in quivers if one["quiver"] == "quiver/core-00")["explanations"]
    return {fate["subscriber"]: fate["state"] for fate in stories[0]["subscribers"]}


def check_reload(gateway: Gateway, client: Any, marquez: Any) -> None:
    """SIGHUP applies a changed file: one destination is gone, the other one filters."""
    drop = {"drop": [{"job_name": ["secret*"]}]}
    gateway.configure(
        {
            "lineage": {"to": ["clean"]},
            "clean": {"kind": "processor", "type": "filter", "config": drop, "to": ["marquez"]},
            "marquez": exporter(marquez.url),
        }
    )
    gateway.send_signal(signal.SIGHUP)
    until(lambda: "the destination datahub is gone" in gateway.log(), "a reload")
    until(lambda: '"reloaded: the destination marquez"' in gateway.log(), "a reload")
    client.emit("secret-job", "open-job")
    until(lambda: client.accepted[-1] in marquez.taken(), "delivery")
    assert client.accepted[-2] not in marquez.taken()
    assert gateway.destination("marquez")["filtered"] == 1

    good = gateway.config.read_text()
    gateway.config.write_text(good.replace("type: filter", "type: flter"))
    gateway.send_signal(signal.SIGHUP)
    until(lambda: "not reloaded" in gateway.log(), "a refusal")
    assert "did you mean 'filter'" in gateway.log()
    client.emit("still-here")
    until(lambda: client.accepted[-1] in marquez.taken(), "delivery")


@pytest.mark.slow
def test_tokens_and_namespaces(make_gateway: MakeGateway, make_backend: MakeBackend) -> None:
    backend = make_backend()
    token = {"name": "airflow", "token": "s3cret-token-of-airflow", "namespaces": ["tests", "lake"]}
    nodes = {
        "lineage": {"config": {"tokens": [token]}, "to": ["marquez"]},
        "marquez": exporter(backend.url),
    }
    gateway = make_gateway(nodes)
    with producer(gateway.url) as nobody, pytest.raises(HTTPError, match="401"):
        nobody.emit("a")
    auth = {"type": "api_key", "apiKey": token["token"]}
    with producer(gateway.url, auth=auth) as client:
        client.emit("b")
        foreign = event("c")
        foreign.job.namespace = "others"
        with pytest.raises(HTTPError, match="403"):
            client.client.emit(foreign)
    until(lambda: backend.taken() == client.accepted, "delivery")
    gateway.stop()
    for path in gateway.folder.rglob("*"):
        if path.is_file() and path != gateway.config:
            assert b"s3cret-token" not in path.read_bytes(), path


@pytest.mark.slow
def test_workers_share_a_port_and_keep_the_order_of_each_key(
    make_gateway: MakeGateway, make_backend: MakeBackend
) -> None:
    backend = make_backend()
    backend.feel(status=503)
    delivery = {"order": "key", "key": "run", "lanes": 4}
    gateway = make_gateway({"marquez": exporter(backend.url, **delivery)}, workers=2)
    runs: list[list[str]] = []
    for number in range(12):
        # A connection for each run, so that both workers get some, and a run has one of them.
        with producer(gateway.url) as client:
            run_id = str(uuid.uuid4())
            for _ in range(5):
                client.send(event(f"run-{number}", run_id=run_id))
            runs.append(client.accepted)
    holders = [gateway.folder / "data" / "quiver" / f"core-{n:02d}" for n in (0, 1)]
    assert all(holder.is_dir() for holder in holders)
    gateway.kill()
    gateway.start()
    backend.feel()
    until(lambda: len(set(backend.taken())) == 60, "delivery")
    taken = list(dict.fromkeys(backend.taken()))
    for run in runs:
        assert [one for one in taken if one in run] == run
    assert gateway.metric("gateway_receiver_accepted_events_total") == 0, "counted since the start"
    told = [holdfast("quiver", "ledger", holder, "--balance")[0] for holder in holders]
    assert sum(one["outcomes"]["acked"]["events"] for one in told) == 60
    gateway.stop()
