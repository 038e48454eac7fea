"""When a lease ends: if it is not renewed, whatever a clock says; at once, if its process died."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.store.gc.stage import LEASE_S, Stage

from holdfast.errors import LeaseLost
from holdfast.seam.holder import Holder, is_dead, this_process
from holdfast.store.gc.leases import QUARANTINE_JOB
from holdfast.store.gc.watch import LeaseVerdict
from holdfast.store.objects.objects import hash_of

DAY_S = 86_400.0
A = hash_of(b"a")

needs_proc = pytest.mark.skipif(not this_process().boot, reason="who is dead is known with /proc")


@contextmanager
def other_process() -> Iterator[Holder]:
    """A process that lives until the block ends, and has no number any more afterwards."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with open(f"/proc/{child.pid}/stat", encoding="utf-8") as file:
            started = file.read().rpartition(")")[2].split()[19]
        yield this_process()._replace(pid=child.pid, started=started)
    finally:
        child.kill()
        child.communicate()


def give(stage: Stage, lease: int, holder: Holder) -> None:
    """Let a lease be somebody else's."""
    words = ", ".join(f"{name} = '{value}'" for name, value in holder._asdict().items())
    stage.sql(f"UPDATE gc_job SET {words} WHERE id = {lease}")


def test_a_collector_whose_clock_is_a_day_ahead_ends_no_lease_of_the_living(stage: Stage) -> None:
    """One machine with a wrong clock made every put fail; so did a laptop that had slept."""
    with stage.references.open_job("j") as opened:
        stage.upload(opened, b"a")
        stage.set_clock(DAY_S)
        report = stage.collector().collect()
        assert (report.leases_expired, report.leases_lapsed) == (0, 1)
        assert stage.collector().collect().leases_expired == 0, "it was seen a moment ago"
        stage.set_clock(-DAY_S)
        stage.references.renew_leases()
        stage.publish(opened, "c", [A])
    stage.check_at_rest()


def test_a_lease_that_was_born_lapsed_lives_as_long_as_it_is_renewed(stage: Stage) -> None:
    """Its writer's clock is a day behind that of the collector."""
    with stage.references.open_job("j") as opened:
        for _ in range(4):
            stage.sql(f"UPDATE gc_job SET lease_until = lease_until - {DAY_S}")
            assert stage.collector().collect().leases_expired == 0
            stage.jump(LEASE_S / 3)
            stage.references.renew_leases()
        opened.check()


def test_a_lease_ends_when_it_was_seen_unchanged_for_its_length(stage: Stage) -> None:
    opened = stage.references.open_job("j")
    stage.collector().collect()
    stage.clock.ahead_s += LEASE_S + 1
    stage.set_clock(LEASE_S + 1)
    assert stage.collector().collect().leases_expired == 1
    with pytest.raises(LeaseLost):
        stage.references.reserve_chunks(opened, [(A, 1)])


def test_what_was_seen_before_the_machine_was_started_anew_counts_for_nothing(
    stage: Stage,
) -> None:
    stage.references.open_job("j")
    stage.jump(2 * LEASE_S)
    stage.sql("UPDATE gc_job SET seen_clock = 'of another boot'")
    report = stage.collector().collect()
    assert (report.leases_expired, report.leases_lapsed) == (0, 1)
    stage.jump(LEASE_S)
    assert stage.collector().collect().leases_expired == 1


@needs_proc
def test_the_lease_of_a_dead_process_ends_at_once(stage: Stage) -> None:
    """A killed put kept the collector waiting for ten minutes."""
    opened = stage.references.open_job("j")
    stage.upload(opened, b"a")
    with other_process() as holder:
        give(stage, opened.id, holder)
        assert stage.collector().collect().leases_expired == 0
    assert [one.verdict for one in stage.references.statistics().leases] == [LeaseVerdict.DEAD]
    assert stage.collector().plan().lapsed_leases == ("job j",)
    assert stage.collector().collect().leases_expired == 1
    stage.check_at_rest()


@needs_proc
def test_a_number_that_another_process_has_now_is_no_sign_of_life() -> None:
    mine = this_process()
    assert not is_dead(mine)
    assert is_dead(mine._replace(started="1"))


@needs_proc
@pytest.mark.parametrize(
    "other",
    [
        {"boot": "another"},
        {"boot": this_process().boot + " in another namespace"},
        {"boot": "another", "host": "another"},
        {"boot": ""},
        {"started": ""},
    ],
)
def test_nobody_is_dead_who_cannot_be_seen(other: dict[str, str]) -> None:
    assert not is_dead(this_process()._replace(pid=2**22 + 1, **other))


@needs_proc
def test_all_processes_ended_with_the_boot_of_their_machine() -> None:
    before = this_process()._replace(boot="another")
    assert is_dead(before, one_machine=True)
    assert not is_dead(before._replace(host="another"), one_machine=True)
    elsewhere = this_process().boot.partition(" ")[0] + " another namespace"
    assert not is_dead(before._replace(boot=elsewhere), one_machine=True)


def test_status_says_whose_leases_there_are(stage: Stage) -> None:
    with stage.references.open_job("first") as first, stage.references.open_job("second"):
        found = stage.references.statistics().leases
        assert [one.name for one in found] == ["first", "second"]
        mine = this_process()
        assert (found[0].id, found[0].host, found[0].pid) == (first.id, mine.host, os.getpid())
        assert found[0].until_s - found[0].since_s == pytest.approx(LEASE_S)
        assert found[0].verdict is LeaseVerdict.AT_WORK


def test_a_lease_at_work_is_ended_by_hand_only_by_who_is_sure(stage: Stage) -> None:
    opened = stage.references.open_job("j")
    stage.upload(opened, b"a")
    found = stage.references.end_lease(opened.id)
    assert found is not None
    assert found.verdict is LeaseVerdict.AT_WORK
    assert len(stage.rows("gc_job")) == 1
    assert stage.references.end_lease(opened.id, sure=True) == found
    with pytest.raises(LeaseLost):
        stage.publish(opened, "c", [A])
    assert stage.references.end_lease(opened.id, sure=True) is None
    stage.collector().collect()
    stage.check_at_rest()


def test_the_quarantine_of_a_rebuild_is_not_ended_by_hand(stage: Stage) -> None:
    opened = stage.references.open_job(QUARANTINE_JOB)
    assert stage.references.end_lease(opened.id, sure=True) is None
    assert len(stage.rows("gc_job")) == 1
