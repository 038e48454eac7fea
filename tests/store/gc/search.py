"""The search: every world that can be reached, the nearest first, level by level."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from tests.store.gc.model import Model, Variant, World
from tests.store.gc.reduction import Reduction, pack


@dataclass(frozen=True)
class Verdict:
    """What a search found."""

    violation: str | None
    trace: tuple[str, ...]
    exhausted: bool
    seen: dict[bytes, bytes] = field(repr=False)
    """Every world, packed, and the one from which it was first reached."""
    levels: int = 0

    @property
    def states(self) -> int:
        """How many worlds were visited."""
        return len(self.seen)


class Reduce(Enum):
    """Which worlds are taken for one; see reduction.py."""

    NOTHING = "nothing"
    NAMES = "names"
    ALL = "all"


def search(
    variant: Variant,
    reduce: Reduce = Reduce.ALL,
    *,
    visit: Callable[[World], object] | None = None,
    states_max: int = 5_000_000,
) -> Verdict:
    """Visit every world, or one of all that behave alike; stop at the first violation."""
    model = Model(variant)
    reduction = Reduction(model, names_only=reduce is Reduce.NAMES)
    canonical = _as_it_is if reduce is Reduce.NOTHING else reduction.canonical
    start = canonical(model.start)
    seen = {pack(start): b""}
    level = [start]
    levels = 0
    while level:
        levels += 1
        reached: list[World] = []
        met: set[bytes] = set()  # the same by several ways: no need to look for its form again
        for world in level:
            if visit is not None:
                visit(world)
            wrong = model.violation(world)
            if wrong:
                return Verdict(wrong, _trace(model, canonical, seen, world), False, seen, levels)
            came_from = pack(world)
            for _, following in model.following(world):
                as_reached = pack(following)
                if as_reached in met:
                    continue
                met.add(as_reached)
                new = canonical(following)
                packed = pack(new)
                if packed not in seen:
                    seen[packed] = came_from
                    reached.append(new)
        if len(seen) > states_max:
            return Verdict(None, (), False, seen, levels)
        level = reached
    return Verdict(None, (), True, seen, levels)


def _as_it_is(world: World) -> World:
    return world


def _trace(
    model: Model, canonical: Callable[[World], World], seen: dict[bytes, bytes], world: World
) -> tuple[str, ...]:
    """Return what happened on the way to a world: only where it led is remembered, so go again."""
    way = [pack(world)]
    while before := seen[way[-1]]:
        way.append(before)
    here = canonical(model.start)
    steps: list[str] = []
    for wanted in reversed(way[:-1]):
        for what, following in model.following(here):
            if pack(new := canonical(following)) == wanted:
                steps.append(what)
                here = new
                break
    return tuple(steps)
