"""The collector as a service over gRPC: FlushDeletes, DeleteChunks, GetReferences.

Writers do not need it: they are given a new generation beside a dying one, and wait for nothing. It
is there for operators, for tests that want to see deletes happen, and for programs in other
languages. By default it listens on this machine alone; `tokens` and a certificate open it further.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NoReturn

import grpc
from google.protobuf.message import Message

from holdfast.errors import BadConfig, HoldfastError
from holdfast.store.gc import gc_pb2 as pb
from holdfast.store.gc.collector import Collector
from holdfast.store.gc.connections import DatabaseConnection
from holdfast.store.gc.database import slices
from holdfast.store.gc.references import References
from holdfast.store.gc.references_sql import ReferenceSource, targets_of
from holdfast.store.gc.sweep import SweepReport
from holdfast.store.gc.tables import IS_DYING
from holdfast.store.objects.objects import HASH_BYTES, ChunkHash, ChunkKey

SERVICE = "holdfast.store.gc.Collector"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
THREADS = 8
STOP_GRACE_S = 5.0
# How often a call that waits for deletes looks again.
FLUSH_POLL_S = 0.05
# Chunks in one request, at most.
REQUEST_CHUNKS_MAX = 100_000


class CollectorThread:
    """Collects in the background, sweeps now and then, and works at once when asked to."""

    def __init__(self, collector: Collector, references: References) -> None:
        self.collector = collector
        self.references = references
        self.failure: HoldfastError | None = None
        self.last_sweep: SweepReport | None = None
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-gc", daemon=True)

    def start(self) -> None:
        """Begin: first with what a predecessor left."""
        self._thread.start()

    def wake(self) -> None:
        """Do not rest until everything is done once more."""
        self._wake.set()

    def stop(self) -> None:
        """End after the batch at hand."""
        self._stop.set()
        self.collector.stop()
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        settings = self.references.settings
        clock = self.references.seam.clock
        swept_s: float | None = None
        while not self._stop.is_set():
            # Before the work: a call that wakes the thread while it collects makes it collect once
            # more, since its chunks may have been marked behind the batch at hand.
            self._wake.clear()
            try:
                self.collector.collect()
                if swept_s is None or clock.monotonic_s() - swept_s >= settings.sweep_every_s:
                    self.last_sweep = self.collector.sweep()
                    swept_s = clock.monotonic_s()
                self.failure = None
            except HoldfastError as error:
                # The database or the objects are away; whatever was begun is found again.
                self.failure = error
            self._wake.wait(settings.collect_every_s)


class GcService:
    """Serves a collector; `port` says where, also if 0 was asked for."""

    def __init__(
        self,
        collector: Collector,
        references: References,
        *,
        address: str = "127.0.0.1:0",
        tokens: Sequence[str] = (),
        certificate: tuple[bytes, bytes] | None = None,
    ) -> None:
        """Listen on `address`; beyond this machine only with `tokens` and (key, certificate)."""
        host = address.rpartition(":")[0]
        # Both, since a token without TLS is readable on the wire, and TLS without a token lets
        # everyone delete.
        if host not in LOOPBACK and not (tokens and certificate):
            raise BadConfig(
                f"the collector would be open to everybody on {address}",
                hint="give it tokens and a certificate, or let it listen on 127.0.0.1",
            )
        self._thread = CollectorThread(collector, references)
        self._references = references
        self._tokens = tuple(tokens)
        self._server = grpc.server(ThreadPoolExecutor(THREADS, thread_name_prefix="holdfast-gc"))
        self._server.add_generic_rpc_handlers((self._handlers(),))
        if certificate is None:
            self.port = self._server.add_insecure_port(address)
        else:
            credentials = grpc.ssl_server_credentials([certificate])
            self.port = self._server.add_secure_port(address, credentials)

    @property
    def failure(self) -> HoldfastError | None:
        """Why the last collection did not end, if it did not."""
        return self._thread.failure

    def start(self) -> None:
        """Collect and answer."""
        self._thread.start()
        self._server.start()

    def stop(self) -> None:
        """Answer what was asked, and end.

        The server first: a call that waits for deletes needs the thread that does them.
        """
        self._server.stop(STOP_GRACE_S).wait()
        self._thread.stop()

    # What is asked.

    def _flush(self, request: pb.FlushDeletesRequest, context: grpc.ServicerContext) -> Message:
        """Answer when none of the chunks is being deleted any more.

        By looking at the rows and not by asking our own thread: another collector may have the
        shard that they are in.
        """
        hashes = _hashes(request.chunks, context)
        clock = self._references.seam.clock
        timeout_s = self._references.settings.flush_timeout_s
        deadline_s = clock.monotonic_s() + min(timeout_s, context.time_remaining() or timeout_s)
        pause = threading.Event()
        context.add_callback(pause.set)
        while self._dying(hashes):
            if clock.monotonic_s() >= deadline_s or not context.is_active():
                refuse(context, grpc.StatusCode.DEADLINE_EXCEEDED, "deletes are still under way")
            self._thread.wake()
            pause.wait(FLUSH_POLL_S)
        return pb.FlushDeletesResponse()

    def _delete(self, request: pb.DeleteChunksRequest, context: grpc.ServicerContext) -> Message:
        marked = self._thread.collector.consider(_hashes(request.chunks, context))
        self._thread.wake()
        return pb.DeleteChunksResponse(chunks=marked)

    def _references_of(
        self, request: pb.GetReferencesRequest, context: grpc.ServicerContext
    ) -> Iterator[Message]:
        (hash_,) = _hashes([request.chunk], context)
        key = ChunkKey(hash_, request.chunk.generation)
        if not key.generation:
            found = self._references.resolve([hash_]).get(hash_)
            if found is None:
                refuse(context, grpc.StatusCode.NOT_FOUND, f"chunk {hash_.hex()} is not stored")
            key = found
        # A chunk that was never uploaded refers to nothing.
        asked = partial(targets_of, source=ReferenceSource.chunk(key))
        for target in self._references.database.read(asked):
            yield pb.Chunk(hash=target.hash, generation=target.generation)

    def _dying(self, hashes: Sequence[ChunkHash]) -> bool:
        def count(connection: DatabaseConnection, part: Sequence[ChunkHash]) -> int:
            asked = f"SELECT count(*) FROM gc_chunk WHERE hash IN :hashes AND {IS_DYING}"
            return int(connection.value(asked, hashes=part))

        parts = slices(hashes, self._references.settings.batch_rows)
        return any(self._references.database.read(partial(count, part=part)) for part in parts)

    # How it is asked.

    def _handlers(self) -> grpc.GenericRpcHandler:
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "FlushDeletes": unary(
                self._guarded(self._flush),
                pb.FlushDeletesRequest.FromString,
                pb.FlushDeletesResponse.SerializeToString,
            ),
            "DeleteChunks": unary(
                self._guarded(self._delete),
                pb.DeleteChunksRequest.FromString,
                pb.DeleteChunksResponse.SerializeToString,
            ),
            "GetReferences": stream(
                self._guarded(self._references_of),
                pb.GetReferencesRequest.FromString,
                pb.Chunk.SerializeToString,
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _guarded(self, answer: Callable[[Any, grpc.ServicerContext], Any]) -> Callable[..., Any]:
        """Let in only callers with a token; pass errors on as they are."""

        def guarded(request: Message, context: grpc.ServicerContext) -> Any:
            if self._tokens and not self._is_known(context):
                refuse(context, grpc.StatusCode.UNAUTHENTICATED, "a token is needed")
            try:
                return answer(request, context)
            except HoldfastError as error:
                refuse(context, grpc.StatusCode.UNAVAILABLE, str(error))

        return guarded

    def _is_known(self, context: grpc.ServicerContext) -> bool:
        # In constant time: how long it takes must not tell how much of a token was right.
        given = next(
            (str(one[1]) for one in context.invocation_metadata() if one[0] == "authorization"), ""
        ).removeprefix("Bearer ")
        return any(hmac.compare_digest(given.encode(), token.encode()) for token in self._tokens)


def refuse(context: grpc.ServicerContext, code: grpc.StatusCode, why: str) -> NoReturn:
    """End a call with an error."""
    context.abort(code, why)
    raise AssertionError("BUG: a call went on after it was ended")


def _hashes(chunks: Iterable[pb.Chunk], context: grpc.ServicerContext) -> list[ChunkHash]:
    found = [ChunkHash(one.hash) for one in chunks]
    if len(found) > REQUEST_CHUNKS_MAX or any(len(one) != HASH_BYTES for one in found):
        why = f"at most {REQUEST_CHUNKS_MAX} hashes of {HASH_BYTES} bytes each"
        refuse(context, grpc.StatusCode.INVALID_ARGUMENT, why)
    return found
