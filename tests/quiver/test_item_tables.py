"""Tables of items: rows that are made from slots when they are read, sealed or not."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from tests.quiver.machine import Machine, quiet

from holdfast.errors import BadInput, Damaged
from holdfast.quiver import Quiver, QuiverConfig
from holdfast.quiver.base.envelope import TIME_TYPE
from holdfast.quiver.read.scan import TimeRange
from holdfast.quiver.read.tables import ItemTimeRange

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def minutes(count: int) -> datetime:
    return NOON + timedelta(minutes=count)


@dataclass(frozen=True)
class Words:
    """Payloads are words, each with the minute it is of: `3:tea 5:milk`; `?` has no time."""

    raw_slot = "lines"
    arrow_slots = ("words", "letters")
    schema = pa.schema([("word", pa.string()), ("letters", pa.int64())])
    # How many payloads each call was given.
    calls: list[int]
    # Items of one batch.
    batch_rows: int = 1000

    def of_payloads(
        self, payloads: Sequence[bytes], unreadable: MutableSequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        self.calls.append(len(payloads))
        found = [
            (place, *one.partition(":")[::2])
            for place, payload in enumerate(payloads)
            for one in payload.decode().split()
        ]
        rows = [(place, minute, word, None) for place, minute, word in found]
        for first in range(0, len(rows), self.batch_rows):
            yield self._made(rows[first : first + self.batch_rows])

    def of_bundle(
        self, slots: Mapping[str, pa.RecordBatch], damaged_slots: Collection[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        counts: dict[int, int] = {}
        for row in slots["letters"].to_pylist() if "letters" in slots else []:
            counts[row["parent"]] = counts.get(row["parent"], 0) + 1
        assert "note" not in slots["words"].schema.names or slots["words"]["note"].null_count < 1
        rows = slots["words"].to_pylist()
        yield self._made([(0, "?", row["word"], counts.get(row["id"], 0)) for row in rows])

    def _made(self, rows: Sequence[tuple[int, str, str, int | None]]) -> pa.RecordBatch:
        times = [None if minute == "?" else minutes(int(minute)) for _, minute, _, _ in rows]
        return pa.record_batch(
            {
                "_place": pa.array([row[0] for row in rows], pa.int32()),
                "_time": pa.array(times, TIME_TYPE),
                "word": pa.array([row[2] for row in rows], pa.string()),
                "letters": pa.array([row[3] for row in rows], pa.int64()),
            }
        )


@dataclass(frozen=True)
class LinesExtractor:
    """Gives the times of all words of a line, the earliest as the line's own, and ids for some."""

    def extract(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        lines = [payload.as_py().decode().split() for payload in rows.column("payload")]
        times = [[one.partition(":")[0] for one in line] for line in lines]
        lists = [[None if t == "?" else minutes(int(t)) for t in line] for line in times]
        first = [min((t for t in line if t is not None), default=None) for line in lists]
        ids = [[word.encode().rjust(16) for word in line] for line in lines]
        return pa.record_batch(
            {
                "event_time": pa.array(first, TIME_TYPE),
                "item_times": pa.array(lists, pa.list_(TIME_TYPE)),
                "search_ids": pa.array(ids, pa.list_(pa.binary(16))),
            }
        )


def config(words: Words) -> QuiverConfig:
    return replace(quiet(), extractors={"lines": LinesExtractor()}, tables={"words": words})


def words_of(quiver: Quiver, **options: object) -> list[tuple[object, ...]]:
    rows = quiver.scan(table="words", **options).read_all()  # type: ignore[arg-type]
    return [tuple(row.values()) for row in rows.to_pylist()]


POSITIONS = ["_seq", "_row", "_item", "word"]


@pytest.mark.parametrize("batch_rows", [1, 2, 1000])
def test_items_of_payloads_have_the_position_of_their_row(
    machine: Machine, batch_rows: int
) -> None:
    quiver = machine.start(config(Words([], batch_rows)))
    quiver.append_raw([b"1:a 2:b", b"", b"?:c"], slot="lines")
    quiver.append_raw(b"other", slot="others")
    quiver.flush()
    quiver.append_raw([b"3:d", b"4:e 5:f 6:g"], slot="lines")
    assert words_of(quiver, columns=POSITIONS) == [
        (0, 0, 0, "a"),
        (0, 0, 1, "b"),
        (0, 2, 0, "c"),
        (2, 0, 0, "d"),
        (2, 1, 0, "e"),
        (2, 1, 1, "f"),
        (2, 1, 2, "g"),
    ]
    times = words_of(quiver, columns=["_event_time", "_ingestion_time"])
    assert [time for time, _ in times[:2]] == [minutes(1), minutes(2)]
    # One without a time has that of its ingestion.
    assert times[2][0] == times[2][1]


def test_times_are_those_of_the_items(machine: Machine) -> None:
    quiver = machine.start(config(Words([])))
    quiver.append_raw([b"1:a 9:b", b"5:c"], slot="lines")
    for _ in range(2):
        assert words_of(quiver, columns=["word"], since=minutes(5)) == [("b",), ("c",)]
        assert words_of(quiver, columns=["word"], until=minutes(5)) == [("a",)]
        assert words_of(quiver, columns=["word"], since=minutes(2), until=minutes(5)) == []
        quiver.flush()


def test_blocks_without_items_in_the_range_are_not_read(machine: Machine) -> None:
    words = Words([])
    quiver = machine.start(config(words))
    for minute in range(4):
        quiver.append_raw(f"{minute}:early {10 + minute}:late".encode(), slot="lines")
        quiver.flush()
    (batch,) = quiver.segments()[1].summary.files[0].batches
    us = TimeRange.of(minutes(1), minutes(11))
    assert (batch.min_item_us, batch.max_item_us) == (us.since_us, us.until_us)
    assert words_of(quiver, columns=["word"], since=minutes(12), until=minutes(13)) == [("late",)]
    assert len(words.calls) == 2  # 2:early 12:late, and 3:early 13:late
    # What a former program sealed has no such bounds, and is read.
    old = batch._replace(min_item_us=None, max_item_us=None)
    assert ItemTimeRange(0, 1).may_hold(old)
    assert not ItemTimeRange(0, 1).may_hold(batch)


def test_rows_for_which_an_extractor_failed_are_of_any_time(machine: Machine) -> None:
    class Failing(LinesExtractor):
        def extract(self, rows: pa.RecordBatch) -> pa.RecordBatch:
            if any(b"bad" in payload.as_py() for payload in rows.column("payload")):
                raise ValueError("cannot be read")
            return super().extract(rows)

    quiver = machine.start(replace(config(Words([])), extractors={"lines": Failing()}))
    for line in (b"1:good", b"9:bad", b"2:good"):
        quiver.append_raw(line, slot="lines")
    quiver.flush()
    assert words_of(quiver, columns=["word"], since=minutes(8)) == [("bad",)]


def test_slots_of_arrow_bundles_are_joined_within_their_bundle(machine: Machine) -> None:
    quiver = machine.start(config(Words([])))

    def append(words: dict[str, list[object]], parents: list[int] | None) -> None:
        slots = {"words": pa.record_batch(words)}
        if parents is not None:
            slots["letters"] = pa.record_batch({"parent": pa.array(parents, pa.int64())})
        quiver.append(slots)

    append({"id": [1, 2], "word": ["tea", "ox"]}, [1, 1, 1, 2, 2])
    # The same ids mean others here, and another column makes it another file.
    append({"id": [1], "word": ["a"], "note": ["n"]}, [1])
    append({"id": [7], "word": ["none"]}, None)
    quiver.append({"letters": pa.record_batch({"parent": pa.array([1], pa.int64())})})
    expected = [
        (0, 0, 0, "tea", 3),
        (0, 0, 1, "ox", 2),
        (1, 0, 0, "a", 1),
        (2, 0, 0, "none", 0),
    ]
    for _ in range(2):
        found = words_of(quiver, columns=[*POSITIONS, "letters"])
        assert found == expected
        quiver.flush()


def test_bad_questions(machine: Machine) -> None:
    quiver = machine.start(config(Words([])))
    with pytest.raises(BadInput, match=r"no table 'spans'.*there are words"):
        quiver.scan(table="spans")
    with pytest.raises(BadInput, match=r"no column nothing in this table.*_seq, _row, _item"):
        quiver.scan(["nothing"], table="words")
    with pytest.raises(BadInput, match="both a slot and a table"):
        quiver.scan(table="words", slot="lines")
    assert quiver.scan(table="words").read_all().num_rows == 0


def test_a_bundle_with_a_damaged_slot_has_no_items(machine: Machine) -> None:
    """Half of it would look like items that never had any letters."""
    quiver = machine.start(config(Words([])))
    for number in range(3):
        word = pa.record_batch({"id": [1], "word": [str(number)]})
        # Large enough for a block of its own.
        letters = {"parent": pa.array([1] * 2000, pa.int64()), "pad": ["x" * 60] * 2000}
        quiver.append({"words": word, "letters": pa.record_batch(letters)})
    quiver.flush()
    (letters_file,) = [
        file for file in quiver.segments()[0].summary.files if file.slot == "letters"
    ]
    path = quiver.segments()[0].path / letters_file.name
    machine.scribble(
        path, letters_file.batches[1].offset + 9000, letters_file.batches[1].offset + 9100
    )
    with pytest.raises(Damaged):
        words_of(quiver, columns=["word"])
    assert words_of(quiver, columns=["word"], on_damage="skip") == [("0",), ("2",)]
    left = [("0", 2000, None), ("1", 0, ["letters"]), ("2", 2000, None)]
    assert words_of(quiver, columns=["word", "letters"], partial=True) == left
