"""Every exception Holdfast raises on purpose.

    HoldfastError
    ├── BadInput              what was given cannot be stored or asked for; nothing was written
    │   ├── BundleTooLarge    one bundle is over `append.max_bundle_bytes`
    │   └── StaleEpoch        the producer has already moved past this epoch
    ├── NotAccepted           the append was not acknowledged; `stored` says whether it may exist
    │   ├── Overloaded        a bound is reached; try again after `retry_after_s`
    │   ├── DiskFull          the disk refused the bytes
    │   ├── StorageFailed     the disk failed
    │   └── QuiverClosed      the quiver was closed, or is closing
    ├── ReaderError           a subscriber asked for what cannot be
    │   ├── UnknownSubscriber it is not registered (or no longer)
    │   ├── Fenced            another reader attached under the same name
    │   ├── UnknownPosition   the position was never given out, or is resolved already
    │   └── DataLoss          bundles it had not read yet were dropped, expired or damaged
    ├── TransactionEnded      the transaction was committed, aborted, or its lease lapsed
    ├── CannotOpen            the data directory cannot be opened
    │   ├── DirectoryLocked   another process owns it
    │   ├── UnknownFormat     it was written by another format version
    │   ├── WrongQuiver       it is not the quiver that was asked for
    │   └── DatabaseLost      a store's database of references is not there, or another store's
    ├── NotInstalled          a package of an extra is needed, and is not installed
    ├── BadConfig             the configuration is wrong; `findings` says where, all of them at once
    ├── NotAllowed            a server does not know the caller, or does not let it do that
    ├── Forked                a forked child used what its parent opened
    ├── OwnerGone             the process that owns the directory ended, or did not answer in time
    ├── PipelineFailed        a query of a pipeline ended with an error
    │   └── PipelineDiskFull  there is no room for its state, its checkpoint or its results
    ├── StoreError            the store cannot do what it was asked
    │   ├── ObjectMissing     an object that should be there is not
    │   ├── StoreUnavailable  the object store did not answer; the request may have landed
    │   ├── LeaseLost         a job's lease lapsed; what it did not commit will be collected
    │   ├── ChunkGone         a chunk that was to be referred to is not stored, or is dying
    │   ├── UnknownCommit     there is no commit of that name
    │   ├── UnknownPath       there is no such file in a file set
    │   └── CommitExists      there is another commit of that name
    ├── Damaged               bytes on disk do not match their checksum
    └── CheckFailed           `prove` or `bench` found a broken promise

A bug in Holdfast itself is never one of these: it is an `AssertionError` that begins with "BUG:".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal, NamedTuple, Self

Stored = Literal["no", "maybe"]


class HoldfastError(Exception):
    """Base of all: what happened, where, and what to do next."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str, path: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.path = path

    def __str__(self) -> str:
        where = f" [{self.path}]" if self.path else ""
        return f"{self.message}{where}. {self.hint}"


class BadInput(HoldfastError):
    """What was given cannot be stored or asked for; nothing was written."""

    exit_code = 2


class BundleTooLarge(BadInput):
    """One bundle is over `append.max_bundle_bytes`."""


class StaleEpoch(BadInput):
    """The producer has already appended a newer epoch."""


class NotAccepted(HoldfastError):
    """The append was not acknowledged.

    `stored` is "no" when the bundle certainly does not exist, and "maybe" when the disk failed in
    a way that may let it reappear after a restart.
    """

    exit_code = 75

    def __init__(
        self,
        message: str,
        *,
        hint: str,
        path: str | None = None,
        stored: Stored = "no",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, hint=hint, path=path)
        self.stored: Stored = stored
        self.retry_after_s = retry_after_s

    def for_later(self) -> Self:
        """Return this error for an append that came later, and was certainly not stored.

        A new one each time: an exception that is raised again keeps the frames of every raise.
        """
        return type(self)(
            self.message, hint=self.hint, path=self.path, retry_after_s=self.retry_after_s
        )


