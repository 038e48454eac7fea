"""What the connections of one server have in common: bounds, counts, and who is there."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from pydantic import Field

from holdfast.receive.fast_path import FastPath
from holdfast.receive.responses import AsgiApp, HttpHeaders
from holdfast.settings import DurationS, FileSettings, SizeBytes


class ConnectionSettings(FileSettings):
    """Bounds of the connections of one listening port."""

    max_connections: int = Field(default=1024, ge=1)
    """Open connections; more are answered 503 and closed."""
    backlog: int = Field(default=1024, ge=1)
    """Connections that the kernel holds until they are taken."""
    header_timeout_s: DurationS = Field(default=10.0, gt=0)
    """From the first byte of a request (or the connection) to the end of its headers; also the
    longest TLS handshake."""
    keep_alive_s: DurationS = Field(default=65.0, gt=0)
    """How long a connection may be idle between two requests."""
    send_timeout_s: DurationS = Field(default=30.0, gt=0)
    """How long a client may leave answers unread before it is cut off."""
    max_header_bytes: SizeBytes = Field(default=64 * 1024, ge=1024)
    """All headers of one request, and its trailers."""
    max_pipelined_requests: int = Field(default=16, ge=1)
    """Requests sent ahead of their answers on one connection; then the rest is not read."""
    max_unread_bytes: SizeBytes = 64 * 1024 * 1024
    """How much of the body of a refused request is read (and forgotten) to keep its connection."""
    unread_timeout_s: DurationS = Field(default=5.0, gt=0)
    """How long that may take."""


class ServedConnection(Protocol):
    """A connection, as the server sees it."""

    transport: asyncio.Transport

    def hand_over(self) -> None:
        """Hand over the request that was taken unparsed in this turn, unless that is done."""

    def expire(self, now_s: float) -> None:
        """Close the connection if its client had its time."""

    def shutdown(self) -> None:
        """Close the connection, once what is under way is answered."""


class RequestUnderWay(Protocol):
    """A request that is not answered, on whatever path."""

    def cancel(self) -> object:
        """End it, as far as that is needed."""


class LoopTurn:
    """The requests that came in one turn of the event loop, and are handed over at its end.

    Between two connections the loop lets go of the interpreter's lock. A writer that wakes up for
    the first request would take it there, and make a group of one; the others would wait for the
    next sync. So they are taken first, and handed over in one go.
    """

    def __init__(self) -> None:
        self._ready: list[ServedConnection] = []

    def add(self, connection: ServedConnection) -> None:
        """Let a connection hand over what it has, once the others were looked at."""
        if not self._ready:
            asyncio.get_running_loop().call_soon(self._hand_over)
        self._ready.append(connection)

    def _hand_over(self) -> None:
        ready, self._ready = self._ready, []
        for connection in ready:
            connection.hand_over()


@dataclass
class ConnectionCounts:
    """What the connections of one server count together."""

    # Those beyond the bound, until they have been refused.
    refused: set[ServedConnection] = field(default_factory=set)
    # Requests that no app saw, by reason; a refused connection counts as one.
    rejected: Counter[str] = field(default_factory=Counter)
    # Bytes of bodies that nobody wanted any more.
    unread_bytes: int = 0
    # Bytes of bodies that are held back for the fast path now.
    held_bytes: int = 0


@dataclass
class ServerState:
    """What the connections of one server have in common."""

    app: AsgiApp
    settings: ConnectionSettings
    fast_path: FastPath | None = None
    counts: ConnectionCounts = field(default_factory=ConnectionCounts)
    turn: LoopTurn = field(default_factory=LoopTurn)
    # Open now, without those that are refused.
    connections: set[ServedConnection] = field(default_factory=set)
    # Requests under way, on whatever path.
    under_way: set[RequestUnderWay] = field(default_factory=set)
    # Answered since the start.
    requests: int = 0
    # These stand in every answer.
    headers: HttpHeaders = ()
