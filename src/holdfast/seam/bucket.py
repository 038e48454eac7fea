"""Buckets: S3, Google Cloud Storage, Azure, one request at a time.

Nothing is tried again here: whoever asks knows best when, and whether a request may be repeated.
One whose answer was lost may have landed, and may still land much later; so what is put under one
name twice has to be the same both times.

A large object is sent in parts, of which no more than `PARTS_AT_ONCE` are in memory. It appears
when all of them are there. Parts whose sender was killed stay behind unseen, until a lifecycle rule
of the bucket removes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from holdfast.errors import CannotOpen, NotAllowed, NotInstalled, ObjectMissing, StoreUnavailable
from holdfast.extras import not_installed

if TYPE_CHECKING:
    from obstore.store import ObjectStore

Result = TypeVar("Result")

# Above this an object is sent in parts of this size. Stores take 10,000 parts of one object.
PART_BYTES = 8 * 2**20
PARTS_AT_ONCE = 3
OBJECT_BYTES_MAX = 10_000 * PART_BYTES
# What a store tells of at once.
_PAGE_OBJECTS = 1000
# What the client library says of an address that it may not use.
_NO_TLS = "builder error"


@dataclass(frozen=True)
class BucketAccess:
    """Which bucket, and how it is reached; what is not said here is in the environment."""

    # With the prefix below which all keys are.
    url: str
    endpoint: str | None = None
    allow_http: bool = False
    # By the names of the client library. Among them are secrets.
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    request_timeout_s: float = 30.0


class BucketObject(NamedTuple):
    """One object as a listing shows it."""

    key: str
    size_bytes: int


class Bucket(Protocol):
    """Objects below a prefix. Every call is one try, and may raise `NotAllowed`, `ObjectMissing`
    (of a put: the bucket is missing) or `StoreUnavailable`.
    """

    url: str

    def put(self, key: str, size_bytes: int, pieces: Iterator[bytes]) -> None:
        """Store an object as a whole, in the place of one of that name; durable when it returns."""

    def get(self, key: str, offset_bytes: int, size_bytes: int) -> bytes:
        """Return a part of an object; less than asked for where it ends, but not behind that."""

    def list(self, folder: str) -> Iterator[BucketObject]:
        """Yield the objects in a folder and below it; "": all there are."""

    def sync(self, folder: str) -> None:
        """Make durable what a listing of a folder shows; it may be of a put that failed."""


OpenBucket = Callable[[BucketAccess], Bucket]


def open_bucket(access: BucketAccess) -> Bucket:
    """Return a bucket of a provider. Nothing is asked of it yet."""
    return _RemoteBucket(access)


class _RemoteBucket:
    """A bucket as the client library reaches it."""

    def __init__(self, access: BucketAccess) -> None:
        self.url = access.url
        self._allows_http = access.allow_http
        self._store = _connect(access)

    def put(self, key: str, size_bytes: int, pieces: Iterator[bytes]) -> None:
        import obstore

        if size_bytes <= PART_BYTES:
            whole = b"".join(pieces)
            self._try(key, lambda: obstore.put(self._store, key, whole, use_multipart=False))
            return
        self._try(
            key,
            lambda: obstore.put(
                self._store,
                key,
                pieces,
                use_multipart=True,
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_AT_ONCE,
            ),
        )

    def get(self, key: str, offset_bytes: int, size_bytes: int) -> bytes:
        import obstore

        return self._try(
            key,
            lambda: bytes(
                obstore.get_range(self._store, key, start=offset_bytes, length=size_bytes)
            ),
        )

    def list(self, folder: str) -> Iterator[BucketObject]:
        import obstore

        pages = iter(
            self._try(
                folder,
                lambda: obstore.list(self._store, prefix=folder or None, chunk_size=_PAGE_OBJECTS),
            )
        )
        while (page := self._try(folder, lambda: next(pages, None))) is not None:
            for one in page:
                yield BucketObject(one["path"], one["size"])

    def sync(self, folder: str) -> None:
        """What a store shows is durable."""

    def _try(self, key: str, call: Callable[[], Result]) -> Result:
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        try:
            return call()
        except FileNotFoundError:
            raise ObjectMissing(
                "the object, or its bucket, does not exist",
                hint="check the address",
                path=f"{self.url}/{key}",
            ) from None
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise NotAllowed(
                "the object store does not let us in",
                hint=f"check the credentials, and what they may do ({_first_line(error)})",
                path=self.url,
            ) from error
        except BaseError as error:
            hint = "see that it runs, and that it can be reached from here"
            if _NO_TLS in str(error) and not self._allows_http:
                hint = "its endpoint has no TLS; if that is meant, say `allow_http: true`"
            raise StoreUnavailable(
                f"the object store did not answer: {_first_line(error)}", hint=hint, path=self.url
            ) from error


def _connect(access: BucketAccess) -> ObjectStore:
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ModuleNotFoundError as error:
        raise _missing() from error
    timeout = timedelta(seconds=access.request_timeout_s)
    options = dict(access.options)
    if access.endpoint is not None:
        options["base_url" if access.url.lower().startswith("gs://") else "endpoint"] = (
            access.endpoint
        )
    # By names that are known when it runs, which the library's types cannot say.
    connect: Callable[..., ObjectStore] = from_url
    try:
        return connect(
            access.url,
            config=options or None,
            client_options={
                "timeout": timeout,
                "connect_timeout": timeout,
                "allow_http": access.allow_http,
            },
            retry_config={"max_retries": 0, "retry_timeout": timeout},
        )
    except (BaseError, ValueError) as error:
        raise CannotOpen(
            f"the bucket cannot be used: {_first_line(error)}",
            hint="check the address, and the settings of the object store",
            path=access.url,
        ) from error


def _missing() -> NotInstalled:
    return not_installed("bucket", "obstore")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
