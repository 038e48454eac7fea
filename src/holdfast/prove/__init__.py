"""Proofs: real processes, real kill -9, and a checker that trusts only the clients' journals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMES = {
    "quiver": "kill a process that appends to a quiver; everything it answered must be there",
}

Progress = Callable[[str], None]


def run(name: str, *, kills: int, seed: int, directory: Path, progress: Progress) -> dict[str, Any]:
    """Run one proof in an empty directory and return its findings; `ok` is the verdict."""
    from holdfast.prove.quiver import prove_quiver

    assert name == "quiver", f"BUG: no proof {name}"
    return prove_quiver(kills=kills, seed=seed, directory=directory, progress=progress)


def points(name: str) -> list[tuple[str, str]]:
    """Return the named fault points of a proof, with what happens at each."""
    from holdfast.quiver.points import DESCRIPTIONS

    assert name == "quiver", f"BUG: no proof {name}"
    return [(str(point), description) for point, description in DESCRIPTIONS.items()]
