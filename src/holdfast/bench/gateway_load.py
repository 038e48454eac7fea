"""The two ends of a gateway that is measured: a client process, and a backend process.

    python -m holdfast.bench.gateway_load LOAD
    python -m holdfast.bench.gateway_load PORT FILE

To a gateway a load goes over HTTP, or, with as many events, straight to its backend: one after the
other on one connection, which is the most that delivery in order could do.

The client has so many senders, each waiting for its answer; it prints what it measured as JSON.
Over HTTP to a gateway, or over NATS to a stream: the same process, the same events, the same number
of senders, each sending its next event when the last one is acknowledged.

The backend accepts everything immediately and notes when: `time_ns run_id`, a line per event. It
does as little as it can, so that what is measured is the gateway.

The load is closed: a sender has one event under way. A slow answer therefore also slows the
sending, and percentiles at full load show the queue of the senders more than the server; that is
why delay is reported at half load, where events are sent by a clock.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Literal, cast

import uvloop

from holdfast.bench.figures import percentile

SUBJECT = "lineage.events"
STREAM = "lineage"
EVENT_BYTES = 1900
_RUN = "00000000-0000-4000-8000-000000000000"
_ANSWER = b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"
_BATCH_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
_RUN_ID = re.compile(rb'"runId": "([0-9a-f-]{36})"')

SendBody = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True)
class Load:
    """What the process has to send."""

    to: Literal["http", "nats", "backend"]
    port: int
    seconds: float
    senders: int
    # Events per second in all; None: as fast as they are answered.
    rate_per_s: float | None = None
    # To a backend: so many, however long that takes.
    events: int | None = None

    def command(self) -> list[str]:
        """Return the command line that runs this load."""
        return [sys.executable, "-m", "holdfast.bench.gateway_load", json.dumps(asdict(self))]


def _template() -> tuple[bytes, bytes]:
    """Return an event cut in two at its run id: making one must cost next to nothing."""
    facet = {"_producer": "urn:holdfast:bench", "_schemaURL": "https://openlineage.io/facet.json"}
    event = {
        "eventType": "START",
        "eventTime": "2026-01-01T12:00:00.000Z",
        "run": {"runId": _RUN},
        "job": {
            "namespace": "bench",
            "name": "daily_orders",
            "facets": {"sql": {**facet, "query": ""}},
        },
        "inputs": [{"namespace": "warehouse", "name": "public.orders"}],
        "outputs": [{"namespace": "warehouse", "name": "public.daily_orders"}],
        "producer": "urn:holdfast:bench",
        "schemaURL": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent",
    }
    text = json.dumps(event)
    text = text.replace('"query": ""', f'"query": "{"s" * (EVENT_BYTES - len(text))}"')
    before, after = text.encode().split(_RUN.encode())
    return before, after


_BEFORE, _AFTER = _template()


def new_event(run_id: str | None = None) -> bytes:
    """Return an event of 1.9 kB that no other equals."""
    return _BEFORE + (run_id or str(uuid.uuid4())).encode() + _AFTER


class HttpSender(asyncio.Protocol):
    """One connection that posts one event at a time."""

    def __init__(self, port: int, answered: int = 200) -> None:
        self._port = port
        self._expected = answered
        self._received = b""
        self._answer: asyncio.Future[int] | None = None

    async def connect(self) -> None:
        """Open the connection."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_connection(lambda: self, "127.0.0.1", self._port)

    def data_received(self, data: bytes) -> None:
        """Take an answer; its body is small and has a length.

        A client library would cost more CPU per event than the server does, and the client would
        be what is measured. This understands as much HTTP as the gateway answers with.
        """
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found or self._answer is None:
            return
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        if len(body) >= length:
            self._received = body[length:]
            self._answer.set_result(int(head[9:12]))

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("closed"))

    async def send(self, event: bytes) -> None:
        """Post one event and wait until it is accepted."""
        self._answer = asyncio.get_running_loop().create_future()
        head = b"POST /api/v1/lineage HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
        self._transport.write(head + b"\r\nContent-Length: %d\r\n\r\n" % len(event) + event)
        status = await self._answer
        assert status == self._expected, f"the server answered {status}"

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()


async def _send_until(send: SendBody, load: Load, number: int, latencies_s: list[float]) -> None:
    """Send one event after another, as fast as answered or at a rate.

    With a rate the senders are spread evenly over one pause, or all of them would send together.
    """
    began_s = time.perf_counter()
    # A sender that falls behind does not skip: its next event is due at once. Delay counts from
    # when the event was sent and not from when it was due, so a server that stalls is flattered a
    # little; both levels are measured alike.
    pause_s = load.senders / load.rate_per_s if load.rate_per_s else 0.0
    next_s = began_s + pause_s * number / load.senders
    while (now_s := time.perf_counter()) < began_s + load.seconds:
        if pause_s:
            await asyncio.sleep(max(0.0, next_s - now_s))
            next_s += pause_s
        sent_s = time.perf_counter()
        await send(new_event())
        latencies_s.append(time.perf_counter() - sent_s)


