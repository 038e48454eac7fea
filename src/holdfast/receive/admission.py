"""Admission: who may send, how fast, and how much may be under way at once.

Nothing waits here. Over a bound the sender is asked at once to come again, and keeps its event; a
queue of requests would only hold memory until their senders have timed out.

Bytes are counted when they have arrived, not when they are announced: otherwise two clients that
announce large bodies and send nothing could keep everybody else out.

Bearer tokens are looked up by a keyed hash that changes with every start. How long that takes says
nothing of the tokens themselves, and no plain token is kept but in the head that a connection
remembers while it is open (`fast_path.py`), which is compared with what comes on that connection.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path
from typing import Protocol

from pydantic import Field

from holdfast.errors import BadConfig
from holdfast.receive.listening import ListenerTls, parse_address
from holdfast.receive.responses import Reason, Refused
from holdfast.seam import Seam
from holdfast.seam.rate import TokenBucket
from holdfast.settings import LocalPath, Secret, Settings


class Admission:
    """Counts requests and body bytes in flight, each with a bound."""

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self._max_requests = max_requests
        self.max_bytes = max_bytes
        self.in_flight_requests = 0
        self.in_flight_bytes = 0
        self.received_bytes = 0

    def enter(self, announced_bytes: int) -> Admitted:
        """Return a place for a request; the caller must leave it again.

        The announced bytes are compared and not counted: a body that cannot fit now is refused
        before it is read, and one that is only announced takes nothing from the others.
        """
        if self.in_flight_requests >= self._max_requests:
            raise _busy("too many requests are under way")
        if self.in_flight_bytes + announced_bytes > self.max_bytes:
            raise _busy("too many bytes are under way")
        self.in_flight_requests += 1
        return Admitted(self)

    def has_room(self, size_bytes: int) -> bool:
        """Whether a request whose body has come may be under way."""
        return (
            self.in_flight_requests < self._max_requests
            and self.in_flight_bytes + size_bytes <= self.max_bytes
        )

    def take(self, size_bytes: int) -> None:
        """Count a request in whose body has come, and for which there is room; see `give_back`."""
        self.in_flight_requests += 1
        self.in_flight_bytes += size_bytes
        self.received_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Count a request out that `take` counted in."""
        self.in_flight_requests -= 1
        self.in_flight_bytes -= size_bytes


