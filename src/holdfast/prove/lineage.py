"""The two ends of a gateway under proof: clients that post lineage events, and a backend.

Each is a process of its own:

    python -m holdfast.prove.lineage clients PORT JOURNAL_DIR COUNT [paced]
    python -m holdfast.prove.lineage backend PORT JOURNAL [run]

The clients end after SIGTERM, or when their parent is gone; they are never killed. What was not
answered is not sent again: a second copy would be the client's doing, and hide one of the
gateway's. Paced ones post more slowly, because the machine runs Spark beside them; their events
carry the time of day, and now and then one is invalid.

The backend writes down every event before it answers, one line each, `R <nanoseconds> <name>`, with
one system call per request. It takes single events, and batches as JSON arrays. A name of `?` is
content that nobody sent; with `run`, events are named by their run, whoever made them.
"""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from holdfast.prove.journal import UNKNOWN, ProofJournal
from holdfast.prove.victim import end_with_parent, say, terminated, wait_for

NAMESPACE = "prove"
# About 1.9 kB in all, as events of real clients are.
QUERY_BYTES = 1100
_RUNS = uuid.UUID("3b0c1b9e-92b0-5a52-8f4f-6f1a7d9c2a10")
_FACETS = "https://openlineage.io/spec/facets/1-1-0"
_PRODUCER = "urn:holdfast:prove"
_NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

PATH = "/api/v1/lineage"
TIMEOUT_S = 30.0
# A gateway that is being restarted is asked again after so long.
PAUSE_S = 0.02
# Between two posts of a paced client.
PACE_S = 0.03
BATCH_EVENTS = 5
_BATCH_EVERY, _INVALID_EVERY = 7, 11
# An event without a run.
INVALID = b'{"eventType": "COMPLETE", "job": {"namespace": "prove", "name": "invalid"}}'
_OK, _BAD_REQUEST = 200, 400
_HEAD_BYTES_MAX = 64 * 1024

EventName = Callable[[bytes], str | None]


def event_of(name: str, at: datetime | None = None) -> bytes:
    """Return the event with this name: valid, and different from every other.

    Without a time it has one that follows from its name, whenever it is sent.
    """
    digest = hashlib.sha256(name.encode()).hexdigest()
    query = f"select '{digest * (QUERY_BYTES // len(digest) + 1)}'"[:QUERY_BYTES]
    facet = {"_producer": _PRODUCER, "_schemaURL": f"{_FACETS}/SQLJobFacet.json"}
    dataset = {"namespace": NAMESPACE, "name": f"table-{digest[:8]}"}
    event = {
        "eventType": "COMPLETE",
        "eventTime": (at or _NOON + timedelta(seconds=int(digest[:4], 16))).isoformat(),
        "run": {"runId": str(uuid.uuid5(_RUNS, name))},
        "job": {
            "namespace": NAMESPACE,
            "name": name,
            "facets": {"sql": {**facet, "query": query, "dialect": "ansi"}},
        },
        "inputs": [dataset],
        "outputs": [{**dataset, "name": f"{dataset['name']}-out"}],
        "producer": _PRODUCER,
        "schemaURL": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent",
    }
    return json.dumps(event).encode()


def name_of(payload: bytes) -> str | None:
    """Return the name of an event, or None if it is not, byte by byte, what was sent."""
    try:
        name = json.loads(payload)["job"]["name"]
    except (ValueError, LookupError, TypeError):
        return None
    return name if isinstance(name, str) and event_of(name) == payload else None


def run_name_of(payload: bytes) -> str | None:
    """Return the name of an event that somebody else made: its run and what it says of it."""
    try:
        event = json.loads(payload)
        return f"{event['run']['runId']}-{event['eventType']}"
    except (ValueError, LookupError, TypeError):
        return None


