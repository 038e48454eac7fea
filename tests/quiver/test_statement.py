"""What a quiver states about event time: never more than is true, and late rows do not hold it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.patience import PATIENCE_S, until
from tests.quiver.batches import data_paths, seal
from tests.quiver.machine import START_NS
from tests.quiver.waiting import in_thread
from tests.readers.setting import NEVER_S, StillMachine, calm, keep, must_plan

from holdfast.quiver import (
    AckLevel,
    ColumnExtractor,
    EventTimeStatement,
    Position,
    ProducerConfig,
    Quiver,
    QuiverConfig,
    RetentionConfig,
    SubscriberOptions,
)
from holdfast.quiver.engine import event_times as module

START = datetime.fromtimestamp(START_NS // 10**9, UTC)
START_US = START_NS // 10**9 * 10**6
SECOND_US = 10**6


def rows(*seconds: float | None) -> pa.RecordBatch:
    """Return events so many seconds after the start."""
    times = [None if s is None else START + timedelta(seconds=s) for s in seconds]
    return pa.record_batch({"at": pa.array(times, pa.timestamp("us", "UTC"))})


def timed(retention: RetentionConfig | None = None) -> QuiverConfig:
    return replace(calm(retention), extractors={"events": ColumnExtractor("at")})


def us(seconds: float) -> int:
    return START_US + int(seconds * SECOND_US)


@pytest.fixture
def quiver(still: StillMachine) -> Quiver:
    return still.start(timed())


# --------------------------------------------------------------------------------- minimum


def test_an_empty_quiver_states_that_it_holds_nothing(quiver: Quiver) -> None:
    stated = quiver.statement()
    assert (stated.min_event_us, stated.max_event_us, stated.pending_events) == (None, None, 0)
    assert (stated.position, stated.through_seq) == (Position(0), -1)
    assert stated.quiver_id == quiver.quiver_id
    assert stated.quiet_since_ns == stated.clock_ns == START_NS
    assert stated.quiet_s == 0


@pytest.mark.parametrize("sealed", [False, True])
def test_the_earliest_time_beyond_a_position_counts(quiver: Quiver, sealed: bool) -> None:
    for batch in (rows(5, 1), rows(3, 9), rows(7)):
        quiver.append(batch)
    if sealed:
        seal(quiver)
    expected = {
        Position(0): (1, 5),
        Position(0, 1): (1, 4),
        Position(0, 2): (3, 3),
        Position(1): (3, 3),
        Position(1, 1): (7, 2),
        Position(2): (7, 1),
    }
    for position, (least_s, pending) in expected.items():
        stated = quiver.statement(position)
        assert (stated.min_event_us, stated.pending_events) == (us(least_s), pending), position
        assert stated.max_event_us == us(9)
    for position in (Position(2, 1), Position(3), Position(99, 7)):
        stated = quiver.statement(position)
        assert (stated.min_event_us, stated.pending_events) == (None, 0), position


def test_segments_and_the_open_buffer_count_together(quiver: Quiver) -> None:
    quiver.append(rows(30))
    seal(quiver)
    quiver.append(rows(40))
    seal(quiver)
    quiver.append(rows(20))
    assert quiver.statement().min_event_us == us(20)
    quiver.append(rows(10))
    assert quiver.statement(Position(1)).min_event_us == us(10)
    seal(quiver)
    assert quiver.statement(Position(1)).min_event_us == us(10)
    assert quiver.statement(Position(1)).pending_events == 3


def test_what_is_accepted_counts_before_it_is_synced(quiver: Quiver) -> None:
    quiver.append(rows(8), level=AckLevel.WRITTEN)
    assert quiver.cursor("spark").plan() is None, "readers do not see it yet"
    stated = quiver.statement()
    assert (stated.min_event_us, stated.pending_events) == (us(8), 1)


def test_rows_without_a_time_have_the_time_of_their_ingestion(quiver: Quiver) -> None:
    quiver.append(rows(None))
    assert quiver.statement().min_event_us == START_NS // 1000
    quiver.append_raw(b"no extractor knows this", slot="other")
    assert quiver.statement(Position(1)).min_event_us == START_NS // 1000


@pytest.mark.parametrize("sealed", [False, True])
def test_one_event_of_another_century_changes_nothing_for_the_others(
    quiver: Quiver, sealed: bool
) -> None:
    century = 100 * 365 * 86400
    quiver.append(rows(5, century))
    quiver.append(rows(century))
    quiver.append(rows(-century))
    if sealed:
        seal(quiver)
    latest_us = START_NS // 1000 + 300 * SECOND_US
    assert quiver.statement().max_event_us == us(5), "what is dated in the future does not count"
    assert quiver.statement(Position(0, 1)).min_event_us == 0
    quiver.append(rows(7))
    assert quiver.statement(Position(0, 1), claim_us=us(0)).min_event_us == us(7)
    assert quiver.statement(Position(1), claim_us=us(8)).min_event_us == latest_us


def test_a_segment_of_another_century_alone_says_nothing_of_the_newest(
    still: StillMachine,
) -> None:
    century = 100 * 365 * 86400
    quiver = still.start(timed())
    quiver.append(rows(century))
    segment = seal(quiver)
    assert quiver.statement().max_event_us is None
    quiver.append(rows(-century))
    seal(quiver)
    assert quiver.statement().max_event_us == 0
    quiver.append(rows(20))
    seal(quiver)
    quiver = still.restart(timed())
    assert quiver.statement().max_event_us == us(20)
    quiver = still.restart(timed())
    (path,) = data_paths(segment)
    still.scribble(path, 0, len(still.disk.read(path)))
    assert quiver.statement().max_event_us == us(20), "what cannot be read says nothing"


def test_bundles_kept_as_opaque_bytes_count_as_whole_ones(still: StillMachine) -> None:
    config = timed()
    config = replace(config, segment=replace(config.segment, max_files=2))
    quiver = still.start(config)
    for name in ("one", "two", "three"):
        quiver.append({name: pa.record_batch({name: [1, 2, 3]})})
    seal(quiver)
    quiver.append({"four": pa.record_batch({"four": [1]})})
    for row in (0, 1, 2):
        stated = quiver.statement(Position(1, row))
        assert stated.pending_events == 6 - row + 1
        assert stated.min_event_us == START_NS // 1000


# ------------------------------------------------------------------------------- late rows


@pytest.mark.parametrize("sealed", [False, True])
def test_what_arrived_late_does_not_hold_the_claim(quiver: Quiver, sealed: bool) -> None:
    quiver.append(rows(50))
    quiver.append(rows(10, 70, 60))
    if sealed:
        seal(quiver)
    assert quiver.statement(Position(1)).min_event_us == us(10)
    for claim_s, least_s in ((11, 60), (60, 60), (61, 70), (70, 70)):
        stated = quiver.statement(Position(1), claim_us=us(claim_s))
        assert (stated.claim_us, stated.min_event_us) == (us(claim_s), us(least_s))
    stated = quiver.statement(Position(1), claim_us=us(71))
    assert (stated.min_event_us, stated.pending_events) == (None, 3), "late, but not gone"
    assert quiver.statement(Position(1), claim_us=us(11)).min_event_us == us(60)
    assert quiver.statement().min_event_us == us(10)


def test_a_segment_is_looked_into_only_when_the_claim_passed_what_was_found(
    quiver: Quiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiver.append(rows(10, 50, 90))
    seal(quiver)
    looks = 0
    look = module.EventTimes._least_us

    def counted(*arguments: object) -> int | None:
        nonlocal looks
        looks += 1
        return look(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module.EventTimes, "_least_us", counted)
    for claim_s in (0, 5, 10):
        quiver.statement(claim_us=us(claim_s))
    assert looks == 0, "the summary tells"
    for claim_s in (11, 20, 49, 50):
        assert quiver.statement(claim_us=us(claim_s)).min_event_us == us(50)
    assert looks == 1
    for claim_s in (91, 92, 1000):
        assert quiver.statement(claim_us=us(claim_s)).min_event_us is None
    assert looks == 2


def test_every_bundle_of_the_open_buffer_is_read_once(still: StillMachine) -> None:
    seen: list[int] = []

    class Counting(ColumnExtractor):
        def extract(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            seen.append(batch.num_rows)
            return super().extract(batch)

    quiver = still.start(replace(calm(), extractors={"events": Counting("at")}))
    for place in range(3 * module.PIECES_MAX):
        quiver.append(rows(100 - place, 200))
        assert quiver.statement().min_event_us == us(100 - place)
    assert sum(seen) == 2 * 3 * module.PIECES_MAX
    assert quiver.statement(Position(40)).min_event_us == us(100 - 47)
    assert all(
        len(tail.pieces) <= module.PIECES_MAX for tail in quiver._event_times._tails.values()
    )


def test_a_segment_that_cannot_be_read_holds_as_much_as_its_summary_proves(
    still: StillMachine,
) -> None:
    quiver = still.start(timed())
    quiver.append(rows(10, 50))
    quiver.append(rows(90))
    segment = seal(quiver)
    quiver = still.restart(timed())
    (path,) = data_paths(segment)
    still.scribble(path, 0, len(still.disk.read(path)))
    assert quiver.statement(Position(1)).min_event_us == us(10), "not beyond, but who knows"
    assert quiver.statement(Position(1), claim_us=us(30)).min_event_us == us(30)
    assert quiver.statement(claim_us=us(5)).min_event_us == us(10)


def test_a_segment_that_went_holds_nothing(still: StillMachine) -> None:
    quiver = still.start(timed())
    quiver.append(rows(10, 50))
    seal(quiver)
    cursor = quiver.cursor("spark")
    cursor.commit(must_plan(cursor))
    assert quiver.statement(claim_us=us(20)).min_event_us == us(50)
    keep(quiver)
    assert quiver.segments() == ()
    stated = quiver.statement(claim_us=us(20))
    assert (stated.min_event_us, stated.pending_events) == (None, 0)
    assert stated.max_event_us == us(50), "the latest time seen is not forgotten"


# ------------------------------------------------------------------------- clock and quiet


def test_quiet_is_measured_from_the_last_append(still: StillMachine) -> None:
    quiver = still.start(timed())
    still.clock.pass_time(30)
    assert quiver.statement().quiet_s == pytest.approx(30, abs=10)
    quiver.append(rows(1))
    assert quiver.statement().quiet_s == pytest.approx(0, abs=10)
    still.clock.pass_time(60)
    assert quiver.statement().quiet_s == pytest.approx(60, abs=10)


def test_a_start_is_not_silence(still: StillMachine) -> None:
    quiver = still.start(timed())
    quiver.append(rows(1))
    still.clock.pass_time(3600)
    quiver = still.restart(timed())
    assert quiver.statement().quiet_s == pytest.approx(0, abs=10)


def test_a_clock_that_jumps_does_not_make_silence(still: StillMachine) -> None:
    quiver = still.start(timed())
    quiver.append(rows(1))
    still.clock.jump(3600)
    stated = quiver.statement()
    assert stated.quiet_s < 60
    assert stated.clock_ns < START_NS + 60 * 10**9


def test_whoever_is_turned_away_is_not_silent(still: StillMachine) -> None:
    quiver = still.start(timed())
    quiver.register("slow", options=SubscriberOptions(max_age_s=10, on_full="block"))
    quiver.append(rows(1))
    still.clock.pass_time(60)
    assert quiver.refusal() is not None
    assert quiver.statement().quiet_s == 0
    quiver.unregister("slow")
    still.clock.pass_time(5)
    assert quiver.statement().quiet_s == pytest.approx(5, abs=10)


# ------------------------------------------------------------------------------- producers


def test_the_newest_promise_of_every_producer_is_told(still: StillMachine) -> None:
    quiver = still.start(timed())
    quiver.append(rows(1), producer="a", epoch=1, watermark_ns=100)
    quiver.append(rows(1), producer="b", epoch=1)
    quiver.heartbeat("c", 7)
    assert quiver.statement().producer_watermarks == {"a": 100, "c": 7}
    seal(quiver)
    quiver.heartbeat("a", 50)
    quiver.heartbeat("c", 70)
    assert quiver.statement().producer_watermarks == {"a": 100, "c": 70}
    assert quiver.statement(Position(99)).producer_watermarks == {"a": 100, "c": 70}
    quiver = still.restart(timed())
    assert quiver.statement().producer_watermarks == {"a": 100, "c": 70}
    assert quiver.statement().pending_events == 2, "a heartbeat is no event"


def test_producers_are_forgotten_beyond_their_bound(still: StillMachine) -> None:
    quiver = still.start(replace(timed(), producers=ProducerConfig(max_count=2)))
    for number in range(4):
        quiver.heartbeat(f"p{number}", number)
    assert quiver.statement().producer_watermarks == {"p2": 2, "p3": 3}


# ------------------------------------------------------------------------------------ races


def test_statements_beside_appends_and_seals_never_miss_what_was_acknowledged(
    still: StillMachine,
) -> None:
    quiver = still.start(timed())

    def produce() -> None:
        for place in range(120):
            quiver.append(rows(200 - place))
            if place % 10 == 9:
                quiver.flush()

    work = in_thread(produce)
    until(lambda: quiver.statement().through_seq >= 0)
    while not work.done():
        stated = quiver.statement()
        before = stated.through_seq + 1
        assert stated.min_event_us == us(200 - before + 1)
        assert stated.pending_events == before
    work.result(PATIENCE_S)


# ------------------------------------------------------------------------------------ model

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.integers(0, 300), min_size=1, max_size=4)),
        st.tuples(st.just("seal"), st.none()),
        st.tuples(st.just("read"), st.integers(1, 6)),
        st.tuples(st.just("claim"), st.integers(0, 60)),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=40,
)


@dataclass
class Reader:
    """A source in miniature: its position, its claim, and what it must not be told."""

    quiver: Quiver
    position: Position = field(default_factory=lambda: Position(0))
    claim_us: int | None = None
    # Every row that was appended: where, when, and whether it was late when it arrived.
    held: list[tuple[Position, int, bool]] = field(default_factory=list)

    def append(self, seconds: list[int]) -> None:
        seq = self.quiver.append(rows(*seconds)).seq
        for row, second in enumerate(seconds):
            late = self.claim_us is not None and us(second) < self.claim_us
            self.held.append((Position(seq, row), us(second), late))

    def read(self, count: int) -> None:
        unread = [place for place, _, _ in self.held if place >= self.position]
        if unread:
            seq, row = unread[min(count, len(unread)) - 1]
            self.position = Position(seq, row + 1)

    def check(self) -> EventTimeStatement:
        stated = self.quiver.statement(self.position, claim_us=self.claim_us)
        unread = [(time, late) for place, time, late in self.held if place >= self.position]
        true = [time for time, late in unread if not late]
        assert stated.min_event_us == min(true, default=None)
        assert stated.pending_events == len(unread)
        if self.held:
            assert stated.max_event_us == max(time for _, time, _ in self.held)
        return stated

    def claim(self, delay_s: int) -> None:
        stated = self.check()
        bounds = [] if stated.min_event_us is None else [stated.min_event_us]
        if stated.max_event_us is not None:
            bounds.append(stated.max_event_us - delay_s * SECOND_US)
        if bounds:
            self.claim_us = max(min(bounds), self.claim_us or 0)
        unread = [(time, late) for place, time, late in self.held if place >= self.position]
        assert all(late or time >= (self.claim_us or 0) for time, late in unread)


@given(STEPS)
@settings(deadline=None)
def test_the_claim_never_passes_an_unread_row_that_was_in_time(
    steps: list[tuple[str, object]],
) -> None:
    with StillMachine() as machine:
        reader = Reader(machine.start(timed(RetentionConfig(orphan_ttl_s=NEVER_S))))
        for verb, argument in steps:
            if verb == "append":
                assert isinstance(argument, list)
                reader.append(argument)
            elif verb == "seal":
                reader.quiver.flush()
            elif verb == "restart":
                reader.quiver = machine.restart(timed())
            else:
                assert isinstance(argument, int)
                (reader.read if verb == "read" else reader.claim)(argument)
            reader.check()
