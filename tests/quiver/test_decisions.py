"""Bundles decided by their number: in any order, once, durably, and nothing stays behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.patience import until
from tests.quiver.machine import ROOT, Machine, quiet
from tests.quiver.owner import Owner
from tests.support.examples import examples

from holdfast.errors import BadInput, UnknownSubscriber
from holdfast.quiver import Outcome, Quiver
from holdfast.quiver.engine.control import ask
from holdfast.quiver.tools import changes
from holdfast.seam import Seam

# What happens before bundles are decided: an append of so many events, a seal, a kill -9.
STEPS = st.lists(st.sampled_from([1, 1, 2, 3, "seal", "kill"]), min_size=1, max_size=12)


@settings(max_examples=examples(30))
@given(steps=STEPS, data=st.data())
def test_any_bundles_can_be_decided_in_any_order(
    steps: list[int | str], data: st.DataObject
) -> None:
    with Machine() as machine:
        quiver = machine.start()
        quiver.register("keeper")
        events: dict[int, int] = {}
        for step in steps:
            if step == "seal":
                quiver.flush()
            elif step == "kill":
                machine.kill()
                quiver = machine.start()
            elif isinstance(step, int):
                events[quiver.append_raw([b"x"] * step).seq] = step
        waiting = list(events)
        assert quiver.waiting("keeper") == waiting
        while waiting:
            some = data.draw(st.sets(st.sampled_from(waiting), min_size=1), label="decided")
            decided = quiver.resolve("keeper", some, Outcome.GIVEN_UP, "not needed")
            assert decided == (len(some), sum(events[seq] for seq in some))
            assert quiver.resolve("keeper", some, Outcome.ACKED) == (0, 0)
            waiting = [seq for seq in waiting if seq not in some]
            assert quiver.waiting("keeper") == waiting
            assert quiver.balance("keeper").holds
        machine.kill()
        account = machine.start().balance("keeper")
        assert account.holds
        assert account.pending == (0, 0)
        assert account.outcomes.get(Outcome.GIVEN_UP, (0, 0)) == (len(events), sum(events.values()))


def test_what_is_decided_goes_from_the_disk_also_around_numbers_that_were_never_used() -> None:
    with Machine() as machine:
        quiver = machine.start()
        quiver.register("keeper")
        for _ in range(2):
            quiver.append_raw(b"before")
            machine.kill()
            quiver = machine.start()
        quiver.append_raw(b"last")
        quiver.flush()
        seqs = quiver.waiting("keeper")
        assert seqs[1] > seqs[0] + 1
        for seq in reversed(seqs):
            quiver.resolve("keeper", [seq], Outcome.ACKED)
        until(lambda: not quiver.segments())


def test_what_is_not_there_is_passed_over() -> None:
    with Machine() as machine:
        quiver = machine.start()
        quiver.append_raw(b"0")
        quiver.register("keeper", start="latest")
        quiver.append_raw(b"1")
        assert quiver.resolve("keeper", [0, 7, 10_000], Outcome.ACKED) == (0, 0)
        assert quiver.waiting("keeper") == [1]
        assert quiver.waiting("keeper", from_seq=2) == []
        with pytest.raises(UnknownSubscriber):
            quiver.resolve("nobody", [1], Outcome.ACKED)


def test_only_so_many_waiting_bundles_are_listed() -> None:
    with Machine() as machine:
        quiver = machine.start()
        quiver.register("keeper")
        for _ in range(5):
            quiver.append_raw(b"x")
        assert quiver.waiting("keeper", from_seq=1, limit=2) == [1, 2]


def test_a_tool_decides_without_an_owner_and_more_than_one_request_holds() -> None:
    with Machine() as machine:
        quiver = machine.start(quiet())
        quiver.register("keeper")
        with quiver.transaction() as transaction:
            for _ in range(5):
                transaction.append_raw(b"x")
        machine.kill()
        seam = Seam(machine.disk, machine.clock)
        decided = changes.resolve(seam, ROOT, "keeper", [1, 3, 99], Outcome.GIVEN_UP, "purged")
        assert decided == (2, 2)
        assert machine.start().waiting("keeper") == [0, 2, 4]


def test_a_tool_decides_through_the_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "SEQS_PER_REQUEST", 2)
    with Owner(tmp_path) as owner:
        owner.do("quiver.register('keeper')")
        for _ in range(6):
            owner.do("quiver.append_raw(b'x').seq")
        decided = changes.resolve(
            Seam(), tmp_path, "keeper", [0, 1, 2, 4, 5], Outcome.GIVEN_UP, "purged"
        )
        assert decided == (5, 5)
        assert owner.do("quiver.waiting('keeper')") == [3]


@pytest.mark.parametrize(
    "fields",
    [
        {"seqs": 3},
        {"seqs": ["3"]},
        {"seqs": [-1]},
        {"seqs": [True]},
        {"seqs": [0], "outcome": "lost"},
        {"seqs": [0], "outcome": 3},
        {"seqs": [0], "subscriber": None},
        {"seqs": [0], "reason": 3},
    ],
)
def test_a_request_that_makes_no_sense_is_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    good: dict[str, Any] = {"subscriber": "keeper", "outcome": "acked", "reason": "", "seqs": [0]}
    with Quiver.open(tmp_path, quiet()) as quiver:
        quiver.register("keeper")
        quiver.append_raw(b"x")
        with pytest.raises(BadInput):
            ask(tmp_path, "resolve", **{**good, **fields})
        assert quiver.waiting("keeper") == [0]
        assert ask(tmp_path, "resolve", **good) == {"bundles": 1, "events": 1}
