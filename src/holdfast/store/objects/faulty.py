"""Objects that fail as remote stores do: a wrapper of any other.

A fault names an operation, which call of it (`nth`, from 1), and what happens:

    refused       503: nothing happens, and an error is raised
    answer_lost   the request lands, and an error is raised
    lands_late    an error is raised; the request lands when the test calls `land_late`
    twice         the request lands twice
    missing       404, though the object is there
    exists        409 or 412, though the name is free
    stale         LIST shows what there was at the listing before
    delayed       the request waits until the test sets `go_on`
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from holdfast.errors import ObjectMissing, StoreUnavailable
from holdfast.store.objects.objects import ObjectExists, Objects, StoredObject

if TYPE_CHECKING:
    from typing_extensions import Buffer

# A delayed request that nobody lets go on is a broken test.
DELAY_MAX_S = 60.0


class ObjectFaultKind(StrEnum):
    """What happens when a fault strikes."""

    REFUSED = "refused"
    ANSWER_LOST = "answer_lost"
    LANDS_LATE = "lands_late"
    TWICE = "twice"
    MISSING = "missing"
    EXISTS = "exists"
    STALE = "stale"
    DELAYED = "delayed"


@dataclass(frozen=True)
class ObjectFault:
    """Strike the `nth` call of `operation` (put, get, delete, list), and `times - 1` after it.

    Putting many objects counts each of them as one put; deleting many is one delete.
    """

    operation: str
    kind: ObjectFaultKind
    nth: int = 1
    times: int = 1


class FaultyObjects:
    """Passes every call on to `inner`, except where a fault strikes."""

    def __init__(self, inner: Objects, faults: Iterable[ObjectFault] = ()) -> None:
        self.go_on = threading.Event()
        self._inner = inner
        self._faults = list(faults)
        self._calls: Counter[str] = Counter()
        self._late: list[Callable[[], None]] = []
        self._last_listing: dict[str, list[StoredObject]] = {}
        self._lock = threading.Lock()

    def calls(self) -> dict[str, int]:
        """Return how often each operation was asked for."""
        with self._lock:
            return dict(self._calls)

    def strike(self, operation: str, kind: ObjectFaultKind, times: int = 1) -> None:
        """Let the next calls of an operation fail."""
        with self._lock:
            nth = self._calls[operation] + 1
            self._faults.append(ObjectFault(operation, kind, nth, times))

    def heal(self) -> None:
        """Forget all faults that have not struck yet; what is late stays late."""
        with self._lock:
            self._faults.clear()

    def land_late(self) -> int:
        """Let every request that was thought lost arrive; return how many there were."""
        with self._lock:
            late, self._late = self._late, []
        for request in late:
            request()
        return len(late)

    def put(self, key: str, data: Sequence[Buffer]) -> None:
        kept = [bytes(memoryview(buffer)) for buffer in data]
        self._change("put", key, lambda: self._inner.put(key, kept))

    def put_many(self, items: Sequence[tuple[str, Sequence[Buffer]]]) -> None:
        for key, data in items:
            self._put_one_of_many(key, [bytes(memoryview(buffer)) for buffer in data])

    def get(self, key: str, offset_bytes: int = 0, size_bytes: int | None = None) -> bytes:
        kind = self._enter("get")
        if kind is ObjectFaultKind.MISSING:
            raise ObjectMissing("injected: 404", hint="none", path=key)
        if kind in (ObjectFaultKind.REFUSED, ObjectFaultKind.ANSWER_LOST):
            raise _unavailable(key)
        return self._inner.get(key, offset_bytes, size_bytes)

    def delete_many(self, keys: Sequence[str]) -> None:
        kept = list(keys)
        self._change("delete", ", ".join(kept[:3]), lambda: self._inner.delete_many(kept))

    def list(self, prefix: str) -> Iterator[StoredObject]:
        kind = self._enter("list")
        if kind in (ObjectFaultKind.REFUSED, ObjectFaultKind.ANSWER_LOST):
            raise _unavailable(prefix)
        if kind is ObjectFaultKind.STALE:
            return iter(self._last_listing.get(prefix, []))
        listing = list(self._inner.list(prefix))
        self._last_listing[prefix] = listing
        return iter(listing)

    def now_s(self) -> float:
        return self._inner.now_s()

    def close(self) -> None:
        self._inner.close()

    def _put_one_of_many(self, key: str, data: Sequence[bytes]) -> None:
        self._change("put", key, lambda: self._inner.put_many([(key, data)]))

    def _enter(self, operation: str) -> ObjectFaultKind | None:
        with self._lock:
            self._calls[operation] += 1
            call = self._calls[operation]
            kinds = [
                fault.kind
                for fault in self._faults
                if fault.operation == operation and fault.nth <= call < fault.nth + fault.times
            ]
        if ObjectFaultKind.DELAYED in kinds and not self.go_on.wait(DELAY_MAX_S):
            raise AssertionError("nobody let a delayed request go on")
        return next((kind for kind in kinds if kind is not ObjectFaultKind.DELAYED), None)

    def _change(self, operation: str, key: str, request: Callable[[], None]) -> None:
        kind = self._enter(operation)
        if kind is ObjectFaultKind.EXISTS:
            raise ObjectExists(key)
        if kind is ObjectFaultKind.LANDS_LATE:
            with self._lock:
                self._late.append(request)
        if kind in (ObjectFaultKind.REFUSED, ObjectFaultKind.LANDS_LATE):
            raise _unavailable(key)
        request()
        if kind is ObjectFaultKind.TWICE:
            request()
        if kind is ObjectFaultKind.ANSWER_LOST:
            raise _unavailable(key)


def _unavailable(key: str) -> StoreUnavailable:
    return StoreUnavailable("injected: no answer", hint="try again", path=key)
