"""The event finder: what became of a run, a job, a trace or a bundle, as in `holdfast explain`.

It reads the files of the gateway's quivers and dead letters, newest first, in a thread. A search
goes on for `SEARCH_S` at most, checked between two segments, and then says how far it came: the
gateway has other work, and `holdfast explain` beside it has no limit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import PurePath
from typing import Any

from holdfast.dead_letters.stored import STORES
from holdfast.graph.model import Graph
from holdfast.graph.paths import dead_letters_directory, plan
from holdfast.quiver.base import names
from holdfast.quiver.cores import core_ids
from holdfast.quiver.tools.explain import Match, explain, search
from holdfast.quiver.tools.inspect import Inventory, inspect
from holdfast.seam import Seam
from holdfast.signals.registry import readers

SEARCH_S = 15.0
# Events that are shown, of each quiver.
FOUND_MAX = 10
# What became of an event, and how that is to be taken.
MOODS = {"acked": "good", "pending": "plain", "filtered": "plain", "not for it": "plain"}


@dataclass(frozen=True)
class Moment:
    """One line of a timeline; without a time, it is not over."""

    time_ns: int | None
    what: str
    why: str
    mood: str


@dataclass(frozen=True)
class ExplainedBundle:
    """One bundle: where it is, its events that match, and what became of it."""

    quiver: str
    seq: int
    place: str
    receipt: dict[str, Any] | None
    matches: tuple[Match, ...]
    timeline: tuple[Moment, ...]


@dataclass(frozen=True)
class FoundEvents:
    """What was found; `skipped_segments` were not looked at for want of time."""

    bundles: tuple[ExplainedBundle, ...]
    skipped_segments: int


def find_events(graph: Graph, what: str, *, anywhere: bool) -> FoundEvents:
    """Return the bundles that have a text, an id or a number."""
    ends_s = time.monotonic() + SEARCH_S
    seam = Seam()
    found: list[ExplainedBundle] = []
    skipped = 0
    for name, directory in _quivers(graph, seam):
        inventory = inspect(seam.disk, directory)
        matches: list[Match] = []
        # A number is taken for the number of a bundle, since that is what logs print.
        if what.isdecimal() and not anywhere:
            seqs = [int(what)] if int(what) <= inventory.last_seq else []
        else:
            parts = list(_newest_first(inventory))
            while parts and len(matches) < FOUND_MAX and time.monotonic() < ends_s:
                wanted = search(parts.pop(0), what, readers(), anywhere=anywhere)
                matches += islice(wanted, FOUND_MAX - len(matches))
            skipped += len(parts) if len(matches) < FOUND_MAX else 0
            seqs = sorted({match.seq for match in matches}, reverse=True)
        for seq in seqs:
            story = asdict(explain(seam.disk, inventory, seq))
            mine = tuple(match for match in matches if match.seq == seq)
            found.append(
                ExplainedBundle(name, seq, story["place"], story["receipt"], mine, _timeline(story))
            )
    return FoundEvents(tuple(found), skipped)


def _quivers(graph: Graph, seam: Seam) -> Iterator[tuple[str, PurePath]]:
    """Yield the quivers of all workers, and their dead letters: an event may have ended there."""
    for one in plan(graph):
        root = PurePath(one.directory)
        for core in core_ids(seam.disk, root) if seam.disk.exists(root) else ():
            yield f"{one.name}/{names.core_dir(core)}", root / names.core_dir(core)
    first = dead_letters_directory(graph)
    for queue in [first, *sorted(first.parent.glob(f"{first.name}-[0-9][0-9]"))]:
        for store in STORES:
            if seam.disk.exists(PurePath(queue) / store):
                yield f"{queue.name}/{store}", PurePath(queue) / store


def _newest_first(inventory: Inventory) -> Iterator[Inventory]:
    """Yield what is not sealed, then the segments one by one, each as an inventory of its own."""
    yield replace(inventory, segments=())
    for segment in reversed(inventory.segments):
        yield replace(inventory, segments=(segment,), unsealed=())


def _timeline(story: dict[str, Any]) -> tuple[Moment, ...]:
    """Return what happened to a bundle, in order; what is not over comes last."""
    found = []
    receipt = story["receipt"]
    if receipt is not None:
        found.append(Moment(receipt["accepted_ns"], "accepted", story["place"], "good"))
    for fate in story["subscribers"]:
        name, state = fate["subscriber"], fate["state"]
        for time_ns, what in fate["remarks"]:
            found.append(Moment(time_ns, f"{name}: {what}", "", "plain"))
        mood = MOODS.get(state, "bad")
        found.append(Moment(fate["time_ns"], f"{name}: {state}", fate["reason"] or "", mood))
    return tuple(sorted(found, key=lambda one: (one.time_ns is None, one.time_ns or 0)))
