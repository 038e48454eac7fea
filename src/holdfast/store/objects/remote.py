"""Objects in a bucket: S3, Google Cloud Storage, Azure.

Every request has a timeout and is sent again a bounded number of times, here and not in the client
library: it would not repeat a put whose answer it lost, and ours can all be repeated. What a put
finds in its place is then most likely its own first try.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import obstore
import obstore.store
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    GenericError,
    JoinError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from holdfast.errors import CannotOpen, NotAllowed, ObjectMissing, StoreUnavailable
from holdfast.seam import Seam
from holdfast.store.objects.objects import ObjectExists, StoredObject, joined

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore
    from typing_extensions import Buffer

Result = TypeVar("Result")

# What S3 takes in one request.
DELETE_BATCH = 1000
LIST_PAGE = 1000
# An object that is written to learn the bucket's time.
CLOCK_KEY = "clock"
FIRST_PAUSE_S = 0.1
PAUSE_MAX_S = 5.0


class RemoteLimits(NamedTuple):
    """How long and how often to try."""

    request_timeout_s: float = 30.0
    retries: int = 4
    retry_timeout_s: float = 120.0
    # Puts on their way at once.
    connections: int = 8


class RemoteObjects:
    """Objects below a prefix of a bucket. Credentials and endpoint come from the environment."""

    def __init__(self, url: str, seam: Seam, limits: RemoteLimits) -> None:
        self._url = url
        self._clock = seam.clock
        self._randomness = seam.randomness
        self._limits = limits
        self._store = _connect(url, limits)
        self._closed = threading.Event()
        self._threads = ThreadPoolExecutor(limits.connections, thread_name_prefix="objects")

    def close(self) -> None:
        """Give up retries that wait, and end the threads."""
        self._closed.set()
        self._threads.shutdown(cancel_futures=True)

    def put(self, key: str, data: Sequence[Buffer]) -> None:
        # Taken by the same bytes is no clash: it is our own first try, whose answer was lost.
        whole = joined(data)
        if not self._create(key, whole) and self.get(key) != whole:
            raise ObjectExists(key)

    def put_many(self, items: Sequence[tuple[str, Sequence[Buffer]]]) -> None:
        for _ in self._threads.map(lambda item: self._create(item[0], joined(item[1])), items):
            pass

    def get(self, key: str, offset_bytes: int = 0, size_bytes: int | None = None) -> bytes:
        if offset_bytes == 0 and size_bytes is None:
            return self._try(key, lambda: bytes(obstore.get(self._store, key).bytes()))
        size_there = self._try(key, lambda: obstore.head(self._store, key)["size"])
        end = size_there if size_bytes is None else min(size_there, offset_bytes + size_bytes)
        if offset_bytes >= end:
            return b""
        return self._try(
            key, lambda: bytes(obstore.get_range(self._store, key, start=offset_bytes, end=end))
        )

    def delete_many(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), DELETE_BATCH):
            self._delete(keys[start : start + DELETE_BATCH])

    def list(self, prefix: str) -> Iterator[StoredObject]:
        folder = prefix.rpartition("/")[0]  # a bucket lists by whole parts of a path
        # Page by page, each a request that can be tried again. A generator of the client library
        # could not be continued after an error in the middle.
        last: str | None = None
        while page := self._try(folder, functools.partial(self._page, folder, last)):
            for meta in page:
                if meta["path"].startswith(prefix):
                    modified_s = meta["last_modified"].timestamp()
                    yield StoredObject(meta["path"], meta["size"], modified_s)
            last = page[-1]["path"]

    def now_s(self) -> float:
        """By the bucket's clock, since it is compared with the `modified_s` that the bucket
        reports. A bucket tells its time only with an object.
        """
        self._try(CLOCK_KEY, lambda: obstore.put(self._store, CLOCK_KEY, b"now"))
        head = self._try(CLOCK_KEY, lambda: obstore.head(self._store, CLOCK_KEY))
        return head["last_modified"].timestamp()

    # ---------------------------------------------------------------- insides

    def _create(self, key: str, data: bytes) -> bool:
        """Store an object; False if its name is taken."""
        try:
            self._try(key, lambda: obstore.put(self._store, key, data, mode="create"))
        except (AlreadyExistsError, PreconditionError):
            return False
        except ObjectMissing:
            raise CannotOpen(
                "the bucket does not exist", hint="create it, or correct the url", path=self._url
            ) from None
        return True

    def _delete(self, keys: Sequence[str]) -> None:
        try:
            self._try(keys[0], lambda: obstore.delete(self._store, keys))
        except ObjectMissing:
            # Some stores stop at the first one that is not there.
            for key in keys:
                with contextlib.suppress(ObjectMissing):
                    self._delete_one(key)

    def _delete_one(self, key: str) -> None:
        self._try(key, lambda: obstore.delete(self._store, key))

    def _page(self, folder: str, last: str | None) -> Sequence[ObjectMeta]:
        pages = obstore.list(self._store, folder or None, offset=last, chunk_size=LIST_PAGE)
        return next(iter(pages), [])

    def _try(self, key: str, call: Callable[[], Result]) -> Result:
        """Make a request, again if it fails for reasons that may pass."""
        give_up_s = self._clock.monotonic_s() + self._limits.retry_timeout_s
        pause_s = FIRST_PAUSE_S
        for attempt in itertools.count():
            try:
                return call()
            except FileNotFoundError:
                raise ObjectMissing(
                    "an object is missing",
                    hint="run `holdfast store fsck` to see what else is, and what it belongs to",
                    path=f"{self._url}/{key}",
                ) from None
            except (PermissionDeniedError, UnauthenticatedError) as error:
                raise NotAllowed(
                    "the object store does not let us in",
                    hint=f"check the credentials in the environment ({_first_line(error)})",
                    path=self._url,
                ) from error
            except (GenericError, JoinError) as error:
                # Given up before the pause and not after: nobody gains from waiting for a try that
                # is not made.
                late = self._clock.monotonic_s() + pause_s > give_up_s
                if attempt == self._limits.retries or late or self._closed.is_set():
                    raise self._unavailable(error, attempt + 1) from error
            self._closed.wait(pause_s * (0.5 + self._randomness.random() / 2))
            pause_s = min(pause_s * 2, PAUSE_MAX_S)
        raise AssertionError("BUG: counted to the end")

    def _unavailable(self, error: BaseError, tries: int) -> StoreUnavailable:
        return StoreUnavailable(
            f"the object store did not answer after {tries} tries: {_first_line(error)}",
            hint="run it again when it is back: what is stored already is not sent twice",
            path=self._url,
        )


def _connect(url: str, limits: RemoteLimits) -> ObjectStore:
    timeout = timedelta(seconds=limits.request_timeout_s)
    try:
        return obstore.store.from_url(
            url,
            # Without TLS only where the environment names an endpoint that has none.
            client_options={"timeout": timeout, "connect_timeout": timeout, "allow_http": True},
            retry_config={"max_retries": 0, "retry_timeout": timeout},
        )
    except (BaseError, ValueError) as error:
        raise CannotOpen(
            f"the object store cannot be used: {_first_line(error)}",
            hint="check the url, and the settings of the object store in the environment",
            path=url,
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
