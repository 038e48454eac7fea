"""The two ends of a gateway of telemetry under proof: clients that send OTLP, and a backend.

Each is a process of its own:

    python -m holdfast.prove.telemetry clients GRPC_PORT HTTP_PORT JOURNAL_DIR COUNT [paced]
    python -m holdfast.prove.telemetry grpc|http PORT JOURNAL

Every other client speaks gRPC, the rest HTTP, by turns in protobuf and JSON; each sends traces,
metrics and logs by turns. They end after SIGTERM, or when their parent is gone; they are never
killed. What was not answered is not sent again: a second copy would be the client's doing, and hide
one of the gateway's. OTLP tells no position, so the answer is noted with the client's own count:
what one client was answered for must arrive in that order. Paced ones send more slowly, because the
machine runs Spark beside them, and what services say of their calls at that moment
(service_calls.py).

The backend writes down every item before it answers, one line each, `R <nanoseconds> <name>`, with
one system call per request. A name of `?` is an item that nobody sent, or that was changed. It
shares no code with what sends to it: HTTP is read by hand, gRPC by h2.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import http.client
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import h2.config
import h2.connection
import h2.events
import orjson
import zstandard
from google.protobuf.message import DecodeError

from holdfast.grpc.client import GrpcClient, GrpcTarget
from holdfast.grpc.status import CallFailed
from holdfast.prove.journal import UNKNOWN, ProofJournal
from holdfast.prove.service_calls import service_request
from holdfast.prove.victim import end_with_parent, say, terminated, wait_for
from holdfast.seam.clock import RealClock
from holdfast.signals.otlp.codec import item_lists
from holdfast.signals.otlp.json_form import request_document
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import REQUESTS

TIMEOUT_S = 30.0
# A gateway that is being restarted is asked again after so long; it has the machine meanwhile.
PAUSE_S = 0.1
# Between two requests of a paced client.
PACE_S = 0.05
# Requests have by turns one item and so many.
ITEMS_MAX = 5
# About as large as an item of a real application.
_PADDING_BYTES = 300
_KINDS = tuple(OtlpKind)
_NAME = "name"
_OK = 200
# 2026-01-01; the times of items follow it.
_NEW_YEAR_NS = 1_767_225_600 * 10**9
_EXPANDED_BYTES_MAX = 64 * 1024 * 1024
_ALL_TAKEN = b"\0\0\0\0\0"


# ---------------------------------------------------------------------------------- items


def request_of(kind: OtlpKind, names: list[str]) -> bytes:
    """Return a request with an item for each name, different from every other."""
    request: Any = REQUESTS[kind]()
    if kind is OtlpKind.TRACES:
        items = request.resource_spans.add().scope_spans.add().spans
    elif kind is OtlpKind.LOGS:
        items = request.resource_logs.add().scope_logs.add().log_records
    else:
        metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="work")
        items = metric.gauge.data_points
    for name in names:
        _fill(kind, items.add(), name)
    return bytes(request.SerializeToString())


def _fill(kind: OtlpKind, item: Any, name: str) -> None:
    """Make an item the one with this name: all that is in it follows from that."""
    digest = hashlib.sha256(name.encode()).digest()
    at_ns = _NEW_YEAR_NS + int.from_bytes(digest[:4], "big") * 1000
    if kind is OtlpKind.TRACES:
        item.trace_id, item.span_id, item.name = digest[:16], digest[:8], "work"
        item.start_time_unix_nano, item.end_time_unix_nano = at_ns - 1000, at_ns
    else:
        item.time_unix_nano = at_ns
    if kind is OtlpKind.LOGS:
        item.body.string_value = "worked"
    if kind is OtlpKind.METRICS:
        item.as_int = int.from_bytes(digest[:6], "big")
    item.attributes.add(key=_NAME).value.string_value = name
    item.attributes.add(key="padding").value.string_value = digest.hex() * (_PADDING_BYTES // 64)


def names_in(kind: OtlpKind, body: bytes) -> Iterator[str]:
    """Yield the names of the items of a request; `?` for one that is not what was sent."""
    try:
        request = REQUESTS[kind].FromString(body)
    except DecodeError:
        yield UNKNOWN
        return
    for items in item_lists(kind, request):
        for item in items:
            name = "".join(one.value.string_value for one in item.attributes if one.key == _NAME)
            expected = type(item)()
            _fill(kind, expected, name)
            yield name if item == expected else UNKNOWN


# -------------------------------------------------------------------------------- clients


class OtlpRefused(Exception):
    """An answer that is no success."""


class TelemetrySender(Protocol):
    """Sends a request in some form; raises `OtlpRefused` for an answer that is no success."""

    def send(self, kind: OtlpKind, body: bytes) -> None: ...
    def close(self) -> None: ...


class OtlpHttpSender:
    """Sends over HTTP, by turns in protobuf, compressed, and in JSON."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        self._is_json = False

    def send(self, kind: OtlpKind, body: bytes) -> None:
        headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
        self._is_json = not self._is_json
        if self._is_json:
            headers = {"Content-Type": "application/json"}
            body = orjson.dumps(request_document(kind, body))
        else:
            body = gzip.compress(body, 1)
        self._connection.request("POST", kind.http_path, body, headers)
        response = self._connection.getresponse()
        answer = response.read()
        if response.status != _OK:
            raise OtlpRefused(f"{response.status} {answer!r}")

    def close(self) -> None:
        self._connection.close()


