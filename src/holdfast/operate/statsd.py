"""Figures over UDP for a statsd server: the names of `/metrics`, counters as what they grew by.

Nothing waits for the server and nothing fails if there is none: datagrams are sent or lost. A push
is bounded in datagrams; what did not fit is the first to go with the next one, and no count is lost
by waiting, because a counter remembers what was sent of it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence

from holdfast.graph.model import StatsdSettings
from holdfast.operate.metrics import Sample
from holdfast.receive.listening import parse_address

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
            # A counter that fell was begun anew.
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
        """Push until cancelled; a last time then, so that nothing counted is left behind."""
        self._lines.take_as_sent(await self._records())
        try:
            while True:
                await asyncio.sleep(self._settings.interval)
                await self._try_push()
        finally:
            await asyncio.shield(self._try_push())

    async def _try_push(self) -> None:
        try:
            await self.push()
        except Exception as error:
            self.failures += 1
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
