"""The runner of all proofs: what it counts, what it reports, and that it leaves no process."""

from __future__ import annotations

import itertools
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S

from holdfast.errors import CheckFailed
from holdfast.prove import runner
from holdfast.prove.runner import PORTS, ProofOptions, ProofProcesses, ProofRunner, free_ports

# Each is what a process of a proof does.
WAITS = "print('ready', flush=True); import time; time.sleep(600)"
DIES = "print('ready', flush=True); import os; os.kill(os.getpid(), 9)"
FAILS = "raise SystemExit(3)"
ENDS = "print('ready', flush=True)"


class Prover:
    """Strikes as it is told, and is never right if it was not started."""

    last_step = "settling"

    def __init__(self, at_points: Iterator[str | None], fails: bool = False) -> None:
        self._at_points = at_points
        self._fails = fails
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")

    def strike_at_random(self) -> str:
        if self._fails:
            raise CheckFailed("it hangs", hint="see the logs")
        return "random: gateway"

    def strike_at_point(self) -> str | None:
        return next(self._at_points)

    def settle(self) -> str:
        self.calls.append("settle")
        return "verdict"

    def close(self) -> None:
        self.calls.append("close")


def options_of(tmp_path: Path, told: list[str]) -> ProofOptions:
    return ProofOptions(4, 7, tmp_path, tmp_path, told.append)


def test_every_other_strike_is_at_a_point_and_one_that_missed_is_repeated(tmp_path: Path) -> None:
    told: list[str] = []
    proof = ProofRunner(options_of(tmp_path, told))
    prover = Prover(iter(["wal.sync", None, None, "wal.write"]))
    assert proof.run(prover, 4) == "verdict"
    report = proof.report("gateway", True, {"lost": 0})
    assert report["kill_sites"] == {"random: gateway": 2, "wal.sync": 1, "wal.write": 1}
    assert (report["kills"], report["kills_at_points"], report["points_not_reached"]) == (4, 2, 2)
    assert (report["proof"], report["ok"], report["lost"], report["seed"]) == (
        "gateway",
        True,
        0,
        7,
    )
    assert prover.calls == ["start", "settle", "close"]
    assert told[-2:] == ["kill 4/4 at wal.write", "settling"]


def test_it_goes_on_for_the_seconds_that_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count()
    monkeypatch.setattr("holdfast.prove.runner.time.monotonic", lambda: float(next(clock)))
    told: list[str] = []
    proof = ProofRunner(options_of(tmp_path, told))
    assert proof.run(Prover(itertools.repeat("wal.sync")), 1, seconds_min=9.5) == "verdict"
    strikes = proof.report("gateway", True, {})["kills"]
    assert 5 <= strikes <= 10
    assert told[-2].startswith(f"kill {strikes}/{strikes}")


def test_a_proof_that_fails_leaves_no_process(tmp_path: Path) -> None:
    prover = Prover(iter([]), fails=True)
    with pytest.raises(CheckFailed, match="it hangs"):
        ProofRunner(options_of(tmp_path, [])).run(prover, 1)
    assert prover.calls == ["start", "close"]


@pytest.mark.parametrize(("refused", "ok"), [(0, False), (3, True)])
def test_a_proof_on_a_small_disk_must_have_met_a_full_one(
    tmp_path: Path, refused: int, ok: bool
) -> None:
    proof = ProofRunner(options_of(tmp_path, []))
    assert proof.report("quiver", True, {"refused_disk_full": refused})["ok"] is ok
    assert proof.report("quiver", False, {"refused_disk_full": 3})["ok"] is False


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProofProcesses]:
    """Processes that run the text they are given, in place of a module."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "$3"\n')
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    made = ProofProcesses(tmp_path / "proof", seed=1)
    yield made
    made.close()


def test_a_process_that_kills_itself_has_reached_its_point(processes: ProofProcesses) -> None:
    processes.start("victim", "any", DIES)
    assert processes.dies("victim", PATIENCE_S)


def test_one_that_does_not_reach_it_is_killed(processes: ProofProcesses) -> None:
    processes.start("victim", "any", WAITS)
    assert not processes.dies("victim", 0.0)
    assert not processes.is_alive("victim")


def test_one_that_hangs_although_it_should_have_ended_is_a_finding(
    processes: ProofProcesses,
) -> None:
    processes.start("victim", "any", WAITS)
    with pytest.raises(CheckFailed, match="victim neither died nor ended"):
        processes.dies("victim", 0.0, may_end=True)


def test_one_that_ends_by_itself_is_a_finding_unless_it_may(processes: ProofProcesses) -> None:
    processes.start("victim", "any", ENDS)
    with pytest.raises(CheckFailed, match="victim ended by itself with 0"):
        processes.dies("victim", PATIENCE_S)
    processes.start("victim", "any", ENDS)
    assert not processes.dies("victim", PATIENCE_S, may_end=True)


def test_one_that_does_not_start_is_a_finding_that_names_the_logs(
    processes: ProofProcesses,
) -> None:
    with pytest.raises(CheckFailed, match="victim ended before it was ready") as raised:
        processes.start("victim", "any", FAILS)
    assert str(processes.logs) in (raised.value.hint or "")


def test_whatever_still_runs_is_killed_at_the_end(
    processes: ProofProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "STOP_SECONDS_MAX", PATIENCE_S)
    processes.start("one", "any", WAITS)
    processes.start("two", "any", WAITS)
    processes.stop("one")
    processes.close()
    assert [child.returncode for child in processes.children.values()] == [-15, -9]


def test_ports_are_not_those_that_a_system_gives_to_others() -> None:
    with ExitStack() as taken:
        for port in free_ports(50):
            assert port in PORTS
            # One that is used is not found again.
            taken.enter_context(socket.create_server(("127.0.0.1", port)))
        assert len(set(free_ports(50))) == 50
