"""The client process of the gateway's benchmark: so many senders, each waiting for its answer.

Run as `python -m holdfast.bench.gateway_load` with a `Load` as JSON; prints what it measured as
JSON. Over HTTP to a gateway, or over NATS to a stream: the same process, the same events, the same
number of senders, each sending its next event when the last one is acknowledged.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Literal

from holdfast.bench.rounds import percentile

SUBJECT = "lineage.events"
STREAM = "lineage"
EVENT_BYTES = 1900
_RUN = "00000000-0000-4000-8000-000000000000"

SendBody = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True)
class Load:
    """What the process has to send."""

    to: Literal["http", "nats"]
    port: int
    seconds: float
    senders: int
    # Events per second in all; None: as fast as they are answered.
    rate_per_s: float | None = None

    def command(self) -> list[str]:
        """Return the command line that runs this load."""
        return [sys.executable, "-m", "holdfast.bench.gateway_load", json.dumps(asdict(self))]


def _template() -> tuple[bytes, bytes]:
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

    def __init__(self, port: int) -> None:
        self._port = port
        self._received = b""
        self._answer: asyncio.Future[int] | None = None

    async def connect(self) -> None:
        """Open the connection."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_connection(lambda: self, "127.0.0.1", self._port)

    def data_received(self, data: bytes) -> None:
        """Take an answer; its body is small and has a length."""
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
        assert status == 200, f"the gateway answered {status}"  # noqa: PLR2004

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()


async def _send_until(send: SendBody, load: Load, number: int, latencies_s: list[float]) -> None:
    began_s = time.perf_counter()
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


async def _over_nats(load: Load, latencies_s: list[float]) -> None:
    import nats

    connection = await nats.connect(f"nats://127.0.0.1:{load.port}")
    stream = connection.jetstream()

    async def send(event: bytes) -> None:
        await stream.publish(SUBJECT, event)

    await asyncio.gather(
        *(_send_until(send, load, number, latencies_s) for number in range(load.senders))
    )
    await connection.close()


def main(load: Load) -> None:
    """Send, and print what came of it."""
    import uvloop

    latencies_s: list[float] = []
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    uvloop.run((_over_http if load.to == "http" else _over_nats)(load, latencies_s))
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


if __name__ == "__main__":
    main(Load(**json.loads(sys.argv[1])))
