"""The Flight service of the process that owns the quivers: everything but reading rows.

What is asked here is small and needs the owner: plans, commits, statements, appends. Rows are read
elsewhere (reader.py), where Python that sends 100 MB does not stop Python that accepts events.

**Repeating.** The connection of a client may break after the owner did what it asked and before the
answer came. So every action can be asked again: a plan names where it begins, a commit names its
range, and both name the generation of the attachment. The same range again is the same answer; an
older generation is refused, because another client has attached meanwhile.

**Appends.** A put is all or nothing: its descriptor says how many record batches follow, and a
stream that ends before is refused. With producer and epoch it may be repeated, like any append.

    rows        the batches are rows of one slot; together one bundle, or (bundles "each") one
                bundle per batch, in one transaction
    raw         columns `payload` (binary) and, if wanted, `headers` (JSON texts, or null)
    slots       columns `slot` and `stream` (an Arrow IPC stream): one bundle with several slots
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyarrow import flight

from holdfast.errors import BadInput, BundleTooLarge
from holdfast.quiver import Outcome, Quiver, Range, Receipt, SubscriberOptions
from holdfast.quiver.base.bundle import DEFAULT_SLOT
from holdfast.quiver.engine.verbs import StartPosition
from holdfast.quiver.read.cursor import OnDataLoss
from holdfast.quiver.read.scan import TimeRange
from holdfast.quiver.read.sealed import SealedRead, all_sealed, names_between
from holdfast.remote.reader import GATE, Gate, Secrets, client_of, location
from holdfast.remote.sessions import LOOK_S, Session, Sessions
from holdfast.remote.settings import FlightSettings, Right
from holdfast.remote.stored import stored_segments
from holdfast.remote.wire import (
    Fields,
    PlannedRange,
    answering,
    decode_level,
    encode,
    encode_ticket,
    receipt_fields,
    reporting,
    statement_fields,
)
from holdfast.seam.clock import Clock

# For calls that go on when the service is stopped.
STOP_PATIENCE_S = 5.0
# How often subscribers that do not call any more are looked for.
SWEEP_S = 5.0

log = logging.getLogger("holdfast.remote")

ActionResult = dict[str, Any]
# How long is left to wait, in seconds; not positive: answer now.
Patience = Callable[[], float]


class OwnerService(flight.FlightServerBase):  # type: ignore[misc]
    """Answers for some quivers, by name."""

    def __init__(
        self,
        quivers: Mapping[str, Quiver],
        settings: FlightSettings,
        address: tuple[str, int],
        gate: Gate,
        secrets: Secrets,
        reader: Callable[[], str],
        clock: Clock,
    ) -> None:
        """`reader` returns the location of the process that serves sealed data."""
        self._quivers = dict(quivers)
        self._settings = settings
        self._gate = gate
        self._reader = reader
        self._clock = clock
        self._stopping = threading.Event()
        self._sessions = {
            name: Sessions(quiver, settings.max_attachments, settings.detach_after, clock)
            for name, quiver in quivers.items()
        }
        self._actions: dict[str, tuple[Right, Callable[[Fields, Patience], ActionResult]]] = {
            "quivers": ("read", self._list),
            "reader": ("read", self._where_to_read),
            "segments": ("read", self._segments),
            "statement": ("read", self._statement),
            "wait": ("read", self._wait),
            "heartbeat": ("append", self._heartbeat),
            "flush": ("append", self._flush),
            "attach": ("subscribe", self._attach),
            "position": ("subscribe", self._position),
            "plan": ("subscribe", self._plan),
            "replan": ("subscribe", self._replan),
            "check": ("subscribe", self._check),
            "commit": ("subscribe", self._commit),
            "accept_losses": ("subscribe", self._accept_losses),
            "detach": ("subscribe", self._detach),
            "unregister": ("subscribe", self._unregister),
        }
        where = location(*address, encrypted=secrets.certificate is not None)
        super().__init__(where, middleware={GATE: gate}, **secrets.tls)
        self._sweeper = threading.Thread(target=self._sweep, name="flight-sweeper", daemon=True)
        self._sweeper.start()

    @property
    def attached(self) -> int:
        """How many subscribers are attached from afar."""
        return sum(len(sessions) for sessions in self._sessions.values())

    def stop(self) -> None:
        """End all waits, then the service.

        Waits first: they sleep until something arrives, and `shutdown` waits for every call.
        """
        self._stopping.set()
        for quiver in self._quivers.values():
            quiver.arrivals.notify()
        # It waits for all calls, and a client that hangs must not keep the process from ending.
        ending = threading.Thread(target=self.shutdown, name="flight-shutdown", daemon=True)
        ending.start()
        ending.join(STOP_PATIENCE_S)
        if ending.is_alive():
            log.warning("calls were still going on when the Flight server was stopped")
        self._sweeper.join()

    def _sweep(self) -> None:
        """Detach subscribers whose clients do not call any more."""
        while not self._stopping.wait(min(SWEEP_S, self._settings.detach_after)):
            for sessions in self._sessions.values():
                sessions.sweep()

    # ------------------------------------------------------------------ methods

    @answering
    def do_action(
        self, context: flight.ServerCallContext, action: flight.Action
    ) -> list[flight.Result]:
        """Do what an action asks for."""
        known = self._actions.get(action.type)
        if known is None:
            raise BadInput(
                f"no action {action.type!r}", hint=f"there are {', '.join(self._actions)}"
            )
        right, act = known
        client_of(context).require(right)
        fields = self._decode(action.body)
        wait_s = min(max(0.0, fields.number("wait_s", 0.0)), self._settings.max_wait)
        # A call that waits for data occupies one of `max_calls`. Only half of them may, so that a
        # hundred idle readers cannot keep a commit, or an append, from getting in.
        with self._gate.waiting(wait_s) as allowed_s:
            deadline_s = self._clock.monotonic_s() + allowed_s

            def remaining_s() -> float:
                # Asked again with every look: a client that hung up, and a server that stops, end
                # the wait early.
                if self._stopping.is_set() or context.is_cancelled():
                    return 0.0
                return deadline_s - self._clock.monotonic_s()

            return [flight.Result(encode(act(fields, remaining_s)))]

    @answering
    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        """Append what a stream holds, and answer with the receipt."""
        client_of(context).require("append")
        fields = self._decode(descriptor.command or b"")
        batches = (chunk.data for chunk in reader if chunk.data is not None)
        receipt = put(self._quiver(fields), fields, batches, self._settings.max_message)
        writer.write(encode(receipt_fields(receipt)))

    @answering
    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> None:
        """Send the client where rows are.

        Said as an error, not by serving the rows: a client that reads from the owner would slow
        down every append of the gateway, without anybody knowing why.
        """
        raise BadInput(
            "rows are served by another process", hint=f"send the ticket to {self._reader()}"
        )

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        """Name the actions."""
        return [(name, f"needs the right {right!r}") for name, (right, _) in self._actions.items()]

    def list_flights(
        self, context: flight.ServerCallContext, criteria: bytes
    ) -> Iterator[flight.FlightInfo]:
        """Yield every slot of every quiver."""
        with reporting():
            client_of(context).require("read")
            for name, quiver in self._quivers.items():
                slots = {slot for s in quiver.segments() for slot in s.summary.slots if slot}
                for slot in sorted(slots):
                    yield self._info(name, quiver, slot)

    @answering
    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        """Describe one slot, named by the path [quiver, slot]: its schema, and how to read it."""
        client_of(context).require("read")
        return self._info(*self._slot_of(descriptor))

    @answering
    def get_schema(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.SchemaResult:
        """Return the newest schema of a slot."""
        client_of(context).require("read")
        _, quiver, slot = self._slot_of(descriptor)
        return flight.SchemaResult(_newest_schema(quiver, slot))

    # ------------------------------------------------------------------ actions

    def _list(self, fields: Fields, patience: Patience) -> ActionResult:
        return {
            "quivers": [
                {
                    "name": name,
                    "quiver_id": quiver.quiver_id,
                    "directory": str(quiver.directory),
                    "subscribers": list(quiver.subscribers()),
                }
                for name, quiver in self._quivers.items()
            ]
        }

    def _where_to_read(self, fields: Fields, patience: Patience) -> ActionResult:
        return {"location": self._reader()}

    def _segments(self, fields: Fields, patience: Patience) -> ActionResult:
        times = TimeRange(fields.whole_or_none("since_us"), fields.whole_or_none("until_us"))
        start, end = fields.position_or_none("start"), fields.position_or_none("end")
        segments = self._quiver(fields).segments()
        found = stored_segments(segments, fields.text("slot"), times, start, end)
        return {"segments": [segment.to_fields() for segment in found]}

    def _statement(self, fields: Fields, patience: Patience) -> ActionResult:
        position = fields.position_or_none("position")
        claim_us = fields.whole_or_none("claim_us")
        return statement_fields(self._quiver(fields).statement(position, claim_us=claim_us))

    def _wait(self, fields: Fields, patience: Patience) -> ActionResult:
        """Wait for news beyond a version; the first time for none."""
        arrivals = self._quiver(fields).arrivals
        seen = fields.whole_or_none("seen")
        # A version and not an event: what arrived between two calls of a client is then never
        # missed, whoever else was woken by it. The first call learns the version, and returns.
        while arrivals.version == seen and (remaining_s := patience()) > 0:
            arrivals.wait(seen, min(remaining_s, LOOK_S))
        return {"seen": arrivals.version}

    def _heartbeat(self, fields: Fields, patience: Patience) -> ActionResult:
        producer, watermark_ns = fields.text("producer"), fields.whole("watermark_ns")
        return receipt_fields(self._quiver(fields).heartbeat(producer, watermark_ns))

    def _flush(self, fields: Fields, patience: Patience) -> ActionResult:
        self._quiver(fields).flush()
        return {}

    def _attach(self, fields: Fields, patience: Patience) -> ActionResult:
        quiver, name = self._quiver(fields), fields.text("subscriber")
        start, options = _start(fields), _options(fields)
        on_data_loss = _on_data_loss(fields)

        session = self._sessions[fields.text("quiver")].attach(
            name,
            lambda: quiver.cursor(name, start=start, options=options, on_data_loss=on_data_loss),
        )
        return {
            "quiver_id": quiver.quiver_id,
            "generation": session.generation,
            "position": session.position,
        }

    def _position(self, fields: Fields, patience: Patience) -> ActionResult:
        with self._session(fields) as session:
            return {"position": session.position}

    def _plan(self, fields: Fields, patience: Patience) -> ActionResult:
        start = fields.position_or_none("start")
        max_events, max_bytes = fields.whole("max_events"), fields.whole("max_bytes")
        with self._session(fields) as session:
            planned = session.plan(start, max_events, max_bytes, patience)
        return {"range": None if planned is None else self._range(fields, planned)}

    def _replan(self, fields: Fields, patience: Patience) -> ActionResult:
        start, end = fields.position("start"), fields.position("end")
        quiver = self._quiver(fields)
        with self._session(fields) as session:
            planned = session.replan(start, end)
        # The process that serves rows sees files only. A plan from afar ends where the last segment
        # does, but this range may have been planned in the owner's own process.
        if not all_sealed(quiver.segments(), planned.refs):
            quiver.flush()  # it was planned elsewhere, from the open buffer too
        return {"range": self._range(fields, planned)}

    def _check(self, fields: Fields, patience: Patience) -> ActionResult:
        start, end = fields.position("start"), fields.position("end")
        with self._session(fields) as session:
            return {"events": session.check(start, end)}

    def _commit(self, fields: Fields, patience: Patience) -> ActionResult:
        start, end = fields.position("start"), fields.position("end")
        through = fields.position_or_none("through") or end
        outcome = fields.one_of("outcome", list(Outcome.__members__), Outcome.ACKED.name)
        reason = fields.text("reason", "")
        with self._session(fields) as session:
            session.commit(start, end, through, Outcome[outcome], reason)
            return {"position": session.position}

    def _accept_losses(self, fields: Fields, patience: Patience) -> ActionResult:
        with self._session(fields) as session:
            session.accept_losses()
        return {}

    def _detach(self, fields: Fields, patience: Patience) -> ActionResult:
        self._quiver(fields)
        sessions = self._sessions[fields.text("quiver")]
        sessions.detach(fields.text("subscriber"), fields.whole("generation"))
        return {}

    def _unregister(self, fields: Fields, patience: Patience) -> ActionResult:
        name, reason = fields.text("subscriber"), fields.text("reason", "unregistered")
        # In this order: if the ledger cannot be written, the subscriber is still attached and can
        # ask again.
        self._quiver(fields).unregister(name, reason=reason)
        self._sessions[fields.text("quiver")].forget(name)
        return {}

    # ------------------------------------------------------------------- finding

    def _decode(self, body: bytes | pa.Buffer) -> Fields:
        if len(body) > self._settings.max_message:
            raise BadInput(
                f"a request of {len(body)} bytes", hint="send less, or raise flight.max_message"
            )
        return Fields.decode(memoryview(body))

    def _quiver(self, fields: Fields) -> Quiver:
        return self._named(fields.text("quiver"))

    def _named(self, name: str) -> Quiver:
        quiver = self._quivers.get(name)
        if quiver is None:
            raise BadInput(
                f"no quiver {name!r} is served",
                hint=f"there are {', '.join(self._quivers) or 'none'}",
            )
        return quiver

    def _session(self, fields: Fields) -> AbstractContextManager[Session]:
        self._quiver(fields)
        return self._sessions[fields.text("quiver")].using(
            fields.text("subscriber"), fields.whole("generation"), _on_data_loss(fields)
        )

    def _range(self, fields: Fields, planned: Range) -> ActionResult:
        quiver = self._quiver(fields)
        names = names_between(quiver.segments(), planned.start, planned.end)
        return PlannedRange(
            quiver.quiver_id,
            planned.start,
            planned.end,
            planned.events,
            planned.size_bytes,
            tuple(names),
        ).to_fields()

    def _slot_of(self, descriptor: flight.FlightDescriptor) -> tuple[str, Quiver, str]:
        path = [part.decode(errors="replace") for part in descriptor.path or []]
        if len(path) != len(("quiver", "slot")):
            raise BadInput("the descriptor is no path of two", hint="name a slot as [quiver, slot]")
        return path[0], self._named(path[0]), path[1]

    def _info(self, name: str, quiver: Quiver, slot: str) -> flight.FlightInfo:
        """Describe what is sealed of a slot: one endpoint per segment."""
        endpoints, rows = [], 0
        for segment in quiver.segments():
            files = [file for file in segment.summary.files if file.slot == slot]
            if files:
                rows += sum(file.rows for file in files)
                wanted = SealedRead(quiver.quiver_id, (segment.path.name,), slot)
                ticket = flight.Ticket(encode_ticket(name, wanted))
                endpoints.append(flight.FlightEndpoint(ticket, [self._reader()]))
        schema = _newest_schema(quiver, slot)
        descriptor = flight.FlightDescriptor.for_path(name, slot)
        return flight.FlightInfo(schema, descriptor, endpoints, rows, -1)


def _newest_schema(quiver: Quiver, slot: str) -> pa.Schema:
    for segment in reversed(quiver.segments()):
        for file in segment.files:
            if file.summary.slot == slot:
                schema: pa.Schema = file.schema
                return schema
    raise BadInput(f"nothing is sealed in slot {slot!r}", hint="append to it, or name another")


def _start(fields: Fields) -> StartPosition:
    word = fields.text("start", "oldest")
    words: dict[str, StartPosition] = {"oldest": "oldest", "latest": "latest"}
    if word in words:
        return words[word]
    try:
        return datetime.fromisoformat(word)
    except ValueError:
        raise BadInput(
            f"start is {word!r}",
            hint="use oldest, latest, or a timestamp such as 2026-01-31T10:00:00Z",
        ) from None


def _on_data_loss(fields: Fields) -> OnDataLoss:
    return (
        "count" if fields.one_of("on_data_loss", ("fail", "count"), "fail") == "count" else "fail"
    )


def _options(fields: Fields) -> SubscriberOptions | None:
    given = fields.values.get("options")
    if given is None:
        return None
    if not isinstance(given, dict):
        raise BadInput("'options' is not an object", hint="give max_bytes, max_age_s, on_full")
    try:
        return SubscriberOptions.from_fields(given)
    except TypeError as error:
        hint = "limits are numbers; on_full is block, drop_oldest or drop_copied"
        raise BadInput("'options' has a value of the wrong type", hint=hint) from error


KINDS = ("rows", "raw", "slots")


def put(
    quiver: Quiver, fields: Fields, batches: Iterable[pa.RecordBatch], max_bytes: int
) -> Receipt:
    """Append what a stream holds."""
    kind = fields.one_of("kind", KINDS, "rows")
    slot = fields.text("slot", DEFAULT_SLOT)
    taken = _take(batches, fields.whole("batches"), max_bytes)
    level = fields.text_or_none("level")
    options: dict[str, Any] = {
        "producer": fields.text_or_none("producer"),
        "epoch": fields.whole_or_none("epoch"),
    }
    if kind != "slots" and fields.one_of("bundles", ("one", "each"), "one") == "each":
        with quiver.transaction(**options) as transaction:
            for batch in taken:
                if kind == "rows":
                    transaction.append({slot: batch})
                else:
                    payloads, headers = _raw(pa.Table.from_batches([batch]))
                    transaction.append_raw(payloads, slot=slot, headers=headers)
        assert transaction.receipt is not None, "BUG: a committed transaction has a receipt"
        return transaction.receipt
    options["watermark_ns"] = fields.whole_or_none("watermark_ns")
    options["level"] = None if level is None else decode_level(level)
    table = pa.Table.from_batches(taken)
    if kind == "rows":
        return quiver.append({slot: table}, **options)
    if kind == "raw":
        payloads, headers = _raw(table)
        return quiver.append_raw(payloads, slot=slot, headers=headers, **options)
    return quiver.append(_slots(table), **options)


def _take(batches: Iterable[pa.RecordBatch], count: int, max_bytes: int) -> list[pa.RecordBatch]:
    """Counted while it comes in: the stream's length is known only at its end, and memory must be
    bounded before. The number of batches is announced in the descriptor, since a stream that
    breaks off looks like one that ended.
    """
    taken: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        size_bytes += batch.get_total_buffer_size()
        if size_bytes > max_bytes:
            raise BundleTooLarge(
                f"a put of more than {max_bytes} bytes (max_message)",
                hint="put less in one call, or raise it",
            )
        taken.append(batch)
    if not taken or len(taken) != count:
        raise BadInput(
            f"the put ended after {len(taken)} record batches of {count}",
            hint="nothing was stored; repeat it",
        )
    return taken


def _raw(table: pa.Table) -> tuple[list[bytes], list[dict[str, str] | None] | None]:
    payloads = _column(table, "payload", pa.binary()).to_pylist()
    if None in payloads:
        raise BadInput("a payload is null", hint="leave the row out")
    if "headers" not in table.schema.names:
        return payloads, None
    texts = _column(table, "headers", pa.string()).to_pylist()
    try:
        return payloads, [None if text is None else json.loads(text) for text in texts]
    except ValueError as error:
        raise BadInput("headers are not JSON", hint="give an object of texts, or null") from error


def _slots(table: pa.Table) -> dict[str, pa.Table]:
    names = _column(table, "slot", pa.string()).to_pylist()
    streams = _column(table, "stream", pa.binary())
    if len(set(names)) != len(names) or None in names or streams.null_count:
        raise BadInput("a slot is named twice, or a null", hint="give every slot once")
    try:
        opened = [pa.ipc.open_stream(stream.as_buffer()).read_all() for stream in streams]
    except (pa.ArrowException, OSError) as error:
        raise BadInput(
            "a slot is not an Arrow IPC stream", hint="send each slot as a stream"
        ) from error
    return dict(zip(names, opened, strict=True))


def _column(table: pa.Table, name: str, kind: pa.DataType) -> pa.ChunkedArray:
    try:
        return table.column(name).cast(kind)
    except (KeyError, pa.ArrowException) as error:
        hint = "docs/reference/flight.md lists the columns of each kind of put"
        raise BadInput(f"the put has no column {name!r} of {kind}", hint=hint) from error
