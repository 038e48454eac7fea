"""Event times and keys: read by extractors that may fail, kept as given, clamped in summaries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.quiver.batches import column_of, extracting, numbers, plain_rows, seal
from tests.quiver.machine import START_NS, Machine

from holdfast.quiver import ColumnExtractor, Quiver, TimeFlag

NOW_US = START_NS // 1000
SKEW_US = 300_000_000
UTC_US = pa.timestamp("us", "UTC")


def micros(year: int, month: int = 1, day: int = 1) -> int:
    return int(datetime(year, month, day, tzinfo=UTC).timestamp()) * 1_000_000


def times(*values: int | None) -> pa.RecordBatch:
    """Return a batch with a column of event times in µs."""
    return pa.record_batch({"time": pa.array(values, UTC_US)})


@dataclass(frozen=True)
class Returning:
    """An extractor made of a function."""

    make: Callable[[pa.RecordBatch], Any]

    def extract(self, rows: pa.RecordBatch) -> Any:
        return self.make(rows)


def with_times(rows: pa.RecordBatch, **keys: Any) -> pa.RecordBatch:
    """Return what a good extractor returns: the same time for all rows, and keys."""
    return pa.record_batch({"event_time": pa.array([1] * rows.num_rows, UTC_US), **keys})


def stored(quiver: Quiver, *columns: str) -> list[tuple[Any, ...]]:
    return plain_rows(quiver.scan(columns).read_all())


# -------------------------------------------------------------------------- times


@pytest.mark.parametrize(
    ("given", "flag", "clamped"),
    [
        (NOW_US - 1, TimeFlag.GIVEN, NOW_US - 1),
        (0, TimeFlag.GIVEN, 0),
        (-1, TimeFlag.BEFORE_1970, 0),
        (micros(1969, 12, 31), TimeFlag.BEFORE_1970, 0),
        (micros(1), TimeFlag.BEFORE_1970, 0),
        (NOW_US + SKEW_US, TimeFlag.GIVEN, NOW_US + SKEW_US),
        (NOW_US + SKEW_US + 1, TimeFlag.IN_FUTURE, NOW_US + SKEW_US),
        (micros(2099), TimeFlag.IN_FUTURE, NOW_US + SKEW_US),
        (micros(9999, 12, 31), TimeFlag.IN_FUTURE, NOW_US + SKEW_US),
        (2**63 - 1, TimeFlag.IN_FUTURE, NOW_US + SKEW_US),
        (-(2**63) + 1, TimeFlag.BEFORE_1970, 0),
    ],
)
def test_a_row_keeps_the_time_it_was_given_flagged_and_clamped_in_the_summary(
    machine: Machine, given: int, flag: TimeFlag, clamped: int
) -> None:
    quiver = machine.start(extracting(ColumnExtractor("time")))
    quiver.append(times(given))
    wanted = [(given, flag, given)]
    assert stored(quiver, "_event_time", "_event_time_flag", "time") == wanted
    summary = seal(quiver).summary
    assert (summary.clamped_min_event_us, summary.clamped_max_event_us) == (clamped, clamped)
    machine.stop()
    quiver = machine.start()
    assert stored(quiver, "_event_time", "_event_time_flag", "time") == wanted


def test_a_null_time_is_replaced_by_the_ingestion_time_and_flagged(machine: Machine) -> None:
    quiver = machine.start(extracting(ColumnExtractor("time")))
    quiver.append(times(None, 5))
    quiver.flush()
    assert stored(quiver, "_event_time", "_event_time_flag", "time") == [
        (NOW_US, TimeFlag.MISSING, None),
        (5, TimeFlag.GIVEN, 5),
    ]
    assert quiver.statistics().extractor_failures_total == 0


def test_without_an_extractor_every_row_has_its_ingestion_time(machine: Machine) -> None:
    quiver = machine.start()
    quiver.append(numbers(1))
    machine.clock.jump(10)
    quiver.append(numbers(2))
    summary = seal(quiver).summary
    assert stored(quiver, "_event_time", "_ingestion_time", "_event_time_flag") == [
        (NOW_US, NOW_US, TimeFlag.MISSING),
        (NOW_US + 10_000_000, NOW_US + 10_000_000, TimeFlag.MISSING),
    ]
    assert (summary.clamped_min_event_us, summary.clamped_max_event_us) == (
        NOW_US,
        NOW_US + 10_000_000,
    )
    assert summary.min_ingestion_ns == START_NS
    assert summary.max_ingestion_ns == START_NS + 10_000_000_000


def test_the_clock_of_the_machine_may_stand_before_1970(machine: Machine) -> None:
    machine.clock.jump(-60 * 365 * 24 * 3600)
    quiver = machine.start(extracting(ColumnExtractor("time")))
    quiver.append(times(None, NOW_US))
    assert seal(quiver).summary.min_ingestion_ns < 0
    assert [flag for (flag,) in stored(quiver, "_event_time_flag")] == [
        TimeFlag.MISSING,
        TimeFlag.IN_FUTURE,
    ]


@pytest.mark.parametrize(
    ("column", "micros_since_1970"),
    [
        (pa.array([7], pa.timestamp("s")), 7_000_000),
        (pa.array([7], pa.timestamp("ms", "UTC")), 7_000),
        (pa.array([7_999], pa.timestamp("ns", "Europe/Lisbon")), 7),
        (pa.array([1], pa.date32()), 86_400_000_000),
        (pa.array(["1970-01-01T00:00:01Z"]), 1_000_000),
        (pa.array(["1970-01-01T00:00:01Z"]).dictionary_encode(), 1_000_000),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_times_of_other_types_are_read(
    machine: Machine, column: pa.Array, micros_since_1970: int
) -> None:
    quiver = machine.start(extracting(ColumnExtractor("time")))
    quiver.append(pa.record_batch({"time": column}))
    quiver.flush()
    assert stored(quiver, "_event_time", "_event_time_flag") == [
        (micros_since_1970, TimeFlag.GIVEN)
    ]


@pytest.mark.parametrize("unit", ["s", "ms"])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_time_beyond_what_microseconds_can_count_stays_at_the_end_of_their_range(
    machine: Machine, unit: str, sign: int
) -> None:
    quiver = machine.start(extracting(ColumnExtractor("time")))
    quiver.append(pa.record_batch({"time": pa.array([sign * 2**62, None], pa.timestamp(unit))}))
    quiver.flush()
    (time, flag), missing = stored(quiver, "_event_time", "_event_time_flag")
    assert sign * time > 2**62
    assert flag == (TimeFlag.IN_FUTURE if sign > 0 else TimeFlag.BEFORE_1970)
    assert missing == (NOW_US, TimeFlag.MISSING)


def test_one_absurd_time_does_not_move_the_summary_of_the_others(machine: Machine) -> None:
    quiver = machine.start(extracting(ColumnExtractor("time")))
    quiver.append(times(NOW_US - 5, micros(2099), NOW_US - 3, micros(1969)))
    summary = seal(quiver).summary
    assert (summary.clamped_min_event_us, summary.clamped_max_event_us) == (0, NOW_US + SKEW_US)
    (batch,) = summary.files[0].batches
    assert (batch.min_event_us, batch.max_event_us) == (micros(1969), micros(2099))


def test_another_skew_moves_the_line_between_given_and_future(machine: Machine) -> None:
    config = replace(extracting(ColumnExtractor("time")), max_skew_s=0)
    quiver = machine.start(config)
    quiver.append(times(NOW_US, NOW_US + 1))
    assert [flag for (flag,) in stored(quiver, "_event_time_flag")] == [
        TimeFlag.GIVEN,
        TimeFlag.IN_FUTURE,
    ]


# --------------------------------------------------------------------------- keys


def test_keys_become_columns_beside_the_rows_and_not_part_of_the_bundle(machine: Machine) -> None:
    extractor = Returning(lambda rows: with_times(rows, kind=["k"] * rows.num_rows))
    quiver = machine.start(extracting(extractor))
    seq = quiver.append(numbers(1, 2)).seq
    for _ in range(2):
        assert stored(quiver, "kind", "n") == [("k", 1), ("k", 2)]
        bundle = quiver.bundle(seq)
        assert bundle is not None
        assert bundle.slots["events"].schema.names == ["n"]
        quiver.flush()


def test_raw_events_are_given_to_the_extractor_as_a_payload_column(machine: Machine) -> None:
    def lengths(rows: pa.RecordBatch) -> pa.RecordBatch:
        return with_times(rows, size=pc.binary_length(rows.column("payload")))

    quiver = machine.start(extracting(Returning(lengths)))
    quiver.append_raw([b"a", b"", b"ccc"])
    quiver.flush()
    assert stored(quiver, "size", "payload") == [(1, b"a"), (0, b""), (3, b"ccc")]


def test_a_key_that_clashes_with_a_column_of_the_user_gives_way(machine: Machine) -> None:
    extractor = Returning(lambda rows: with_times(rows, n=["mine"] * rows.num_rows))
    quiver = machine.start(extracting(extractor))
    seq = quiver.append(numbers(1)).seq
    quiver.flush()
    assert stored(quiver, "n", "_event_time") == [(1, 1)]
    bundle = quiver.bundle(seq)
    assert bundle is not None
    assert plain_rows(bundle.slots["events"]) == [(1,)]


def test_a_key_with_a_name_of_the_envelope_gives_way(machine: Machine) -> None:
    extractor = Returning(lambda rows: with_times(rows, _seq=["mine"] * rows.num_rows))
    quiver = machine.start(extracting(extractor))
    seq = quiver.append(numbers(1)).seq
    quiver.flush()
    assert stored(quiver, "_seq") == [(seq,)]


def test_a_column_of_the_user_called_event_time_is_only_a_column(machine: Machine) -> None:
    quiver = machine.start(extracting(ColumnExtractor("time")))
    quiver.append(pa.record_batch({"time": pa.array([5], UTC_US), "event_time": ["x"]}))
    quiver.flush()
    assert stored(quiver, "event_time", "_event_time") == [("x", 5)]


@pytest.mark.parametrize(
    "key",
    [
        pa.array(["a", "b"]).dictionary_encode(),
        pa.nulls(2),
        pa.array(["a", "b"], pa.string_view()),
        pa.array([{"x": 1}, None]),
        pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int16()), pa.array(["r"])),
    ],
    ids=lambda key: str(key.type),
)
def test_keys_may_have_any_type(machine: Machine, key: pa.Array) -> None:
    extractor = Returning(lambda rows: with_times(rows, key=key))
    quiver = machine.start(extracting(extractor))
    quiver.append(numbers(1, 2))
    quiver.flush()
    assert quiver.statistics().extractor_failures_total == 0
    assert stored(quiver, "key") == plain_rows(pa.record_batch({"key": key}))


# ----------------------------------------------------------------------- failures


def unreadable_key(rows: pa.RecordBatch) -> pa.RecordBatch:
    inner = pa.array(["a"]).dictionary_encode()
    indices = pa.array([0] * rows.num_rows, pa.int8())
    return with_times(rows, key=pa.DictionaryArray.from_arrays(indices, inner))


def twice_the_same_key(rows: pa.RecordBatch) -> pa.RecordBatch:
    times_ = pa.array([1] * rows.num_rows, UTC_US)
    return pa.RecordBatch.from_arrays([times_] * 3, ["event_time", "key", "key"])


FAILURES: dict[str, Callable[[pa.RecordBatch], Any]] = {
    "raises": lambda rows: 1 / 0,
    "wants a column that is not there": lambda rows: rows.column("absent"),
    "returns too few rows": lambda rows: with_times(rows).slice(1),
    "returns too many rows": lambda rows: with_times(pa.record_batch({"n": [0] * 99})),
    "returns no event time": lambda rows: rows,
    "returns numbers as event time": lambda rows: pa.record_batch({"event_time": [0.5]}),
    "returns texts as event time": lambda rows: pa.record_batch({"event_time": ["soon"]}),
    "returns nothing": lambda rows: None,
    "returns a dictionary": lambda rows: {"event_time": [1]},
    "returns the same key twice": twice_the_same_key,
    "returns a key that cannot be read back": unreadable_key,
}


@pytest.mark.parametrize("make", FAILURES.values(), ids=FAILURES)
def test_an_extractor_that_fails_costs_the_keys_never_the_events(
    machine: Machine, make: Callable[[pa.RecordBatch], Any]
) -> None:
    quiver = machine.start(extracting(Returning(make)))
    quiver.append(numbers(1))
    quiver.flush()
    assert stored(quiver, "n", "_event_time", "_event_time_flag") == [(1, NOW_US, TimeFlag.MISSING)]
    statistics = quiver.statistics()
    assert statistics.extractor_failures_total == 1
    assert statistics.sealer.failures == 0
    machine.stop()
    assert column_of(machine.start()) == [1]


def test_an_extractor_may_return_a_table(machine: Machine) -> None:
    extractor = Returning(lambda rows: pa.Table.from_batches([with_times(rows), with_times(rows)]))
    half = Returning(lambda rows: extractor.extract(rows.slice(0, rows.num_rows // 2)))
    quiver = machine.start(extracting(half))
    quiver.append(numbers(1, 2))
    quiver.flush()
    assert stored(quiver, "n", "_event_time") == [(1, 1), (2, 1)]
    assert quiver.statistics().extractor_failures_total == 0


def test_one_bundle_an_extractor_fails_on_does_not_cost_the_others_their_times(
    machine: Machine,
) -> None:
    quiver = machine.start(extracting(ColumnExtractor("time")))
    for text in ("1970-01-01T00:00:01Z", "yesterday, or so", "1970-01-01T00:00:03Z"):
        quiver.append(pa.record_batch({"time": [text, text]}))
    for _ in range(2):
        assert stored(quiver, "_event_time", "_event_time_flag") == [
            *[(1_000_000, TimeFlag.GIVEN)] * 2,
            *[(NOW_US, TimeFlag.MISSING)] * 2,
            *[(3_000_000, TimeFlag.GIVEN)] * 2,
        ]
        quiver.flush()
    assert quiver.statistics().extractor_failures_total == 1


def test_the_keys_of_bundles_around_a_failure_are_kept_too(machine: Machine) -> None:
    def fragile(rows: pa.RecordBatch) -> pa.RecordBatch:
        values = rows.column("n").to_pylist()
        if 13 in values:
            raise ValueError("unlucky")
        name = "even" if values[0] % 2 == 0 else "odd"
        return with_times(rows, **{name: values, "key": [str(value) for value in values]})

    quiver = machine.start(extracting(Returning(fragile)))
    for value in (12, 13, 15):
        quiver.append(numbers(value))
    quiver.flush()
    assert stored(quiver, "n", "key", "even", "odd") == [
        (12, "12", 12, None),
        (13, None, None, None),
        (15, "15", None, 15),
    ]


def test_an_extractor_is_not_asked_about_slots_without_rows(machine: Machine) -> None:
    quiver = machine.start(extracting(Returning(FAILURES["raises"])))
    quiver.append({"events": numbers(), "other": numbers(1)})
    quiver.flush()
    assert quiver.statistics().extractor_failures_total == 0


def test_an_extractor_of_one_slot_does_not_see_the_others(machine: Machine) -> None:
    seen: list[list[str]] = []

    def spy(rows: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(rows.schema.names)
        return with_times(rows)

    quiver = machine.start(extracting(Returning(spy), slot="a"))
    quiver.append({"a": numbers(1, column="mine"), "b": numbers(2, column="other")})
    quiver.flush()
    assert seen == [["mine"]]
    rows = plain_rows(quiver.scan(["_event_time_flag"], slot="b").read_all())
    assert rows == [(TimeFlag.MISSING,)]
