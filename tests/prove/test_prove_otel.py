"""`holdfast prove otel`: its two ends, its checker, and a short run of the real thing."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S, until
from tests.ports import free_port

from holdfast.prove.checker import GatewayVerdict, check_gateway, read_arrivals
from holdfast.prove.journal import UNKNOWN, ProofJournal, read_journals
from holdfast.prove.otel import TELEMETRY_ENDS, dropping_answers
from holdfast.prove.telemetry import (
    ITEMS_MAX,
    ArrivalJournal,
    OtlpGrpcSender,
    TelemetryClient,
    names_in,
    request_of,
    serve,
)
from holdfast.signals.otlp.codec import check
from holdfast.signals.otlp.kinds import OtlpKind

NAMES = ["0-1.0", "0-1.1", "0-1.2"]


@pytest.mark.parametrize("kind", OtlpKind)
def test_items_are_known_by_their_names_unless_they_were_changed(kind: OtlpKind) -> None:
    body = request_of(kind, NAMES)
    assert check(kind, body) == len(NAMES)
    assert list(names_in(kind, body + body)) == NAMES * 2
    changed = body.replace(b"0-1.1", b"0-1.3")
    assert list(names_in(kind, changed)) == ["0-1.0", UNKNOWN, "0-1.2"]
    assert list(names_in(kind, body[:-1])) == [UNKNOWN]


def test_what_came_is_written_down_before_it_is_answered(tmp_path: Path) -> None:
    journal = ArrivalJournal(str(tmp_path / "journal"))
    packed = gzip.compress(request_of(OtlpKind.LOGS, NAMES))
    journal.note(OtlpKind.LOGS.http_path, packed, "gzip")
    journal.note("/elsewhere", packed, "gzip")
    lines = (tmp_path / "journal").read_text().splitlines()
    assert [line.split(" ")[2] for line in lines] == [*NAMES, UNKNOWN]


def test_a_client_and_a_backend_understand_each_other(tmp_path: Path) -> None:
    """Without a gateway between them: what a client was answered is in the backend's journal."""
    port = free_port()
    arrived = tmp_path / "0001.grpc"
    loop = asyncio.new_event_loop()
    serving = loop.create_task(serve("grpc", port, str(arrived)))
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait([serving])))
    thread.start()
    stop = threading.Event()
    client = TelemetryClient(lambda: OtlpGrpcSender(port), tmp_path, 0, stop)
    client.start()
    try:
        until(lambda: arrived.exists() and arrived.read_text().count("\n") > ITEMS_MAX * 3)
    finally:
        stop.set()
        client.join(PATIENCE_S)
        loop.call_soon_threadsafe(serving.cancel)
        thread.join(PATIENCE_S)
        loop.close()
    verdict = check_gateway(tmp_path, {"grpc": 1}, by_client=True)
    assert verdict.ok, verdict
    assert verdict.accepted > ITEMS_MAX * 3


def test_order_is_looked_at_client_by_client(tmp_path: Path) -> None:
    for client in (0, 1):
        with ProofJournal(tmp_path / f"{client}.journal") as journal:
            for count in (1, 2):
                journal.sent(f"{client}-{count}", 1)
                journal.answered(f"{client}-{count}", count)

    def violations(*names: str) -> int:
        lines = "".join(f"R {time} {name}.0\n" for time, name in enumerate(names))
        (tmp_path / "0001.grpc").write_text(lines)
        return check_gateway(tmp_path, {"grpc": 1}, by_client=True).order_violations

    assert violations("0-1", "0-2", "1-1", "1-2") == 0
    assert violations("0-1", "1-1", "1-2", "0-2") == 0
    assert violations("0-2", "1-1", "1-2", "0-1") == 1


def test_answers_upon_which_an_sdk_drops_its_data_are_seen(tmp_path: Path) -> None:
    with ProofJournal(tmp_path / "0.journal") as journal:
        for count, why in enumerate(
            ["503 busy", "UNAVAILABLE later", "RemoteDisconnected", "500 oh", "INTERNAL reset"]
        ):
            journal.sent(f"0-{count}", 1)
            journal.refused(f"0-{count}", "maybe", why)
        journal.sent("0-9", 1)
        journal.refused("0-9", "no", "refused")
    assert list(dropping_answers(tmp_path)) == ["0-3: 500 oh", "0-4: INTERNAL reset"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_is_lost_when_both_ends_are_killed_and_the_checker_would_see_it(
    tmp_path: Path,
) -> None:
    proof = tmp_path / "proof"
    command = [sys.executable, "-m", "holdfast", "prove", "otel", "--kills", "4", "--json"]
    done = subprocess.run(
        [*command, "--dir", str(proof)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["ok"]
    assert found["accepted"] > 0
    assert found["kills"] == 4

    journal = max((proof / "journals").glob("*.grpc"), key=lambda path: path.stat().st_size)
    lines = journal.read_text().splitlines(keepends=True)
    sent = read_journals(proof / "journals")
    arrivals = Counter(name for _, name in read_arrivals(proof / "journals", "grpc"))
    (planted, *_) = [
        line
        for line in lines
        if arrivals[name := line.split()[2]] == 1 and sent[name.rpartition(".")[0]].answered
    ]

    def judged(count: int) -> GatewayVerdict:
        """Return the verdict if one arrival had been written down so often."""
        changed = [line for line in lines for _ in range(count if line == planted else 1)]
        journal.write_text("".join(changed))
        return check_gateway(proof / "journals", TELEMETRY_ENDS.events_per_request, by_client=True)

    once, never, twice = judged(1), judged(0), judged(2)
    assert once.ok
    assert (never.lost, never.duplicated, never.ok) == (1, 0, False)
    assert (twice.lost, twice.duplicated, twice.ok) == (0, 1, False)
