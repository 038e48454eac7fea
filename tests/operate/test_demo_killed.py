"""Whoever watches the demo may kill any of its processes by hand: the table still adds up."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.patience import SPARK_PATIENCE_S, until

from holdfast.demo.run import driver_of

# What the words of a process say about who it is.
WORDS = {
    "gateway": b"holdfast\0up",
    "backend": b"holdfast.prove.lineage\0backend",
    "node": b"holdfast\0node",
}


def children_of(parent: int) -> dict[int, bytes]:
    """Return the words of every child of a process."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = process.joinpath("stat").read_text().rpartition(")")[2].split()[1]
            words = process.joinpath("cmdline").read_bytes()
        except OSError:
            continue  # it ended just now
        if int(told) == parent:
            found[int(process.name)] = words
    return found


def victim(kind: str, demo: int) -> int | None:
    """Return a process of the demo."""
    gateways = [one for one, words in children_of(demo).items() if WORDS["gateway"] in words]
    if kind == "driver":
        return driver_of(gateways[0]) if gateways else None
    found = [one for one, words in children_of(demo).items() if WORDS[kind] in words]
    return random.choice(found) if found else None


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gateway", "backend", "node", "driver"])
def test_a_process_that_is_killed_by_hand_is_back_and_nothing_is_lost(
    kind: str, tmp_path: Path
) -> None:
    pause_s = random.uniform(0.0, 8.0)
    spark = "--spark" if kind == "driver" else "--no-spark"
    folder = tmp_path / "demo"
    command = [sys.executable, "-m", "holdfast", "demo", spark, "--keep", str(folder), "--json"]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        journal = folder / "client.journal"
        until(lambda: journal.exists() and journal.stat().st_size > 0, "traffic")
        time.sleep(pause_s)
        killed: list[int] = []

        def kill() -> bool:
            found = victim(kind, demo.pid)
            if found is not None:
                os.kill(found, signal.SIGKILL)
                killed.append(found)
            return bool(killed)

        until(kill, f"a {kind}")
        output, errors = demo.communicate(timeout=SPARK_PATIENCE_S)
    finally:
        demo.kill()
        demo.wait()
    about = f"{kind} after {pause_s:.2f} s: {errors.decode()[-3000:]}{output.decode()[-3000:]}"
    assert demo.returncode == 0, about
    told = json.loads(output)
    assert (told["ok"], told["lost"], told["out_of_order"]) == (True, 0, 0), about
