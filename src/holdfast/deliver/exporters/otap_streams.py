"""Streams of OTAP to one backend: one for each signal, opened when it is needed.

A batch is sent once on the stream that is open, and has a status when the backend says so. Batches
of one stream build on each other, so they are written and sent one at a time; their statuses are
waited for side by side. Whatever ends a stream, the next batch begins another, with a fresh schema:
nothing of the old one is known there.

A stream that the backend ends well has its last status on it: whatever has none was not taken, and
goes out again at once. One that is cut leaves that open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa
from google.protobuf.message import DecodeError
from yarl import URL

from holdfast.deliver.exporter import ExporterContext, Failure, FailureClass
from holdfast.deliver.exporters.classify import SendFailed, failure_of_connecting
from holdfast.deliver.exporters.http_client import HttpClientSettings
from holdfast.deliver.exporters.otlp_transport import (
    COMPRESSED_INLINE_BYTES,
    failure_of_call,
    grpc_target,
    metadata_of,
)
from holdfast.grpc.client import ClientStream, GrpcClient
from holdfast.grpc.status import CallFailed, StatusCode
from holdfast.signals.otap.messages import GRPC_PATHS, BatchStatus
from holdfast.signals.otap.stream_encoder import StreamEncoder
from holdfast.signals.otlp.kinds import OtlpKind

# How long streams may take to end when the exporter is closed.
_CLOSE_S = 2.0
_ENDED = CallFailed(StatusCode.UNAVAILABLE, "the stream ended before the batch had a status")
_NO_STATUS = Failure(FailureClass.TRANSIENT, "no status in time", "timeout", maybe_delivered=True)


class OtapMessage(NamedTuple):
    """One batch to be sent."""

    kind: OtlpKind
    tables: Mapping[str, pa.RecordBatch]
    # Said of it alone.
    headers: Mapping[str, str]
    size_bytes: int


class _OtapStream:
    """One stream: what was sent on it and has no status yet."""

    def __init__(self, call: ClientStream, encoder: StreamEncoder, ends_s: float) -> None:
        self.call = call
        self.encoder = encoder
        # From when on no batch is begun on it.
        self.ends_s = ends_s
        self.is_open = True
        self._last_id = 0
        self._waiting: dict[int, asyncio.Future[CallFailed | None]] = {}

    async def send(self, message: OtapMessage) -> asyncio.Future[CallFailed | None]:
        """Send a batch; return what becomes its status.

        What the encoder has written is known to it and, if it is not sent, to nobody else: then
        the stream is of no use any more.
        """
        self._last_id += 1
        batch_id = self._last_id
        status: asyncio.Future[CallFailed | None] = asyncio.get_running_loop().create_future()
        self._waiting[batch_id] = status
        try:
            encode = self.encoder.encode
            if message.size_bytes <= COMPRESSED_INLINE_BYTES:
                written = encode(batch_id, message.tables, message.headers)
            else:
                written = await asyncio.to_thread(encode, batch_id, message.tables, message.headers)
            await self.call.send(written)
        except BaseException:
            self.is_open = False
            self._waiting.pop(batch_id, None)
            self.call.cancel()
            raise
        return status

    async def hear(self) -> None:
        """Take statuses until the backend ends the stream; raises `CallFailed`."""
        while (said := await self.call.receive()) is not None:
            try:
                status = BatchStatus.FromString(said)
            except DecodeError:
                raise CallFailed(
                    StatusCode.INTERNAL, "the backend sent no BatchStatus", maybe_done=True
                ) from None
            waiting = self._waiting.pop(status.batch_id, None)
            # One that is not known is about a batch that was given up.
            if waiting is not None and not waiting.done():
                waiting.set_result(_failure_in(status.status_code, status.status_message))

    def end(self, failure: CallFailed) -> None:
        """Know that no more statuses come."""
        self.is_open = False
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            if not one.done():
                one.set_result(failure)


def _failure_in(code: int, message: str) -> CallFailed | None:
    if code == StatusCode.OK:
        return None
    known = code in StatusCode.__members__.values()
    return CallFailed(StatusCode(code) if known else StatusCode.UNKNOWN, message)


class OtapStreams:
    """The streams to one backend."""

    def __init__(
        self,
        url: URL,
        settings: HttpClientSettings,
        context: ExporterContext,
        *,
        compression: str,
        lifetime_s: float,
        make_encoder: Callable[[], StreamEncoder],
        headers: Callable[[], Awaitable[Mapping[str, str]]],
    ) -> None:
        """`headers` are those of every stream, asked for when one is opened."""
        self._settings = settings
        self._encoding = compression.replace("none", "identity").encode()
        self._clock = context.seam.clock
        self._target = grpc_target(url, settings, context)
        self._lifetime_s = lifetime_s
        self._make_encoder = make_encoder
        self._headers = headers
        self._client: GrpcClient | None = None
        self._open: dict[OtlpKind, _OtapStream] = {}
        # Whose turn it is to write to the stream of a signal.
        self._turns = {kind: asyncio.Lock() for kind in OtlpKind}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Get ready; connect to nobody."""
        self._client = GrpcClient(self._target, self._clock)

    async def close(self) -> None:
        """End all streams; batches without a status may have been taken."""
        for stream in self._open.values():
            with suppress(CallFailed):
                await stream.call.finish()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_S)
        for task in self._tasks:
            task.cancel()
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def send(self, message: OtapMessage) -> Failure | None:
        """Send a batch, and return what its status says; None: it was taken."""
        try:
            async with asyncio.timeout(self._settings.total_timeout):
                said = await self._send(message)
                if said is _ENDED:
                    said = await self._send(message)
        except TimeoutError:
            # Its peer may have vanished without a word.
            stream = self._open.pop(message.kind, None)
            if stream is not None:
                stream.call.cancel()
            return _NO_STATUS
        except CallFailed as failed:
            said = failed
        except SendFailed as failed:
            return failed.failure
        except OSError as error:
            return failure_of_connecting(error)
        return None if said is None else failure_of_call(said)

    async def _send(self, message: OtapMessage) -> CallFailed | None:
        async with self._turns[message.kind]:
            stream = await self._stream(message.kind)
            status = await stream.send(message)
        return await status

    async def _stream(self, kind: OtlpKind) -> _OtapStream:
        """Return the stream of a signal, a new one if need be."""
        loop = asyncio.get_running_loop()
        stream = self._open.get(kind)
        if stream is not None and stream.is_open:
            if loop.time() < stream.ends_s:
                return stream
            # It ends when the backend has said the last status.
            stream.is_open = False
            with suppress(CallFailed):
                await stream.call.finish()
        opened: asyncio.Future[_OtapStream] = loop.create_future()
        task = loop.create_task(self._run(kind, opened))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            stream = self._open[kind] = await opened
        except BaseException:
            task.cancel()
            raise
        return stream

    async def _run(self, kind: OtlpKind, opened: asyncio.Future[_OtapStream]) -> None:
        """Open a stream, and hear what is said on it until it ends."""
        assert self._client is not None, "BUG: the streams were not started"
        stream: _OtapStream | None = None
        failure = _ENDED
        try:
            async with self._client.stream(
                GRPC_PATHS[kind],
                timeout_s=self._settings.total_timeout,
                metadata=metadata_of(await self._headers()),
                encoding=self._encoding,
            ) as call:
                ends_s = asyncio.get_running_loop().time() + self._lifetime_s
                stream = _OtapStream(call, self._make_encoder(), ends_s)
                if not opened.done():
                    opened.set_result(stream)
                await stream.hear()
        except CallFailed as failed:
            failure = failed
            _fail(opened, failed)
        except Exception as error:
            failure = CallFailed(StatusCode.INTERNAL, "the stream failed", maybe_done=True)
            _fail(opened, error)
        finally:
            if stream is not None:
                stream.end(failure)


def _fail(opened: asyncio.Future[_OtapStream], error: Exception) -> None:
    if not opened.done():
        opened.set_exception(error)
