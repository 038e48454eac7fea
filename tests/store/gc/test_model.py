"""No interleaving of writers, readers and collectors loses a chunk; four other designs do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.store.gc import model
from tests.store.gc.model import Model, Variant

from holdfast.store.gc import transitions
from holdfast.store.gc.transitions import STEPS, Condition, Step

# One name for all objects of a hash, as the seed has it; writers wait for deletes.
BARE = Variant(generation_in_key=False, collectors=1, readers=0, late=False)

KNOWN_BAD = {
    "A: references are taken unchecked": replace(
        BARE, references_checked=False, generation_checked=False, leases_checked=False
    ),
    "C: rows are checked, their generation is not": replace(
        BARE, generation_checked=False, leases_checked=False
    ),
    "D2: a delete lands late": replace(BARE, late=True),
    "E2: two collectors": replace(BARE, collectors=2),
}


@pytest.mark.parametrize("name", KNOWN_BAD)
def test_what_is_known_to_be_wrong_is_found(name: str) -> None:
    verdict = Model(KNOWN_BAD[name]).search()
    assert verdict.violation is not None
    assert verdict.trace


def test_one_name_per_hash_is_safe_only_while_nothing_is_late_or_double() -> None:
    verdict = Model(BARE).search()
    assert verdict.exhausted
    assert verdict.violation is None


def test_no_interleaving_loses_a_chunk() -> None:
    verdict = Model(Variant(generations=2, readers=0)).search()
    assert verdict.violation is None, verdict.trace
    assert verdict.exhausted
    assert verdict.states > 50_000


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "variant",
    [Variant(generations=2), Variant(generations=3, readers=0, collectors=1)],
    ids=["a reader", "three generations at once"],
)
def test_no_interleaving_loses_a_chunk_in_a_larger_world(variant: Variant) -> None:
    verdict = Model(variant).search()
    assert verdict.violation is None, verdict.trace
    assert verdict.exhausted


# Without these nothing is lost: they stop steps that would change nothing, or that nobody takes.
HARMLESS = {
    ("mark uploaded", "uploaded"),
    ("release", "holds"),
    ("unrefer", "refcount"),
    ("begin deleting", "deleting"),
    ("begin removing", "removing"),
    # A dying row has lost against every other already: nobody's job holds it.
    ("mark uploaded", "removing"),
}
GUARDS = [
    (step, condition)
    for step in STEPS
    for condition in step.guard
    # Leases are switches in this model, and commits are steps of their writers.
    if step.table == "chunk" and (step.name, condition.column) not in HARMLESS
]


@pytest.mark.parametrize(
    ("step", "condition"), GUARDS, ids=[f"{step.name}, {c.column}" for step, c in GUARDS]
)
def test_every_guard_is_needed(
    step: Step, condition: Condition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Take one condition out of the code's own table: the search must find what it is for."""
    weaker = step._replace(guard=tuple(c for c in step.guard if c != condition))
    constant = next(name for name, value in vars(transitions).items() if value == step)
    monkeypatch.setattr(model, constant, weaker)
    monkeypatch.setattr(model, "_ALLOWED", {})
    monkeypatch.setattr(model, "_AFTER", {})
    verdict = Model(Variant(generations=2)).search()
    assert verdict.violation is not None
