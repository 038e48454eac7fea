"""What an exporter is: something that takes events, and says honestly what became of them.

An exporter sends once. When to try again, what to set aside and what to write into the ledger is
the loop's business; an exporter only tells failures apart, because only it knows its protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from holdfast.seam import Seam


class FailureClass(StrEnum):
    """What kind of no it was: the first two are about the destination, the last two the event."""

    # No connection, a time-out, any answer that is not about the event: it is tried for ever.
    TRANSIENT = "transient"
    # Our credentials: 401, 403, 407, a certificate. Trying on would lock the account.
    AUTH = "auth"
    # The request is too large: 413, or the broker's message limit.
    TOO_LARGE = "too_large"
    # This event will never be taken: 400, 422, or a function that says so.
    PERMANENT = "permanent"


@dataclass(frozen=True)
class Failure:
    """Why events were not taken. `reason` is for people and never holds a secret or a payload."""

    kind: FailureClass
    reason: str
    # HTTP status or a code of the protocol; the same for the same cause.
    code: str = ""
    retry_after_s: float | None = None
    # Whether the destination may have taken it anyway (a time-out after the request was sent).
    maybe_delivered: bool = False

    def __str__(self) -> str:
        """Return it as people read it: class, code, reason."""
        code = f" {self.code}" if self.code else ""
        return f"{self.kind.value}{code}: {self.reason}"


@dataclass(frozen=True)
class Answer:
    """What became of the events of one send, by their index. What is not named was delivered."""

    failed: Mapping[int, Failure] = field(default_factory=dict)
    # Items of events that were delivered, and that the destination says it left out, by signal.
    rejected_items: Mapping[str, int] = field(default_factory=dict)


ALL_DELIVERED = Answer()


def all_failed(count: int, failure: Failure) -> Answer:
    """Return the answer to a send of which nothing was taken."""
    return Answer(dict.fromkeys(range(count), failure))


@dataclass(frozen=True)
class ExporterContext:
    """Where an exporter stands: its name, the outside world, and the folder of its paths."""

    # Of the destination.
    name: str
    seam: Seam
    # The folder of the configuration file; relative paths in it begin here.
    base_dir: Path
    # The folder of the gateway's data, for what an exporter has to remember.
    data_dir: Path


class Exporter(Protocol):
    """A way out. One loop uses it; `send` is not called twice at once unless lanes are parallel.

    It is given the units that its module's `takes(config)` names: events of raw slots if there is
    no such function.

    One whose `send` ends at once when it is cancelled, whatever it is waiting for, may have a true
    attribute `ends_when_cancelled`: then a send costs less.
    """

    # How many events and bytes one `send` takes; 1 event if the dialect has no batches.
    max_batch_events: int
    max_batch_bytes: int

    async def start(self) -> None:
        """Get ready; must not fail because the destination is down."""

    async def send(self, events: Sequence[Any]) -> Answer:
        """Send once. Returns what became of each unit; raises only for a bug."""

    async def close(self) -> None:
        """Let go of connections and files; what was answered as delivered is safe."""
