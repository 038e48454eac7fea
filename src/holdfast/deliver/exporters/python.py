"""Hands events to a function of the user's own.

    # my_company/lineage.py
    from holdfast.deliver.exporters.python import Permanent, Retry

    def deliver(events):
        for event in events:
            if not wanted(event.document):
                raise Permanent("not for us")
            if busy():
                raise Retry("try later", after_s=30)
            store(event.payload, key=event.idempotency_key)

The function is given a list of events (`payload`, `document`, `headers`, `position`,
`idempotency_key`), of one event unless `max_batch_events` says otherwise. When it returns None, all
of them are delivered; it may return an `Answer` instead. An exception concerns all events of the
call; of a call with several, nobody knows which, so each is tried alone before it is given up. One
that is not from here counts as transient, so that an outage behind the function is not taken for a
bad event: it is tried for ever, unless `delivery.poison` is set.

`async def` functions run on the event loop, others in a thread. A call that takes longer than
`timeout` is given up; a thread cannot be stopped, so it keeps running, and
counts against `max_running`.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import threading
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from holdfast.deliver.exporter import (
    ALL_DELIVERED,
    Answer,
    Exporter,
    ExporterContext,
    Failure,
    FailureClass,
    all_failed,
)
from holdfast.deliver.sending import EXCEPTION_CODE
from holdfast.errors import BadConfig
from holdfast.own_thread import in_thread
from holdfast.settings import DurationS, FileSettings, SizeBytes
from holdfast.signals.event import Event
from holdfast.signals.signal import ANY_EVENTS, Takes

# Where packages name functions for `entry_point`. Whole exporters are in `holdfast.exporters`.
ENTRY_POINTS = "holdfast.exporter_functions"
REASON_CHARACTERS_MAX = 300

Function = Callable[[list[Event]], Any]


class Refusal(Exception):
    """Base of what a function may raise. The reason is logged: put no payload and no secret in."""

    kind: ClassVar[FailureClass] = FailureClass.TRANSIENT

    def __init__(self, reason: str = "", *, after_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after_s = after_s


class Retry(Refusal):
    """Not now; `after_s` says when to try again."""


class Permanent(Refusal):
    """These events will never be taken."""

    kind = FailureClass.PERMANENT


class TooLarge(Refusal):
    """These events are too large, alone or together."""

    kind = FailureClass.TOO_LARGE


class NotAuthorized(Refusal):
    """Our credentials are not accepted; no event will pass until somebody fixes that."""

    kind = FailureClass.AUTH


class Config(FileSettings):
    """A function that takes events."""

    function: str | None = None
    """Where it is: `package.module:name`, importable by the process."""

    entry_point: str | None = None
    """Its name in the entry-point group `holdfast.exporter_functions`, instead of `function`."""

    max_batch_events: int = Field(default=1, ge=1, le=10_000)
    """How many events one call is given at most."""

    max_batch_bytes: SizeBytes = Field(default=4 * 2**20, ge=1)
    """How many bytes of events one call is given; one event alone may be larger."""

    timeout: DurationS = Field(default=25.0, gt=0)
    """How long a call may take."""

    max_running: int = Field(default=8, ge=1, le=256)
    """How many calls may be under way, those included that were given up and did not end."""

    @model_validator(mode="after")
    def _names_one(self) -> Self:
        if (self.function is None) == (self.entry_point is None):
            raise ValueError("give either `function` or `entry_point`")
        if self.function is not None and not all(self.function.partition(":")[::2]):
            raise ValueError("`function` is written `package.module:name`")
        return self


def takes(config: Config) -> Takes:
    """Return what it can be given: a function may ask for the payload or for the document."""
    return ANY_EVENTS


def make(config: Config, context: ExporterContext) -> Exporter:
    """Return the exporter; the function is imported here."""
    return PythonExporter(_loaded(config), config, context.name)


class PythonExporter:
    """Calls one function."""

    def __init__(self, function: Function, config: Config, name: str) -> None:
        self._function = function
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004
        )
        self._timeout_s = config.timeout
        self._max_running = config.max_running
        self._name = name
        self._counting = threading.Lock()
        self._running = 0
        self.max_batch_events = config.max_batch_events
        self.max_batch_bytes = config.max_batch_bytes

    async def start(self) -> None:
        """Nothing to get ready."""

    async def close(self) -> None:
        """Nothing to close."""

    async def send(self, events: Sequence[Event]) -> Answer:
        if self._running >= self._max_running:
            reason = f"{self._running} earlier calls have not ended yet (`max_running`)"
            return all_failed(len(events), Failure(FailureClass.TRANSIENT, reason, "busy"))
        try:
            async with asyncio.timeout(self._timeout_s):
                result = await self._call(list(events))
        except Exception as error:
            return all_failed(len(events), self._failure(error))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return all_failed(len(events), self._failure(RuntimeError("cancelled")))
        return _answer(result, len(events))

    async def _call(self, events: list[Event]) -> Any:
        with self._counting:
            self._running += 1
        if not self._is_async:
            result = await in_thread(f"exporter {self._name}", lambda: self._call_here(events))
            return await result if inspect.isawaitable(result) else result
        try:
            return await self._function(events)
        finally:
            self._ended()

    def _call_here(self, events: list[Event]) -> Any:
        """Call in a thread; it counts as running until it has ended, also if it was given up."""
        try:
            return self._function(events)
        finally:
            self._ended()

    def _ended(self) -> None:
        with self._counting:
            self._running -= 1

    def _failure(self, error: Exception) -> Failure:
        if isinstance(error, Refusal):
            said = error.reason if error.reason.isprintable() else ascii(error.reason)
            reason = f"the function refused: {said[:REASON_CHARACTERS_MAX] or error.kind}"
            code = type(error).__name__
            return Failure(error.kind, reason, code, error.after_s)
        if isinstance(error, TimeoutError):
            reason = (
                f"the function did not return within {self._timeout_s:g} s, or timed out itself"
            )
            return Failure(FailureClass.TRANSIENT, reason, "timeout", maybe_delivered=True)
        # Only the type: the text of an unknown exception may hold anything.
        name = type(error).__name__
        return Failure(
            FailureClass.TRANSIENT,
            f"the function raised {name}",
            # So that the delivery loop may suspect the event, with `poison`.
            EXCEPTION_CODE + name,
            maybe_delivered=True,
        )


def _answer(result: Any, count: int) -> Answer:
    if result is None:
        return ALL_DELIVERED
    if isinstance(result, Answer) and set(result.failed) <= set(range(count)):
        return result
    reason = f"the function returned {type(result).__name__}, which is neither None nor an Answer"
    failure = Failure(FailureClass.TRANSIENT, reason, "bad_return", maybe_delivered=True)
    return all_failed(count, failure)


def _loaded(config: Config) -> Function:
    try:
        if config.function is not None:
            module, _, name = config.function.partition(":")
            found = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        else:
            found = _entry_point(config.entry_point or "").load()
    except Exception as error:
        raise _not_loaded(config, f"{type(error).__name__}: {error}") from error
    if not callable(found):
        raise _not_loaded(config, "it is not callable")
    return found


def _entry_point(name: str) -> Any:
    found = entry_points(group=ENTRY_POINTS, name=name)
    if not found:
        raise LookupError(f"no installed package has it in the group {ENTRY_POINTS}")
    return next(iter(found))


def _not_loaded(config: Config, why: str) -> BadConfig:
    return BadConfig(
        f"the function {config.function or config.entry_point} cannot be loaded: {why}",
        hint="it must be importable by this process: install its package, or set PYTHONPATH",
    )
