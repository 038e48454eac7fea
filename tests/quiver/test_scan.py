"""A scan gives every stored row of a slot once, sealed or not, through drift and races."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from tests.patience import PATIENCE_S
from tests.quiver.batches import (
    ENVELOPE,
    column_of,
    extracting,
    numbers,
    plain_rows,
    quiet_segments,
    seal,
)
from tests.quiver.machine import START_NS, Machine, quiet
from tests.support.disk import GatedDisk

from holdfast.errors import BadInput
from holdfast.quiver import AckLevel, ColumnExtractor, Quiver
from holdfast.quiver.base.held_bundle import HeldBundle
from holdfast.quiver.log.writer_state import OpenBuffer

START = datetime.fromtimestamp(START_NS // 1_000_000_000, UTC)


def at(*hours: float | None) -> pa.Array:
    """Return times so many hours before the clock of the tests."""
    times = [None if h is None else START - timedelta(hours=h) for h in hours]
    return pa.array(times, pa.timestamp("us", "UTC"))


def timed(hours: Sequence[float | None], **columns: pa.Array) -> pa.RecordBatch:
    """Return a batch with a column of times and others beside it."""
    return pa.record_batch({"time": at(*hours), **columns})


@pytest.fixture
def quiver(machine: Machine) -> Iterator[Quiver]:
    with machine.start(extracting(ColumnExtractor("time"))) as quiver:
        yield quiver


# -------------------------------------------------------------------------- rows


def test_an_empty_quiver_scans_to_no_rows_with_the_envelope_columns(machine: Machine) -> None:
    with machine.start() as quiver:
        table = quiver.scan().read_all()
    assert table.num_rows == 0
    assert tuple(table.schema.names) == ENVELOPE


def test_sealed_and_unsealed_rows_come_in_order_with_their_positions(machine: Machine) -> None:
    with machine.start() as quiver:
        first = quiver.append(numbers(1, 2)).seq
        seal(quiver)
        second = quiver.append(numbers(3)).seq
        third = quiver.append(numbers(4, 5)).seq
        rows = plain_rows(quiver.scan(["_seq", "_row", "n"]).read_all())
    assert rows == [(first, 0, 1), (first, 1, 2), (second, 0, 3), (third, 0, 4), (third, 1, 5)]


def test_rows_are_the_same_before_and_after_the_seal_and_after_a_restart(machine: Machine) -> None:
    quiver = machine.start()
    quiver.append({"a": numbers(1, 2), "b": numbers(3, column="m")})
    quiver.append({"a": numbers(4)})
    quiver.append_raw([b"x", b"y"], headers=[{"k": "v"}, None], slot="c")
    before = {slot: plain_rows(quiver.scan(slot=slot).read_all()) for slot in "abc"}
    seal(quiver)
    sealed = {slot: plain_rows(quiver.scan(slot=slot).read_all()) for slot in "abc"}
    machine.stop()
    quiver = machine.start()
    reopened = {slot: plain_rows(quiver.scan(slot=slot).read_all()) for slot in "abc"}
    assert before == sealed == reopened
    assert [len(rows) for rows in before.values()] == [3, 1, 2]


def test_columns_come_in_the_order_asked_for(machine: Machine) -> None:
    with machine.start() as quiver:
        quiver.append(pa.record_batch({"a": [1], "b": [2], "c": [3]}))
        assert quiver.scan(["c", "_row", "a"]).read_all().to_pylist() == [
            {"c": 3, "_row": 0, "a": 1}
        ]


def test_a_scan_sees_unsynced_rows_only_after_their_sync(machine: Machine) -> None:
    with machine.start(quiet(AckLevel.WRITTEN)) as quiver:
        quiver.append(numbers(1))
        assert column_of(quiver) == []
        quiver.append(numbers(2), level=AckLevel.FSYNCED)
        assert column_of(quiver) == [1, 2]


def test_a_scan_after_close_still_reads_each_row_once(machine: Machine) -> None:
    quiver = machine.start()
    quiver.append(numbers(1, 2))
    machine.stop()
    assert column_of(quiver) == [1, 2]
    assert quiver.statistics().open_bundles == 0


# ------------------------------------------------------------------------- asking


def test_a_slot_must_be_named_if_there_are_several(machine: Machine) -> None:
    with machine.start() as quiver:
        quiver.append({"a": numbers(1), "b": numbers(2)})
        for _ in range(2):
            with pytest.raises(BadInput, match="slot=a or b"):
                quiver.scan()
            seal(quiver)


def test_an_unknown_column_is_refused_and_the_known_ones_are_named(machine: Machine) -> None:
    with machine.start() as quiver:
        quiver.append(numbers(1))
        with pytest.raises(BadInput, match=r"no column m.*_seq.*n"):
            quiver.scan(["n", "m"])


def test_a_scan_without_any_column_is_refused(machine: Machine) -> None:
    with machine.start() as quiver:
        quiver.append(numbers(1))
        with pytest.raises(BadInput, match="column"):
            quiver.scan([])


def test_one_column_name_instead_of_a_list_is_refused(machine: Machine) -> None:
    with machine.start() as quiver, pytest.raises(BadInput, match="list"):
        quiver.scan("n")


def test_an_unknown_way_to_meet_damage_is_refused(machine: Machine) -> None:
    how: Any = "ignore"
    with machine.start() as quiver, pytest.raises(BadInput, match="'fail' or 'skip'"):
        quiver.scan(on_damage=how)


@pytest.mark.parametrize("bound", ["since", "until"])
def test_a_moment_without_a_time_zone_is_refused(machine: Machine, bound: str) -> None:
    naive: Any = {bound: START.replace(tzinfo=None)}
    with machine.start() as quiver:
        quiver.append(numbers(1))
        with pytest.raises(BadInput, match="no time zone"):
            quiver.scan(**naive)


def test_a_moment_that_is_not_a_datetime_is_refused(machine: Machine) -> None:
    moment: Any = "2026-01-01"
    with machine.start() as quiver, pytest.raises(BadInput, match="datetime"):
        quiver.scan(since=moment)


# -------------------------------------------------------------------------- times


def test_since_is_inclusive_and_until_exclusive(quiver: Quiver) -> None:
    quiver.append(timed([3, 2, 1], n=pa.array([3, 2, 1])))
    since, until = START - timedelta(hours=3), START - timedelta(hours=1)
    for _ in range(2):
        assert column_of(quiver, since=since, until=until) == [3, 2]
        assert column_of(quiver, since=since + timedelta(microseconds=1)) == [2, 1]
        assert column_of(quiver, until=since) == []
        assert column_of(quiver, since=until, until=since) == []
        seal(quiver)


def test_moments_of_other_time_zones_mean_the_same_moment(quiver: Quiver) -> None:
    quiver.append(timed([3, 1], n=pa.array([3, 1])))
    elsewhere = timezone(timedelta(hours=-7))
    assert column_of(quiver, since=(START - timedelta(hours=2)).astimezone(elsewhere)) == [1]


def test_a_time_range_is_decided_by_the_time_as_given_not_as_clamped(quiver: Quiver) -> None:
    days = 365 * 24
    quiver.append(timed([100 * days, -70 * days], n=pa.array([1, 2])))
    for _ in range(2):
        assert column_of(quiver, until=datetime(1960, 1, 1, tzinfo=UTC)) == [1]
        assert column_of(quiver, since=datetime(2090, 1, 1, tzinfo=UTC)) == [2]
        seal(quiver)


def test_a_row_without_a_time_is_found_by_its_ingestion_time(quiver: Quiver) -> None:
    quiver.append(timed([None, 5], n=pa.array([1, 2])))
    for _ in range(2):
        assert column_of(quiver, since=START - timedelta(hours=1)) == [1]
        seal(quiver)


def test_batches_outside_the_range_are_not_even_read(machine: Machine) -> None:
    config = extracting(ColumnExtractor("time"))
    with machine.start(config) as quiver:
        quiver.append(timed([10], n=pa.array([10])))
        old = seal(quiver)
        quiver.append(timed([1], n=pa.array([1])))
        seal(quiver)
        path = old.path / old.summary.files[0].name
        machine.scribble(path, 0, old.summary.files[0].size_bytes)
        assert column_of(quiver, since=START - timedelta(hours=2)) == [1]


def views() -> pa.Array:
    return pa.array(["a", None, "longer than twelve bytes", "d"], pa.string_view())


def runs() -> pa.Array:
    return pa.RunEndEncodedArray.from_arrays(pa.array([3, 4], pa.int16()), pa.array(["x", "y"]))


def list_views() -> pa.Array:
    return pa.array([[1], None, [], [2, 3]], pa.list_view(pa.int8()))


def unions() -> pa.Array:
    codes = pa.array([0, 1, 1, 0], pa.int8())
    return pa.UnionArray.from_sparse(codes, [pa.array([1, 2, 3, 4]), pa.array(list("abcd"))])


def lists_of_unions() -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, 1, 2, 2, 4], pa.int32()), unions())


def maps_of_unions() -> pa.Array:
    offsets = pa.array([0, 1, 2, 2, 4], pa.int32())
    return pa.MapArray.from_arrays(offsets, pa.array(list("abcd")), unions())


@pytest.mark.parametrize("make", [views, runs, list_views, unions, lists_of_unions, maps_of_unions])
def test_a_time_range_works_with_types_that_arrow_cannot_filter(
    quiver: Quiver, make: Callable[[], pa.Array]
) -> None:
    column = make()
    quiver.append(timed([1, 9, 1, 9], c=column))
    wanted = plain_rows(pa.record_batch({"c": column}))
    for _ in range(2):
        table = quiver.scan(["c"], since=START - timedelta(hours=5)).read_all()
        assert plain_rows(table) == [wanted[0], wanted[2]]
        seal(quiver)


# -------------------------------------------------------------------------- drift


def test_rows_that_lack_a_column_have_nulls_there(machine: Machine) -> None:
    with machine.start() as quiver:
        quiver.append(numbers(1, column="a"))
        quiver.append(numbers(2, column="b"))
        for _ in range(2):
            table = quiver.scan(["a", "b"]).read_all()
            assert sorted(plain_rows(table), key=str) == [(1, None), (None, 2)]
            seal(quiver)


def test_a_column_that_grew_wider_is_read_in_the_wider_type(machine: Machine) -> None:
    with machine.start() as quiver:
        quiver.append(pa.record_batch({"n": pa.array([1], pa.int8())}))
        seal(quiver)
        quiver.append(pa.record_batch({"n": pa.array([2**40], pa.int64())}))
        assert sorted(column_of(quiver)) == [1, 2**40]


def test_a_column_that_was_all_null_once_takes_the_type_it_has_elsewhere(machine: Machine) -> None:
    kinds = [pa.string(), pa.list_view(pa.int8()), pa.run_end_encoded(pa.int16(), pa.string())]
    kinds.append(pa.union([pa.field("a", pa.int8())], "dense"))
    with machine.start() as quiver:
        for place, kind in enumerate(kinds):
            slot = f"s{place}"
            quiver.append({slot: pa.record_batch({"c": pa.nulls(2)})})
            quiver.append({slot: pa.record_batch({"c": pa.nulls(1, kind)})})
            table = quiver.scan(["c"], slot=slot).read_all()
            assert table.schema.field("c").type == kind
            assert plain_rows(table) == [(None,)] * 3


def test_a_dictionary_in_one_place_and_plain_values_in_another_are_read_plain(
    machine: Machine,
) -> None:
    with machine.start() as quiver:
        quiver.append(pa.record_batch({"c": pa.array(["a"])}))
        quiver.append(pa.record_batch({"c": pa.array(["b"]).dictionary_encode()}))
        short = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array(["c"]))
        quiver.append(pa.record_batch({"c": short}))
        assert sorted(column_of(quiver, "c")) == ["a", "b", "c"]


def test_a_type_conflict_across_drift_is_refused_until_the_column_is_left_out(
    machine: Machine,
) -> None:
    with machine.start() as quiver:
        quiver.append(pa.record_batch({"c": [1], "d": [1]}))
        quiver.append(pa.record_batch({"c": ["one"], "d": [2]}))
        for _ in range(2):
            with pytest.raises(BadInput, match=r"column 'c' is int64 .* string"):
                quiver.scan()
            assert sorted(column_of(quiver, "d")) == [1, 2]
            seal(quiver)


def test_a_conflict_between_types_that_hold_dictionaries_is_refused_too(machine: Machine) -> None:
    words = pa.dictionary(pa.int8(), pa.string())
    with machine.start() as quiver:
        quiver.append(pa.record_batch({"c": pa.nulls(1, pa.list_view(words))}))
        quiver.append(pa.record_batch({"c": [1]}))
        with pytest.raises(BadInput, match="column 'c'"):
            quiver.scan()


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (pa.array([2**53 + 1]), pa.array([0.5])),
        (pa.array([2**63], pa.uint64()), pa.array([-1])),
        (pa.array([2**62], pa.timestamp("s")), pa.array([1], pa.timestamp("ns"))),
    ],
)
def test_a_value_that_does_not_fit_the_common_type_is_a_clear_error_not_a_wrong_value(
    machine: Machine, one: pa.Array, two: pa.Array
) -> None:
    with machine.start() as quiver:
        quiver.append(pa.record_batch({"c": one}))
        quiver.append(pa.record_batch({"c": two}))
        reader = quiver.scan(["c"])
        with pytest.raises(BadInput, match="column 'c'"):
            reader.read_all()


def test_a_missing_column_of_a_type_without_nulls_is_a_clear_error(machine: Machine) -> None:
    """pyarrow 26 makes broken nulls for lists of runs."""
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int16()), pa.array(["x"]))
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), runs)
    with machine.start() as quiver:
        quiver.append(pa.record_batch({"c": lists}))
        quiver.append(numbers(1))
        with pytest.raises(BadInput, match="column 'c' is missing in one place"):
            quiver.scan().read_all()
        assert sorted(column_of(quiver), key=str) == [1, None, None]


# -------------------------------------------------------------------------- races


def test_a_buffer_that_grows_and_is_sealed_during_a_scan_is_not_read_twice(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with machine.start() as quiver:
        quiver.append(numbers(1))
        readable = quiver._engine.readable
        look_at_tail = readable.tail

        def tail_then_seal(from_seq: int, **which: bool) -> list[list[HeldBundle]]:
            seen = look_at_tail(from_seq, **which)
            quiver.append(numbers(2))
            quiver.flush()
            return seen

        monkeypatch.setattr(readable, "tail", tail_then_seal)
        assert column_of(quiver) == [1, 2]


def test_a_scan_never_sees_half_of_a_transaction(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[int]] = []
    with machine.start() as quiver:

        def spy(buffer: OpenBuffer, name: str, value: Any) -> None:
            if name == "size_bytes" and value:
                seen.append(column_of(quiver))
            object.__setattr__(buffer, name, value)

        monkeypatch.setattr(OpenBuffer, "__setattr__", spy)
        with quiver.transaction() as transaction:
            for value in range(3):
                transaction.append(numbers(value))
        monkeypatch.undo()
        assert seen
        assert all(values in ([], [0, 1, 2]) for values in seen)


def test_a_buffer_being_sealed_is_still_read(machine: Machine) -> None:
    gated: list[GatedDisk] = []

    def through(disk: Any) -> GatedDisk:
        gated.append(GatedDisk(disk, "seal.rename"))
        return gated[0]

    quiver = machine.start(through=through)
    seq = quiver.append(numbers(1)).seq
    flushing = threading.Thread(target=quiver.flush)
    flushing.start()
    try:
        assert gated[0].reached.wait(PATIENCE_S)
        quiver.append(numbers(2))
        assert column_of(quiver) == [1, 2]
        assert quiver.bundle(seq) is not None
        assert quiver.statistics().sealing_bytes > 0
    finally:
        gated[0].gate.set()
        flushing.join()
    assert column_of(quiver) == [1, 2]
    machine.stop()


def test_appends_and_scans_from_many_threads_while_sealing_miss_nothing_and_repeat_nothing(
    machine: Machine,
) -> None:
    quiver = machine.start(quiet_segments(max_open_duration_s=0.001))
    acknowledged: list[int] = []
    writing = threading.Barrier(4)
    wrong: list[str] = []

    def write(first: int) -> None:
        writing.wait(PATIENCE_S)
        for value in range(first, first + 60):
            quiver.append(numbers(value))
            acknowledged.append(value)

    def read() -> None:
        writing.wait(PATIENCE_S)
        for _ in range(40):
            known = set(acknowledged)
            found = column_of(quiver)
            if len(found) != len(set(found)):
                wrong.append("twice")
            if not known <= set(found):
                wrong.append(f"missed {known - set(found)}")

    threads = [threading.Thread(target=write, args=(n * 1000,)) for n in range(2)]
    threads += [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert sorted(column_of(quiver)) == sorted(acknowledged)
    assert len(acknowledged) == 120
    machine.stop()
    with machine.start() as quiver:
        assert sorted(column_of(quiver)) == sorted(acknowledged)
