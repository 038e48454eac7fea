"""A quiver from afar: the methods of `Quiver` and `Cursor`, over Flight.

    with RemoteQuiver.open("grpc://gateway:8815", "main", ClientSettings(token=…)) as quiver:
        cursor = quiver.cursor("stats")
        planned = cursor.plan(max_events=100_000, wait_s=10)
        table = cursor.table(planned, slot="events", columns=["_seq", "payload"])
        cursor.commit(planned)

Errors are those of a quiver on the spot, and `OwnerGone` when the server cannot be reached or does
not answer in time. Nothing is repeated by itself, but everything may be: plans name where they
begin, commits what they cover, appends their epoch. An append without one whose answer is lost
raises `NotAccepted` with `stored="maybe"`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, Unpack

import pyarrow as pa

from holdfast.errors import BadInput, Damaged, OwnerGone, UnknownPosition
from holdfast.quiver import (
    AckLevel,
    EventTimeStatement,
    Outcome,
    Position,
    Receipt,
    SubscriberOptions,
)
from holdfast.quiver.base.arrow import unify
from holdfast.quiver.base.bundle import DEFAULT_SLOT, BundleData, Headers, Payloads, one_batch
from holdfast.quiver.engine.verbs import StartPosition
from holdfast.quiver.log.inbox import AppendOptions
from holdfast.quiver.read.cursor import OnDataLoss
from holdfast.quiver.read.scan import TimeRange
from holdfast.quiver.read.sealed import SealedRead
from holdfast.remote.connection import Connection
from holdfast.remote.settings import ClientSettings
from holdfast.remote.stored import StoredSegment
from holdfast.remote.wire import (
    Fields,
    PlannedRange,
    decode_receipt,
    decode_statement,
    encode_ticket,
)
from holdfast.seam.process import bind_to_process

# Segments may go between asking for their names and for their columns.
SCHEMA_ATTEMPTS = 5


class RemoteQuiver:
    """A quiver of another process. Safe to use from many threads."""

    def __init__(self, connection: Connection, name: str, quiver_id: str, directory: str) -> None:
        """Use `RemoteQuiver.open`."""
        self._connection = connection
        self.name = name
        self.quiver_id = quiver_id
        # On the server's machine.
        self.directory = directory
        bind_to_process(self)

    @classmethod
    def open(cls, location: str, name: str, settings: ClientSettings | None = None) -> Self:
        """Connect to a server's quiver of that name."""
        connection = Connection(location, settings or ClientSettings())
        try:
            quivers = connection.act("quivers").values["quivers"]
            for found in quivers:
                if found["name"] == name:
                    return cls(connection, name, found["quiver_id"], found["directory"])
        except BaseException:
            connection.close()
            raise
        connection.close()
        names = ", ".join(found["name"] for found in quivers)
        raise BadInput(f"no quiver {name!r} at {location}", hint=f"there are {names or 'none'}")

    @staticmethod
    def names(location: str, settings: ClientSettings | None = None) -> tuple[str, ...]:
        """Return what the quivers of a server are called; a data node's, by the ids of replicas."""
        connection = Connection(location, settings or ClientSettings())
        try:
            return tuple(one["name"] for one in connection.act("quivers").values["quivers"])
        finally:
            connection.close()

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ---------------------------------------------------------------- appending

    def append(self, data: BundleData, **options: Unpack[AppendOptions]) -> Receipt:
        """Append one bundle of record batches; returns once it is durable."""
        slots = data if isinstance(data, Mapping) else {DEFAULT_SLOT: data}
        if len(slots) == 1:
            ((slot, rows),) = slots.items()
            return self._put([_as_batch(rows)], options, kind="rows", slot=slot)
        streams = [_as_stream(rows) for rows in slots.values()]
        batch = pa.record_batch({"slot": list(slots), "stream": pa.array(streams, pa.binary())})
        return self._put([batch], options, kind="slots")

    def append_all(
        self,
        batches: Sequence[pa.RecordBatch],
        *,
        slot: str = DEFAULT_SLOT,
        producer: str | None = None,
        epoch: int | None = None,
        raw: bool = False,
    ) -> Receipt:
        """Append bundles of one schema, one per record batch, all or none.

        With `raw` their rows are events as bytes: a column `payload`, and perhaps `headers`.
        """
        if not batches:
            raise BadInput("the transaction has no bundles", hint="give at least one record batch")
        kind = "raw" if raw else "rows"
        options: AppendOptions = {"producer": producer, "epoch": epoch}
        return self._put(list(batches), options, kind=kind, slot=slot, bundles="each")

    def append_raw(
        self,
        payloads: Payloads,
        *,
        slot: str = DEFAULT_SLOT,
        headers: Sequence[Headers | None] | None = None,
        **options: Unpack[AppendOptions],
    ) -> Receipt:
        """Append one bundle of events as bytes; they are stored as they are."""
        events = [payloads] if isinstance(payloads, bytes) else list(payloads)
        columns = {"payload": pa.array(events, pa.binary())}
        if headers is not None:
            texts = [None if given is None else json.dumps(dict(given)) for given in headers]
            columns["headers"] = pa.array(texts, pa.string())
        if any(len(column) != len(events) for column in columns.values()):
            raise BadInput("not as many headers as payloads", hint="give one, or None, for each")
        return self._put([pa.record_batch(columns)], options, kind="raw", slot=slot)

    def _put(
        self, batches: Sequence[pa.RecordBatch], options: AppendOptions, **fields: Any
    ) -> Receipt:
        return self._connection.put(
            batches, quiver=self.name, **fields, **_append_fields(**options)
        )

    def heartbeat(self, producer: str, watermark_ns: int) -> Receipt:
        """Append a bundle without rows that moves a producer's watermark."""
        return decode_receipt(self._act("heartbeat", producer=producer, watermark_ns=watermark_ns))

    # ------------------------------------------------------------------ reading

    def cursor(
        self,
        name: str,
        *,
        start: StartPosition = "oldest",
        options: SubscriberOptions | None = None,
        on_data_loss: OnDataLoss = "fail",
        generation: int | None = None,
    ) -> RemoteCursor:
        """Attach a cursor, registering the subscriber if it is new; an older reader is fenced.

        With `generation` an earlier cursor's place is taken up again.
        """
        if generation is None:
            answer = self._act(
                "attach",
                subscriber=name,
                start=start if isinstance(start, str) else start.isoformat(),
                options=None if options is None else vars(options),
                on_data_loss=on_data_loss,
            )
            generation = answer.whole("generation")
        return RemoteCursor(self, name, generation, on_data_loss)

    def read(self, wanted: SealedRead) -> pa.RecordBatchReader:
        """Return sealed rows, as `holdfast.quiver.read.sealed.scan_sealed` does on the spot.

        If the server ends meanwhile the stream raises `OwnerGone`; it can be read again.
        """
        schema, batches = self._connection.get(encode_ticket(self.name, wanted))
        return pa.RecordBatchReader.from_batches(schema, batches)

    def segments(
        self,
        slot: str = DEFAULT_SLOT,
        *,
        times: TimeRange | None = None,
        start: Position | None = None,
        end: Position | None = None,
    ) -> tuple[StoredSegment, ...]:
        """Return the sealed segments that may hold rows of a slot, times and positions, in order.

        Raises `UnknownPosition` if there are older bundles in the range that are gone.
        """
        asked = times or TimeRange()
        answer = self._act("segments", slot=slot, start=start, end=end, **vars(asked))
        return tuple(StoredSegment.from_fields(Fields(one)) for one in answer.values["segments"])

    def schema(
        self, slot: str = DEFAULT_SLOT, columns: Sequence[str] | None = None
    ) -> pa.Schema | None:
        """Return the columns that all sealed rows of a slot fit; None if there are none."""
        chosen = None if columns is None else tuple(columns)
        for attempt in range(1, SCHEMA_ATTEMPTS + 1):
            names = tuple(segment.name for segment in self.segments(slot))
            if not names:
                return None
            try:
                wanted = SealedRead(self.quiver_id, names, slot, chosen)
                return self._connection.schema(encode_ticket(self.name, wanted))
            except UnknownPosition:  # one of them was done with, and removed
                if attempt == SCHEMA_ATTEMPTS:
                    raise
        raise AssertionError("BUG: the last attempt returns or raises")

    def statement(
        self, position: Position | None = None, *, claim_us: int | None = None
    ) -> EventTimeStatement:
        """Return what is known of the event times beyond a position."""
        return decode_statement(self._act("statement", position=position, claim_us=claim_us))

    def wait(self, seen: int | None = None, wait_s: float = 30.0) -> int:
        """Wait for news beyond a version; return the version now. Without one, do not wait.

        The server may answer earlier: then the version is the same.
        """
        return self._act("wait", wait_s, seen=seen).whole("seen")

    def subscribers(self) -> tuple[str, ...]:
        """Return the names of all subscribers."""
        for found in self._act("quivers").values["quivers"]:
            if found["name"] == self.name:
                return tuple(found["subscribers"])
        return ()

    def unregister(self, name: str, *, reason: str = "unregistered") -> None:
        """Forget a subscriber; what still waited for it is recorded as given up."""
        self._act("unregister", subscriber=name, reason=reason)

    def flush(self) -> None:
        """Seal the open buffer now and wait until the segment is durable."""
        self._act("flush")

    def _act(self, action: str, wait_s: float = 0.0, **fields: Any) -> Fields:
        return self._connection.act(action, wait_s, quiver=self.name, **fields)