class OtlpGrpcSender:
    """Sends over gRPC, compressed."""

    def __init__(self, port: int) -> None:
        target = GrpcTarget("127.0.0.1", port, None, TIMEOUT_S, 1024 * 1024, "prove")
        self._runner = asyncio.Runner()
        self._client = GrpcClient(target, RealClock())

    def send(self, kind: OtlpKind, body: bytes) -> None:
        call = self._client.call(kind.grpc_path, body, timeout_s=TIMEOUT_S, encoding=b"zstd")
        try:
            self._runner.run(call)
        except CallFailed as failed:
            raise OtlpRefused(f"{failed.code.name} {failed.message}") from failed

    def close(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


class TelemetryClient(threading.Thread):
    """Sends one request after the other."""

    def __init__(
        self,
        make_sender: Callable[[], TelemetrySender],
        directory: Path,
        number: int,
        stop: threading.Event,
        kinds: Sequence[OtlpKind] = _KINDS,
        *,
        paced: bool = False,
    ) -> None:
        super().__init__(name=f"client-{number}")
        self._is_paced = paced
        self._make_sender = make_sender
        self._sender = make_sender()
        self._stop_asked = stop
        self._number = number
        self._kinds = kinds
        self._journal = ProofJournal(directory / f"{number}.journal")

    def run(self) -> None:
        """Send until asked to stop."""
        count = 0
        while not self._stop_asked.wait(PACE_S if self._is_paced else 0.0):
            count += 1
            self._send(f"{self._number}-{count}", count)
        self._sender.close()
        self._journal.close()

    def _send(self, name: str, count: int) -> None:
        """Send a request, and note the answer.

        Only a refused connection is certain not to have been stored.
        """
        items = ITEMS_MAX if count % 2 else 1
        kind = self._kinds[count % len(self._kinds)]
        names = [f"{name}.{place}" for place in range(items)]
        body = (
            service_request(kind, names, time.time_ns())
            if self._is_paced
            else request_of(kind, names)
        )
        self._journal.sent(name, items)
        try:
            self._sender.send(kind, body)
        except ConnectionRefusedError:
            self._journal.refused(name, "no", "refused")
        except OtlpRefused as refused:
            self._journal.refused(name, "maybe", " ".join(str(refused).split()))
        except (OSError, http.client.HTTPException) as error:
            self._journal.refused(name, "maybe", type(error).__name__)
        else:
            self._journal.answered(name, count)
            return
        self._sender.close()
        self._sender = self._make_sender()
        self._stop_asked.wait(PAUSE_S)


def send_until_stopped(
    grpc_port: int, http_port: int, directory: Path, count: int, *, paced: bool
) -> None:
    """Run all clients until SIGTERM."""
    stop = terminated()
    end_with_parent(signal.SIGTERM)

    def sender(number: int) -> Callable[[], OtlpHttpSender | OtlpGrpcSender]:
        if number % 2:
            return lambda: OtlpHttpSender(http_port)
        return lambda: OtlpGrpcSender(grpc_port)

    clients = [TelemetryClient(sender(n), directory, n, stop, paced=paced) for n in range(count)]
    for client in clients:
        client.start()
    wait_for(stop)
    for client in clients:
        client.join()


# -------------------------------------------------------------------------------- backend


class ArrivalJournal:
    """Where a backend writes down what came."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, path: str, body: bytes, encoding: str) -> None:
        """Note all items of a request; of one that cannot be read, that it came."""
        kinds = [kind for kind in OtlpKind if path in (kind.http_path, kind.grpc_path)]
        if encoding == "gzip":
            body = gzip.decompress(body)
        elif encoding == "zstd":
            body = zstandard.ZstdDecompressor().decompress(body, _EXPANDED_BYTES_MAX)
        now_ns = time.monotonic_ns()
        names = [name for kind in kinds for name in names_in(kind, body)] or [UNKNOWN]
        os.write(self._fd, "".join(f"R {now_ns} {name}\n" for name in names).encode())


async def _serve_http(
    journal: ArrivalJournal, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answer the requests of one connection."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            request, *lines = head.rstrip().split("\r\n")
            parted = (line.partition(":") for line in lines)
            fields = {name.lower(): value.strip() for name, _, value in parted}
            body = await reader.readexactly(int(fields["content-length"]))
            journal.note(request.split(" ")[1], body, fields.get("content-encoding", ""))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def serve_streams(
    take: Callable[[h2.connection.H2Connection, h2.events.Event], None],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Give the events of one HTTP/2 connection to `take`, and send what it answers."""
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    connection.initiate_connection()
    try:
        while True:
            writer.write(connection.data_to_send())
            data = await reader.read(1024 * 1024)
            if not data:
                break
            for event in connection.receive_data(data):
                take(connection, event)
    except ConnectionError:
        pass
    writer.close()


async def _serve_grpc(
    journal: ArrivalJournal, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answer the calls of one connection."""
    await serve_streams(partial(_take_event, journal, {}), reader, writer)


def _take_event(
    journal: ArrivalJournal,
    calls: dict[int, tuple[dict[bytes, bytes], bytearray]],
    connection: h2.connection.H2Connection,
    event: h2.events.Event,
) -> None:
    """Go on with a call; answer it when it is complete."""
    if isinstance(event, h2.events.RequestReceived):
        headers: Any = event.headers
        calls[event.stream_id] = dict(headers), bytearray()
    elif isinstance(event, h2.events.DataReceived):
        calls[event.stream_id][1].extend(event.data)
        connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
    elif isinstance(event, h2.events.StreamEnded):
        headers, message = calls.pop(event.stream_id)
        encoding = headers.get(b"grpc-encoding", b"") if message[0] else b""
        journal.note(headers[b":path"].decode(), bytes(message[5:]), encoding.decode())
        answer = [(":status", "200"), ("content-type", "application/grpc")]
        connection.send_headers(event.stream_id, answer)
        connection.send_data(event.stream_id, _ALL_TAKEN)
        connection.send_headers(event.stream_id, [("grpc-status", "0")], end_stream=True)
    elif isinstance(event, h2.events.StreamReset):
        calls.pop(event.stream_id, None)


async def serve(speaks: str, port: int, journal_path: str) -> None:
    """Serve until killed."""
    journal = ArrivalJournal(journal_path)
    handle = _serve_grpc if speaks == "grpc" else _serve_http
    server = await asyncio.start_server(
        lambda reader, writer: handle(journal, reader, writer), "127.0.0.1", port
    )
    say("ready")
    await server.serve_forever()


if __name__ == "__main__":
    role, *given = sys.argv[1:]
    if role == "clients":
        grpc_port, http_port, directory, count, *more = given
        paced = "paced" in more
        send_until_stopped(int(grpc_port), int(http_port), Path(directory), int(count), paced=paced)
    else:
        asyncio.run(serve(role, int(given[0]), given[1]))
