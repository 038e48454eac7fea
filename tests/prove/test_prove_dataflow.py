"""`holdfast prove dataflow`: its parts alone, and a short run of the real thing."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S

from holdfast.dataflow.base.points import TRAP, BatchPoint
from holdfast.errors import CheckFailed
from holdfast.graph.pipelines import load_pipelines
from holdfast.prove import dataflow
from holdfast.prove.dataflow import (
    LINEAGE_ENDS,
    PIPELINES,
    DataflowEnds,
    DataflowProver,
    graph_file,
)
from holdfast.prove.dataflow_checker import DataflowVerdict
from holdfast.prove.lineage import INVALID
from holdfast.prove.runner import ProofOptions
from holdfast.prove.sessions import (
    DRIVER,
    TRAPS,
    end_session,
    processes,
    session_of,
    sessions_with,
    set_trap,
    take_trap,
)
from holdfast.signals.openlineage.validation import ValidationSettings, Validator

# A process that leads a session with a child in it, and then comes to a moment of a batch.
VICTIM = """
import subprocess, sys
from holdfast.dataflow.base.points import BatchPoint, reached
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
reached(BatchPoint.OFFSETS, "checkpoint")
print("alive", flush=True)
reached(BatchPoint.WRITE, "checkpoint")
print("still alive", flush=True)
"""


def test_the_configuration_of_the_proof_is_valid(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text(graph_file([4711], tmp_path))
    loaded = load_pipelines(tmp_path / "gateway.yaml")
    assert tuple(loaded.pipelines) == PIPELINES
    assert not loaded.warnings


def test_what_is_meant_to_be_refused_is_invalid() -> None:
    _, verdict = Validator(ValidationSettings()).parse_and_check(INVALID)
    assert verdict.errors


def test_a_trap_strikes_once(tmp_path: Path) -> None:
    assert take_trap(tmp_path, DRIVER) is None
    set_trap(tmp_path, DRIVER, BatchPoint.WRITE)
    assert take_trap(tmp_path, DRIVER) == BatchPoint.WRITE
    assert take_trap(tmp_path, DRIVER) is None


def test_whoever_steps_into_a_trap_dies_with_its_whole_session(tmp_path: Path) -> None:
    environ = {**os.environ, TRAPS: str(tmp_path), TRAP: "holdfast.prove.sessions:reached"}
    set_trap(tmp_path, DRIVER, BatchPoint.WRITE)
    with subprocess.Popen(
        [sys.executable, "-c", VICTIM], env=environ, stdout=subprocess.PIPE, start_new_session=True
    ) as victim:
        try:
            told, _ = victim.communicate(timeout=PATIENCE_S)
            assert told == b"alive\n"
            assert victim.returncode == -9
            assert not [pid for pid in processes() if session_of(pid) == victim.pid]
            assert not sessions_with(TRAPS, str(tmp_path))
        finally:
            end_session(victim.pid)


class _Child:
    """A process that ended so, or runs."""

    stdout = None

    def __init__(self, code: int | None = None) -> None:
        self.code = code

    def poll(self) -> int | None:
        """As `Popen.poll`."""
        return self.code

    def send_signal(self, number: int) -> None:
        """As `Popen.send_signal`, to one that obeys."""
        self.code = 0

    def wait(self, timeout: float) -> int | None:
        """As `Popen.wait`."""
        return self.code


def made(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gateway: int | None = None,
    ends: DataflowEnds[DataflowVerdict] = LINEAGE_ENDS,
) -> DataflowProver[DataflowVerdict]:
    """Return a prover whose gateway ended so, or runs."""
    options = ProofOptions(1, 1, tmp_path / "proof", tmp_path / "proof", lambda told: None)
    prover = DataflowProver(options, ends)
    children = prover._processes.children
    monkeypatch.setitem(children, "gateway", _Child(gateway))
    return prover


def test_the_end_waits_for_no_batch_of_events_that_nobody_posts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataflow, "PROGRESS_SECONDS_MAX", PATIENCE_S)
    verdict = DataflowVerdict()
    ends = replace(LINEAGE_ENDS, check=lambda *_: verdict)
    proof, clients, batches = made(tmp_path, monkeypatch, ends=ends), _Child(), [0]

    def count() -> list[int]:
        # Everything that was posted is in a batch at once.
        batches[0] += clients.code is None
        return [batches[0], batches[0]]

    monkeypatch.setitem(proof._processes.children, "clients", clients)
    monkeypatch.setattr(proof, "_batches", count)
    monkeypatch.setattr(proof, "_drain", lambda name: None)
    assert proof.settle() is verdict


def test_a_gateway_that_ended_by_itself_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataflow, "STACKS_SECONDS", 0.0)
    proof = made(tmp_path, monkeypatch, gateway=78)
    with pytest.raises(CheckFailed, match="the gateway ended with 78"):
        proof.wait_for_progress()


# A driver that never does anything, and says so when it is asked.
STUCK = """
import faulthandler, signal, sys
faulthandler.register(signal.SIGUSR2, all_threads=True)
def waits_for_ever():
    print("ready", flush=True)
    sys.stdin.read()
