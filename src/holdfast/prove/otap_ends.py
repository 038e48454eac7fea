"""The ends of a gateway under proof where tables come and go: clients, and a backend.

    python -m holdfast.prove.otap_ends clients OTLP_PORT OTAP_PORT JOURNAL_DIR COUNT
    python -m holdfast.prove.otap_ends otlp|otap PORT JOURNAL

Clients and journals are those of telemetry.py. Every other client keeps one stream of OTAP open and
sends the next batch when the one before has its status; each client has a signal of its own, since
streams of different signals promise no order among each other.

The backend of OTAP reads HTTP/2 by h2 itself, writes down every item of a batch, and only then says
its status. Tables are read by Holdfast's own decoder: a mistake that writer and reader share would
not be seen here, so items are compared with what they must be, field by field.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import h2.connection
import h2.events
import zstandard

from holdfast.grpc.client import ClientStream, GrpcClient, GrpcTarget
from holdfast.grpc.status import CallFailed, StatusCode
from holdfast.prove.telemetry import (
    TIMEOUT_S,
    ArrivalJournal,
    OtlpGrpcSender,
    OtlpRefused,
    TelemetryClient,
    serve,
    serve_streams,
)
from holdfast.prove.victim import end_with_parent, say, terminated, wait_for
from holdfast.seam.clock import RealClock
from holdfast.signals.otap.from_otlp import otap_of
from holdfast.signals.otap.messages import GRPC_PATHS, BatchStatus, status
from holdfast.signals.otap.problem import BatchCode, NotOtap
from holdfast.signals.otap.stream_decoder import StreamDecoder
from holdfast.signals.otap.stream_encoder import StreamEncoder
from holdfast.signals.otap.to_otlp import otlp_of
from holdfast.signals.otlp.kinds import OtlpKind

_HEAD_BYTES = 5
_MESSAGE_BYTES_MAX = 64 * 1024 * 1024


class OtapSender:
    """Sends tables over one stream, and waits for the status of each batch."""

    def __init__(self, port: int) -> None:
        target = GrpcTarget("127.0.0.1", port, None, TIMEOUT_S, 1024 * 1024, "prove")
        self._runner = asyncio.Runner()
        self._client = GrpcClient(target, RealClock())
        self._encoder = StreamEncoder()
        self._open = AsyncExitStack()
        self._stream: ClientStream | None = None
        self._batches = 0

    def send(self, kind: OtlpKind, body: bytes) -> None:
        try:
            self._runner.run(self._send(kind, body))
        except CallFailed as failed:
            raise OtlpRefused(f"{failed.code.name} {failed.message}") from failed

    async def _send(self, kind: OtlpKind, body: bytes) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            if self._stream is None:
                opening = self._client.stream(
                    GRPC_PATHS[kind], timeout_s=TIMEOUT_S, encoding=b"zstd"
                )
                self._stream = await self._open.enter_async_context(opening)
            self._batches += 1
            (tables,) = otap_of(kind, [body])
            await self._stream.send(self._encoder.encode(self._batches, tables))
            said = await self._stream.receive()
        if said is None:
            raise OtlpRefused("UNAVAILABLE the stream ended")
        told = BatchStatus.FromString(said)
        assert told.batch_id == self._batches, "a status of another batch"
        if told.status_code != BatchCode.OK.value:
            code = StatusCode(told.status_code).name
            raise OtlpRefused(f"{code} {told.status_message}")

    def close(self) -> None:
        self._runner.run(self._open.aclose())
        self._runner.run(self._client.close())
        self._runner.close()


def send_until_stopped(otlp_port: int, otap_port: int, directory: Path, count: int) -> None:
    """Run all clients until SIGTERM."""
    stop = terminated()
    end_with_parent(signal.SIGTERM)
    kinds = tuple(OtlpKind)

    def sender(number: int) -> Callable[[], OtlpGrpcSender | OtapSender]:
        if number % 2:
            return lambda: OtapSender(otap_port)
        return lambda: OtlpGrpcSender(otlp_port)

    clients = [
        TelemetryClient(sender(n), directory, n, stop, [kinds[n % len(kinds)]])
        for n in range(count)
    ]
    for client in clients:
        client.start()
    wait_for(stop)
    for client in clients:
        client.join()


class _TakenStream:
    """What came on one stream."""

    def __init__(self, path: str, encoding: bytes) -> None:
        (self._kind,) = [kind for kind in OtlpKind if GRPC_PATHS[kind] == path]
        self._encoding = encoding
        self._decoder = StreamDecoder(self._kind)
        self._held = bytearray()

    def take(self, data: bytes, journal: ArrivalJournal) -> list[bytes]:
        """Write down the batches that are complete now; return their statuses."""
        self._held += data
        answers = []
        while len(self._held) >= _HEAD_BYTES:
            end = _HEAD_BYTES + int.from_bytes(self._held[1:_HEAD_BYTES], "big")
            if len(self._held) < end:
                break
            is_packed, message = self._held[0], bytes(self._held[_HEAD_BYTES:end])
            del self._held[:end]
            if is_packed:
                assert self._encoding == b"zstd", "the exporter was told to send zstd"
                unpacking = zstandard.ZstdDecompressor()
                message = unpacking.decompress(message, _MESSAGE_BYTES_MAX)
            answers.append(self._status(message, journal))
        return answers

    def _status(self, message: bytes, journal: ArrivalJournal) -> bytes:
        try:
            batch = self._decoder.decode(message)
            requests = otlp_of(self._kind, batch.tables)
        except NotOtap as error:
            # Noted as something that nobody sent.
            journal.note(self._kind.grpc_path, b"\xff", "")
            return status(error.batch_id or 0, error.code, str(error))
        journal.note(self._kind.grpc_path, b"".join(requests), "")
        return status(batch.batch_id)


async def _serve_otap(
    journal: ArrivalJournal, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answer the streams of one connection."""
    await serve_streams(partial(_take_event, journal, {}), reader, writer)


