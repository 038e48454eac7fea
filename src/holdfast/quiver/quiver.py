"""The quiver: open, append, scan, close. Everything else is behind this one class.

    with Quiver.open("data") as quiver:
        receipt = quiver.append(batch)

`append` returns once the bundle is durable at the configured level. All methods may be called from
many threads; the `_async` twins from any event loop.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import os
import threading
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime
from pathlib import PurePath
from typing import Literal, Self, Unpack

import pyarrow as pa

from holdfast.errors import BadInput, HoldfastError, Overloaded
from holdfast.local_path import problem_of
from holdfast.quiver.base.bundle import (
    DEFAULT_SLOT,
    BundleData,
    Encoded,
    Headers,
    OneEvent,
    Payloads,
    encode_arrow,
    encode_raw,
    is_large,
    is_large_data,
)
from holdfast.quiver.base.config import AckLevel, QuiverConfig, check_level
from holdfast.quiver.base.frame import FrameKind, Totals
from holdfast.quiver.base.held_bundle import in_memory
from holdfast.quiver.engine.balance import Balance, balance
from holdfast.quiver.engine.control import ControlServer, serve
from holdfast.quiver.engine.decisions import replay_range, resolve_bundles, waiting_refs
from holdfast.quiver.engine.engine import Engine
from holdfast.quiver.engine.event_times import EventTimes, EventTimeStatement
from holdfast.quiver.engine.verbs import (
    StartPosition,
    owner_verbs,
    register,
    register_if_new,
    set_options,
)
from holdfast.quiver.ledger.subscriber import Outcome, Position, Subscriber, SubscriberOptions
from holdfast.quiver.log.inbox import Append, AppendOptions, Intake, Receipt
from holdfast.quiver.log.recovery import RecoveryReport
from holdfast.quiver.log.transaction import OpenTransactions, Transaction
from holdfast.quiver.log.wakeup import Wakeup
from holdfast.quiver.log.writer_state import check_producer, check_watermark
from holdfast.quiver.read.cursor import Cursor, OnDataLoss
from holdfast.quiver.read.lease import Lease, LeaseOptions
from holdfast.quiver.read.parts import PartReader, resolve_segment
from holdfast.quiver.read.scan import OnDamage, Span, TimeRange, scan
from holdfast.quiver.read.tables import StoredParts, known_table, scan_table
from holdfast.quiver.segments.rows import TableMaker
from holdfast.quiver.segments.segment import Bundle, Segment
from holdfast.quiver.statistics import Statistics, gather
from holdfast.seam import Seam
from holdfast.seam.process import bind_to_process


def _check_arguments(path: object, config: object) -> None:
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise BadInput(f"{path!r} is no directory", hint="name one; '.' is the working directory")
    if not isinstance(config, QuiverConfig | None):
        raise BadInput(f"config is a {type(config).__name__}", hint="give a QuiverConfig")


class Quiver:
    """A durable buffer of Arrow batches and raw events in one directory."""

    def __init__(self, engine: Engine) -> None:
        """Use `Quiver.open`."""
        self._engine = engine
        self._config = engine.config
        self._clock = engine.clock
        self._writer = engine.writer
        self._closing = threading.Lock()
        self._closed = False
        self._staging = OpenTransactions(engine.config.transactions, engine.clock)
        self._event_times = EventTimes(engine)
        self._control: ControlServer | None = None
        bind_to_process(self)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        config: QuiverConfig | None = None,
        *,
        seam: Seam | None = None,
        expected_id: str | None = None,
    ) -> Self:
        """Open the quiver in a directory, making it if need be, and recover what a crash left.

        With `expected_id` only that quiver is opened.
        """
        _check_arguments(path, config)
        if (problem := problem_of(os.fspath(path))) is not None:
            raise BadInput(problem, hint="name a folder of this machine")
        engine = Engine(PurePath(path), config or QuiverConfig(), seam or Seam(), expected_id)
        quiver = cls(engine)
        # A simulated disk has no place where another process could find a socket.
        if engine.config.control and engine.seam.disk.is_shared:
            verbs = owner_verbs(engine, quiver.flush)
            quiver._control = serve(engine.root, verbs, engine.clock)
        return quiver

    @property
    def quiver_id(self) -> str:
        """The identity of this store; with a seq it names a bundle for ever."""
        return self._engine.quiver_id

    @property
    def directory(self) -> PurePath:
        """Where it is."""
        return self._engine.root

    @property
    def arrivals(self) -> Wakeup:
        """News: data arrived or was sealed, a subscriber was resumed, or a reader came or went."""
        return self._engine.arrivals

    @property
    def recovery(self) -> RecoveryReport:
        """What the last start found."""
        return self._engine.recovery

    # ---------------------------------------------------------------- appending

    def append(
        self, data: BundleData, *, trusted: bool = False, **options: Unpack[AppendOptions]
    ) -> Receipt:
        """Append one bundle of record batches; returns once it is durable.

        Options: `producer`, `epoch`, `watermark_ns`, `level`. With `producer` and `epoch` the
        append is idempotent: the same epoch again returns the receipt of the first time, an older
        one raises `StaleEpoch`.

        `trusted` batches are those that Arrow itself made in this program. They are not looked
        through value by value, which saves a third of what encoding costs. Never say so of batches
        that came from elsewhere, or were put together from buffers: offsets that lead out of them
        would be stored, and end every process that reads them.
        """
        encoded = encode_arrow(data, self._config.max_bundle_bytes, trusted=trusted)
        return self._append_all([encoded], options)

    def append_raw(
        self,
        payloads: Payloads,
        *,
        slot: str = DEFAULT_SLOT,
        headers: Sequence[Headers | None] | None = None,
        **options: Unpack[AppendOptions],
    ) -> Receipt:
        """Append one bundle of events as bytes; they are stored as they are."""
        encoded = encode_raw(slot, payloads, headers, self._config.max_bundle_bytes)
        return self._append_all([encoded], options)

    async def append_async(
        self, data: BundleData, *, trusted: bool = False, **options: Unpack[AppendOptions]
    ) -> Receipt:
        """As `append`, awaitable.

        Cancelled, it is withdrawn if the writer has not taken it yet, and stored if it has: whoever
        has to know repeats it with the same `producer` and `epoch`. A large bundle is put together
        in a thread.
        """
        content = data, self._config.max_bundle_bytes
        if is_large_data(data):
            encoded = await asyncio.to_thread(encode_arrow, *content, trusted=trusted)
        else:
            encoded = encode_arrow(*content, trusted=trusted)
        return await self._append_all_async([encoded], options)

    async def append_raw_async(
        self,
        payloads: Payloads,
        *,
        slot: str = DEFAULT_SLOT,
        headers: Sequence[Headers | None] | None = None,
        **options: Unpack[AppendOptions],
    ) -> Receipt:
        """As `append_raw`, awaitable; a large bundle is put together in a thread."""
        content = slot, payloads, headers, self._config.max_bundle_bytes
        if is_large(payloads):
            encoded = await asyncio.to_thread(encode_raw, *content)
        else:
            encoded = encode_raw(*content)
        # What was put together is all that stays in memory while this waits, unless its owner
        # keeps the payloads.
        del payloads, content
        return await self._append_all_async([encoded], options)

    def intake(self, *, slot: str = DEFAULT_SLOT, level: AckLevel | None = None) -> Intake:
        """Return a way in for many single events of one slot from the running event loop."""
        return Intake(
            self._writer.inbox,
            OneEvent(slot, self._config.max_bundle_bytes),
            self._config.append.level if level is None else check_level(level),
            self._config.append.timeout_s,
        )

    def heartbeat(self, producer: str, watermark_ns: int) -> Receipt:
        """Append a bundle without rows that moves a producer's watermark."""
        marker = Encoded(FrameKind.CONTROL, b"", 0)
        return self._append_all([marker], {"producer": producer, "watermark_ns": watermark_ns})

    def transaction(self, *, producer: str | None = None, epoch: int | None = None) -> Transaction:
        """Begin a transaction: many bundles, all or none."""

        def write(bundles: list[Encoded]) -> Receipt:
            return self._append_all(bundles, {"producer": producer, "epoch": epoch})

        check_producer(producer, epoch)
        return Transaction(self._staging, self._config.max_bundle_bytes, write)

    def _append_all(self, bundles: list[Encoded], options: AppendOptions) -> Receipt:
        """Append bundles, all or none: one of a plain append, those of a transaction at commit."""
        append = self._make_append(bundles, None, **options)
        clock, timeout_s = self._clock, self._config.append.timeout_s
        # One deadline for both waits, for room in the queue and for the sync: the caller's time is
        # bounded whichever of them is slow.
        deadline_s = clock.monotonic_s() + timeout_s
        self._writer.inbox.put(append, deadline_s)
        return append.wait(deadline_s - clock.monotonic_s())

    def _append_all_async(
        self, bundles: list[Encoded], options: AppendOptions
    ) -> Awaitable[Receipt]:
        append = self._make_append(bundles, asyncio.get_running_loop(), **options)
        return self._writer.inbox.send(append, self._config.append.timeout_s)

    def _make_append(
        self,
        bundles: list[Encoded],
        loop: asyncio.AbstractEventLoop | None,
        *,
        producer: str | None = None,
        epoch: int | None = None,
        watermark_ns: int | None = None,
        level: AckLevel | None = None,
    ) -> Append:
        return Append(
            bundles,
            self._config.append.level if level is None else check_level(level),
            producer,
            check_producer(producer, epoch),
            check_watermark(watermark_ns),
            loop,
        )

    # ------------------------------------------------------------------ reading

    def scan(  # noqa: PLR0913  (what to read, and what to do where it cannot be)
        self,
        columns: Sequence[str] | None = None,
        *,
        slot: str | None = None,
        table: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        start: Position | None = None,
        end: Position | None = None,
        on_damage: Literal["fail", "skip"] = "fail",
        partial: bool = False,
        zero_copy: bool = False,
    ) -> pa.RecordBatchReader:
        """Return everything stored in a slot, up to the last sync, as a stream of Arrow batches.

        With `table` a row for each item in stored bundles, such as spans, as `QuiverConfig.tables`
        has them; then `since` and `until` are about the items.

        `since` (inclusive) and `until` (exclusive), both with a time zone, bound the event time;
        `start` (inclusive) and `end` (exclusive) the position.
        Damaged batches raise `Damaged`, or are left out with `on_damage="skip"`. With `partial`
        they are left out, and the column `_damaged_slots` says of every row which slots of its
        bundle are damaged, this one or others; null if none is. That reads whole segments.
        Segments that retention removes meanwhile end where they were read to.

        Numbers that refer from a slot to another are those of one bundle: join on `_seq`, too.

        Batches are copies of what is on disk. With `zero_copy` they point into mapped files: then a
        sector that cannot be read ends the process with SIGBUS, as it does in any mapped file.
        """
        if on_damage not in ("fail", "skip"):
            raise BadInput(f"on_damage is {on_damage!r}", hint="use 'fail' or 'skip'")
        if columns is not None and (isinstance(columns, str) or not columns):
            raise BadInput(f"columns is {columns!r}", hint="give a list of names, or None for all")
        if table is not None and slot is not None:
            raise BadInput("both a slot and a table", hint="name one; a table has its own slots")
        segments, tail = self._engine.readable.snapshot()
        found = [segment.mapped() for segment in segments] if zero_copy else segments
        tables = TableMaker(self._config)
        # Bundles of the tail may still be in the log, and be found damaged only now, when they are
        # read.
        how: OnDamage = "flag" if partial else on_damage
        if how != "fail":
            tail = [in_memory(held) for held in tail]
        made = [one for held in tail for one in tables.tables(held)]
        times, span = TimeRange.of(since, until), Span(start, end)
        if table is not None:
            parts = StoredParts(
                [(one, span) for one in found], [made], how, span, self._was_removed
            )
            return scan_table(known_table(self._config.tables, table), parts, columns, times)
        return scan(found, made, slot, columns, times, how, span, was_removed=self._was_removed)

    def _was_removed(self, segment: Segment) -> bool:
        known = self._engine.catalog.snapshot()
        return all(one.path != segment.path for one in known)

    def bundle(self, seq: int) -> Bundle | None:
        """Return one bundle by its seq, or None if there is none."""
        return self._engine.readable.bundle(seq)

    def statement(
        self, position: Position | None = None, *, claim_us: int | None = None
    ) -> EventTimeStatement:
        """Return what is known of the event times beyond a position; see `event_times.py`.

        `claim_us` is the watermark that was claimed on the ground of earlier statements.
        """
        return self._event_times.statement(position or Position(0), claim_us)

    @property
    def end_seq(self) -> int:
        """The number behind the newest bundle that can be read."""
        return self._engine.readable.newest_seq() + 1

    def segments(self) -> tuple[Segment, ...]:
        """Return the sealed segments, oldest first."""
        return self._engine.catalog.snapshot()

    # -------------------------------------------------------------- subscribers

    def register(
        self,
        name: str,
        *,
        start: StartPosition = "oldest",
        options: SubscriberOptions | None = None,
    ) -> None:
        """Register a subscriber: from now on its data is kept until it has an outcome for it.

        `start` is "oldest" (everything that is still there), "latest" (what comes from now on), or
        a moment: everything ingested since.
        """
        register(self._engine, name, start, options or SubscriberOptions())

    def unregister(self, name: str, *, reason: str = "unregistered") -> None:
        """Forget a subscriber; what still waited for it is recorded as given up."""
        self._engine.retention.unregister(name, reason)

    def set_options(self, name: str, options: SubscriberOptions) -> None:
        """Change what a subscriber may hold back."""
        set_options(self._engine, name, options)

    def subscribers(self) -> tuple[str, ...]:
        """Return the names of all subscribers."""
        return tuple(self._engine.ledger.state.subscribers)

    def cursor(
        self,
        name: str,
        *,
        start: StartPosition = "oldest",
        options: SubscriberOptions | None = None,
        on_data_loss: OnDataLoss = "fail",
        generation: int | None = None,
    ) -> Cursor:
        """Attach a cursor, registering the subscriber if it is new; an older reader is fenced.

        With `generation` an earlier cursor's place is taken up again, across a restart too; if
        another reader attached since, that raises `Fenced`.
        """
        if generation is None:
            register_if_new(self._engine, name, start, options)
        return self._engine.attached(Cursor(self._engine, name, on_data_loss, generation))

    def lease(
        self,
        name: str,
        *,
        start: StartPosition = "oldest",
        options: SubscriberOptions | None = None,
        leasing: LeaseOptions | None = None,
    ) -> Lease:
        """Attach a lease, registering the subscriber if it is new; an older reader is fenced."""
        register_if_new(self._engine, name, start, options)
        return self._engine.attached(Lease(self._engine, name, leasing or LeaseOptions()))

    def part_reader(
        self,
        name: str,
        *,
        start: StartPosition = "oldest",
        options: SubscriberOptions | None = None,
    ) -> PartReader:
        """Attach a reader of whole segments, registering the subscriber if it is new."""
        register_if_new(self._engine, name, start, options)
        return self._engine.attached(PartReader(self._engine, name, self.segments))

    def resolve_segment(
        self, name: str, segment: Segment, outcome: Outcome, reason: str = ""
    ) -> bool:
        """Decide a segment for a subscriber that nobody is attached to; whether it still waited."""
        return resolve_segment(self._engine, name, segment, outcome, reason)

    def tell_copied(self, copied: Callable[[str, str, int, int], bool]) -> None:
        """Let the quiver ask whether somebody else than a subscriber still holds a range of seqs.

        `copied(subscriber, quiver_id, first_seq, end_seq)` is asked before `drop_copied` drops
        anything, with locks of the quiver held: it must not call the quiver.
        """
        self._engine.retention.segment_caps.copied = copied

    def subscriber(self, name: str) -> Subscriber:
        """Return what the ledger knows of a subscriber; it changes with every outcome."""
        return self._engine.ledger.subscriber(name)

    def snapshot(self, name: str) -> Subscriber:
        """Return a copy of what the ledger knows of a subscriber at this moment."""
        with self._engine.ledger.lock:
            return copy.deepcopy(self._engine.ledger.subscriber(name))

    def balance(self, name: str) -> Balance:
        """Return a subscriber's account: accepted = outcomes + pending, counted independently."""
        with self._engine.ledger.lock:
            subscriber = self._engine.ledger.subscriber(name)
            return balance(subscriber, self._engine.readable)

    def replay(self, name: str, first_seq: int, end_seq: int) -> Totals:
        """Hand out again, to one subscriber, what is still there of a range; return how much."""
        return replay_range(self._engine, name, first_seq, end_seq)

    def waiting(self, name: str, *, from_seq: int = 0, limit: int = 1000) -> list[int]:
        """Return the seqs of bundles that wait for a subscriber, oldest first."""
        with self._engine.ledger.lock:
            subscriber = self._engine.ledger.subscriber(name)
            refs = waiting_refs(self._engine.readable, subscriber, from_seq)
            return [ref.seq for ref in itertools.islice(refs, limit)]

    def resolve(
        self, name: str, seqs: Collection[int], outcome: Outcome, reason: str = ""
    ) -> Totals:
        """Decide bundles of a subscriber by their seqs; return what was not decided before."""
        return resolve_bundles(self._engine, name, seqs, outcome, reason)

    # ---------------------------------------------------------------- operating

    def flush(self, timeout_s: float | None = None) -> None:
        """Seal the open buffer now and wait until the segment is durable."""
        done = threading.Event()
        failure: list[HoldfastError] = []

        def finished(error: HoldfastError | None) -> None:
            if error is not None:
                failure.append(error)
            done.set()

        self._writer.flush(finished)
        if not done.wait(timeout_s or self._config.append.timeout_s):
            raise Overloaded(
                "the segment was not sealed in time",
                hint=f"last error of the sealer: {self._engine.sealer.last_error or 'none'}",
            )
        if failure:
            raise failure[0]

    def refusal(self, size_bytes: int = 1) -> HoldfastError | None:
        """Return why an append would fail or have to wait now; None if it would be taken."""
        return self._writer.failure or self._engine.retention.standing_refusal(size_bytes)

    def statistics(self) -> Statistics:
        """Return a snapshot."""
        return gather(self._engine, self._staging.staged_bytes, accepting=not self._closed)

    def close(self) -> None:
        """Make everything accepted durable, seal it, and let go of the directory."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            if self._control is not None:
                self._control.close()
            self._engine.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
