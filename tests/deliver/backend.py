"""A backend that does what a test says, and knows what it took."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from holdfast.dead_letters.letter import Letter
from holdfast.deliver.exporter import Answer, Failure, FailureClass, all_failed
from holdfast.errors import Overloaded
from holdfast.signals.event import Event

DOWN = Failure(FailureClass.TRANSIENT, "service unavailable", code="503")
BROKEN = Failure(FailureClass.TRANSIENT, "internal error", code="500")
BAD = Failure(FailureClass.PERMANENT, "bad request", code="400")
NOT_FOUND = Failure(FailureClass.TRANSIENT, "not found", code="404")
UNAUTHORIZED = Failure(FailureClass.AUTH, "unauthorized", code="401")
TOO_LARGE = Failure(FailureClass.TOO_LARGE, "payload too large", code="413")

# What one send does: answers, having taken what it does not name; or raises; or hangs.
Behaviour = Callable[["Backend", Sequence[Event]], Answer]


class Hang(Exception):
    """Raised by a behaviour: the send never ends."""


@dataclass
class Backend:
    """An exporter and its destination in one."""

    max_batch_events: int = 1
    max_batch_bytes: int = 1 << 20
    # One for each send, in order; then every send is answered by `otherwise`.
    script: list[Behaviour] = field(default_factory=list)
    otherwise: Behaviour = field(default=lambda backend, events: backend.take(events))
    # All payloads that were sent, by send; and all that were taken, in order.
    sends: list[list[bytes]] = field(default_factory=list)
    taken: list[bytes] = field(default_factory=list)
    # Taken, and not told so.
    untold: list[bytes] = field(default_factory=list)
    in_send: int = 0
    most_in_send: int = 0
    started: bool = False
    closed: bool = False

    async def start(self) -> None:
        self.started, self.closed = True, False

    async def close(self) -> None:
        self.closed = True

    async def send(self, events: Sequence[Event]) -> Answer:
        self.sends.append([event.payload for event in events])
        self.in_send += 1
        self.most_in_send = max(self.most_in_send, self.in_send)
        try:
            # Other lanes get their turn.
            await asyncio.sleep(0)
            behave = self.script.pop(0) if self.script else self.otherwise
            return behave(self, events)
        except Hang:
            await asyncio.get_running_loop().create_future()
            raise
        finally:
            self.in_send -= 1

    def take(self, events: Iterable[Event]) -> Answer:
        """Take events, and say so."""
        self.taken += [event.payload for event in events]
        return Answer()

    def take_untold(self, events: Iterable[Event]) -> None:
        """Take events; the caller will never know."""
        payloads = [event.payload for event in events]
        self.taken += payloads
        self.untold += payloads


def fails(failure: Failure) -> Behaviour:
    """Take nothing."""
    return lambda backend, events: all_failed(len(events), failure)


def fails_for(bad: dict[bytes, Failure]) -> Behaviour:
    """Take what is not named; a batch with a named one in it is taken in part."""

    def behave(backend: Backend, events: Sequence[Event]) -> Answer:
        failed = {i: bad[e.payload] for i, e in enumerate(events) if e.payload in bad}
        backend.take(e for i, e in enumerate(events) if i not in failed)
        return Answer(failed)

    return behave


def fails_whole(bad: dict[bytes, Failure]) -> Behaviour:
    """Take all or nothing: a batch fails as its first named event does."""

    def behave(backend: Backend, events: Sequence[Event]) -> Answer:
        for event in events:
            if event.payload in bad:
                return all_failed(len(events), bad[event.payload])
        return backend.take(events)

    return behave


def hangs(*, taken: bool = False) -> Behaviour:
    """Never answer."""

    def behave(backend: Backend, events: Sequence[Event]) -> Answer:
        if taken:
            backend.take_untold(events)
        raise Hang

    return behave


def raises(*, taken: bool = False) -> Behaviour:
    """Have a bug."""

    def behave(backend: Backend, events: Sequence[Event]) -> Answer:
        if taken:
            backend.take_untold(events)
        raise RuntimeError("a bug, with a secret in its text")

    return behave


@dataclass
class Letters:
    """Dead letters in memory, which outlive crashes of the gateway."""

    stored: list[Letter] = field(default_factory=list)
    # So many times the store does not take any.
    refusals: int = 0

    async def undelivered(self, letters: Sequence[Letter]) -> None:
        await asyncio.sleep(0)
        if self.refusals:
            self.refusals -= 1
            raise Overloaded("full", hint="purge some")
        self.stored += letters

    @property
    def payloads(self) -> list[bytes]:
        """The events, in the order in which they were stored."""
        return [letter.payload for letter in self.stored]

    @property
    def reasons(self) -> list[str]:
        """Why each is here."""
        return [letter.reason for letter in self.stored]