def _take_event(
    journal: ArrivalJournal,
    streams: dict[int, _TakenStream],
    connection: h2.connection.H2Connection,
    event: h2.events.Event,
) -> None:
    """Go on with a stream: each of its batches is answered by itself."""
    if isinstance(event, h2.events.RequestReceived):
        headers: Any = dict(event.headers)
        path, encoding = headers[b":path"].decode(), headers.get(b"grpc-encoding", b"")
        streams[event.stream_id] = _TakenStream(path, encoding)
        answer = [(":status", "200"), ("content-type", "application/grpc")]
        connection.send_headers(event.stream_id, answer)
    elif isinstance(event, h2.events.DataReceived):
        connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        for said in streams[event.stream_id].take(event.data, journal):
            framed = b"\0" + len(said).to_bytes(4, "big") + said
            connection.send_data(event.stream_id, framed)
    elif isinstance(event, h2.events.StreamEnded):
        del streams[event.stream_id]
        connection.send_headers(event.stream_id, [("grpc-status", "0")], end_stream=True)
    elif isinstance(event, h2.events.StreamReset):
        streams.pop(event.stream_id, None)


async def serve_otap(port: int, journal_path: str) -> None:
    """Serve until killed."""
    journal = ArrivalJournal(journal_path)
    server = await asyncio.start_server(
        lambda reader, writer: _serve_otap(journal, reader, writer), "127.0.0.1", port
    )
    say("ready")
    await server.serve_forever()


if __name__ == "__main__":
    role, *given = sys.argv[1:]
    if role == "clients":
        send_until_stopped(int(given[0]), int(given[1]), Path(given[2]), int(given[3]))
    elif role == "otap":
        asyncio.run(serve_otap(int(given[0]), given[1]))
    else:
        asyncio.run(serve("grpc", int(given[0]), given[1]))
