"""A repair between real data nodes, of which either is killed in the middle, again and again."""

from __future__ import annotations

import contextlib
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.handoff.test_control import ThreadedSender
from tests.handoff.test_driver import seal, sending
from tests.node.test_process import running
from tests.patience import PATIENCE_S, until
from tests.ports import free_port

from holdfast.handoff.control import HandoffVerbs
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.remote import ClientSettings
from holdfast.replica.flight import FlightTransport
from holdfast.replica.part import part_id
from holdfast.replica.transport import Transport
from holdfast.replica.verify import verify
from holdfast.seam import Seam

PARTS = 40


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_scenario_01_a_repair_goes_on_after_either_node_was_killed(tmp_path: Path) -> None:
    chance = random.Random(1)
    addresses = {name: f"127.0.0.1:{free_port()}" for name in "ab"}
    locations = {name: f"grpc://{address}" for name, address in addresses.items()}
    with contextlib.ExitStack() as stack:
        lives = {name: stack.enter_context(contextlib.ExitStack()) for name in "ab"}
        processes: dict[str, Any] = {}

        def start(name: str) -> None:
            """Begin another process on the same directory."""
            lives[name].close()
            process, _, _ = lives[name].enter_context(running(tmp_path / name, addresses[name]))
            processes[name] = process

        for name in "ab":
            start(name)
        ways: dict[str, Transport] = {
            name: FlightTransport(location, ClientSettings(timeout=PATIENCE_S))
            for name, location in locations.items()
        }
        handoff = stack.enter_context(sending(tmp_path, ways))
        verbs = HandoffVerbs(lambda: [ThreadedSender(handoff, locations)], Seam())
        until(lambda: handoff.healthy_nodes() == {"a", "b"}, "that both are met")
        verbs({"action": "pause", "node": "b"})
        seal(handoff.quiver, PARTS)
        until(lambda: "a" not in handoff.reached(handoff.sync_point()).waiting, "that a has all")
        for record in verbs({"action": "ls", "node": "b"})["records"]:
            verbs({"action": "discard", "node": "b", "part": record["part"]})
        handoff.quiver._engine.retention.tick()
        assert handoff.quiver.segments() == ()
        for _ in range(4):
            victim = chance.choice("ab")
            killing = threading.Timer(chance.uniform(0.0, 1.0), processes[victim].kill)
            killing.start()
            for record in verbs({"action": "repair"})["records"]:
                assert record.get("answer") in (None, "ack", "have", "busy", "failed"), record
            killing.join()
            start(victim)
        until(lambda: verbs({"action": "repair"})["records"] == [OVER], "that b has all")
        assert verbs({"action": "gaps"})["records"] == []
    for name in "ab":
        folders = [path.parent for path in (tmp_path / name).glob("replicas/*/segments/*/manifest")]
        found = [part_id(verify(Seam().disk, folder)) for folder in folders]
        assert len(found) == len(set(found)) == PARTS
        assert list(IntervalSet((one.first_seq, one.end_seq) for one in found)) == [(0, PARTS)]


# What a repair answers that found nothing to do, and could ask everybody.
OVER = {"component": "replicas", "core_id": 3, "next": None}
