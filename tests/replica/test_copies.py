"""Each part once, from any place that has it: the union, and copies that break off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadInput, Damaged, HoldfastError, OwnerGone
from holdfast.remote import StoredSegment
from holdfast.replica.copies import SegmentCopy, each_once, read_any

SCHEMA = pa.schema([("number", pa.int64())])

# Places that each hold some parts of one sequence, cut wherever.
Cut = tuple[int, int]
cuts = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 8)).map(lambda cut: (cut[0], sum(cut))), max_size=8
)


def copy(place: str, first_seq: int, last_seq: int, name: str = "") -> SegmentCopy[str]:
    name = name or f"{first_seq}-{last_seq}"
    return SegmentCopy(
        place, "q", StoredSegment(name, first_seq, last_seq, 1, 1, quiver_id="original")
    )


@given(st.lists(cuts, max_size=4))
def test_what_is_anywhere_is_read_once_by_copies_that_have_it(places: list[list[Cut]]) -> None:
    held = [
        copy(str(place), first, last)
        for place, parts in enumerate(places)
        for first, last in dict.fromkeys(parts)
    ]
    read: list[int] = []
    for wanted in each_once(held):
        assert wanted.copies
        for one in wanted.copies:
            assert one.segment.first_seq <= wanted.first_seq
            assert wanted.end_seq <= one.segment.last_seq + 1
        read += range(wanted.first_seq, wanted.end_seq)
    assert len(read) == len(set(read)), "read twice"
    somewhere = {
        seq for one in held for seq in range(one.segment.first_seq, one.segment.last_seq + 1)
    }
    assert set(read) == somewhere


def test_places_take_turns_and_quivers_are_told_apart() -> None:
    parts = [copy(place, 10 * n, 10 * n + 9) for n in range(4) for place in "ab"]
    firsts = [one.copies[0].place for one in each_once(parts)]
    assert firsts == ["a", "b", "a", "b"]
    other = SegmentCopy("c", "x", StoredSegment("0-9", 0, 9, 1, 1, quiver_id="restored"))
    assert len(list(each_once([parts[0], other]))) == 2


class Source:
    """Rows 0 to 9 at each place; some places fail before a row, or do not open at all (0)."""

    def __init__(self, fails: dict[str, int], error: HoldfastError) -> None:
        self.fails, self.error = fails, error
        self.asked: list[str] = []

    def __call__(self, one: SegmentCopy[str]) -> pa.RecordBatchReader:
        self.asked.append(one.place)
        fails = self.fails.get(one.place)
        if fails == 0:
            raise self.error
        return pa.RecordBatchReader.from_batches(SCHEMA, self._batches(fails))

    def _batches(self, fails: int | None) -> Iterator[pa.RecordBatch]:
        for first in range(0, 10, 2):
            if fails is not None and first >= fails:
                raise self.error
            yield pa.record_batch([pa.array([first, first + 1])], schema=SCHEMA)


GONE = OwnerGone("it is gone", hint="wait")


def numbers(source: Source, copies: Sequence[SegmentCopy[str]]) -> list[int]:
    found: list[int] = read_any(copies, source).read_all().column("number").to_pylist()
    return found


@pytest.mark.parametrize("first_fails", [0, 2, 4, 8])
@pytest.mark.parametrize("error", [GONE, Damaged("a bit", hint="h", path="p")])
def test_a_copy_that_breaks_off_is_continued_by_another(
    first_fails: int, error: HoldfastError
) -> None:
    source = Source({"a": first_fails, "b": 2}, error)
    copies = [copy(place, 0, 9) for place in "abc"]
    assert numbers(source, copies) == list(range(10))
    assert source.asked == ["a", "b", "c"]


def test_only_the_same_folder_goes_on_where_rows_were_given_away() -> None:
    """Another one of the range may have the same rows in another order."""
    copies = [copy("a", 0, 9), copy("b", 0, 9, "sealed-again"), copy("c", 0, 9)]
    assert numbers(Source({"a": 4}, GONE), copies) == list(range(10))
    assert Source({"a": 4}, GONE)(copies[1])  # it could be read
    with pytest.raises(OwnerGone, match="1 copies"):
        numbers(Source({"a": 4}, GONE), copies[:2])
    assert numbers(Source({"a": 0}, GONE), copies[:2]) == list(range(10))


def test_without_any_copy_the_reasons_are_told() -> None:
    with pytest.raises(OwnerGone, match="2 copies of a part cannot be read: it is gone"):
        numbers(Source({"a": 0, "b": 6}, GONE), [copy("a", 0, 9), copy("b", 0, 9)])
    with pytest.raises(Damaged):
        numbers(Source({"a": 0, "b": 0}, Damaged("a bit", hint="h")), [copy("a", 0, 9)] * 2)
    source = Source({"a": 0}, BadInput("no such column", hint="h"))
    with pytest.raises(BadInput, match="no such column"):
        numbers(source, [copy("a", 0, 9), copy("b", 0, 9)])
    assert source.asked == ["a"], "what is wrong with the question is wrong everywhere"
