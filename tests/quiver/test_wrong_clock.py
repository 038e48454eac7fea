"""Nothing expires at once by a clock that may be wrong: it has to last before it is believed."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.quiver.machine import START_NS
from tests.readers.setting import StillMachine, append, calm, keep, must_poll, sealed

from holdfast.errors import BadInput
from holdfast.quiver import RetentionConfig, SubscriberOptions
from holdfast.seam.clock import SteadyTime

DAY_S = 86_400.0
RETENTION = RetentionConfig(max_age_s=3 * DAY_S)


def test_a_clock_that_is_days_ahead_at_the_start_expires_nothing_at_once(
    still: StillMachine, caplog: pytest.LogCaptureFixture
) -> None:
    quiver = still.start(calm(RETENTION))
    quiver.register("reader")
    sealed(quiver, 3)
    still.kill()
    still.clock.jump(6 * DAY_S)  # a dead battery
    with caplog.at_level(logging.WARNING, "holdfast.quiver"):
        quiver = still.start(calm(RETENTION))
    assert "the clock is 144.0 hours ahead" in caplog.text
    assert quiver.statistics().clock_doubted_s > 0
    keep(quiver)
    still.clock.pass_time(3500)
    keep(quiver)
    assert len(quiver.segments()) == 3
    still.clock.jump(-6 * DAY_S)  # somebody set it right
    still.clock.pass_time(3600)
    keep(quiver)
    assert quiver.statistics().clock_doubted_s == 0
    assert len(quiver.segments()) == 3
    assert must_poll(quiver.lease("reader")).seq == 0


def test_a_clock_that_stays_ahead_is_believed_after_its_grace(still: StillMachine) -> None:
    quiver = still.start(calm(RETENTION))
    quiver.register("reader")
    sealed(quiver, 3)
    still.kill()
    still.clock.jump(6 * DAY_S)
    quiver = still.start(calm(RETENTION))
    still.clock.pass_time(3601)
    keep(quiver)
    assert quiver.segments() == ()
    assert quiver.balance("reader").holds


def test_what_was_old_before_the_quiver_was_closed_goes_all_the_same(still: StillMachine) -> None:
    quiver = still.start(calm(RETENTION))
    quiver.register("reader")
    sealed(quiver, 1)
    still.clock.pass_time(4 * DAY_S)
    sealed(quiver, 1)
    still.kill()
    still.clock.pass_time(6 * DAY_S)
    quiver = still.start(calm(RETENTION))
    keep(quiver)
    assert [segment.summary.first_seq for segment in quiver.segments()] == [1]


def test_a_subscribers_own_age_limit_waits_too(still: StillMachine) -> None:
    options = SubscriberOptions(max_age_s=DAY_S, on_full="drop_oldest")
    quiver = still.start()
    quiver.register("reader", options=options)
    append(quiver, 3)
    still.kill()
    still.clock.jump(6 * DAY_S)
    quiver = still.start()
    keep(quiver)
    assert len(quiver.waiting("reader")) == 3
    still.clock.pass_time(3601)
    keep(quiver)
    assert quiver.waiting("reader") == []


def test_a_new_quiver_and_one_that_is_closed_for_a_moment_believe_their_clock(
    still: StillMachine,
) -> None:
    quiver = still.start(calm(RETENTION))
    assert quiver.statistics().clock_doubted_s == 0
    append(quiver, 1)
    still.kill()
    still.clock.pass_time(3000)
    assert still.start(calm(RETENTION)).statistics().clock_doubted_s == 0


def test_without_a_grace_the_clock_is_believed_at_once(still: StillMachine) -> None:
    still.clock.jump(10 * DAY_S)
    steady = SteadyTime(still.clock)
    steady.doubt(START_NS, 0.0)
    assert steady.doubted_s == 0
    assert steady.age_now_ns() == steady.earliest_now_ns()
    with pytest.raises(BadInput, match="clock_grace_s"):
        RetentionConfig(clock_grace_s=-1)


PROGRAM = """
import sys
from holdfast import Quiver
from holdfast.quiver import QuiverConfig, RetentionConfig

week_s = 7 * 86_400.0
retention = RetentionConfig(orphan_ttl_s=week_s, max_age_s=week_s, tick_s=0.01)
with Quiver.open(sys.argv[1], QuiverConfig(retention=retention)) as quiver:
    if sys.argv[2] == "fill":
        quiver.register("fast")
        quiver.register("weekly")
        for number in range(10):
            quiver.append_raw(b"%d" % number)
    else:
        with quiver.lease("fast") as lease:
            while (delivery := lease.poll()) is not None:
                delivery.ack()
        retention = quiver._engine.retention
        for _ in range(10):
            retention.tick()
        assert quiver.subscribers() == ("fast", "weekly"), quiver.subscribers()
        assert quiver.scan().read_all().num_rows == 10
"""


def test_eight_days_in_a_drawer_of_a_real_machine(tmp_path: Path) -> None:
    if shutil.which("faketime") is None:
        pytest.skip("needs Debian's faketime")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "quiver")]
    subprocess.run([*command, "fill"], check=True)
    subprocess.run(["faketime", "+8 days", *command, "look"], check=True)
