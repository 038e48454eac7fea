"""How a running gateway is watched: the admin port, and figures pushed to statsd.

/healthz    200 while the process answers at all: restart it if it does not
/readyz     200 while senders should be sent here; 503 with the reasons during a replay, while
            events are refused, and while it stops
/metrics    every figure, as Prometheus' text
/           the console, where it is on (holdfast/console)

The same figures go to a statsd server over UDP, counters as what they grew by. Nothing waits for
the server and nothing fails if there is none: datagrams are sent or lost. A push is bounded in
datagrams; what did not fit is sent first by the next one, and no count is lost by waiting, because
a counter remembers what was sent of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.dataflow.driver.wire import DriverFigures
from holdfast.errors import BadInput
from holdfast.graph.loader import Loaded
from holdfast.graph.model import Graph, StatsdSettings
from holdfast.operate.gateway_metrics import COUNTERS, render_records
from holdfast.operate.metrics import CONTENT_TYPE, Sample
from holdfast.quiver.engine.control import Verbs
from holdfast.receive.http_server import HttpServer
from holdfast.receive.listening import parse_address
from holdfast.receive.responses import Receive, Response, Scope, Send, json_response, send_response

if TYPE_CHECKING:  # a gateway without a console imports none of it
    from holdfast.console.app import Console

OK = 200
NOT_FOUND = 404
NOT_ALLOWED = 405
UNAVAILABLE = 503


class WatchedGateway(Protocol):
    """What the port tells of: one gateway, or several workers."""

    async def not_ready(self) -> Sequence[str]:
        """Return why senders should not be sent here; empty if they should."""

    async def records(self) -> Sequence[Sample]:
        """Return every figure."""


class OperatedGateway(WatchedGateway, Protocol):
    """What the console needs of it beside that."""

    @property
    def driver_figures(self) -> DriverFigures | None:
        """What the driver of the pipelines reported last; None if there is none."""

    def verbs(self) -> Verbs:
        """Return what tools may ask for; the console asks for the same."""


PROBES = ("/healthz", "/readyz", "/metrics")


class AdminApp:
    """The ASGI app of the port."""

    def __init__(self, watched: WatchedGateway, console: Console | None = None) -> None:
        self._watched = watched
        self._console = console

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if self._console is not None and scope["path"] not in PROBES:
            await self._console(scope, receive, send)
            return
        if scope["method"] not in ("GET", "HEAD"):
            answer = json_response(NOT_ALLOWED, {"error": "use GET"}, ((b"allow", b"GET, HEAD"),))
            await send_response(send, answer)
            return
        if scope["path"] == "/metrics":
            await self._metrics(send)
            return
        await send_response(send, await self._answer(scope["path"]))

    async def _answer(self, path: str) -> Response:
        """Answer a probe. Which paths there are is part of the answer to any other."""
        if path == "/healthz":
            return json_response(OK, {"status": "ok"})
        if path == "/readyz":
            reasons = list(await self._watched.not_ready())
            status = UNAVAILABLE if reasons else OK
            return json_response(status, {"ready": not reasons, "reasons": reasons})
        known = {"error": "there is nothing here", "known": list(PROBES)}
        return json_response(NOT_FOUND, known)

    async def _metrics(self, send: Send) -> None:
        """Send the figures as text; this is the one answer that is not JSON."""
        body = render_records(await self._watched.records()).encode()
        headers = [
            (b"content-type", CONTENT_TYPE.encode()),
            (b"content-length", b"%d" % len(body)),
        ]
        await send({"type": "http.response.start", "status": OK, "headers": headers})
        await send({"type": "http.response.body", "body": body})


# Fits into one Ethernet frame, also over IPv6.
DATAGRAM_BYTES_MAX = 1400
# How long a name server may take.
RESOLVE_S = 2.0

_UNSAFE = re.compile(r"[^A-Za-z0-9_.\-/]")

log = logging.getLogger("holdfast.operate")

SeriesKey = tuple[str, tuple[tuple[str, str], ...]]


class StatsdLines:
    """Turns records into lines, and remembers what was sent of every counter."""

    def __init__(self, settings: StatsdSettings, counters: Iterable[str]) -> None:
        self._as_tags = settings.labels == "tags"
        self._max_datagrams = settings.max_packets
        self._counters = frozenset(counters)
        self._sent: dict[SeriesKey, float] = {}
        self._begin = 0

    def take_as_sent(self, records: Iterable[Sample]) -> None:
        """Begin here: what was counted before is history."""
        for record in records:
            if record.name in self._counters:
                self._sent[_key(record)] = record.value

    def datagrams(self, records: Sequence[Sample]) -> list[bytes]:
        """Return what to send now; what is returned counts as sent."""
        found: list[bytes] = []
        current: list[bytes] = []
        length = 0
        # Where the last push had to stop, this one begins.
        begin = self._begin % len(records) if records else 0
        for index, record in enumerate([*records[begin:], *records[:begin]]):
            line = self._line(record)
            if line is None:
                continue
            if current and length + len(line) + 1 > DATAGRAM_BYTES_MAX:
                found.append(b"\n".join(current))
                current, length = [], 0
                # The line at hand was not taken: its counter is not marked as sent, and the next
                # push begins with it.
                if len(found) == self._max_datagrams:
                    self._begin = begin + index
                    return found
            current.append(line)
            length += len(line) + 1
            if record.name in self._counters:
                self._sent[_key(record)] = record.value
        self._begin = 0
        return [*found, b"\n".join(current)] if current else found

    def _line(self, record: Sample) -> bytes | None:
        """Return one line, or None if there is nothing new to say."""
        value, kind = record.value, "g"
        if record.name in self._counters:
            # A counter that fell was restarted.
            sent = self._sent.get(_key(record), 0)
            value, kind = (value - sent if value >= sent else value), "c"
            if value == 0:
                return None
        name, tags = record.name, ""
        if self._as_tags and record.labels:
            tags = "|#" + ",".join(f"{key}:{_safe(text)}" for key, text in record.labels.items())
        elif record.labels:
            parts = [_safe(text).replace(".", "_") or "none" for text in record.labels.values()]
            name = ".".join([name, *parts])
        return f"{name}:{+value!r}|{kind}{tags}".encode()


class Statsd:
    """Pushes figures at an interval."""

    def __init__(
        self,
        settings: StatsdSettings,
        counters: Iterable[str],
        records: Callable[[], Awaitable[Sequence[Sample]]],
    ) -> None:
        self._settings = settings
        self._lines = StatsdLines(settings, counters)
        self._records = records
        self.failures = 0

    async def run(self) -> None:
        """Push until cancelled; a last time then, so that nothing counted is left behind.

        What was counted before the first push is taken as sent, or counters that begin with what a
        start found would be reported as one jump.
        """
        self._lines.take_as_sent(await self._records())
        try:
            while True:
                await asyncio.sleep(self._settings.interval)
                await self._try_push()
        finally:
            await asyncio.shield(self._try_push())

    async def _try_push(self) -> None:
        """Push; the first failure is logged, others are only counted: they may last for days."""
        try:
            await self.push()
        except Exception as error:
            self.failures += 1
            # Never again, even after it worked in between: UDP fails only where a name cannot be
            # resolved or there is no route, and both tend to come and go.
            if self.failures == 1:
                log.warning("statsd at %s: %s", self._settings.address, error)

    async def push(self) -> None:
        """Send everything that is new."""
        datagrams = self._lines.datagrams(await self._records())
        host, port = parse_address(self._settings.address)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(RESOLVE_S):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as connection:
            connection.setblocking(False)
            for datagram in datagrams:
                connection.sendto(datagram, address)


def _key(record: Sample) -> SeriesKey:
    return record.name, tuple(record.labels.items())


def _safe(text: str) -> str:
    return _UNSAFE.sub("_", text)


class AdminPort:
    """The admin port of a running process, and the way to its console."""

    def __init__(self, addresses: Sequence[str] = (), token: str | None = None) -> None:
        self._addresses = addresses
        self._token = token

    def console(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return where the console is, and its token: for who may use the control socket."""
        if self._token is None or not self._addresses:
            raise BadInput(
                "this gateway serves no console", hint="set `admin.console: true`, and restart it"
            )
        # A browser cannot go to "every address"; from this machine, loopback is one of them.
        address = self._addresses[0].replace("//0.0.0.0:", "//127.0.0.1:")
        address = address.replace("//[::]:", "//[::1]:")
        return {"address": address, "token": self._token}


