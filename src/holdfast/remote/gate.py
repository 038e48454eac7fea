"""The gate of a Flight server: who may call, and how many at once.

It stands before every call, as the one middleware. Tokens are looked up by a keyed hash that
changes with every start: how long that takes says nothing of the tokens, and no plain one is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pyarrow import flight

from holdfast.errors import BadConfig, HoldfastError, NotAllowed, Overloaded
from holdfast.remote.faults import told
from holdfast.remote.settings import ALL_RIGHTS, Right

GATE = "gate"
_SCHEME = "bearer "


@dataclass(frozen=True)
class Caller:
    """Who calls."""

    name: str
    rights: frozenset[Right]

    def require(self, right: Right) -> None:
        """Raise unless the client may do that."""
        if right not in self.rights:
            raise NotAllowed(
                f"{self.name!r} may not {right}", hint=f"give its token the right {right!r}"
            )


ANYBODY = Caller("anybody", frozenset(ALL_RIGHTS))


@dataclass(frozen=True)
class CallerToken:
    """One token and whose it is, as the serving process is told it."""

    name: str
    token: str
    rights: tuple[Right, ...]


class Gate(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets calls in. With no credentials, anybody's."""

    def __init__(self, credentials: Iterable[CallerToken], max_calls: int, key: bytes) -> None:
        super().__init__()
        self._key = key
        self._clients: dict[bytes, Caller] = {}
        for one in credentials:
            digest = self._digest(one.token)
            if digest in self._clients:
                raise BadConfig(
                    f"the token of {one.name!r} is another client's too",
                    hint="give every client a token of its own",
                )
            self._clients[digest] = Caller(one.name, frozenset(one.rights))
        self._max_calls = max_calls
        self._lock = threading.Lock()
        self._calls = 0
        self._waiting = 0
        self.calls_total = 0
        self.refused_total = 0

    @property
    def calls(self) -> int:
        """How many calls there are at this moment."""
        return self._calls

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, list[str]]) -> Passed:
        """Let a call in, or raise what its client is told."""
        with told():
            try:
                return self._let_in(headers.get("authorization", []))
            except HoldfastError:
                with self._lock:
                    self.refused_total += 1
                raise

    def _let_in(self, given: list[str]) -> Passed:
        client = self._client(given)
        with self._lock:
            if self._calls >= self._max_calls:
                raise Overloaded(
                    f"{self._calls} calls are going on, the bound is max_calls",
                    hint="try again, or raise it",
                    retry_after_s=1.0,
                )
            self._calls += 1
            self.calls_total += 1
        return Passed(self, client)

    def leave(self) -> None:
        """Count a call that ended."""
        with self._lock:
            self._calls -= 1

    @contextlib.contextmanager
    def waiting(self, wait_s: float) -> Iterator[float]:
        """Say how long a call may keep its caller waiting: at most half of all do, at once."""
        with self._lock:
            allowed = wait_s > 0 and self._waiting < self._max_calls // 2
            self._waiting += allowed
        try:
            yield wait_s if allowed else 0.0
        finally:
            with self._lock:
                self._waiting -= allowed

    def _client(self, given: list[str]) -> Caller:
        if not self._clients:
            return ANYBODY
        for value in given:
            if value[: len(_SCHEME)].lower() == _SCHEME:
                client = self._clients.get(self._digest(value[len(_SCHEME) :].strip()))
                if client is not None:
                    return client
        raise NotAllowed(
            "the token is unknown" if given else "a token is needed",
            hint="set the client's token; the server knows those in its settings",
        )

    def _digest(self, token: str) -> bytes:
        return hmac.digest(self._key, token.encode(errors="surrogateescape"), hashlib.sha256)


class Passed(flight.ServerMiddleware):  # type: ignore[misc]
    """A call that was let in."""

    def __init__(self, gate: Gate, client: Caller) -> None:
        super().__init__()
        self.gate = gate
        self.client = client

    def call_completed(self, exception: BaseException | None) -> None:
        """Make room for another one."""
        self.gate.leave()


def client_of(context: flight.ServerCallContext) -> Caller:
    """Return who makes a call."""
    passed: Passed = context.get_middleware(GATE)
    return passed.client
