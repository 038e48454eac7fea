"""The tables of telemetry: a row for each span, log record or data point that is stored.

What makes them is imported with the first request that is read: a gateway that only stores and
forwards knows that there are such tables, and needs no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from holdfast.extras import need
from holdfast.signals.otlp.flat.schema import REQUEST, SCHEMAS, TABLES
from holdfast.signals.otlp.kinds import OtlpKind


@dataclass(frozen=True)
class TelemetryTable:
    """The items of one kind, from requests of OTLP."""

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
        return ()

    @cached_property
    def schema(self) -> pa.Schema:
        """See `ItemTable`."""
        whole = SCHEMAS[self.name]
        return whole.remove(whole.get_field_index(REQUEST))

    def of_payloads(self, payloads: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
        """See `ItemTable`."""
        try:
            from holdfast.signals.otlp.flat.table import flat_batches
        except ModuleNotFoundError:
            need("otel")
            raise
        # What is no request is not from a receiver of ours; it has no items.
        for made in flat_batches(self.kind, payloads, unreadable=[]):
            names = ["_place", "_time", *self.schema.names]
            columns = [made.column(name) for name in (REQUEST, "time", *self.schema.names)]
            yield pa.RecordBatch.from_arrays(columns, names)

    def of_bundle(self, slots: Mapping[str, pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """See `ItemTable`."""
        raise AssertionError("BUG: no Arrow bundles hold such items")
