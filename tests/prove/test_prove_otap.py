"""`holdfast prove otap`: the proposal's file as it is, its ends, and a run of the real thing."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml
from tests.patience import PATIENCE_S, until
from tests.ports import free_port

from holdfast.prove.checker import check_gateway
from holdfast.prove.gateway import GraphPlaces
from holdfast.prove.journal import read_journals
from holdfast.prove.otap import AT_ONCE, OTAP, OTAP_ENDS, OTLP, proposal
from holdfast.prove.otap_ends import OtapSender, serve_otap
from holdfast.prove.telemetry import ITEMS_MAX, TelemetryClient
from holdfast.signals.otlp.kinds import OtlpKind

EXAMPLE = Path(__file__).parents[2] / "examples" / "seed.yaml"


def test_the_file_is_the_example_but_for_its_addresses() -> None:
    places = GraphPlaces([4317, 4318], {OTAP: 1235, OTLP: 14317}, Path("elsewhere"), 1.0)
    assert yaml.safe_load(proposal(places)) == yaml.safe_load(EXAMPLE.read_text())


def test_what_may_come_twice_is_what_the_exporters_send_at_once() -> None:
    from holdfast.deliver.exporters import otap, otlp

    backend = {"grpc_endpoint": "http://127.0.0.1:1"}
    made = {
        OTLP: otlp.Config.model_validate(backend).max_batch_events,
        OTAP: otap.Config.model_validate(backend).max_batch_events,
    }
    assert made == AT_ONCE


def test_a_client_and_a_backend_understand_each_other(tmp_path: Path) -> None:
    """Without a gateway between them: what a client was answered is in the backend's journal."""
    port = free_port()
    arrived = tmp_path / "0001.otap"
    loop = asyncio.new_event_loop()
    serving = loop.create_task(serve_otap(port, str(arrived)))
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait([serving])))
    thread.start()
    stop = threading.Event()
    clients = [
        TelemetryClient(lambda: OtapSender(port), tmp_path, number, stop, [kind])
        for number, kind in enumerate(OtlpKind)
    ]
    for client in clients:
        client.start()
    try:
        until(lambda: all(_has_come(arrived, number) for number in range(len(clients))))
    finally:
        stop.set()
        for client in clients:
            client.join(PATIENCE_S)
        loop.call_soon_threadsafe(serving.cancel)
        thread.join(PATIENCE_S)
        loop.close()
    verdict = check_gateway(tmp_path, {"otap": 1}, by_client=True)
    assert verdict.ok, verdict
    assert verdict.accepted > ITEMS_MAX


def _has_come(arrived: Path, client: int) -> bool:
    return arrived.exists() and arrived.read_text().count(f" {client}-") > ITEMS_MAX


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_same_items_are_at_both_receivers_when_everything_is_killed(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    command = [sys.executable, "-m", "holdfast", "prove", "otap", "--kills", "4", "--json"]
    done = subprocess.run(
        [*command, "--dir", str(proof)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["ok"]
    assert found["kills"] == 4
    assert found["delivered"][OTLP] == found["delivered"][OTAP] >= found["accepted"] > 0
    assert {path.suffix for path in (proof / "journals").glob("0001.*")} == {
        f".{role}" for role in OTAP_ENDS.roles
    }
    # The checker would see it: an answered event that is missing at one of the two.
    journal = max((proof / "journals").glob("*.otap"), key=lambda path: path.stat().st_size)
    lines = journal.read_text().splitlines(keepends=True)
    sent = read_journals(proof / "journals")
    names = [line.split()[2] for line in reversed(lines)]
    name = next(one for one in names if sent[one.rpartition(".")[0]].answered)
    journal.write_text("".join(line for line in lines if line.split()[2] != name))
    limits = OTAP_ENDS.events_per_request
    assert not check_gateway(proof / "journals", limits, by_client=True).ok
