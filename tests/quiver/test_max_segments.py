"""`max_segments` takes nothing before its limits: the more there are, the later small ones come."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.readers.setting import StillMachine, calm, sealed

from holdfast.quiver import (
    AckLevel,
    Quiver,
    QuiverConfig,
    RetentionConfig,
    SegmentConfig,
    SubscriberOptions,
)
from holdfast.quiver.base.config import GB
from holdfast.quiver.keep.retention import UNLIMITED_S
from holdfast.quiver.ledger.subscriber import OnFull
from holdfast.quiver.log.writer_state import OpenBuffer

HOURS_S = 72 * 3600.0
SEGMENTS_MAX = 8


@pytest.mark.parametrize("on_full", ["drop_oldest", "block"])
def test_a_reader_that_waits_for_sealed_data_costs_a_dead_one_nothing(
    tmp_path: Path, on_full: OnFull
) -> None:
    """It had a segment sealed for every event, until the oldest were dropped, or all refused."""
    config = QuiverConfig(
        segment=SegmentConfig(min_open_duration_s=0.0, max_open_duration_s=0.2),
        retention=RetentionConfig(max_segments=SEGMENTS_MAX, tick_s=0.01),
    )
    options = SubscriberOptions(max_bytes=GB, max_age_s=HOURS_S, on_full=on_full)
    with Quiver.open(tmp_path, config) as quiver:
        quiver.register("dead", options=options)
        cursor = quiver.cursor("pipeline")
        for number in range(3 * SEGMENTS_MAX):
            quiver.append(pa.record_batch({"x": [number]}))
            # The first ones are sealed at once; a long wait would only show that others are not.
            if planned := cursor.plan(wait_s=0.02, sealed_only=True):
                cursor.commit(planned)
        (dead,) = [one for one in quiver.statistics().subscribers if one.name == "dead"]
        assert dead.pending.bundles == 3 * SEGMENTS_MAX
        assert len(quiver.segments()) < SEGMENTS_MAX
        # Whoever asks for it is not kept waiting.
        quiver.flush()
        quiver.append(pa.record_batch({"x": [0]}), level=AckLevel.SEGMENT)


@pytest.mark.parametrize("limit_s", [HOURS_S, None])
def test_the_bound_lasts_as_long_as_the_longest_age_limit(
    still: StillMachine, limit_s: float | None
) -> None:
    quiver = still.start(calm(RetentionConfig(max_segments=SEGMENTS_MAX)))
    quiver.register("dead", options=SubscriberOptions(max_age_s=limit_s))
    quiver.register("brief", options=SubscriberOptions(max_age_s=limit_s and 60.0))
    ages_s = [quiver._engine.retention.earliest_seal_s()]
    for _ in range(SEGMENTS_MAX):
        sealed(quiver, 1)
        ages_s.append(quiver._engine.retention.earliest_seal_s())
    assert ages_s[0] == 0.0
    assert ages_s == sorted(ages_s)
    assert sum(ages_s) >= (limit_s or UNLIMITED_S)


def test_the_defaults_seal_early_while_there_are_few(still: StillMachine) -> None:
    quiver = still.start(calm(RetentionConfig(max_age_s=HOURS_S)))
    sealed(quiver, 10)
    assert quiver._engine.retention.earliest_seal_s() < SegmentConfig().min_open_duration_s


def test_segments_that_go_are_noticed_before_a_late_seal_is_due(still: StillMachine) -> None:
    """There may be nobody who appends, and would have the writer look."""
    quiver = still.start(calm(RetentionConfig(max_segments=SEGMENTS_MAX, max_age_s=HOURS_S)))
    sealed(quiver, SEGMENTS_MAX)
    room, config = quiver._engine.retention, SegmentConfig()
    buffer = OpenBuffer(100.0)
    assert buffer.due_s(config, room) > 100.0 + HOURS_S / SEGMENTS_MAX
    late_s = 103.0 + config.max_open_duration_s
    assert buffer.look_s(config, room, 103.0) == 100.0 + config.max_open_duration_s
    assert buffer.look_s(config, room, late_s) == late_s + config.max_open_duration_s
    assert buffer.look_s(config, None, 103.0) == 100.0 + config.max_open_duration_s
    buffer.on_sealed.append(lambda _: None)
    assert buffer.due_s(config, room) == 100.0 + config.max_open_duration_s
