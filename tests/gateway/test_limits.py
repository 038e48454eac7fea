"""Limits: what waits for a dead destination is bounded, every drop counted, and others go on."""

from __future__ import annotations

from typing import Any

from openlineage.client.serde import Serde
from tests.gateway.conftest import MakeBackend, MakeGateway
from tests.gateway.processes import exporter, holdfast
from tests.gateway.producer import event, producer
from tests.patience import SCALE, until

from holdfast.deliver.delivery import LOW_WATER_EVENTS

MB = 1024 * 1024


def buffered(size_cap: str, exporters: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the nodes of a gateway with a small buffer."""
    config = {
        **more,
        # What is dropped has been sealed.
        "segment": {"target_size": "1MB", "max_open_duration": "200ms"},
        "retention": {"size_cap": size_cap},
    }
    quiver = {"kind": "processor", "type": "quiver", "config": config, "to": list(exporters)}
    return {"lineage": {"to": ["quiver"]}, "quiver": quiver, **exporters}


def test_a_dead_destination_drops_its_oldest_events_and_no_others(
    make_gateway: MakeGateway, make_backend: MakeBackend
) -> None:
    alive, dead = make_backend("alive"), make_backend("dead")
    dead.kill()
    exporters = {"alive": exporter(alive.url), "dead": exporter(dead.url, retention_size="1MB")}
    gateway = make_gateway(buffered("16MB", exporters))
    with producer(gateway.url) as client:
        for number in range(100):
            client.send(event(f"job-{number}", query="x" * 30_000))
        # Whoever is up has everything, while the other one is down.
        until(lambda: len(alive.taken()) == 100, "delivery to the one that is up")
        assert alive.taken() == client.accepted
        until(lambda: gateway.balance("dead")["pending_bytes"] <= MB, "the limit")
        balance = gateway.balance("dead")
        dropped = balance["outcomes"]["dropped"]["events"]
        assert balance["holds"]
        assert dropped + balance["pending"]["events"] == 100
        assert 0 < dropped < 100

        # Statistics, metrics and the log say the same as the ledger.
        dead_now = gateway.destination("dead")
        assert dead_now["lost_events"]["dropped"] == dropped
        assert dead_now["lag_events"] == 100 - dropped
        name = "gateway_destination_dropped_events_total"
        assert gateway.metric(name, destination="dead", reason="dropped") == dropped
        assert gateway.metric(name, destination="alive") == 0
        assert gateway.metric("gateway_destination_lag_events", destination="dead") == 100 - dropped
        until(lambda: any("dead: lost" in line for line in gateway.messages()), "a warning")
        lines = holdfast("quiver", "ledger", gateway.core, "--outcome", "dropped")
        assert sum(line["events"] for line in lines) == dropped

        # It returns, and gets what is left, in order, and what is new.
        dead.start()
        client.emit("new")
        until(lambda: dead.taken()[-1:] == client.accepted[-1:], "the rest")
    # All but the few that were in hand, being tried again and again, are the oldest.
    lost = [one for one in client.accepted if one not in dead.taken()]
    in_hand = client.accepted.index(lost[0])
    assert in_hand <= LOW_WATER_EVENTS
    assert dead.taken() == client.accepted[:in_hand] + client.accepted[in_hand + dropped :]
    assert gateway.balance("alive")["outcomes"]["dropped"]["events"] == 0
    gateway.stop()


def test_a_full_buffer_refuses_with_503_until_there_is_room(
    make_gateway: MakeGateway, make_backend: MakeBackend
) -> None:
    backend = make_backend()
    backend.kill()
    marquez = exporter(backend.url, retention_size=None, on_full="block")
    gateway = make_gateway(buffered("4MB", {"marquez": marquez}, append={"timeout": 1.0 * SCALE}))
    large = Serde.to_json(event("large", query="x" * 200_000)).encode()
    accepted = 0
    while (refused := gateway.post(large))[0] == 200:
        accepted += 1
    status, headers, answer = refused
    assert (status, answer["reason"]) == (503, "unavailable")
    assert int(headers["retry-after"]) >= 1
    assert "x" * 100 not in str(answer)
    assert 0 < accepted < 4 * MB // len(large)
    # A large event does not fit any more; a small one may, until the last corner is full.
    small = Serde.to_json(event("small", query="x" * 20_000)).encode()
    while gateway.post(small)[0] == 200:
        accepted += 1
    assert gateway.admin_page("/readyz")[0] == 503
    assert "the cap is 4194304" in gateway.admin_page("/readyz")[1]
    assert gateway.admin_page("/healthz")[0] == 200
    assert gateway.metric("gateway_process_refusing") == 1
    name = "gateway_receiver_rejected_events_total"
    assert gateway.metric(name, reason="unavailable") >= 1

    # The client waits as the answer asks it to, and gets through when there is room.
    backend.start()
    with producer(gateway.url) as client:
        client.emit("patient")
    until(lambda: len(backend.taken()) == accepted + 1, "delivery")
    assert backend.taken()[-1:] == client.accepted
    until(gateway.is_ready, "ready again")
    gateway.stop()