class LineageClient(threading.Thread):
    """Posts one event, or a small batch, after the other."""

    def __init__(
        self, port: int, directory: Path, number: int, stop: threading.Event, *, paced: bool
    ) -> None:
        super().__init__(name=f"client-{number}")
        self._port = port
        self._is_paced = paced
        self._stop_asked = stop
        self._number = number
        self._journal = ProofJournal(directory / f"{number}.journal")
        self._connection: http.client.HTTPConnection | None = None

    def run(self) -> None:
        """Post until asked to stop."""
        count = 0
        while not self._stop_asked.wait(PACE_S if self._is_paced else 0.0):
            count += 1
            name = f"{self._number}-{count}"
            self._post(name, self._events(name, count))
        self._close()
        self._journal.close()

    def _events(self, name: str, count: int) -> list[bytes]:
        """Return what to post next: mostly one event, at times a batch, or an invalid one."""
        if self._is_paced and count % _INVALID_EVERY == 0:
            return [INVALID]
        events = BATCH_EVENTS if count % _BATCH_EVERY == 0 else 1
        now = datetime.now(UTC) if self._is_paced else None
        return [event_of(f"{name}.{place}", now) for place in range(events)]

    def _post(self, name: str, events: list[bytes]) -> None:
        """Post events, and note the answer.

        Only a refused connection and a 400 are certain not to have been stored. Everything else,
        even an error status, leaves it open: the gateway may have stored it before it failed.
        """
        self._journal.sent(name, len(events))
        try:
            status, answer = self._exchange(events)
        except ConnectionRefusedError:
            self._journal.refused(name, "no", "refused")
            self._pause()
        except (OSError, http.client.HTTPException) as error:
            self._journal.refused(name, "maybe", type(error).__name__)
            self._pause()
        else:
            if status == _OK:
                self._journal.answered(name, int(answer["position"].split("/")[1]))
            elif status == _BAD_REQUEST:
                self._journal.refused(name, "no", str(status))
            else:
                why = str(answer.get("message")).partition("\n")[0]
                self._journal.refused(name, "maybe", f"{status} {why}")
                self._pause()

    def _exchange(self, events: list[bytes]) -> tuple[int, dict[str, str]]:
        """Send one request over a connection that is kept, as real clients do."""
        if self._connection is None:
            self._connection = http.client.HTTPConnection(
                "127.0.0.1", self._port, timeout=TIMEOUT_S
            )
        path, body = PATH, events[0]
        if len(events) > 1:
            path, body = f"{PATH}/batch", b"[" + b",".join(events) + b"]"
        headers = {"Content-Type": "application/json"}
        self._connection.request("POST", path, body, headers)
        response = self._connection.getresponse()
        return response.status, json.loads(response.read() or b"{}")

    def _pause(self) -> None:
        self._close()
        self._stop_asked.wait(PAUSE_S)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def post_until_stopped(port: int, directory: Path, count: int, *, paced: bool) -> None:
    """Run all clients until SIGTERM."""
    stop = terminated()
    end_with_parent(signal.SIGTERM)
    clients = [LineageClient(port, directory, n, stop, paced=paced) for n in range(count)]
    for client in clients:
        client.start()
    wait_for(stop)
    for client in clients:
        client.join()


class Backend(asyncio.Protocol):
    """One connection. HTTP as far as an exporter speaks it: POST with a Content-Length."""

    def __init__(self, journal_fd: int, name: EventName = name_of) -> None:
        self._journal_fd = journal_fd
        self._name = name
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, to answer by."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer every request that is complete."""
        self._received += data
        while (body := self._take_request()) is not None:
            names = list(_names(body, self._name))
            now_ns = time.monotonic_ns()
            lines = "".join(f"R {now_ns} {name}\n" for name in names)
            os.write(self._journal_fd, lines.encode())
            self._transport.write(_answer(len(names)))

    def _take_request(self) -> bytes | None:
        """Return the body of the next complete request, None if it has not arrived as a whole."""
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            assert len(self._received) < _HEAD_BYTES_MAX, "no end of the head"
            return None
        head = bytes(self._received[:end]).lower()
        start = head.index(b"content-length:") + len(b"content-length:")
        length = int(head[start:].split(b"\r\n", 1)[0])
        if len(self._received) < end + 4 + length:
            return None
        body = bytes(self._received[end + 4 : end + 4 + length])
        del self._received[: end + 4 + length]
        return body


def _names(body: bytes, name: EventName) -> Iterator[str]:
    """Yield the names of the events in a request."""
    if not body.startswith(b"["):
        yield name(body) or UNKNOWN
        return
    # The bytes of each event are wanted as they came: its own decoder finds where one ends.
    text, decoder = body.decode(), json.JSONDecoder()
    place = 1
    while text[place:].strip() not in ("", "]"):
        _, end = decoder.raw_decode(text, place)
        yield name(text[place:end].encode()) or UNKNOWN
        place = end + (text[end] == ",")


def _answer(events: int) -> bytes:
    summary = {"received": events, "successful": events, "failed": 0}
    body = json.dumps({"status": "success", "summary": summary, "failed_events": []}).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


async def serve(port: int, journal: str, name: EventName) -> None:
    """Serve until killed."""
    journal_fd = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Backend(journal_fd, name), "127.0.0.1", port)
    say("ready")
    await server.serve_forever()


if __name__ == "__main__":
    role, port_text, path, *more = sys.argv[1:]
    if role == "clients":
        post_until_stopped(int(port_text), Path(path), int(more[0]), paced="paced" in more)
    else:
        asyncio.run(serve(int(port_text), path, run_name_of if "run" in more else name_of))
