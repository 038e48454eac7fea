"""A bucket in memory, on which a request can fail, get lost, land late, land twice, or kill."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import NoReturn

from tests.patience import PATIENCE_S

from holdfast.errors import NotAllowed, ObjectMissing, StoreUnavailable
from holdfast.seam.bucket import Bucket, BucketAccess, BucketObject


class BucketTrouble(StrEnum):
    """What happens to one put."""

    REFUSE = "nothing happens, and an error is raised"
    DENY = "the credentials are not good"
    LOSE_ANSWER = "it lands, and an error is raised"
    LAND_LATE = "an error is raised; it lands when the test says so"
    TWICE = "it lands, and once more when the test says so"
    KILL_BEFORE = "the process dies before it is sent"
    KILL_MIDWAY = "the process dies when half of it is sent"
    KILL_AFTER = "it lands, and the process dies"


class FakeBucket:
    """Outlives the processes that use it; `troubles` strike the nth put (from 1)."""

    def __init__(self) -> None:
        self.url = ""
        self.objects: dict[str, bytes] = {}
        self.puts: list[str] = []
        self.troubles: dict[int, BucketTrouble] = {}
        # While this is set, every request fails.
        self.away: Exception | None = None
        # The next so many reads fail.
        self.failing_gets = 0
        self.gets: list[tuple[str, int, int]] = []
        self.die: Callable[[], NoReturn] | None = None
        # While it is clear, every put waits.
        self.go_on = threading.Event()
        self.go_on.set()
        self._late: list[tuple[str, bytes]] = []
        self._lock = threading.Lock()

    def open(self, access: BucketAccess) -> Bucket:
        self.url = access.url
        return self

    def copy(self) -> FakeBucket:
        """Return another with the same objects, and what is still under way to it."""
        other = FakeBucket()
        other.objects, other._late = dict(self.objects), list(self._late)
        return other

    def land_late(self) -> None:
        self.objects.update(self._late)
        self._late.clear()

    def put(self, key: str, size_bytes: int, pieces: Iterator[bytes]) -> None:
        whole = b"".join(pieces)
        assert len(whole) == size_bytes
        with self._lock:
            self.puts.append(key)
            trouble = self.troubles.get(len(self.puts))
        assert self.go_on.wait(PATIENCE_S)
        self._require_there()
        match trouble:
            case BucketTrouble.KILL_BEFORE | BucketTrouble.KILL_MIDWAY:
                assert self.die is not None
                self.die()
            case BucketTrouble.REFUSE:
                raise StoreUnavailable("refused", hint="")
            case BucketTrouble.DENY:
                raise NotAllowed("denied", hint="")
            case BucketTrouble.LAND_LATE:
                self._late.append((key, whole))
                raise StoreUnavailable("no answer", hint="")
        self.objects[key] = whole
        match trouble:
            case BucketTrouble.TWICE:
                self._late.append((key, whole))
            case BucketTrouble.KILL_AFTER:
                assert self.die is not None
                self.die()
            case BucketTrouble.LOSE_ANSWER:
                raise StoreUnavailable("no answer", hint="")

    def get(self, key: str, offset_bytes: int, size_bytes: int) -> bytes:
        self._require_there()
        self.gets.append((key, offset_bytes, size_bytes))
        if self.failing_gets:
            self.failing_gets -= 1
            raise StoreUnavailable("no answer", hint="")
        if key not in self.objects:
            raise ObjectMissing("no such object", hint="")
        return self.objects[key][offset_bytes : offset_bytes + size_bytes]

    def list(self, folder: str) -> Iterator[BucketObject]:
        self._require_there()
        for key, whole in sorted(self.objects.items()):
            if not folder or key.startswith(f"{folder}/"):
                yield BucketObject(key, len(whole))

    def sync(self, folder: str) -> None:
        self._require_there()

    def _require_there(self) -> None:
        if self.away is not None:
            raise self.away
