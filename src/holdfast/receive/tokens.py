"""Bearer tokens: who sends, for which namespaces it may speak, and how fast.

Tokens are looked up by a keyed hash that changes with every start. How long that takes says nothing
of the tokens themselves, and no plain token is kept.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path

from pydantic import Field

from holdfast.errors import BadConfig
from holdfast.receive.admission import ClientRate
from holdfast.receive.responses import Reason, Refused
from holdfast.seam import Seam
from holdfast.settings import Secret, Settings

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
