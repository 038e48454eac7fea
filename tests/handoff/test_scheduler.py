"""Permits of catch-up: fair in bytes, within rates."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from tests.handoff.clock import VirtualClock

from holdfast.errors import BadInput
from holdfast.handoff.scheduler import MIB, Scheduler, SchedulerSettings

FAST = SchedulerSettings(slow_start_bytes_s=1e15, permits=1)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def drain(
    scheduler: Scheduler, clock: VirtualClock, parts: dict[str, list[int]]
) -> list[tuple[str, int]]:
    """Let nodes send their parts one after another; return who sent how much, in order."""
    sent: list[tuple[str, int]] = []
    for name in parts:
        scheduler.add(name)
    while any(parts.values()):
        for name, left in parts.items():
            if left:
                scheduler.wait(name, left[0], 0)
            else:
                scheduler.leave(name)
        for name, left in parts.items():
            budget = scheduler.take(name)
            if budget is None:
                continue
            assert budget >= left[0]
            quantum = 0
            while left and quantum + left[0] <= budget:
                quantum += left.pop(0)
            scheduler.done(name, quantum)
            sent.append((name, quantum))
            break
        clock.pass_s(0.001)
    return sent


def test_scenario_16_twenty_backlogs_of_unequal_parts_get_the_same_bytes(
    clock: VirtualClock,
) -> None:
    randomness = random.Random(7)
    sizes = [randomness.choice([MIB, 5 * MIB, 30 * MIB]) for _ in range(20)]
    parts = {
        f"n{number}": [randomness.randint(size // 2, size) for _ in range(120 * MIB // size)]
        for number, size in enumerate(sizes)
    }
    scheduler = Scheduler(clock, FAST)
    sent: Counter[str] = Counter()
    for name, size in drain(scheduler, clock, {name: list(left) for name, left in parts.items()}):
        sent[name] += size
        if not any(sent[name] == sum(left) for name, left in parts.items()):
            # Within one quantum, and the part for which credit is saved up.
            assert max(sent.values()) - min(sent[n] for n in parts) <= 30 * MIB + 8 * MIB + 1


def test_a_quantum_is_what_the_credit_covers(clock: VirtualClock) -> None:
    sent = drain(Scheduler(clock, FAST), clock, {"a": [3 * MIB] * 6, "b": [3 * MIB] * 6})
    assert [name for name, _ in sent] == ["a", "b"] * 3
    # What is left of a credit is kept: 8 are two parts, 2 + 8 are three, 1 + 8 are the last.
    assert [size for name, size in sent if name == "a"] == [6 * MIB, 9 * MIB, 3 * MIB]


def test_a_part_larger_than_a_quantum_is_sent_when_credit_was_saved_up(
    clock: VirtualClock,
) -> None:
    sent = drain(Scheduler(clock, FAST), clock, {"large": [32 * MIB] * 2, "small": [MIB] * 64})
    before = sent[: sent.index(("large", 32 * MIB))]
    assert sum(size for _, size in before) >= 24 * MIB


def test_the_oldest_goes_first_on_ties(clock: VirtualClock) -> None:
    scheduler = Scheduler(clock, FAST)
    for name, oldest_ns in (("a", 5), ("b", 3), ("c", 4)):
        scheduler.add(name)
        scheduler.wait(name, MIB, oldest_ns)
    assert [name for name in ("a", "b", "c") if scheduler.take(name) is not None] == ["b"]


def test_permits_bound_who_catches_up_at_the_same_time(clock: VirtualClock) -> None:
    scheduler = Scheduler(clock, SchedulerSettings(permits=2, slow_start_bytes_s=1e15))
    for name in "abc":
        scheduler.add(name)
        scheduler.wait(name, MIB, 0)
    assert [name for name in "abc" if scheduler.take(name) is not None] == ["a", "b"]
    assert scheduler.take("c") is None
    scheduler.done("a", MIB)
    scheduler.leave("a")
    assert scheduler.take("c") is not None


def test_a_node_that_goes_gives_its_permit_back(clock: VirtualClock) -> None:
    scheduler = Scheduler(clock, FAST)
    for name in "ab":
        scheduler.add(name)
        scheduler.wait(name, MIB, 0)
    assert scheduler.take("a") is not None
    scheduler.remove("a")
    scheduler.done("a", MIB)  # late, and of no effect
    assert scheduler.take("b") is not None


def test_nobody_saves_up_credit_while_it_has_nothing_to_send(clock: VirtualClock) -> None:
    scheduler = Scheduler(clock, FAST)
    for name in "ab":
        scheduler.add(name)
        scheduler.wait(name, MIB, 0)
    assert scheduler.take("a") == 8 * MIB
    scheduler.done("a", 0)
    scheduler.leave("a")
    scheduler.wait("a", MIB, 0)
    scheduler.leave("b")
    assert scheduler.take("a") == 8 * MIB


def test_a_slow_node_keeps_only_its_own_permit(clock: VirtualClock) -> None:
    scheduler = Scheduler(clock, SchedulerSettings(permits=2, slow_start_bytes_s=1e15))
    scheduler.add("slow")
    scheduler.wait("slow", MIB, 0)
    assert scheduler.take("slow") is not None
    sent = drain(scheduler, clock, {"a": [MIB] * 100, "b": [MIB] * 100})
    assert sum(size for _, size in sent) == 200 * MIB


def test_scenario_30_a_rate_holds_from_the_moment_it_is_changed(clock: VirtualClock) -> None:
    scheduler = Scheduler(clock, FAST)
    scheduler.add("a")
    scheduler.set_rate(1.0 * MIB, "a")
    scheduler.wait("a", 4 * MIB, 0)
    assert scheduler.take("a") is not None
    scheduler.done("a", 4 * MIB)
    assert scheduler.take("a") is None
    assert scheduler.wake_s("a") == pytest.approx(clock.monotonic_s() + 4.0, abs=0.1)
    scheduler.set_rate(8.0 * MIB, "a")
    assert scheduler.wake_s("a") == pytest.approx(clock.monotonic_s() + 0.5, abs=0.1)
    scheduler.set_rate(None, "a")
    assert scheduler.take("a") is not None
    assert scheduler.rate("a") is None


def test_the_rate_of_all_holds_for_all(clock: VirtualClock) -> None:
    scheduler = Scheduler(clock, FAST)
    for name in "ab":
        scheduler.add(name)
        scheduler.wait(name, MIB, 0)
    scheduler.set_rate(1.0 * MIB)
    assert scheduler.take("a") is not None
    scheduler.done("a", 2 * MIB)
    assert scheduler.take("b") is None
    clock.pass_s(2.0)
    assert scheduler.take("b") is not None


def test_new_parts_wait_for_nothing_and_catch_up_yields_to_them(clock: VirtualClock) -> None:
    scheduler = Scheduler(clock, FAST)
    scheduler.add("a")
    scheduler.set_rate(1.0 * MIB, "a")
    scheduler.wait("a", MIB, 0)
    scheduler.sent_live("a", 10 * MIB)
    assert scheduler.take("a") is None
    clock.pass_s(10.0)
    assert scheduler.take("a") is not None


def test_one_that_waits_for_its_own_rate_does_not_keep_others_waiting(clock: VirtualClock) -> None:
    scheduler = Scheduler(clock, FAST)
    for name in "ab":
        scheduler.add(name)
        scheduler.wait(name, MIB, 0)
    scheduler.set_rate(1.0, "a")
    scheduler.sent_live("a", 1000)
    assert scheduler.take("b") is not None


def test_catch_up_starts_slowly_and_doubles_and_busy_halves(clock: VirtualClock) -> None:
    scheduler = Scheduler(clock)
    scheduler.add("a")
    assert scheduler.pace("a") == 1.0 * MIB
    scheduler.went_well("a")
    assert scheduler.pace("a") == 2.0 * MIB
    for _ in range(20):
        scheduler.went_well("a")
    assert scheduler.pace("a") is None
    scheduler.was_busy("a")
    assert scheduler.pace("a") == 128.0 * MIB
    for _ in range(30):
        scheduler.was_busy("a")
    assert scheduler.pace("a") == MIB / 8
    scheduler.came_back("a")
    assert scheduler.pace("a") == 1.0 * MIB


def test_who_waits_for_a_permit_is_woken_by_others(clock: VirtualClock) -> None:
    scheduler = Scheduler(clock, FAST)
    for name in "ab":
        scheduler.add(name)
        scheduler.wait(name, MIB, 0)
    assert scheduler.take("a") is not None
    assert scheduler.wake_s("b") == math.inf


def test_parts_without_bytes_take_turns_too(clock: VirtualClock) -> None:
    sent = drain(Scheduler(clock, FAST), clock, {"a": [0] * 3, "b": [MIB] * 9})
    assert Counter(name for name, _ in sent)["a"] == 1


@pytest.mark.parametrize("wrong", [{"permits": 0}, {"quantum_bytes": 0}, {"parts_max": -1}])
def test_impossible_settings_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(BadInput):
        SchedulerSettings(**wrong)


def test_impossible_rates_are_refused(clock: VirtualClock) -> None:
    with pytest.raises(BadInput):
        Scheduler(clock).set_rate(0.0)