class RemoteCursor:
    """Reads a subscriber's sealed data in order, as `Cursor` does. One thread at a time."""

    def __init__(
        self, quiver: RemoteQuiver, name: str, generation: int, on_data_loss: OnDataLoss
    ) -> None:
        """Use `RemoteQuiver.cursor`."""
        self.name = name
        self.generation = generation
        self._quiver = quiver
        self._on_data_loss = on_data_loss
        # Where the next plan begins; None: at the position.
        self._planned: Position | None = None
        # Ranges whose reading ended at a damaged batch, and those of which the owner knows what can
        # be read: all of it was, or it looked.
        self._unread: set[tuple[Position, Position]] = set()
        self._known: set[tuple[Position, Position]] = set()
        bind_to_process(self)

    @property
    def position(self) -> Position:
        """The first event that is not committed."""
        return self._act("position").position("position")

    def plan(
        self,
        *,
        max_events: int = 100_000,
        max_bytes: int = 64 << 20,
        wait_s: float = 0.0,
        start: Position | None = None,
    ) -> PlannedRange | None:
        """Return the next sealed range, at least one bundle; None if nothing came in time.

        It begins behind the last plan, or at `start`. The server may wait less than `wait_s`.
        """
        start = self._planned if start is None else start
        limits = {"max_events": max_events, "max_bytes": max_bytes}
        answer = self._act("plan", wait_s, start=start, **limits)
        if answer.values["range"] is None:
            return None
        planned = PlannedRange.from_fields(Fields(answer.values["range"]))
        self._planned = planned.end
        return planned

    def replan(self, start: Position, end: Position) -> PlannedRange:
        """Return exactly the range from `start` to `end`, planned before, and pin it again."""
        answer = self._act("replan", start=start, end=end)
        planned = PlannedRange.from_fields(Fields(answer.values["range"]))
        self._planned = max(self._planned or end, end)
        return planned

    def read(
        self,
        planned: PlannedRange,
        *,
        slot: str | None = None,
        columns: Sequence[str] | None = None,
        times: TimeRange | None = None,
    ) -> pa.RecordBatchReader:
        """Return the rows of one slot in a range, with the envelope, as a stream.

        With `on_data_loss="count"` bundles that are damaged are passed over; `commit` or `check`
        records them.
        """
        wanted = SealedRead(
            planned.quiver_id,
            planned.segments,
            slot,
            None if columns is None else tuple(columns),
            planned.start,
            planned.end,
            times or TimeRange(),
        )
        try:
            stream = self._quiver.read(wanted)
        except Damaged as damage:
            return self._behind(damage, planned, wanted)
        return pa.RecordBatchReader.from_batches(
            stream.schema, self._watched(planned, wanted, stream)
        )

    def _watched(
        self, planned: PlannedRange, wanted: SealedRead, stream: pa.RecordBatchReader
    ) -> Iterator[pa.RecordBatch]:
        """Yield what a stream does; what follows a damaged batch too, if that is wanted.

        A stream cannot be continued behind an error. The range is read once more, without its
        damaged batches, and the rows that were yielded already are passed over: both readings have
        the same order.
        """
        rows = 0
        try:
            for batch in stream:
                rows += batch.num_rows
                yield batch
        except Damaged as damage:
            for batch in self._behind(damage, planned, wanted):
                skipped = min(rows, batch.num_rows)
                rows -= skipped
                if skipped < batch.num_rows:
                    yield batch.slice(skipped)
        else:
            self._known.add((planned.start, planned.end))

    def _behind(
        self, damage: Damaged, planned: PlannedRange, wanted: SealedRead
    ) -> pa.RecordBatchReader:
        """Return what can be read, or raise the damage.

        It is recorded later: what is resolved for everybody may go, while it is read.
        """
        if self._on_data_loss == "fail":
            self._unread.add((planned.start, planned.end))
            raise damage
        return self._quiver.read(replace(wanted, on_damage="skip"))

    def table(
        self, planned: PlannedRange, slot: str, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Return the rows of one slot in a range."""
        return self.read(planned, slot=slot, columns=columns).read_all()

    def commit(
        self,
        planned: PlannedRange,
        *,
        through: Position | None = None,
        outcome: Outcome = Outcome.ACKED,
        reason: str = "",
    ) -> None:
        """Resolve a range, or its events before `through`.

        Refused for a range of which `read` raised `Damaged`, until `check` recorded what is lost.
        With `on_data_loss="count"` the owner looks at what was not read here, so that nothing which
        cannot be read counts as delivered.
        """
        key = planned.start, planned.end
        if self._on_data_loss == "count" and key not in self._known:
            self.check(planned)
        # Ranges are committed in order, so what ends before this one is not asked about again.
        self._known = {one for one in self._known if one[1] > planned.end}
        # The rows did not arrive here. Committing the range all the same would count as delivered
        # what nobody has seen.
        if key in self._unread:
            raise UnknownPosition(
                f"rows from {planned.start} to {planned.end} were not read: some are damaged",
                hint='check(planned) records those; read the rest with on_data_loss="count"',
            )
        self._act(
            "commit",
            start=planned.start,
            end=planned.end,
            through=through,
            outcome=outcome.name,
            reason=reason,
        )

    def check(self, planned: PlannedRange) -> int:
        """Have the owner read a range; return how many of its events can be read.

        After `Damaged`, or with `on_data_loss="count"` when fewer rows came than were planned:
        bundles that cannot be read are recorded as damaged, and a commit does not count them. With
        `on_data_loss="fail"` it raises `DataLoss`, which names them.
        """
        self._unread.discard((planned.start, planned.end))
        events = self._act("check", start=planned.start, end=planned.end).whole("events")
        self._known.add((planned.start, planned.end))
        return events

    def accept_losses(self) -> None:
        """Go on behind what was lost; it stays in the ledger."""
        self._act("accept_losses")

    def close(self) -> None:
        """Detach; the subscriber stays registered and keeps its place."""
        self._act("detach")

    def _act(self, action: str, wait_s: float = 0.0, **fields: Any) -> Fields:
        who = {"subscriber": self.name, "generation": self.generation}
        return self._quiver._act(action, wait_s, **who, on_data_loss=self._on_data_loss, **fields)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(OwnerGone):
            self.close()


def _append_fields(
    *,
    producer: str | None = None,
    epoch: int | None = None,
    watermark_ns: int | None = None,
    level: AckLevel | None = None,
) -> dict[str, Any]:
    return {
        "producer": producer,
        "epoch": epoch,
        "watermark_ns": watermark_ns,
        "level": None if level is None else level.name,
    }


def _as_batch(rows: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
    return one_batch(unify(rows)) if isinstance(rows, pa.Table) else rows


def _as_stream(rows: pa.RecordBatch | pa.Table) -> bytes:
    sink, batch = pa.BufferOutputStream(), _as_batch(rows)
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content
