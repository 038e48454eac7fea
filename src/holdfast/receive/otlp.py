"""Receives OpenTelemetry over OTLP, gRPC and HTTP, and answers once it is in the quiver.

Both transports share what counts: one intake, one set of tokens, and one `Admission`, so that the
bounds hold for all ports together. A client that finds HTTP busy gains nothing by trying gRPC.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from holdfast.errors import BadConfig
from holdfast.extras import need
from holdfast.grpc.settings import GrpcSettings
from holdfast.quiver.base.config import AckLevel
from holdfast.receive.admission import (
    ProtectedSettings,
    Tokens,
    TokenSettings,
    check_protected,
    token_settings,
)
from holdfast.receive.body import MB, BodyLimits
from holdfast.receive.cors import CorsApp, CorsSettings
from holdfast.receive.http_app import RequestCounts
from holdfast.receive.http_server import HttpServer
from holdfast.receive.listening import AddressText, ListenerTls
from holdfast.receive.receiver import Receiver, ReceiverContext, ReceiverStatistics
from holdfast.receive.server_state import ConnectionSettings
from holdfast.settings import LocalPath, Settings, SizeBytes
from holdfast.signals.otlp.kinds import OtlpKind

__all__ = ["Config", "OtlpReceiver", "make", "produces"]

GRPC_DEFAULT = "127.0.0.1:4317"
HTTP_DEFAULT = "127.0.0.1:4318"
# Where a protocol listens.
_ADDRESS = "listening_addr"
_ADDRESS_OF = {"grpc": _ADDRESS, "http": "http_listening_addr"}
# Headers that are never kept: secrets, what belongs to one connection or body, and our own.
_NEVER_KEPT = re.compile(
    "authorization|cookie|proxy-.*|content-.*|transfer-encoding|connection|host|te|grpc-.*|client"
)


def check_kept_headers(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of headers that may be kept, or raise `ValueError`.

    What is kept is stored beside each request and sent on to a backend. A credential of the sender
    must be neither on disk nor there.
    """
    for name in names:
        if _NEVER_KEPT.fullmatch(name.lower()) or not re.fullmatch(r"[\w-]{1,64}", name):
            raise ValueError(f"{name!r} cannot be kept: a secret, or no header of a sender")
    return names


class OtlpLimits(BodyLimits):
    """Bounds of requests. OTLP recommends 64 MiB after unpacking."""

    max_body_bytes: SizeBytes = Field(default=64 * MB, ge=1)
    """One body as it is sent; larger is refused."""
    max_expanded_bytes: SizeBytes = Field(default=64 * MB, ge=1)
    """One body unpacked; larger is refused."""