waits_for_ever()
"""


def test_a_pipeline_that_does_not_go_on_is_asked_what_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataflow, "PROGRESS_SECONDS_MAX", 0.0)
    monkeypatch.setattr(dataflow, "STACKS_SECONDS", 0.0)
    proof = made(tmp_path, monkeypatch)
    environ = {**os.environ, TRAPS: str(tmp_path / "proof" / "traps")}
    command = [sys.executable, "-c", STUCK, "holdfast.operate.driver_main"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environ, **pipes) as driver:  # type: ignore[call-overload]
        assert driver.stdout.readline() == b"ready\n"
        with pytest.raises(CheckFailed, match="does not make progress"):
            proof.wait_for_progress()
        _, told = driver.communicate(timeout=60)
    assert b"waits_for_ever" in told


def test_pipelines_that_move_one_after_the_other_make_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine each takes its time, and no one's waiting is another one's."""
    proof = made(tmp_path, monkeypatch)
    found = iter([[4, 7], [4, 7], [4, 8], [4, 8], [4, 8]])
    monkeypatch.setattr(proof, "_batches", lambda: next(found, [5, 8]))
    waits: list[float] = []
    wait_until = proof._processes.wait_until

    def counted(condition: Callable[[], bool], seconds_max: float, complaint: str) -> None:
        waits.append(seconds_max)
        wait_until(condition, seconds_max, complaint)

    monkeypatch.setattr(proof._processes, "wait_until", counted)
    proof.wait_for_progress()
    assert waits == [dataflow.PROGRESS_SECONDS_MAX] * 2


@pytest.mark.parametrize("batches", [0, 3])
def test_a_drain_takes_as_long_as_it_makes_batches(
    batches: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drain of this test never ends by itself: it is given up when it stands still."""
    monkeypatch.setattr(dataflow, "DRAIN_SECONDS_MAX", 0.2)
    monkeypatch.setattr(dataflow, "STACKS_SECONDS", 0.0)
    proof = made(tmp_path, monkeypatch)
    found = itertools.chain(range(batches), itertools.repeat(batches))
    monkeypatch.setattr(proof, "_batches", lambda: [next(found), 0])
    monkeypatch.setattr(sys, "executable", str(endless(tmp_path)))
    with pytest.raises(CheckFailed, match="a drain does not make progress"):
        proof._drain(PIPELINES[0])
    assert next(found) == batches, "it was given up before it stood still"


def endless(folder: Path) -> Path:
    """Return a program that never ends."""
    program = folder / "endless"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o700)
    return program


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_short_proof_holds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast", "prove", "dataflow", "--kills", "2", "--json"]
    done = subprocess.run(
        [*command, "--dir", str(tmp_path / "proof")],
        capture_output=True, text=True, check=False, timeout=2300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["counted"] == found["accepted"] > 0
    assert (found["duplicated"], found["lost"], found["kills"]) == (0, 0, 2)
    assert found["refused"] > 0
