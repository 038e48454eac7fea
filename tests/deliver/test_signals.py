"""Delivery by signal: units are what a signal says; what a destination cannot take is held."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pyarrow as pa
import pytest
from tests.deliver.backend import BAD
from tests.deliver.stage import NAME, Stage

from holdfast.dead_letters.letter import Letter
from holdfast.deliver.destination import DeliverySettings, Destination, State
from holdfast.deliver.exporter import Answer, FailureClass
from holdfast.errors import BadInput
from holdfast.quiver import Bundle, Outcome, Position
from holdfast.signals import registry
from holdfast.signals.event import ArrowData, Unit
from holdfast.signals.signal import Form, Signal

ROWS = pa.record_batch({"n": [1, 2, 3]})
SPANS = pa.record_batch({"trace": ["x", "x", "y", "x"], "n": [0, 1, 2, 3]})


def takes_everything(signal: Signal) -> str | None:
    return None


class ArrowBackend:
    """An exporter that takes bundles of record batches."""

    max_batch_events = 10
    max_batch_bytes = 1 << 20

    def __init__(self) -> None:
        self.taken: list[ArrowData] = []
        # Of units whose first value is one of these.
        self.refused: set[int] = set()

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def send(self, units: Sequence[ArrowData]) -> Answer:
        await asyncio.sleep(0)
        failed = {i: BAD for i, unit in enumerate(units) if first_of(unit) in self.refused}
        self.taken += [unit for i, unit in enumerate(units) if i not in failed]
        return Answer(failed)


def first_of(unit: ArrowData) -> int:
    value: int = next(iter(unit.slots.values())).column("n")[0].as_py()
    return value


def by_trace(bundle: Bundle, quiver_id: str, signal: str, first_row: int) -> list[Unit]:
    """Split spans where the trace changes."""
    spans = bundle.slots["spans"]
    traces = spans.column("trace").to_pylist()
    starts = [row for row in range(len(traces)) if row == 0 or traces[row] != traces[row - 1]]
    ends = [*starts[1:], len(traces)]
    return [
        ArrowData(
            quiver_id,
            Position(bundle.seq, start),
            {"spans": spans.slice(start, end - start)},
            bundle.ingestion_ns,
            signal,
        )
        for start, end in zip(starts, ends, strict=True)
        if end > first_row
    ]


def trace_of(unit: ArrowData) -> str:
    trace: str = unit.slots["spans"].column("trace")[0].as_py()
    return trace


TRACES = Signal(
    "toy-traces",
    Form.ARROW,
    lambda kind, slots: "spans" in slots,
    order_keys={"trace": trace_of},
    split=by_trace,
)


@pytest.fixture
def traces(stage: Stage) -> None:
    registry.register(TRACES)


# ------------------------------------------------------------------- what is not taken


def test_rows_that_a_destination_cannot_take_are_held_and_nothing_is_lost(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.append(b"a")
    seq = stage.quiver.append(ROWS).seq
    stage.append(b"b")

    async def play(destination: Destination) -> None:
        await stage.timer.pass_s(7000.0)
        assert stage.backend.taken == [b"a"]
        found = stage.statistics()
        assert found.state is State.STALLED
        assert found.stalled_by is not None
        assert f"event {seq}/0 is held" in found.stalled_by
        assert found.held is not None
        assert (found.held.seq, found.held.row, found.held.code) == (seq, 0, "not_taken")
        assert found.held.age_s >= 6900.0
        assert (found.lag_events, found.filtered, found.dead_lettered) == (4, 0, 0)
        assert found.last_error == "the exporter takes any signal (json, raw), not rows (arrow)"

    with caplog.at_level(logging.ERROR, "holdfast.deliver"):
        stage.run(play)
    assert stage.outcomes() == {Outcome.ACKED: (1, 1)}
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2, "at once, and after an hour"
    assert f"`holdfast destination skip backend {seq}/0`" in lines[0]


def test_an_operator_can_make_a_dead_letter_of_held_rows(stage: Stage) -> None:
    seq = stage.quiver.append({"one": ROWS, "two": SPANS}).seq
    stage.append(b"b")

    async def play(destination: Destination) -> None:
        await stage.timer.until(lambda: destination.holds(Position(seq, 0)))
        assert await destination.skip(Position(seq, 0), "not for it")
        await stage.timer.until(lambda: stage.pending() == 0)
        assert stage.statistics().dead_lettered == 7

    stage.run(play)
    assert stage.backend.taken == [b"b"]
    assert stage.outcomes() == {Outcome.DEAD_LETTERED: (1, 7), Outcome.ACKED: (1, 1)}
    (letter,) = stage.letters.stored
    assert letter.reason == "skipped"
    assert letter.problems[0]["message"].startswith("not for it (the exporter takes")
    unit = letter.event()
    assert isinstance(unit, ArrowData)
    assert (unit.slots, unit.signal) == ({"one": ROWS, "two": SPANS}, "rows")
    assert (unit.quiver_id, unit.position) == (stage.quiver.quiver_id, Position(seq, 0))


def test_held_rows_that_somebody_else_resolves_hold_nothing_back_any_more(stage: Stage) -> None:
    seq = stage.quiver.append(ROWS).seq
    stage.append(b"b")

    async def play(destination: Destination) -> None:
        await stage.timer.until(lambda: destination.holds(Position(seq, 0)))
        stage.quiver.resolve(NAME, [seq], Outcome.GIVEN_UP, "by hand")
        await stage.timer.until(lambda: stage.pending() == 0)

    stage.run(play)
    assert stage.backend.taken == [b"b"]
    assert stage.statistics().stalled_by is None


def test_held_rows_hold_up_their_own_lane_alone(stage: Stage) -> None:
    stage.append(b"a:0")
    stage.quiver.append(ROWS)
    stage.append_each(b"a:1", b"b:0")

    async def play(destination: Destination) -> None:
        await stage.timer.pass_s(60.0)
        assert sorted(stage.backend.taken) == [b"a:0", b"a:1", b"b:0"]
        assert stage.pending() == 3

    stage.run(play, DeliverySettings(order="key"))


def test_what_is_left_out_by_the_settings_is_filtered_and_counted(stage: Stage) -> None:
    stage.append(b"a")
    stage.quiver.append(ROWS)
    stage.append(b"b")
    stage.deliver_all(DeliverySettings(signals=("events",)))
    assert stage.backend.taken == [b"a", b"b"]
    assert stage.outcomes() == {Outcome.ACKED: (2, 2), Outcome.FILTERED: (1, 3)}
    assert stage.statistics().filtered == 3


def test_a_dead_letter_that_a_destination_cannot_take_stays_one(stage: Stage) -> None:
    data = ArrowData("q", Position(3), {"events": ROWS}, 0, "rows")
    odd = ArrowData("q", Position(3), {"events": ROWS}, 0, "of-a-later-version")

    async def play(destination: Destination) -> None:
        await stage.timer.quiet()
        failed = (await destination.redrive([data, odd])).failed
        assert [(one.kind, one.code) for one in failed.values()] == [
            (FailureClass.PERMANENT, "not_taken"),
            (FailureClass.PERMANENT, "not_taken"),
        ]

    stage.run(play)
    assert stage.backend.sends == []


# ----------------------------------------------------------------------- what is taken


def test_a_bundle_of_several_slots_is_delivered_as_one(stage: Stage) -> None:
    slots = {"spans": ROWS, "attributes": SPANS}
    seq = stage.quiver.append(slots).seq
    backend = ArrowBackend()
    stage.deliver_all(exporter=backend, refusal_of=takes_everything)
    (unit,) = backend.taken
    assert (unit.slots, unit.position, unit.signal) == (slots, Position(seq, 0), "rows")
    assert stage.outcomes() == {Outcome.ACKED: (1, 7)}
    found = stage.statistics()
    assert (found.sent_events, found.sent_bytes) == (7, ROWS.nbytes + SPANS.nbytes)


@pytest.mark.usefixtures("traces")
def test_a_signal_says_what_belongs_together_and_what_keeps_its_order(stage: Stage) -> None:
    seq = stage.quiver.append({"spans": SPANS}).seq
    backend = ArrowBackend()
    order = DeliverySettings(order="key", key="trace")
    stage.deliver_all(order, exporter=backend, refusal_of=takes_everything)
    assert [unit.position for unit in backend.taken if trace_of(unit) == "x"] == [
        Position(seq, 0),
        Position(seq, 3),
    ]
    assert sorted(first_of(unit) for unit in backend.taken) == [0, 2, 3]
    assert stage.outcomes() == {Outcome.ACKED: (1, 4)}


@pytest.mark.usefixtures("traces")
def test_parts_of_a_bundle_have_outcomes_of_their_own_in_rows(stage: Stage) -> None:
    stage.quiver.append({"spans": SPANS})
    backend = ArrowBackend()
    backend.refused = {2}
    stage.deliver_all(exporter=backend, refusal_of=takes_everything)
    assert [first_of(unit) for unit in backend.taken] == [0, 3]
    (letter,) = stage.letters.stored
    kept = letter.event()
    assert isinstance(kept, ArrowData)
    assert kept.slots == {"spans": SPANS.slice(2, 1)}
    assert stage.events(Outcome.ACKED) == 3
    assert stage.events(Outcome.DEAD_LETTERED) == 1


@pytest.mark.usefixtures("traces")
def test_a_restart_goes_on_behind_the_parts_that_were_recorded(stage: Stage) -> None:
    stage.quiver.append({"spans": SPANS})
    backend = ArrowBackend()

    def kill_after_two(point: str) -> None:
        if point == "deliver-committed" and len(backend.taken) == 2 and stage.destination:
            stage.destination.pause()

    stage.reached = kill_after_two
    backend.max_batch_events = 1

    async def until_paused(destination: Destination) -> None:
        await stage.timer.until(lambda: stage.statistics().state is State.PAUSED)

    stage.run(until_paused, exporter=backend, refusal_of=takes_everything)
    assert stage.events(Outcome.ACKED) == 3
    stage.quiver.cursor(NAME).resume()
    stage.deliver_all(exporter=backend, refusal_of=takes_everything)
    assert [first_of(unit) for unit in backend.taken] == [0, 2, 3]
    assert stage.outcomes() == {Outcome.ACKED: (1, 4)}


def test_a_signal_that_leaves_out_rows_stalls_and_loses_nothing(stage: Stage) -> None:
    def half(bundle: Bundle, quiver_id: str, signal: str, first_row: int) -> list[Unit]:
        return by_trace(bundle, quiver_id, signal, first_row)[:-1]

    registry.register(Signal("half", Form.ARROW, lambda kind, slots: "spans" in slots, split=half))
    stage.quiver.append({"spans": SPANS})

    async def play(destination: Destination) -> None:
        await stage.timer.until(lambda: stage.statistics().state is State.STALLED)

    stage.run(play, refusal_of=takes_everything)
    assert stage.pending() == 4


# ----------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("key", "jobs", "there is no order key 'jobs'; known keys: name"),
        ("signals", ["spans"], "there is no signal 'spans'; known signals: events, raw, rows"),
    ],
)
@pytest.mark.usefixtures("stage")
def test_unknown_keys_and_signals_are_refused(key: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DeliverySettings.model_validate({key: value})


def test_a_letter_that_was_damaged_is_not_taken_for_rows() -> None:
    letter = Letter(b"\0\0", "skipped", "backend", position="q/1/0", arrow_signal="rows")
    with pytest.raises(BadInput, match="does not hold a bundle of record batches"):
        letter.event()
