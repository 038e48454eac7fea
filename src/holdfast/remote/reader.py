"""The process that serves sealed data: its Flight service, the gate before it, its orders.

It has no lock, no ledger and no say: it reads the segments a ticket names, and sends the rows it
asks for. What it holds in memory is bounded by `max_calls` times a few messages: rows go from the
file to the socket in slices of `read_message` bytes (one record batch per call is in memory), and
nothing is kept between calls. So a segment that was removed is not held on disk either, once its
last reader is done.

**The gate** is the one middleware before every call, here and in the owner: who may call, and how
many at the same time. Tokens are looked up by a keyed hash that changes with every start: how long
that takes says nothing about the tokens, and no plain one is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import PurePath

import pyarrow as pa
from pyarrow import flight

from holdfast.errors import BadConfig, BadInput, HoldfastError, NotAllowed, Overloaded
from holdfast.quiver.read.sealed import scan_sealed
from holdfast.remote.settings import ALL_RIGHTS, Right
from holdfast.remote.wire import answering, decode_ticket, reporting
from holdfast.seam.disk import Disk

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
    """One token and whose it is, as the serving process gets it."""

    name: str
    token: str
    rights: tuple[Right, ...]


class Gate(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets calls in. With no credentials, anybody's."""

    def __init__(self, credentials: Iterable[CallerToken], max_calls: int, key: bytes) -> None:
        super().__init__()
        # A keyed hash, with a key of this start: looking tokens up in a dictionary compares
        # hashes, so timing tells nothing about the tokens themselves.
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
        """Let a call in, or raise the error for its client."""
        with reporting():
            try:
                return self._let_in(headers.get("authorization", []))
            except HoldfastError:
                with self._lock:
                    self.refused_total += 1
                raise

    def _let_in(self, given: list[str]) -> Passed:
        client = self._client(given)
        # After the token was checked: strangers must not be able to use up the calls.
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
            # Not refused: the call answers at once with what there is, and the client asks again.
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


def require_free(host: str, port: int) -> None:
    """Raise unless nobody listens on a port, and this machine has the address.

    gRPC would not tell: it shares a port with whatever else listens there, and two servers on one
    port would each get some of the calls: plans here, commits there.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            # As a server would: connections of before that are still fading do not matter.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise BadConfig(
            f"{host}:{port} cannot be listened on: {error.strerror}",
            hint="stop the other process, or choose another port or an address of this machine",
        ) from error


@dataclass(frozen=True)
class Secrets:
    """What the two processes of a server share: who may call, and the keys of TLS."""

    credentials: tuple[CallerToken, ...] = ()
    # Certificate and key, as PEM.
    certificate: tuple[str, str] | None = None
    client_ca: str | None = None

    @property
    def tls(self) -> dict[str, object]:
        """What `FlightServerBase` wants to know of TLS."""
        if self.certificate is None:
            return {}
        return {
            "tls_certificates": [self.certificate],
            "verify_client": self.client_ca is not None,
            "root_certificates": self.client_ca,
        }


def location(host: str, port: int, *, encrypted: bool) -> str:
    """Return the location of a server as Flight writes it."""
    shown = f"[{host}]" if ":" in host else host
    return f"{'grpc+tls' if encrypted else 'grpc'}://{shown}:{port}"


class ReaderService(flight.FlightServerBase):  # type: ignore[misc]
    """Serves sealed rows of some quivers, by name."""

    def __init__(
        self,
        disk: Disk,
        directories: Mapping[str, PurePath],
        address: tuple[str, int],
        gate: Gate,
        secrets: Secrets,
        message_bytes: int,
    ) -> None:
        self._disk = disk
        self._directories = directories
        self._message_bytes = message_bytes
        where = location(*address, encrypted=secrets.certificate is not None)
        super().__init__(where, middleware={GATE: gate}, **secrets.tls)

    @answering
    def do_get(
        self, context: flight.ServerCallContext, ticket: flight.Ticket
    ) -> flight.GeneratorStream:
        """Send the rows that a ticket asks for."""
        reader = self._scan(context, ticket.ticket)
        return flight.GeneratorStream(reader.schema, self._messages(context, reader))

    @answering
    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        """Return the columns of what a ticket asks for; it is the descriptor's command."""
        reader = self._scan(context, descriptor.command or b"", nulls_for_unknown=False)
        return flight.FlightInfo(reader.schema, descriptor, [], -1, -1)

    def _scan(
        self, context: flight.ServerCallContext, ticket: bytes, *, nulls_for_unknown: bool = True
    ) -> pa.RecordBatchReader:
        client_of(context).require("read")
        name, wanted = decode_ticket(ticket)
        directory = self._directories.get(name)
        if directory is None:
            raise BadInput(
                f"no quiver {name!r} is served",
                hint=f"there are {', '.join(self._directories) or 'none'}",
            )
        return scan_sealed(self._disk, directory, wanted, nulls_for_unknown=nulls_for_unknown)

    def _messages(
        self, context: flight.ServerCallContext, reader: pa.RecordBatchReader
    ) -> Iterator[pa.RecordBatch]:
        with reporting():
            for batch in reader:
                for part in sliced(batch, self._message_bytes):
                    if context.is_cancelled():
                        return
                    yield part


def sliced(batch: pa.RecordBatch, message_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield a batch in parts of about so many bytes, each with a row at least."""
    # Of a slice this counts the whole; then its parts come out smaller, never larger.
    size_bytes = max(1, batch.get_total_buffer_size())
    rows = max(1, batch.num_rows * message_bytes // size_bytes)
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


@dataclass(frozen=True)
class ServedQuivers:
    """What the owner wants served."""

    directories: dict[str, str]
    host: str
    port: int
    max_calls: int
    message_bytes: int
    secrets: Secrets
    # Of a data node: the folder of replicas, each served by the id of its quiver.
    replicas: str = ""

    def encode(self) -> bytes:
        """Return one line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, line: str) -> ServedQuivers:
        """Return what `encode` gave."""
        fields = json.loads(line)
        given = fields.pop("secrets")
        credentials = tuple(
            CallerToken(one["name"], one["token"], tuple(one["rights"]))
            for one in given["credentials"]
        )
        certificate = given["certificate"] and tuple(given["certificate"])
        return cls(**fields, secrets=Secrets(credentials, certificate, given["client_ca"]))
