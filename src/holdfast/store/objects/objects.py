"""What a store asks of the place where its objects lie.

An object is written once, under a name that did not exist, and never changed. That is all the
atomicity the store needs: whoever may write a name twice must be ready to find it there. A request
to a remote store can time out and still land, so putting the same bytes under the same name again
is no conflict; it is how such a request is finished.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer


class StoredObject(NamedTuple):
    """One object as a listing shows it."""

    key: str
    size_bytes: int
    modified_s: float


class ObjectExists(Exception):
    """Another object has this name already."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


class Objects(Protocol):
    """Named, immutable bytes. Keys are relative paths with `/` between their parts."""

    def put(self, key: str, data: Sequence[Buffer]) -> None:
        """Store a new object, durable when this returns; `ObjectExists` if others' bytes are there.

        An object of the same name with the same bytes counts as put.
        """

    def put_many(self, items: Sequence[tuple[str, Sequence[Buffer]]]) -> None:
        """Store new objects, all durable when this returns; a name that exists is skipped.

        For names that stand for their content, so that whoever was first wrote the same.
        """

    def get(self, key: str, offset_bytes: int = 0, size_bytes: int | None = None) -> bytes:
        """Return an object, or a part of it (cut where it ends), or raise `ObjectMissing`."""

    def delete_many(self, keys: Sequence[str]) -> None:
        """Remove objects; one that is missing is removed already."""

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield all objects whose name begins with `prefix`, in no order."""

    def now_s(self) -> float:
        """Return the time by the clock that dates the objects."""

    def close(self) -> None:
        """End what works in the background; nothing is asked for any more."""


def joined(data: Sequence[Buffer]) -> bytes:
    """Return some buffers as one."""
    return b"".join(data)
