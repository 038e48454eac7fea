"""No interleaving of writers, readers, collectors and a repair loses a chunk; other designs do.

`QUICK` and `LONG` say which run covers what; what is taken for one state, and why it may, is in
reduction.py, and compared here with searches that take nothing for one.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.store.gc import model
from tests.store.gc.model import Model, Variant, World
from tests.store.gc.reduction import Reduction, pack
from tests.store.gc.search import Reduce, search

from holdfast.store.gc import transitions
from holdfast.store.gc.transitions import TRANSITIONS, ColumnCondition, DatabaseTime, Transition

# One name for all objects of a hash, as the seed has it; writers wait for deletes.
BARE = Variant(generation_in_key=False, in_all=True, collectors=1, late=False)
REPAIRED = Variant(generations=2, readers=1, collectors=1, damages=1)

KNOWN_BAD = {
    "A: references are taken unchecked": replace(
        BARE, references_checked=False, generation_checked=False, leases_checked=False
    ),
    "C: rows are checked, their generation is not": replace(
        BARE, generation_checked=False, leases_checked=False
    ),
    "D2: a delete lands late": replace(BARE, late=True),
    "E2: two collectors": replace(BARE, collectors=2),
    "G: jobs go on holding what a repair found lost": replace(REPAIRED, lost_are_let_go=False),
    "H: a repair puts objects anew under their old name": replace(
        REPAIRED, mended_in_place=True, damages=2
    ),
}
# The bounds of the research are three generations, two writers and two collectors.
QUICK = {
    "two collectors": Variant(generations=3),
    "three generations in all": Variant(generations=3, in_all=True),
    "a reader": Variant(generations=3, readers=1),
    "three writers": Variant(generations=3, writers=3, collectors=1),
    "a repair": Variant(generations=2, collectors=1, damages=1),
}
LONG = {
    "the bounds of the research, nothing left out of a world": (
        Variant(generations=3, in_all=True),
        Reduce.NAMES,
    ),
    "a repair, a reader, two collectors": (
        Variant(generations=3, readers=1, damages=1),
        Reduce.ALL,
    ),
    "five generations, three collectors": (
        Variant(generations=5, readers=1, collectors=3),
        Reduce.ALL,
    ),
}
COMPARED = {
    "one generation": Variant(generations=1, in_all=True, readers=1),
    "two generations": Variant(generations=2, in_all=True, writers=1, collectors=1),
    "a repair": Variant(generations=1, in_all=True, writers=1, collectors=1, damages=1),
}
COMPARED_LONG = {
    "two writers": Variant(generations=2, in_all=True, collectors=1),
    "two collectors": Variant(generations=2, in_all=True, writers=1, readers=1),
    "a repair": Variant(generations=2, in_all=True, writers=1, collectors=1, damages=1),
    "a repair between two writers": Variant(generations=1, in_all=True, damages=1),
}
OVER_ALL = {name: replace(variant, in_all=True) for name, variant in KNOWN_BAD.items()}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("reduce", Reduce)
@pytest.mark.parametrize("name", KNOWN_BAD)
def test_what_is_known_to_be_wrong_is_found(name: str, reduce: Reduce) -> None:
    variant = OVER_ALL[name] if reduce is Reduce.NOTHING else KNOWN_BAD[name]
    verdict = search(variant, reduce)
    assert verdict.violation is not None
    assert len(verdict.trace) == verdict.levels - 1


def test_one_name_per_hash_is_safe_only_while_nothing_is_late_or_double() -> None:
    assert_safe(BARE, Reduce.ALL)


@pytest.mark.parametrize("name", QUICK)
def test_no_interleaving_loses_a_chunk(name: str) -> None:
    assert_safe(QUICK[name], Reduce.ALL)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", LONG)
def test_no_interleaving_loses_a_chunk_in_a_larger_world(name: str) -> None:
    assert_safe(*LONG[name])


def assert_safe(variant: Variant, reduce: Reduce) -> None:
    verdict = search(variant, reduce)
    assert verdict.violation is None, verdict.trace
    assert verdict.exhausted


@pytest.mark.parametrize("name", COMPARED)
def test_the_reductions_leave_out_nothing(name: str) -> None:
    """Search everything; in canonical form it is what the reduced search finds, and as sound."""
    assert_reductions_leave_out_nothing(COMPARED[name])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", COMPARED_LONG)
def test_the_reductions_leave_out_nothing_in_a_larger_world(name: str) -> None:
    assert_reductions_leave_out_nothing(COMPARED_LONG[name])


def assert_reductions_leave_out_nothing(variant: Variant) -> None:
    checked = Model(variant)
    reductions = {
        Reduce.NAMES: Reduction(checked, names_only=True),
        Reduce.ALL: Reduction(checked),
    }
    found: dict[Reduce, set[bytes]] = {reduce: set() for reduce in reductions}

    def visit(world: World) -> None:
        for reduce, reduction in reductions.items():
            form = reduction.canonical(world)
            found[reduce].add(pack(form))
            assert bool(checked.violation(world)) == bool(checked.violation(form))

    assert search(variant, Reduce.NOTHING, visit=visit).exhausted
    for reduce in reductions:
        assert found[reduce] == search(variant, reduce).seen.keys()


def test_dying_is_one_way() -> None:
    """What the reductions rely on, and everybody else."""
    for step in (step for step in TRANSITIONS if step.table == "chunk"):
        changed = [change.value for change in step.effect if change.column == "removing"]
        assert changed in ([], [DatabaseTime.NOW])


# Without these nothing is lost: they stop steps that would change nothing, or that nobody takes.
HARMLESS = {
    ("mark uploaded", "uploaded"),
    ("release", "holds"),
    ("unrefer", "refcount"),
    ("begin deleting", "deleting"),
    ("begin removing", "removing"),
    # A dying row has lost against every other already: nobody's job holds it.
    ("mark uploaded", "removing"),
    # Nobody holds a dying row, and no other row counts on it.
    ("lose", "uploaded"),
    ("lose", "removing"),
}
GUARDS = [
    (step, condition)
    for step in TRANSITIONS
    for condition in step.guard
    # Leases are switches in this model, and commits are steps of their writers.
    if step.table == "chunk" and (step.name, condition.column) not in HARMLESS
]


@pytest.mark.parametrize(
    ("step", "condition"), GUARDS, ids=[f"{step.name}, {c.column}" for step, c in GUARDS]
)
def test_every_guard_is_needed(
    step: Transition, condition: ColumnCondition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Take one condition out of the code's own table: the search must find what it is for."""
    weaker = step._replace(guard=tuple(c for c in step.guard if c != condition))
    constant = next(name for name, value in vars(transitions).items() if value == step)
    monkeypatch.setattr(model, constant, weaker)
    monkeypatch.setattr(model, "_ALLOWED", {})
    monkeypatch.setattr(model, "_AFTER", {})
    assert search(Variant(generations=2, readers=1)).violation is not None
