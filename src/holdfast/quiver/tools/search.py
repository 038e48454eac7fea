"""Finding bundles by what is in them: a scan of everything that is still there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import Damaged
from holdfast.quiver.base.arrow import has_dictionary, plain_type
from holdfast.quiver.segments.segment import Segment, held_bundle
from holdfast.quiver.tools.inspect import Inventory

_EXCERPT_CHARACTERS = 80


class Match(NamedTuple):
    """One event that contains the text."""

    seq: int
    slot: str
    row: int
    column: str
    excerpt: str


def search(inventory: Inventory, text: str) -> Iterator[Match]:
    """Yield the events that contain a text, oldest first; damaged bundles are passed over."""
    for segment in inventory.segments:
        yield from _search_segment(segment, text)
    for held in inventory.unsealed:
        for slot, batch in held_bundle(held).slots.items():
            yield from (Match(held.seq, slot, *found) for found in _rows(batch, text))


def _search_segment(segment: Segment, text: str) -> Iterator[Match]:
    # Bundle by bundle costs a slice each: first ask the files whether it is there at all.
    if not any(_file_may_hold(segment, place, text) for place in range(len(segment.files))):
        return
    try:
        bundles = list(segment.bundles())
    except Damaged:
        return  # its owner has removed it since we found it
    for bundle in bundles:
        try:
            slots = bundle.slots
        except Damaged:
            continue
        for slot, batch in slots.items():
            yield from (Match(bundle.seq, slot, *found) for found in _rows(batch, text))


def _file_may_hold(segment: Segment, place: int, text: str) -> bool:
    file = segment.files[place]
    if file.summary.kind == "opaque":
        return True
    for index in range(len(file.summary.batches)):
        try:
            if next(_rows(file.batch(index), text), None) is not None:
                return True
        except Damaged:
            continue
    return False


def _rows(batch: pa.RecordBatch, text: str) -> Iterator[tuple[int, str, str]]:
    """Yield row, column and excerpt of every value that contains the text."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        for row in _matching(column, text):
            yield row, name, _excerpt(column[row].as_py(), text)


def _matching(column: pa.Array, text: str) -> list[int]:
    kind = column.type
    if has_dictionary(kind) and not pa.types.is_nested(kind):
        kind = plain_type(kind)
        column = column.cast(kind)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or _is_binary(kind):
        mask = pc.match_substring(column, pattern=text)
        rows: list[int] = pc.indices_nonzero(mask.fill_null(False)).to_pylist()
        return rows
    if pa.types.is_nested(kind):
        return [row for row, value in enumerate(column) if text in str(value.as_py())]
    return []


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _excerpt(value: object, text: str) -> str:
    shown = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    start = max(0, shown.find(text) - _EXCERPT_CHARACTERS // 4)
    return shown[start : start + _EXCERPT_CHARACTERS]