class Overloaded(NotAccepted):
    """A bound is reached; nothing is broken, try again later."""


class DiskFull(NotAccepted):
    """The disk refused the bytes (no space, or a quota)."""


class StorageFailed(NotAccepted):
    """The disk failed to write or to sync."""


class QuiverClosed(NotAccepted):
    """The quiver was closed, or is closing."""


class ReaderError(HoldfastError):
    """A subscriber asked for what cannot be."""


class UnknownSubscriber(ReaderError):
    """It is not registered, or no longer."""


class Fenced(ReaderError):
    """Another reader attached under the same name; this one must stop."""


class UnknownPosition(ReaderError):
    """The position was never given out, or is resolved already."""


class DataLoss(ReaderError):
    """Bundles that were not read yet are gone; `ranges` says which, and why.

    Each range is (first seq, end seq, outcome). `accept_losses()` goes on behind them.
    """

    def __init__(self, message: str, *, hint: str, ranges: list[tuple[int, int, str]]) -> None:
        super().__init__(message, hint=hint)
        self.ranges = ranges


class TransactionEnded(HoldfastError):
    """The transaction was already committed or aborted, or its lease lapsed."""


class CannotOpen(HoldfastError):
    """The data directory cannot be opened."""

    exit_code = 78


class DirectoryLocked(CannotOpen):
    """Another process owns the data directory."""


class UnknownFormat(CannotOpen):
    """The data directory was written by another format version."""


class WrongQuiver(CannotOpen):
    """The data directory holds another quiver than the one asked for."""


class DatabaseLost(CannotOpen):
    """The database of references is not there, or belongs to another store."""


class NotInstalled(HoldfastError):
    """A package of an extra is needed, and is not installed."""

    exit_code = 78


class ConfigFinding(NamedTuple):
    """One thing that is wrong with a configuration, or odd, and where. Lines count from 1."""

    file: str
    line: int
    column: int
    message: str
    hint: str = ""
    severity: Literal["error", "warning"] = "error"


class BadConfig(HoldfastError):
    """The configuration is wrong; `findings` says where, all of them at once."""

    exit_code = 78

    def __init__(
        self,
        message: str,
        *,
        hint: str,
        path: str | None = None,
        findings: Iterable[ConfigFinding] = (),
    ) -> None:
        super().__init__(message, hint=hint, path=path)
        self.findings = tuple(findings)


class NotAllowed(HoldfastError):
    """A server does not know the caller, or does not let it do what it asked for."""

    exit_code = 77


class Forked(HoldfastError):
    """A forked child used what its parent opened; nothing was done, and the parent is unharmed."""


class OwnerGone(HoldfastError):
    """The process that owns the directory ended, or did not answer in time."""

    exit_code = 75


class PipelineFailed(HoldfastError):
    """A query of a pipeline ended with an error; nothing is lost, it can be started again."""


class PipelineDiskFull(PipelineFailed):
    """There is no room for a query's state, checkpoint or results; it goes on when there is."""


class StoreError(HoldfastError):
    """The store cannot do what it was asked."""


class ObjectMissing(StoreError):
    """An object that should be there is not."""


class StoreUnavailable(StoreError):
    """The object store did not answer in time, or refused for now; the request may have landed."""

    exit_code = 75


class LeaseLost(StoreError):
    """A job's lease lapsed; what it wrote and did not commit will be collected."""


class ChunkGone(StoreError):
    """A chunk that was to be referred to is not stored, or is being collected."""


class UnknownCommit(StoreError):
    """There is no commit of that name."""


class UnknownPath(StoreError):
    """There is no such file in the file set."""


class CommitExists(StoreError):
    """There is another commit of that name."""


class Damaged(HoldfastError):
    """Bytes on disk do not match their checksum."""

    exit_code = 65


class CheckFailed(HoldfastError):
    """`prove` or `bench` found a promise that does not hold."""

    exit_code = 3
