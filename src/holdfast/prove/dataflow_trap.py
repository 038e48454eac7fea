"""Traps: a proof writes the name of a moment into a file, and whoever gets there first dies of it.

For a driver it is one of `dataflow/base/points.py`, reached in any of its processes; all of them
die.
For the gateway it is a step of its disk. Who dies renames the file, so a trap strikes once.
"""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.dataflow.base.points import BatchPoint
from holdfast.prove.sessions import end_session

# The folder in which traps lie.
TRAPS = "HOLDFAST_PROVE_TRAPS"
DRIVER, GATEWAY = "driver", "gateway"


def set_trap(folder: Path, victim: str, point: str) -> None:
    """Let the next one who comes to a point die."""
    fresh = folder / f"{victim}.new"
    fresh.write_text(point)
    os.replace(fresh, folder / victim)


def take_trap(folder: Path, victim: str) -> str | None:
    """Return where a trap lies, and take it away; None if there is none (any more)."""
    try:
        point = (folder / victim).read_text()
        os.rename(folder / victim, folder / f"{victim}.sprung")
    except FileNotFoundError:
        return None
    return point


def reached(point: BatchPoint, checkpoint: str) -> None:
    """Kill the whole driver if the trap lies here."""
    folder = Path(os.environ[TRAPS])
    try:
        is_here = (folder / DRIVER).read_text() == point
    except FileNotFoundError:
        return
    if is_here and take_trap(folder, DRIVER) == point:
        end_session(os.getsid(0))
