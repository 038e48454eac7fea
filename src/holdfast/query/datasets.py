"""Slots and tables of quivers as datasets of Arrow: sealed or not, beside a running owner.

Opening takes one look at the directories, as `holdfast quiver ls` does: no lock, no request to the
owner. What is sealed is read when somebody asks for rows, a block at a time; what was not sealed at
that moment is held in memory, as much of it as the owner holds itself. So all datasets that were
opened together show the same moment, and one that was opened later shows a later one.

A segment that its owner removes before it was read is an error that says so. What is left would be
an answer to no question. What was removed earlier is there if the archive that has it is named.
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
from holdfast.quiver.base.config import ArchiveConfig, ItemTable, QuiverConfig
from holdfast.quiver.base.held_bundle import HeldBundle
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.quiver.read.archive import each_bundle_once
from holdfast.quiver.read.scan import EVERYTHING, OnDamage, Span, TimeRange, scan_pieces
from holdfast.quiver.read.tables import StoredParts, may_have_items, scan_table, table_schema
from holdfast.quiver.segments.archive import archived_segments, open_place, require_archive
from holdfast.quiver.segments.manifest import OPAQUE
from holdfast.quiver.segments.rows import GroupTable, TableMaker
from holdfast.quiver.segments.segment import Segment
from holdfast.quiver.tools.inspect import Inventory, inspect, removed_meanwhile
from holdfast.seam import Seam
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
        self,
        explain: Callable[[Damaged], HoldfastError],
        open_stream: OpenStream,
        known_schema: Callable[[], pa.Schema],
    ) -> None:
        # Tells what was removed meanwhile from what is damaged.
        self._explain = explain
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
            self.failure = self._explain(damage)
            raise self.failure from damage
        except HoldfastError as error:
            self.failure = error
            raise


def open_tables(
    *directories: str | os.PathLike[str],
    archives: Sequence[str | ArchiveConfig] = (),
    since: datetime | None = None,
    until: datetime | None = None,
    on_damage: OnDamage = "fail",
    keep: KeptTables | None = None,
    disk: Disk | None = None,
) -> dict[str, StoredDataset]:
    """Return the tables of the signals, and each slot that has rows, by name.

    Of several quivers the rows of all; what is both here and in one of `archives` (addresses, as
    `segment.archive` names them) is read here. `since` (inclusive) and `until` (exclusive), both
    with a time zone, bound the event time; of a table that of each item. A table hides a slot of
    its name. With `keep`, SQL reads tables of sealed segments from files that are made once
    (`kept.py`); not if times are bound, or damage is to be left out.
    """
    look = _Look(disk or RealDisk(), directories, archives, TimeRange.of(since, until), on_damage)
    keeps = keep if since is None and until is None and on_damage == "fail" else None
    return {**{slot: look.slot(slot) for slot in look.slots()}, **look.tables(keeps)}


class _Look:
    """What some quivers hold at one moment."""

    def __init__(
        self,
        disk: Disk,
        directories: Sequence[str | os.PathLike[str]],
        archives: Sequence[str | ArchiveConfig],
        times: TimeRange,
        on_damage: OnDamage,
    ) -> None:
        self._disk = disk
        self._times = times
        self._on_damage = on_damage
        # Of each quiver by itself.
        self._tails: list[list[GroupTable]] = []
        held = [inspect(disk, PurePath(directory)) for directory in directories]
        here = [segment for inventory in held for segment in inventory.segments]
        # Later than the directories: what goes from there meanwhile is in the archive before.
        skips = on_damage == "skip"
        self._archived = _archived(archives, is_all=not held, skips_damaged=skips)
        self._pieces = [(segment, EVERYTHING) for segment in here]
        if self._archived:
            self._pieces = each_bundle_once([*here, *self._archived])
        makes = TableMaker(QuiverConfig(extractors=extractors()))
        for inventory in held:
            self._tails.append(list(makes.tables(self._nowhere_else(inventory))))

    def _nowhere_else(self, inventory: Inventory) -> list[HeldBundle]:
        """Return what is not sealed, but for what was, and is in the archive."""
        own_id = inventory.identity.quiver_id if inventory.identity is not None else None
        sealed = IntervalSet()
        for one in self._archived:
            if one.summary.quiver_id == own_id:
                sealed.add(one.summary.first_seq, one.summary.last_seq + 1)
        return [one for one in inventory.unsealed if list(sealed.holes(one.seq, one.seq + 1))]

    def _explained(self, damage: Damaged) -> HoldfastError:
        path = PurePath(damage.path or "")
        if any(path.is_relative_to(one.path) for one in self._archived):
            return damage
        return removed_meanwhile(self._disk, damage)

    def slots(self) -> list[str]:
        """Return the slots that have rows; those of opaque files are known when they are read."""
        sealed = {
            file.slot
            for segment, _ in self._pieces
            for file in segment.summary.files
            if file.kind != OPAQUE
        }
        groups = [made.group for tail in self._tails for made in tail]
        unsealed = {slot for group in groups for slot in (group.slots or [group.slot])}
        return sorted(sealed | unsealed)

    def slot(self, name: str) -> StoredDataset:
        """Return a slot, with the envelope of its rows."""

        tail = [(made, EVERYTHING) for made in chain.from_iterable(self._tails)]

        def open_stream(columns: Sequence[str] | None) -> pa.RecordBatchReader:
            return scan_pieces(self._pieces, tail, name, columns, self._times, self._on_damage)

        return StoredDataset(self._explained, open_stream, lambda: open_stream(None).schema)

    def tables(self, keep: KeptTables | None) -> dict[str, StoredDataset]:
        """Return the tables of all signals, also those that have no rows."""
        found = {}
        for name, table in tables().items():
            dataset = found[name] = self._table(table, self._pieces)
            if keep is not None:
                having = [piece for piece in self._pieces if may_have_items(table, piece[0])]
                whole = [segment for segment, span in having if span == EVERYTHING]
                files = keep.of(name, table, whole)
                kept = set(whole) - set(files.others)
                rest = [piece for piece in having if piece[0] not in kept]
                dataset.kept = files.paths, self._table(table, rest)
        return found

    def _table(self, table: ItemTable, pieces: Sequence[tuple[Segment, Span]]) -> StoredDataset:
        parts = StoredParts(pieces, self._tails, self._on_damage)
        return StoredDataset(
            self._explained,
            lambda columns: scan_table(table, parts, columns, self._times),
            lambda: table_schema(table, on_damage=self._on_damage),
        )


def _archived(
    archives: Sequence[str | ArchiveConfig], *, is_all: bool, skips_damaged: bool
) -> list[Segment]:
    """Return what is in some archives; beside a directory they may be empty."""
    found: list[Segment] = []
    for one in archives:
        # Without TLS only where the environment names an endpoint that has none.
        config = one if isinstance(one, ArchiveConfig) else ArchiveConfig(one, allow_http=True)
        bucket = open_place(config, Seam())
        segments = archived_segments(bucket, skips_damaged=skips_damaged)
        if is_all:
            require_archive(segments, bucket)
        found += segments
    return found
