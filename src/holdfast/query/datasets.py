"""Slots and tables of quivers as datasets of Arrow: sealed or not, beside a running owner.

Opening takes one look at the directories, as `holdfast quiver ls` does: no lock, no request to the
owner. What is sealed is read when somebody asks for rows, a block at a time; what was not sealed at
that moment is held in memory, as much of it as the owner holds itself. So all datasets that were
opened together show the same moment, and one that was opened later shows a later one.

A segment that its owner removes before it was read is an error that says so. What is left would be
an answer to no question.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import cached_property
from itertools import chain
from pathlib import Path, PurePath
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from holdfast.errors import Damaged, HoldfastError
from holdfast.query.kept import KeptTables
from holdfast.quiver.base.config import ItemTable, QuiverConfig
from holdfast.quiver.read.scan import OnDamage, TimeRange, scan
from holdfast.quiver.read.tables import StoredParts, may_have_items, scan_table, table_schema
from holdfast.quiver.segments.manifest import OPAQUE
from holdfast.quiver.segments.rows import GroupTable, TableMaker
from holdfast.quiver.segments.segment import Segment
from holdfast.quiver.tools.inspect import inspect, removed_meanwhile
from holdfast.seam.disk import Disk, RealDisk
from holdfast.signals.registry import extractors, tables

# Returns a stream of some columns, of all if None; called for each time that rows are asked for.
OpenStream = Callable[[Sequence[str] | None], pa.RecordBatchReader]


class StoredDataset(ds.Dataset):  # type: ignore[misc]
    """One table, or one slot. Made by `open_tables`.

    It is a dataset by its class, since that is what duckdb and polars look at. They ask it for a
    scanner, and say which columns they want and which rows; everything else that datasets of files
    can do is not there.
    """

    def __init__(
        self, disk: Disk, open_stream: OpenStream, known_schema: Callable[[], pa.Schema]
    ) -> None:
        self._disk = disk
        self._open_stream = open_stream
        self._known_schema = known_schema
        # What ended a stream. Arrow hands on no more than a text of it.
        self.failure: HoldfastError | None = None
        # Files with some of its rows, and the others: what a reader of Parquet takes instead.
        self.kept: tuple[list[Path], StoredDataset] | None = None

    @cached_property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return self._known_schema()

    def scanner(
        self,
        columns: list[str] | dict[str, ds.Expression] | None = None,
        filter: ds.Expression | None = None,  # noqa: A002  (Arrow's name for it)
        **options: Any,
    ) -> ds.Scanner:
        """Return a scanner of some columns and rows; each begins anew."""
        reader = self._open_stream(self._needed(columns, filter))
        watched = pa.RecordBatchReader.from_batches(reader.schema, self._watched(reader))
        return ds.Scanner.from_batches(watched, columns=columns, filter=filter, **options)

    def _needed(
        self,
        columns: list[str] | dict[str, ds.Expression] | None,
        filter: ds.Expression | None,  # noqa: A002
    ) -> list[str] | None:
        """Return the columns that have to be read; None: all.

        Arrow does not tell which an expression is about. Its text names them, and perhaps others.
        """
        if not isinstance(columns, list):
            return None
        text = "" if filter is None else str(filter)
        needed = [name for name in self.schema.names if name in columns or name in text]
        return needed or self.schema.names[:1]

    def _watched(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        try:
            yield from reader
        except Damaged as damage:
            self.failure = removed_meanwhile(self._disk, damage)
            raise self.failure from damage
        except HoldfastError as error:
            self.failure = error
            raise


def open_tables(
    *directories: str | os.PathLike[str],
    since: datetime | None = None,
    until: datetime | None = None,
    on_damage: OnDamage = "fail",
    keep: KeptTables | None = None,
    disk: Disk | None = None,
) -> dict[str, StoredDataset]:
    """Return the tables of the signals, and each slot that has rows, by name.

    Of several quivers the rows of all. `since` (inclusive) and `until` (exclusive), both with a
    time zone, bound the event time; of a table that of each item. A table hides a slot of its name.
    With `keep`, SQL reads tables of sealed segments from files that are made once (`kept.py`); not
    if times are bound, or damage is to be left out.
    """
    look = _Look(disk or RealDisk(), directories, TimeRange.of(since, until), on_damage)
    keeps = keep if since is None and until is None and on_damage == "fail" else None
    return {**{slot: look.slot(slot) for slot in look.slots()}, **look.tables(keeps)}


class _Look:
    """What some quivers hold at one moment."""

    def __init__(
        self,
        disk: Disk,
        directories: Sequence[str | os.PathLike[str]],
        times: TimeRange,
        on_damage: OnDamage,
    ) -> None:
        self._disk = disk
        self._times = times
        self._on_damage = on_damage
        self._segments: list[Segment] = []
        # Of each quiver by itself.
        self._tails: list[list[GroupTable]] = []
        makes = TableMaker(QuiverConfig(extractors=extractors()))
        for directory in directories:
            inventory = inspect(disk, PurePath(directory))
            self._segments += inventory.segments
            self._tails.append(list(makes.tables(inventory.unsealed)))

    def slots(self) -> list[str]:
        """Return the slots that have rows; those of opaque files are known when they are read."""
        sealed = {
            file.slot
            for segment in self._segments
            for file in segment.summary.files
            if file.kind != OPAQUE
        }
        groups = [made.group for tail in self._tails for made in tail]
        unsealed = {slot for group in groups for slot in (group.slots or [group.slot])}
        return sorted(sealed | unsealed)

    def slot(self, name: str) -> StoredDataset:
        """Return a slot, with the envelope of its rows."""

        tail = [*chain.from_iterable(self._tails)]

        def open_stream(columns: Sequence[str] | None) -> pa.RecordBatchReader:
            return scan(self._segments, tail, name, columns, self._times, self._on_damage)

        return StoredDataset(self._disk, open_stream, lambda: open_stream(None).schema)

    def tables(self, keep: KeptTables | None) -> dict[str, StoredDataset]:
        """Return the tables of all signals, also those that have no rows."""
        found = {}
        for name, table in tables().items():
            dataset = found[name] = self._table(table, self._segments)
            if keep is not None:
                having = [one for one in self._segments if may_have_items(table, one)]
                files = keep.of(name, table, having)
                dataset.kept = files.paths, self._table(table, files.others)
        return found

    def _table(self, table: ItemTable, segments: Sequence[Segment]) -> StoredDataset:
        parts = StoredParts(segments, self._tails, self._on_damage)
        return StoredDataset(
            self._disk,
            lambda columns: scan_table(table, parts, columns, self._times),
            lambda: table_schema(table, on_damage=self._on_damage),
        )