class Config(Settings):
    """A receiver of traces, metrics and logs."""

    listening_addr: AddressText | None = None
    """Host and port for gRPC; port 0 takes any that is free. By default 127.0.0.1:4317, unless only
    `http_listening_addr` is given. Elsewhere than on this machine's own addresses, `tokens`,
    `token_file` or client certificates are asked for."""
    http_listening_addr: AddressText | None = None
    """The same for OTLP over HTTP. By default 127.0.0.1:4318, unless only `listening_addr` is
    given."""
    response_stream_channel_size: int = Field(default=256, ge=1)
    """Accepted for files that have it; OTLP's calls have no streams, and it has no effect."""
    level: Literal["memory", "written", "fsynced"] = "fsynced"
    """What success promises: the request is in memory (a crash loses it), with the operating
    system (a power cut may lose it), or on stable storage."""
    keep_headers: tuple[str, ...] = ()
    """Headers that are stored with each request and sent on by the exporter `otlp`, such as the
    name of a tenant, `X-Scope-OrgID`. A request with more than 4096 characters in them is
    refused."""
    partial_success: bool = False
    """Take the sound items of a request when others are not: items that protobuf cannot read in one
    that it can read otherwise, and spans without a valid trace id and span id. The sender is told
    how many were left out, and they become a dead letter. By default a request of which protobuf
    cannot read an item is refused as a whole, and ids are not looked at."""
    cors: CorsSettings | None = None
    """Which pages may send from a browser; by default none."""
    tokens: tuple[TokenSettings, ...] = ()
    """Producers that may send; with none (and no `token_file`) anybody may."""
    token_file: LocalPath | None = None
    """A file with more of them, `NAME TOKEN` in each line."""
    tls: ListenerTls | None = None
    """Speak TLS."""
    allow_anonymous: bool = False
    """Listen for other machines though anybody may send. Whoever reaches the port can then fill
    the buffer."""
    limits: OtlpLimits = OtlpLimits()
    """Bounds of requests."""
    connections: ConnectionSettings = ConnectionSettings()
    """Bounds of HTTP connections."""
    grpc: GrpcSettings = GrpcSettings()
    """Bounds of gRPC connections."""

    @model_validator(mode="before")
    @classmethod
    def _with_addresses_of_protocols(cls, value: Any) -> Any:
        """Take addresses as OTAP dataflow has them, too: those of each protocol."""
        protocols = value.get("protocols") if isinstance(value, dict) else None
        if not isinstance(protocols, dict):
            return value
        ours = {key: item for key, item in value.items() if key != "protocols"}
        for protocol, settings in protocols.items():
            key = _ADDRESS_OF.get(protocol)
            if key is None or not isinstance(settings, dict) or settings.keys() != {_ADDRESS}:
                raise ValueError(
                    "`protocols` has `grpc` and `http`, and each of them `listening_addr`; "
                    "everything else is a key of the receiver itself"
                )
            if key in ours:
                raise ValueError(f"`protocols.{protocol}` and `{key}` are the same; keep one")
            ours[key] = settings[_ADDRESS]
        return ours

    @field_validator("keep_headers")
    @classmethod
    def _may_be_kept(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return check_kept_headers(names)

    @model_validator(mode="after")
    def _is_protected(self) -> Self:
        check_protected(self, self.listening)
        return self

    @property
    def listening(self) -> Mapping[str, str]:
        """Where it listens, by the setting that says so.

        Both defaults, or only what is named: naming one address turns the other transport off, and
        nothing listens on a port that the file does not mention.
        """
        named = {
            "listening_addr": self.listening_addr,
            "http_listening_addr": self.http_listening_addr,
        }
        given = {key: address for key, address in named.items() if address is not None}
        return given or {"listening_addr": GRPC_DEFAULT, "http_listening_addr": HTTP_DEFAULT}


class OtlpReceiver:
    """What is sent to its ports, gRPC and HTTP, within the same bounds."""

    def __init__(self, config: Config, context: ReceiverContext) -> None:
        need("otel")
        # Only now: what a graph names is imported to be validated, also where it is not installed.
        from holdfast.receive.grpc_server import GrpcServer, ReceiverGate
        from holdfast.receive.otlp_grpc import otlp_methods
        from holdfast.receive.otlp_http import otlp_app
        from holdfast.receive.otlp_intake import OtlpIntake

        self._config = config
        self._context = context
        self.intake = OtlpIntake(
            context,
            AckLevel[config.level.upper()],
            config.keep_headers,
            takes_parts=config.partial_success,
        )
        counts = RequestCounts()
        tokens = tokens_of(config, context)
        self.app = otlp_app(
            context,
            self.intake,
            counts,
            limits=config.limits,
            tokens=tokens,
            answers_browsers=config.cors is not None,
        )
        self.gate = ReceiverGate(context, counts, tokens, self.app.admission)
        self.servers: list[HttpServer | GrpcServer] = []
        for key, address in config.listening.items():
            if key == "listening_addr":
                methods = otlp_methods(self.intake, counts)
                self.servers.append(
                    GrpcServer(
                        context,
                        self.gate,
                        methods,
                        address,
                        limits=config.limits,
                        tls=config.tls,
                        settings=config.grpc,
                    )
                )
            else:
                self.servers.append(self._http_server(address))

    def _http_server(self, address: str) -> HttpServer:
        config = self._config
        cors = config.cors
        return HttpServer(
            self.app if cors is None else CorsApp(self.app, cors, config.keep_headers),
            address,
            config.tls,
            config.connections,
            fast_path=self.app,
            base_dir=self._context.base_dir,
            reuse_port=self._context.reuse_port,
        )

    @property
    def addresses(self) -> list[str]:
        return [address for server in self.servers for address in server.addresses]

    async def start(self) -> None:
        for server in self.servers:
            await server.start()

    async def stop(self, drain_s: float) -> None:
        # Refused on all ports before any of them begins to drain: otherwise a client could go from
        # the one that is stopping to the one that is not, and lengthen the end of both.
        self.app.refuse_from_now_on()
        self.gate.is_stopping = True
        await asyncio.gather(*(server.stop(drain_s) for server in self.servers))
        # Last: requests that were let in may still need the child that checks them.
        await self.app.close()

    def reload(self, config: Config) -> bool:
        """Take new tokens while listening; False if anything else differs, which needs a start."""
        changes = {"tokens": config.tokens, "token_file": config.token_file}
        if config != self._config.model_copy(update=changes):
            return False
        tokens = tokens_of(config, self._context)
        self.app.use_tokens(tokens)
        self.gate.tokens = tokens
        self._config = config
        return True

    def statistics(self) -> ReceiverStatistics:
        """Return the figures of all ports, with connections whose requests nobody saw."""
        seen = self.app.statistics()
        # Connections over the bound, and heads that no request could be made of, never reach the
        # app. They count as received and rejected all the same: the two must add up. Calls of gRPC
        # are counted by the gate, into the counts of the app.
        unseen = Counter[str]()
        for server in self.servers:
            if isinstance(server, HttpServer):
                unseen += server.counts.rejected
        rejected = Counter(seen.rejected) + unseen
        return seen._replace(
            received=seen.received + unseen.total(),
            rejected={str(reason): count for reason, count in rejected.items()},
            connections=sum(server.connections for server in self.servers),
            items={kind.value: counts for kind, counts in self.intake.counts.items()},
        )


def tokens_of(config: ProtectedSettings, context: ReceiverContext) -> Tokens:
    """Return the tokens of the configuration and those of its file, as it is now."""
    settings = token_settings(config, context.base_dir)
    # Refused, not ignored: a token that is limited to some namespaces would let everything pass.
    for one in settings:
        if "*" not in one.namespaces or one.references:
            raise BadConfig(
                f"the token of {one.name!r} names namespaces, which telemetry does not have",
                hint="leave `namespaces` and `references` out for a receiver of telemetry",
            )
    return Tokens(settings, context.seam)


def produces(config: Config) -> tuple[str, ...]:
    """Return the signals of what it accepts."""
    return tuple(kind.value for kind in OtlpKind)


def make(config: Config, context: ReceiverContext) -> Receiver:
    """Make the receiver of a node."""
    return OtlpReceiver(config, context)
