"""The tables of telemetry: a row for each span, log record or data point that is stored.

What makes them is imported with the first request that is read: a gateway that only stores and
forwards knows that there are such tables, and needs no more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from holdfast.extras import need
from holdfast.quiver.base.arrow import numbers
from holdfast.signals.otap.payloads import ROOTS, with_orphans
from holdfast.signals.otap.payloads import TABLES as OTAP_TABLES
from holdfast.signals.otlp.flat.schema import REQUEST, SCHEMAS, TABLES
from holdfast.signals.otlp.kinds import OtlpKind


@dataclass(frozen=True)
class TelemetryTable:
    """The items of one kind, from requests of OTLP and from batches of OTAP."""

    kind: OtlpKind

    @property
    def name(self) -> str:
        """What it is called."""
        return TABLES[self.kind]

    @property
    def raw_slot(self) -> str:
        """See `ItemTable`."""
        return self.kind.slot

    @property
    def arrow_slots(self) -> Sequence[str]:
        """See `ItemTable`."""
        root = ROOTS[self.kind]
        others = sorted(OTAP_TABLES[self.kind] - {root})
        return [root.slot, *(one.slot for one in others)]

    @cached_property
    def schema(self) -> pa.Schema:
        """See `ItemTable`."""
        whole = SCHEMAS[self.name]
        return whole.remove(whole.get_field_index(REQUEST))

    def of_payloads(
        self, payloads: Sequence[bytes], unreadable: MutableSequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """See `ItemTable`."""
        try:
            from holdfast.signals.otlp.flat.table import flat_batches
        except ModuleNotFoundError:
            need("otel")
            raise
        # What is no request is not from a receiver of ours; it has no items.
        missed = [] if unreadable is None else unreadable
        for made in flat_batches(self.kind, payloads, unreadable=missed):
            yield self._placed(made, made.column(REQUEST))

    def of_bundle(
        self, slots: Mapping[str, pa.RecordBatch], damaged_slots: Collection[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """See `ItemTable`."""
        try:
            from holdfast.signals.otap.to_otlp import otlp_of
            from holdfast.signals.otlp.flat.table import flat_batches
        except ModuleNotFoundError:
            need("otel")
            raise
        from holdfast.signals.otap.problem import NotOtap

        try:
            lost = with_orphans(damaged_slots)
            kept = {slot: rows for slot, rows in slots.items() if slot not in lost}
            requests = otlp_of(self.kind, kept)
        except NotOtap:
            return  # not by a receiver of ours, likewise
        for made in flat_batches(self.kind, requests, unreadable=[]):
            yield self._placed(made, numbers([0] * made.num_rows, pa.int32()))

    def _placed(self, made: pa.RecordBatch, places: pa.Array) -> pa.RecordBatch:
        names = self.schema.names
        columns = [places, made.column("time"), *(made.column(name) for name in names)]
        return pa.RecordBatch.from_arrays(columns, ["_place", "_time", *names])
