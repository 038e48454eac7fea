"""Which data nodes can be reached."""

from __future__ import annotations

import math

import pytest
from tests.handoff.clock import VirtualClock

from holdfast.handoff.monitor import Monitor, NodeState


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def monitor(clock: VirtualClock) -> Monitor:
    monitor = Monitor(clock)
    monitor.add("a")
    return monitor


def test_a_node_is_down_until_it_answers_once(monitor: Monitor) -> None:
    assert monitor.state("a") is NodeState.DOWN
    monitor.good("a")
    assert monitor.state("a") is NodeState.UP
    assert monitor.healthy_nodes() == {"a"}


def test_one_miss_makes_it_suspect_and_a_good_answer_brings_it_back(monitor: Monitor) -> None:
    monitor.good("a")
    monitor.missed("a", "no answer")
    assert monitor.state("a") is NodeState.SUSPECT
    assert monitor.healthy_nodes() == frozenset()
    monitor.good("a")
    assert monitor.state("a") is NodeState.UP


def test_scenario_13_a_node_that_does_not_answer_is_down_after_three_misses(
    monitor: Monitor,
) -> None:
    monitor.good("a")
    for _ in range(3):
        monitor.missed("a", "no answer in 2 s")
    assert monitor.state("a") is NodeState.DOWN
    assert monitor.last_error("a") == "no answer in 2 s"


def test_a_node_that_fell_needs_two_good_answers_and_its_damping(
    monitor: Monitor, clock: VirtualClock
) -> None:
    monitor.good("a")
    for _ in range(3):
        monitor.missed("a", "gone")
    monitor.good("a")
    monitor.good("a")
    assert monitor.state("a") is NodeState.DOWN  # for one second
    clock.pass_s(1.0)
    monitor.good("a")
    assert monitor.state("a") is NodeState.UP


def test_scenario_14_a_flapping_node_is_damped_and_still_gets_its_turn(
    monitor: Monitor, clock: VirtualClock
) -> None:
    ups = 0
    for second in range(300):
        before = monitor.state("a")
        if second % 5 < 2:
            monitor.good("a")
        else:
            monitor.missed("a", "gone")
        ups += before is not NodeState.UP and monitor.state("a") is NodeState.UP
        clock.pass_s(1.0)
    assert 2 <= ups <= 12
    assert monitor.changes("a") <= 3 * 12


def test_damping_is_forgotten_after_a_long_time_without_a_fall(
    monitor: Monitor, clock: VirtualClock
) -> None:
    for _ in range(6):
        clock.pass_s(60)
        monitor.good("a")
        monitor.good("a")
        for _ in range(3):
            monitor.missed("a", "gone")
    clock.pass_s(1000)
    monitor.good("a")
    monitor.good("a")
    for _ in range(3):
        monitor.missed("a", "gone")
    clock.pass_s(1.0)
    monitor.good("a")
    monitor.good("a")
    assert monitor.state("a") is NodeState.UP


def test_busy_lasts_as_long_as_was_asked_for(monitor: Monitor, clock: VirtualClock) -> None:
    monitor.good("a")
    monitor.busy("a", 5.0)
    assert monitor.state("a") is NodeState.BUSY
    clock.pass_s(4.9)
    monitor.good("a")
    assert monitor.state("a") is NodeState.BUSY
    clock.pass_s(0.1)
    assert monitor.state("a") is NodeState.UP


def test_a_node_that_cannot_write_is_busy(monitor: Monitor) -> None:
    monitor.good("a", is_writable=False)
    assert monitor.state("a") is NodeState.BUSY
    monitor.good("a")
    assert monitor.state("a") is NodeState.UP


def test_a_new_process_of_a_node_is_noticed(monitor: Monitor) -> None:
    assert monitor.good("a", boot_id="1")
    assert not monitor.good("a", boot_id="1")
    assert monitor.good("a", boot_id="2")


def test_scenario_25_an_orphan_is_not_asked_any_more(monitor: Monitor) -> None:
    monitor.good("a")
    monitor.orphan("a")
    assert monitor.state("a") is NodeState.ORPHANED
    assert monitor.next_probe_s("a") == math.inf
    monitor.add("a")
    assert monitor.state("a") is NodeState.DOWN


def test_a_forgotten_node_stays_removed_whatever_arrives_late(monitor: Monitor) -> None:
    monitor.remove("a")
    monitor.good("a")
    monitor.busy("a", 1.0)
    assert monitor.state("a") is NodeState.REMOVED
    assert monitor.state("unknown") is NodeState.REMOVED


def test_probes_are_an_interval_apart(monitor: Monitor, clock: VirtualClock) -> None:
    assert monitor.next_probe_s("a") == -math.inf
    monitor.begin_probe("a")
    assert monitor.next_probe_s("a") == clock.monotonic_s() + 2.0


def test_changes_wake_whoever_waits(monitor: Monitor) -> None:
    woken: list[str] = []
    monitor.on_change = woken.append
    monitor.good("a")
    monitor.good("a")
    monitor.missed("a", "gone")
    assert woken == ["a", "a"]