@contextlib.asynccontextmanager
async def observed(loaded: Loaded, watched: OperatedGateway) -> AsyncIterator[AdminPort]:
    """Serve the admin port, and push to statsd, while something runs."""
    settings = loaded.graph.settings
    port = AdminPort()
    async with contextlib.AsyncExitStack() as held:
        if settings.admin.listen is not None:
            console, token = None, None
            if settings.admin.has_console:
                console, token = _console(loaded.graph, watched)
            server = HttpServer(AdminApp(watched, console), settings.admin.listen)
            await server.start()
            held.push_async_callback(server.stop, 1.0)
            log.info("admin: listens on %s", ", ".join(server.addresses))
            if console is not None:
                console.start()
                # Before the server stops: open pages would have it wait for them.
                held.push_async_callback(console.close)
                file = loaded.document.file
                log.info("console: `holdfast console %s` prints its address", file)
            port = AdminPort(server.addresses, token)
        if settings.statsd is not None:
            task = asyncio.create_task(Statsd(settings.statsd, COUNTERS, watched.records).run())
            held.push_async_callback(end, task)
        yield port


def _console(graph: Graph, watched: OperatedGateway) -> tuple[Console, str]:
    """Return the console of a gateway, and its token."""
    from holdfast.console.access import ConsoleGate, token_of
    from holdfast.console.app import Console

    admin = graph.settings.admin
    assert admin.listen is not None, "BUG: a console without a port"
    given = admin.token
    token = token_of(graph.data_dir) if given is None else given.get_secret_value()
    names = (*admin.hosts, parse_address(admin.listen).host)
    return Console(graph, watched, ConsoleGate(token, names)), token


async def end(task: asyncio.Task[None]) -> None:
    """Cancel a task, and wait until it is over."""
    task.cancel()
    await asyncio.wait([task])
