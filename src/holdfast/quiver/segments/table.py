"""Bundles as tables: rows with the envelope beside them, for the sealer and for tail readers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from holdfast.quiver.base.bundle import RESERVED_COLUMNS, one_batch
from holdfast.quiver.base.config import QuiverConfig
from holdfast.quiver.base.dictionaries import unify
from holdfast.quiver.base.envelope import TIME_TYPE, Extractor, extract, read_times
from holdfast.quiver.base.held_bundle import HeldBundle
from holdfast.quiver.segments.rows import (
    OPAQUE,
    BundleRows,
    Group,
    group_bundles,
    group_table,
    make_opaque,
    position_columns,
)


class GroupTable(NamedTuple):
    """One group as it is stored: envelope columns first, then the `own_columns` of the bundles."""

    group: Group
    table: pa.Table
    own_columns: int
    # Event times in µs as given, and clamped; in the order of the rows.
    event_us: pa.Array
    clamped_us: pa.Array


class TableMaker:
    """Turns bundles into tables. Never fails because of what a bundle or an extractor does."""

    def __init__(self, config: QuiverConfig) -> None:
        self.extractor_failures = 0
        self.opaque_rows = 0
        self._config = config

    def tables(self, bundles: Sequence[HeldBundle]) -> Iterator[GroupTable]:
        """Yield the groups of some bundles, at most `segment.max_files`."""
        for group in group_bundles(bundles, self._config.segment.max_files):
            try:
                yield self._with_envelope(group, group_table(group))
            except (pa.ArrowException, ValueError):
                opaque = make_opaque([group])
                yield self._with_envelope(opaque, group_table(opaque))

    def _with_envelope(self, group: Group, rows: pa.Table) -> GroupTable:
        seqs, positions, ingestion = position_columns(group.shares)
        extracted = self._extract(group, rows)
        given = None if extracted is None else extracted.column("event_time")
        timed = read_times(given, ingestion, self._config.max_skew_s)
        envelope = {
            "_seq": seqs,
            "_row": positions,
            "_ingestion_time": ingestion,
            "_event_time": timed.times,
            "_event_time_flag": timed.flags,
        }
        if extracted is not None:
            # The bundle's own column wins over a key of the same name.
            taken = RESERVED_COLUMNS | set(rows.schema.names) | {"event_time"}
            keys = [name for name in extracted.schema.names if name not in taken]
            envelope |= {name: extracted.column(name) for name in keys}
        if group.kind == OPAQUE:
            self.opaque_rows += group.rows
        fields = [pa.field(name, column.type) for name, column in envelope.items()]
        schema = pa.schema([*fields, *rows.schema], metadata=rows.schema.metadata)
        table = pa.Table.from_arrays([*envelope.values(), *rows.columns], schema=schema)
        event_us, clamped_us = timed.times.cast(pa.int64()), timed.clamped.cast(pa.int64())
        return GroupTable(group, table, rows.num_columns, event_us, clamped_us)

    def _extract(self, group: Group, rows: pa.Table) -> pa.RecordBatch | None:
        extractor = self._config.extractors.get(group.slot)
        if extractor is None or group.kind == OPAQUE:
            return None
        return self._extract_shares(extractor, group.shares, one_batch(rows))

    def _extract_shares(
        self, extractor: Extractor, shares: Sequence[BundleRows], rows: pa.RecordBatch
    ) -> pa.RecordBatch:
        """Return what the extractor finds; where it fails, ask for one half and the other.

        So a bundle on which it fails costs no other bundle its event times.
        """
        if not rows.num_rows:
            return pa.record_batch({"event_time": pa.nulls(0, TIME_TYPE)})
        try:
            return extract(extractor, rows)
        except Exception:
            if len(shares) <= 1:
                self.extractor_failures += 1
                return pa.record_batch({"event_time": pa.nulls(rows.num_rows, TIME_TYPE)})
        middle = len(shares) // 2
        cut = sum(share.rows for share in shares[:middle])
        return _joined(
            self._extract_shares(extractor, shares[:middle], rows.slice(0, cut)),
            self._extract_shares(extractor, shares[middle:], rows.slice(cut)),
        )


def _joined(one: pa.RecordBatch, two: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows of both; keys whose types do not go together are left out."""
    tables = [pa.Table.from_batches([one]), pa.Table.from_batches([two])]
    try:
        return one_batch(unify(pa.concat_tables(tables, promote_options="permissive")))
    except pa.ArrowException:
        return one_batch(pa.concat_tables([table.select(["event_time"]) for table in tables]))
