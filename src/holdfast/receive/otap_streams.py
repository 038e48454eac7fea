"""OTAP over gRPC: a stream of batches for each signal, and a status for each of them.

A batch is stored as one bundle, its tables in slots of their own, and needs nothing that came
before it on the stream. Its status is sent once it is durable. Batches are stored side by side, so
that many share one sync; statuses come in the order in which that happens, as the protocol allows.

A batch that cannot be read is answered for itself, and the stream goes on, unless what follows
builds on it. Then the stream ends, well: everything before it was answered, whatever is behind it
was not, and a sender sends that again on a new stream, which begins with its schemas.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

import pyarrow as pa

from holdfast import self_watch
from holdfast.dead_letters.letter import Letter
from holdfast.errors import BundleTooLarge
from holdfast.grpc.calls import ServerStream, StreamMethod
from holdfast.grpc.engine import HeaderList
from holdfast.grpc.status import CallFailed, StatusCode
from holdfast.quiver.base.config import AckLevel
from holdfast.receive.admission import Admission, TokenClient
from holdfast.receive.grpc_server import ReceiverGate, client_of
from holdfast.receive.http_app import RequestCounts
from holdfast.receive.otlp_intake import check_kept
from holdfast.receive.receiver import ItemCounts, ReceiverContext
from holdfast.receive.responses import Reason, Refused
from holdfast.signals.otap.limits import StreamLimits
from holdfast.signals.otap.messages import GRPC_PATHS, status
from holdfast.signals.otap.problem import BatchCode, NotOtap
from holdfast.signals.otap.stream_decoder import OtapBatch, StreamDecoder
from holdfast.signals.otap_units import HEADERS_SLOT, headers_table, otap_item_counter
from holdfast.signals.otlp.kinds import OtlpKind

# Where batches are kept that could not be read, as dead letters: the messages as they came.
MESSAGE_SLOT = "otap_message"
# A batch that was refused for other reasons is one that may go well later.
_CODES = {
    StatusCode.INVALID_ARGUMENT: BatchCode.INVALID_ARGUMENT,
    StatusCode.RESOURCE_EXHAUSTED: BatchCode.RESOURCE_EXHAUSTED,
}


class OtapIntake:
    """The way of batches into the quiver of one receiver."""

    def __init__(
        self,
        context: ReceiverContext,
        gate: ReceiverGate,
        counts: RequestCounts,
        *,
        level: AckLevel,
        kept_headers: Sequence[str],
        limits: StreamLimits,
        under_way_max: int,
        streams_bytes_max: int,
    ) -> None:
        self.name = context.name
        self.gate = gate
        self.limits = limits
        # Batches of one stream that were received and not answered.
        self.under_way_max = under_way_max
        # What the dictionaries of all streams take.
        self.remembered = Admission(sys.maxsize, streams_bytes_max)
        self._kept_headers = [name.lower() for name in kept_headers]
        self._quiver = context.quiver
        self._dead_letters = context.dead_letters
        self._clock = context.seam.clock
        self._level = level
        self._requests = counts
        self._counters = {kind: otap_item_counter(kind) for kind in OtlpKind}
        self.counts = {kind: ItemCounts() for kind in OtlpKind}

    def items_of(self, kind: OtlpKind, tables: Mapping[str, pa.RecordBatch]) -> int:
        """Return how many items a batch has."""
        return self._counters[kind](tables)

    def kept_headers(
        self, client: TokenClient, of_stream: HeaderList, of_batch: Mapping[str, str]
    ) -> dict[str, str]:
        """Return what is stored beside a batch: who sent it, and the headers that are kept.

        Raises `Refused` for headers that nobody would take.
        """
        kept = dict(client.event_headers or {})
        if self._kept_headers:
            # What a batch says itself is about it alone.
            known = {name.decode("latin-1"): value.decode("latin-1") for name, value in of_stream}
            known |= of_batch
            sent_on = {name: known[name] for name in self._kept_headers if name in known}
            check_kept(sent_on)
            kept |= sent_on
        return kept

    async def store(
        self, kind: OtlpKind, tables: Mapping[str, pa.RecordBatch], size_bytes: int
    ) -> None:
        """Make a batch durable; raises what the quiver raises, or `Refused`."""
        items = self.items_of(kind, tables)
        try:
            await self._quiver.append_async(tables, level=self._level)
        except BundleTooLarge as error:
            self.counts[kind].refused += items
            raise Refused(Reason.TOO_LARGE, error.message, error.hint) from error
        except BaseException:
            # Also if the stream was cut: nobody was told that these items are safe, and the client
            # will send them again.
            self.counts[kind].refused += items
            raise
        self.counts[kind].accepted += items
        self._requests.accepted_events += 1
        self._requests.accepted_bytes += size_bytes

    async def reject(
        self, kind: OtlpKind, message: bytes, client: TokenClient, error: NotOtap
    ) -> Refused:
        """Keep a batch that cannot be read as a dead letter, and return what its sender is told.

        What it stands for may be in dictionaries that came before it, so it cannot be read by
        itself; it shows what was sent.
        """
        problem = {
            "pointer": "",
            "rule": "otap",
            "message": error.reason,
            "hint": "check what sends it; it was not accepted",
        }
        letter = Letter(
            payload=message,
            reason=Reason.INVALID,
            origin=self.name,
            problems=(problem,),
            headers={"signal": kind.value, **(client.event_headers or {})},
            received_ns=self._clock.wall_ns(),
            slot=MESSAGE_SLOT,
        )
        is_kept = bool(await self._dead_letters.reject([letter]))
        where = "it is in the dead letters" if is_kept else "it was not kept"
        return Refused(Reason.INVALID, error.reason, where)


def otap_methods(intake: OtapIntake) -> dict[str, StreamMethod]:
    """Return the methods of all signals, by their paths."""
    return {path: OtapMethod(kind, intake) for kind, path in GRPC_PATHS.items()}


class OtapMethod:
    """Takes the streams of one signal."""

    def __init__(self, kind: OtlpKind, intake: OtapIntake) -> None:
        self._kind = kind
        self._intake = intake

    async def converse(self, stream: ServerStream) -> None:
        conversation = _Conversation(self._kind, self._intake, stream)
        try:
            await conversation.take_all()
        finally:
            await conversation.end()


class _Conversation:
    """One stream: what its batches build on, and those that have no status yet."""

    def __init__(self, kind: OtlpKind, intake: OtapIntake, stream: ServerStream) -> None:
        self._kind = kind
        self._intake = intake
        self._stream = stream
        self._client = client_of(stream.call)
        assert stream.call.place is not None, "BUG: a call without a place"
        self._place = stream.call.place
        self._decoder = StreamDecoder(kind, intake.limits)
        # What the decoder's dictionaries hold of the bound that all streams share.
        self._remembered = intake.remembered.enter(0)
        self._remembered_bytes = 0
        self._room = asyncio.Semaphore(intake.under_way_max)
        self._storing: set[asyncio.Task[None]] = set()

    async def take_all(self) -> None:
        """Take batches until there are no more, and all have their status."""
        while (message := await self._stream.receive()) is not None:
            await self._room.acquire()
            if not await self._take(message):
                break
            await self._keep_to_rate()
        if self._storing:
            await asyncio.wait(self._storing)

    async def end(self) -> None:
        """Stop what is not stored yet, before its call gives back what it holds."""
        self._remembered.leave()
        for task in self._storing:
            task.cancel()
        await asyncio.gather(*self._storing, return_exceptions=True)

    async def _take(self, message: bytes) -> bool:
        """Begin to store a batch, or refuse it; return whether the stream can go on."""
        began_ns = self_watch.begin()
        try:
            batch = await self._read(message)
        except NotOtap as error:
            await self._reject(message, error, began_ns)
            self._room.release()
            return not error.breaks_stream
        goes_on = False
        try:
            self._remember()
            goes_on = True
            tables = self._stored(batch)
            held_bytes = sum(table.nbytes for table in tables.values())
            self._place.hold(held_bytes)
        except Refused as refused:
            items = self._intake.items_of(self._kind, batch.tables)
            self._intake.counts[self._kind].refused += items
            await self._refuse(batch.batch_id, refused, began_ns)
            self._room.release()
            return goes_on
        if self._client.bucket is not None:
            self._client.bucket.charge(self._intake.items_of(self._kind, tables))
        storing = self._store(batch.batch_id, tables, len(message), held_bytes, began_ns)
        task = asyncio.get_running_loop().create_task(storing)
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)
        return True

    async def _read(self, message: bytes) -> OtapBatch:
        # Always in a thread: its length does not say what a message unpacks to, 3 kB being 48 MB.
        return await asyncio.to_thread(self._decoder.decode, message)

    def _remember(self) -> None:
        """Count what the dictionaries have grown by, or raise `Refused`.

        The stream has to end then, and what it made us remember is forgotten.
        """
        grown_bytes = self._decoder.dictionary_bytes - self._remembered_bytes
        try:
            self._remembered.hold(grown_bytes)
        except Refused:
            raise Refused(
                Reason.BUSY,
                "the dictionaries of all streams take more than limits.max_streams_size",
                "send it again on a new stream",
            ) from None
        self._remembered_bytes += grown_bytes

    def _stored(self, batch: OtapBatch) -> dict[str, pa.RecordBatch]:
        """Return what is stored of a batch: its tables, and the headers that are kept."""
        tables = dict(batch.tables)
        kept = self._intake.kept_headers(self._client, self._stream.call.headers, batch.headers)
        if tables and kept:
            tables[HEADERS_SLOT] = headers_table(kept)
        return tables

    async def _store(
        self,
        batch_id: int,
        tables: Mapping[str, pa.RecordBatch],
        size_bytes: int,
        held_bytes: int,
        began_ns: int,
    ) -> None:
        """Make a batch durable, and say so."""
        try:
            # A batch without rows is legal, and there is nothing to keep of it.
            if tables:
                await self._intake.store(self._kind, tables, size_bytes)
        except Exception as error:
            self._give_back(held_bytes)
            await self._refuse(batch_id, error, began_ns)
        else:
            self._give_back(held_bytes)
            await self._tell(status(batch_id))
            self._tell_of(began_ns)
        finally:
            self._room.release()

    async def _reject(self, message: bytes, error: NotOtap, began_ns: int) -> None:
        """Refuse a batch that cannot be read; what is no batch at all is kept as a dead letter.

        Where not even its number can be read, there is no status that would be about it, and the
        call fails.
        """
        if error.code is BatchCode.INVALID_ARGUMENT:
            refused = await self._intake.reject(self._kind, message, self._client, error)
        elif error.code is BatchCode.RESOURCE_EXHAUSTED:
            refused = Refused(Reason.TOO_LARGE, error.reason, "send smaller batches")
        else:
            refused = Refused(Reason.BUSY, error.reason, "send it again on a new stream")
        if error.batch_id is None:
            raise refused
        await self._refuse(error.batch_id, refused, began_ns)

    async def _refuse(self, batch_id: int, error: Exception, began_ns: int) -> None:
        """Count a batch that was not taken, and say so."""
        told = self._intake.gate.failure(error)
        code = _CODES.get(told.code, BatchCode.UNAVAILABLE)
        await self._tell(status(batch_id, code, told.message))
        self._tell_of(began_ns, error)

    async def _tell(self, said: bytes) -> None:
        with suppress(CallFailed):  # the client is gone, and the call will be cancelled
            await self._stream.send(said)

    def _tell_of(self, began_ns: int, error: Exception | None = None) -> None:
        if began_ns:
            told = {"receiver": self._intake.name, "rpc.method": GRPC_PATHS[self._kind]}
            failure = "" if error is None else f"refused: {type(error).__name__}"
            self_watch.end(self_watch.OwnSpan("receive", True, began_ns, told, failure))

    async def _keep_to_rate(self) -> None:
        """Wait until its sender may send more: it is held up by the window of its stream."""
        bucket = self._client.bucket
        if bucket is None or (wait_s := bucket.wait_s()) <= 0:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stream.is_leaving.wait(), wait_s)

    def _give_back(self, size_bytes: int) -> None:
        # A call that is over has given everything back.
        if self._stream.call.place is self._place:
            self._place.give_back(size_bytes)