class Admitted:
    """One request in flight, and the bytes it holds."""

    __slots__ = ("_admission", "_held_bytes")

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._held_bytes = 0

    def received(self, size_bytes: int) -> None:
        """Count bytes as they came, and hold them, or raise `Refused`."""
        self._admission.received_bytes += size_bytes
        self.hold(size_bytes)

    def hold(self, size_bytes: int) -> None:
        """Hold some more bytes, or raise `Refused`."""
        admission = self._admission
        if admission.in_flight_bytes + size_bytes > admission.max_bytes:
            raise _busy("too many bytes are under way")
        admission.in_flight_bytes += size_bytes
        self._held_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Give back some of what is held."""
        self._admission.in_flight_bytes -= size_bytes
        self._held_bytes -= size_bytes

    def leave(self) -> None:
        """Give everything back; called once."""
        self._admission.in_flight_requests -= 1
        self._admission.in_flight_bytes -= self._held_bytes
        self._held_bytes = 0


def _busy(message: str) -> Refused:
    return Refused(Reason.BUSY, message, "send it again after the seconds in Retry-After")


class ClientRate(TokenBucket):
    """How fast one producer may send. May be overdrawn by one batch.

    A batch is only counted once it is read; refusing it then would refuse it for ever if it is
    larger than the burst.
    """

    def hold_to_rate(self) -> None:
        """Count one event, or raise `Refused`."""
        wait_s = self.wait_s()
        if wait_s > 0:
            raise Refused(
                Reason.RATE,
                "this producer sends faster than it may",
                "send it again after the seconds in Retry-After; see tokens.events_per_s",
                retry_after_s=wait_s,
            )
        self.charge(1)


_SCHEME = b"bearer "
_KEY_BYTES = 32
_UNAUTHORIZED_HEADERS = ((b"www-authenticate", b'Bearer realm="holdfast"'),)


class TokenSettings(Settings):
    """One producer that may send."""

    name: str = Field(min_length=1, max_length=64)
    """Stands in the headers of its events and in dead letters; not secret."""
    token: Secret = Field(min_length=1)
    """What it sends as `Authorization: Bearer …`; use `${env:NAME}` or `${file:PATH}`."""
    namespaces: tuple[str, ...] = ("*",)
    """Patterns (`*`, `?`, `[…]`) of the job and dataset namespaces it may speak for."""
    references: tuple[str, ...] = ()
    """Patterns of further namespaces that the standard facets of its events may name: those of
    parent jobs, dependencies, symlinks and column lineage."""
    events_per_s: float | None = Field(default=None, gt=0)
    """Its rate; more is answered 503 with `Retry-After`. Unlimited by default."""
    burst_events: int = Field(default=1000, ge=1)
    """How many events may come at once before `events_per_s` holds."""


@dataclass(frozen=True)
class TokenClient:
    """Who sent a request."""

    # Empty if no tokens are asked for.
    name: str = ""
    # None: any.
    namespaces: tuple[re.Pattern[str], ...] | None = None
    # What its facets may name besides.
    references: tuple[re.Pattern[str], ...] = ()
    bucket: ClientRate | None = None
    # What is stored beside each of its events.
    event_headers: Mapping[str, str] | None = None


ANYBODY = TokenClient()


class Tokens:
    """All producers that may send. With none, anybody may."""

    def __init__(self, settings: Iterable[TokenSettings], seam: Seam) -> None:
        self._key = seam.randomness.randbytes(_KEY_BYTES)
        self._clients: dict[bytes, TokenClient] = {}
        for one in settings:
            digest = self._digest(one.token.get_secret_value().encode())
            if digest in self._clients:
                raise BadConfig(
                    f"the token of {one.name!r} is another producer's too",
                    hint="give every producer a token of its own",
                )
            self._clients[digest] = _client(one, seam)

    def client(self, authorization: bytes) -> TokenClient:
        """Return who sends with this `Authorization` header (empty: none); raises `Refused`."""
        if not self._clients:
            return ANYBODY
        if authorization[: len(_SCHEME)].lower() != _SCHEME:
            raise _unauthorized("a bearer token is needed")
        digest = self._digest(authorization[len(_SCHEME) :].strip())
        client = self._clients.get(digest)
        if client is None:
            raise _unauthorized("the bearer token is not known")
        return client

    def _digest(self, token: bytes) -> bytes:
        return hmac.digest(self._key, token, hashlib.sha256)


class ProtectedSettings(Protocol):
    """What says who may send."""

    @property
    def tokens(self) -> tuple[TokenSettings, ...]:
        """Producers that may send."""

    @property
    def token_file(self) -> LocalPath | None:
        """A file with more of them."""

    @property
    def tls(self) -> ListenerTls | None:
        """Speak TLS."""

    @property
    def allow_anonymous(self) -> bool:
        """Listen for other machines though anybody may send."""


def check_protected(settings: ProtectedSettings, listening: Mapping[str, str]) -> None:
    """Raise `ValueError` if other machines may send, and nobody is asked who they are.

    An error, not a warning: a warning scrolls by, and what is accepted from strangers takes disk
    and is delivered under the name of this gateway. `listening` has addresses by their settings.
    """
    mutual = settings.tls is not None and settings.tls.client_ca_file is not None
    asks = bool(settings.tokens) or settings.token_file is not None or mutual
    for key, address in listening.items():
        if not asks and not settings.allow_anonymous and not parse_address(address).is_loopback:
            raise ValueError(
                f"{key}: {address} is open to other machines and nobody is asked who they are;"
                " set tokens, token_file or tls.client_ca_file, or allow_anonymous: true"
            )


def token_settings(config: ProtectedSettings, base_dir: Path) -> list[TokenSettings]:
    """Return the producers of a configuration and those of its file, as it is now."""
    if config.token_file is None:
        return list(config.tokens)
    return [*config.tokens, *read_token_file(base_dir / config.token_file)]


def read_token_file(path: Path) -> list[TokenSettings]:
    """Read producers from a file: `NAME TOKEN [PATTERN …]` in each line, or `# a comment`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(
            f"the token file cannot be read: {type(error).__name__}",
            hint="check token_file, and that the gateway may read it",
            path=str(path),
        ) from error
    found = [
        _from_line(words, number, path)
        for number, line in enumerate(lines, start=1)
        if (words := line.split()) and not words[0].startswith("#")
    ]
    if not found:
        # Without a token nobody would be asked for one: never what a token file means.
        raise BadConfig(
            "the token file names nobody",
            hint="write NAME TOKEN for each producer, or leave token_file out",
            path=str(path),
        )
    return found


def _from_line(words: list[str], number: int, path: Path) -> TokenSettings:
    try:
        name, token, *namespaces = words
        return TokenSettings(name=name, token=Secret(token), namespaces=tuple(namespaces) or ("*",))
    except ValueError:  # too few words, or pydantic's: neither is shown, it may hold the token
        raise BadConfig(
            f"line {number} of the token file is not a producer",
            hint="write NAME (at most 64 characters), TOKEN, and its namespaces if not all",
            path=str(path),
        ) from None


def _compiled(patterns: Iterable[str]) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(translate(pattern)) for pattern in patterns)


def _client(one: TokenSettings, seam: Seam) -> TokenClient:
    patterns = None if "*" in one.namespaces else _compiled(one.namespaces)
    bucket = None
    if one.events_per_s is not None:
        bucket = ClientRate(one.events_per_s, one.burst_events, seam.clock)
    return TokenClient(one.name, patterns, _compiled(one.references), bucket, {"client": one.name})


def _unauthorized(message: str) -> Refused:
    return Refused(
        Reason.UNAUTHORIZED,
        message,
        "send the header Authorization: Bearer TOKEN",
        headers=_UNAUTHORIZED_HEADERS,
    )