async def _over_http(load: Load, latencies_s: list[float]) -> None:
    senders = [HttpSender(load.port) for _ in range(load.senders)]
    for sender in senders:
        await sender.connect()
    await asyncio.gather(
        *(_send_until(one.send, load, number, latencies_s) for number, one in enumerate(senders))
    )
    for sender in senders:
        sender.close()


class NatsSender(asyncio.Protocol):
    """One connection for all senders, as clients of NATS have it.

    As bare as the one for HTTP: a client library takes twice the CPU of the server, on the same
    machine, and the peer would look slow for it.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._received = bytearray()
        self._inbox = b"_INBOX." + uuid.uuid4().hex.encode()
        self._answers: dict[bytes, asyncio.Future[bytes]] = {}
        self._sent = 0

    async def connect(self) -> None:
        """Open the connection, and listen for acknowledgements."""
        loop = asyncio.get_running_loop()
        self._connected = loop.create_future()
        self._transport, _ = await loop.create_connection(lambda: self, "127.0.0.1", self._port)
        about = b'{"verbose":false,"pedantic":false,"lang":"python","version":"0","protocol":1}'
        self._transport.write(b"CONNECT %b\r\nSUB %b.* 1\r\nPING\r\n" % (about, self._inbox))
        await self._connected

    def data_received(self, data: bytes) -> None:
        """Take acknowledgements: `MSG SUBJECT SUBSCRIPTION LENGTH`, and a short JSON document."""
        received = self._received
        received += data
        at = 0
        while (end := received.find(b"\r\n", at)) >= 0:
            words = bytes(received[at:end]).split(b" ")
            behind = end + 2
            if words[0] == b"MSG":
                behind += int(words[-1]) + 2
                if behind > len(received):
                    break
                self._answers.pop(words[1]).set_result(bytes(received[end + 2 : behind - 2]))
            elif words[0] == b"PING":
                self._transport.write(b"PONG\r\n")
            elif words[0] == b"PONG":
                self._connected.set_result(None)
            elif words[0] == b"-ERR":
                raise ConnectionError(bytes(received[at:end]).decode())
            at = behind
        del received[:at]

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits."""
        for answer in self._answers.values():
            answer.set_exception(exc or ConnectionResetError("closed"))

    async def send(self, event: bytes) -> None:
        """Publish one event and wait until the stream has it."""
        self._sent += 1
        inbox = b"%b.%d" % (self._inbox, self._sent)
        answer = self._answers[inbox] = asyncio.get_running_loop().create_future()
        head = b"PUB %b %b %d\r\n" % (SUBJECT.encode(), inbox, len(event))
        self._transport.write(b"%b%b\r\n" % (head, event))
        said = await answer
        assert b'"seq":' in said, f"the stream answered {said!r}"

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()


async def _over_nats(load: Load, latencies_s: list[float]) -> None:
    sender = NatsSender(load.port)
    await sender.connect()
    await asyncio.gather(
        *(_send_until(sender.send, load, number, latencies_s) for number in range(load.senders))
    )
    sender.close()


async def _to_backend(load: Load, latencies_s: list[float]) -> None:
    sender = HttpSender(load.port, answered=201)
    await sender.connect()
    assert load.events is not None, "BUG: a load without a number of events"
    for _ in range(load.events):
        sent_s = time.perf_counter()
        await sender.send(new_event())
        latencies_s.append(time.perf_counter() - sent_s)
    sender.close()


def main(load: Load) -> None:
    """Send, and print what came of it."""
    latencies_s: list[float] = []
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    senders = {"http": _over_http, "nats": _over_nats, "backend": _to_backend}
    uvloop.run(senders[load.to](load, latencies_s))
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    latencies_s.sort()
    found = {
        "events": len(latencies_s),
        "wall_s": wall_s,
        "client_cpu_s": cpu_s,
        "p50_ms": percentile(latencies_s, 50) * 1e3,
        "p99_ms": percentile(latencies_s, 99) * 1e3,
    }
    sys.stdout.write(json.dumps(found))


class DiscardBackend(asyncio.Protocol):
    """One connection."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, to answer by."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Answer every request that is complete."""
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._received[:end]).lower()
            length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
            if len(self._received) < end + 4 + length:
                return
            body = bytes(self._received[end + 4 : end + 4 + length])
            del self._received[: end + 4 + length]
            now_ns = time.monotonic_ns()
            lines = b"".join(b"%d %s\n" % (now_ns, run_id) for run_id in _RUN_ID.findall(body))
            os.write(self._fd, lines)
            self._transport.write(_BATCH_ANSWER if body.startswith(b"[") else _ANSWER)


async def serve(port: int, path: str) -> None:
    """Serve until killed."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: DiscardBackend(fd), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    if len(sys.argv) > 2:  # noqa: PLR2004
        uvloop.run(serve(int(sys.argv[1]), sys.argv[2]))
    else:
        main(Load(**json.loads(sys.argv[1])))
