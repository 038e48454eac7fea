"""Receives OpenTelemetry as OTAP, its protocol of Arrow tables, over gRPC.

Bounds, tokens and answers are those of the receiver `otlp`, as far as streams allow: a request
there is a batch here, and what a call is told there is said by the status of a batch.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from holdfast.extras import need
from holdfast.grpc.settings import GrpcSettings
from holdfast.quiver.base.bundle import ROWS_MAX
from holdfast.quiver.base.config import AckLevel
from holdfast.receive.admission import Admission, TokenSettings, check_protected
from holdfast.receive.body import MB
from holdfast.receive.http_app import RequestCounts
from holdfast.receive.listening import AddressText, ListenerTls
from holdfast.receive.otlp import OtlpLimits, check_kept_headers, tokens_of
from holdfast.receive.receiver import Receiver, ReceiverContext, ReceiverStatistics
from holdfast.settings import LocalPath, Settings, SizeBytes
from holdfast.signals.registry import otap_signals
from holdfast.signals.signal import Signal

__all__ = ["Config", "OtapReceiver", "make", "produces"]

DEFAULT_ADDRESS = "127.0.0.1:4317"


class OtapLimits(OtlpLimits):
    """Bounds of batches, and of what a stream makes us remember."""

    max_requests: int = Field(default=512, ge=1)
    """Streams open at once; more are UNAVAILABLE."""
    max_stream_bytes: SizeBytes = Field(default=64 * MB, ge=1)
    """What the dictionaries of one stream may take; then it ends, and its sender begins another."""
    max_streams_bytes: SizeBytes = Field(default=256 * MB, ge=1)
    """The same for all streams together."""
    max_batch_rows: int = Field(default=1_000_000, ge=1, le=ROWS_MAX)
    """Rows of one batch, all its tables together; more is RESOURCE_EXHAUSTED."""


class Config(Settings):
    """A receiver of traces, metrics and logs in Arrow tables."""

    listening_addr: AddressText = DEFAULT_ADDRESS
    """Host and port; port 0 takes any that is free. Elsewhere than on this machine's own addresses,
    `tokens`, `token_file` or client certificates are asked for."""
    response_stream_channel_size: int = Field(default=256, ge=1, le=65_536)
    """Batches of one stream that are received and not answered yet; more are not read."""
    level: Literal["memory", "written", "fsynced"] = "fsynced"
    """What success promises: the batch is in memory (a crash loses it), with the operating system
    (a power cut may lose it), or on stable storage."""
    keep_headers: tuple[str, ...] = ()
    """Headers, of a stream or of a batch, that are stored with each batch and sent on by the
    exporters `otap` and `otlp`, such as the name of a tenant, `X-Scope-OrgID`. A batch with more
    than 4096 characters in them, or with what no header can hold, is refused."""
    tokens: tuple[TokenSettings, ...] = ()
    """Producers that may send; with none (and no `token_file`) anybody may."""
    token_file: LocalPath | None = None
    """A file with more of them, `NAME TOKEN` in each line."""
    tls: ListenerTls | None = None
    """Speak TLS."""
    allow_anonymous: bool = False
    """Listen for other machines though anybody may send. Whoever reaches the port can then fill
    the buffer."""
    limits: OtapLimits = OtapLimits()
    """Bounds of batches and streams."""
    grpc: GrpcSettings = GrpcSettings()
    """Bounds of gRPC connections."""

    @field_validator("keep_headers")
    @classmethod
    def _may_be_kept(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return check_kept_headers(names)

    @model_validator(mode="after")
    def _is_protected(self) -> Self:
        check_protected(self, {"listening_addr": self.listening_addr})
        return self


class OtapReceiver:
    """What is sent to its port."""

    def __init__(self, config: Config, context: ReceiverContext) -> None:
        need("otel")
        # Only now: what a graph names is imported to be validated, also where it is not installed.
        from holdfast.receive.grpc_server import GrpcServer, ReceiverGate
        from holdfast.receive.otap_streams import OtapIntake, otap_methods
        from holdfast.signals.otap.limits import StreamLimits

        self._config = config
        self._context = context
        self._counts = RequestCounts()
        limits = config.limits
        self._admission = Admission(limits.max_requests, limits.max_in_flight_bytes)
        tokens = tokens_of(config, context)
        self.gate = ReceiverGate(context, self._counts, tokens, self._admission)
        self.intake = OtapIntake(
            context,
            self.gate,
            self._counts,
            level=AckLevel[config.level.upper()],
            kept_headers=config.keep_headers,
            limits=StreamLimits(
                batch_bytes_max=limits.max_expanded_bytes,
                dictionary_bytes_max=limits.max_stream_bytes,
                rows_max=limits.max_batch_rows,
            ),
            streams_bytes_max=limits.max_streams_bytes,
            under_way_max=config.response_stream_channel_size,
        )
        self.server = GrpcServer(
            context,
            self.gate,
            otap_methods(self.intake),
            config.listening_addr,
            limits=limits,
            tls=config.tls,
            settings=config.grpc,
        )

    @property
    def addresses(self) -> list[str]:
        return self.server.addresses

    async def start(self) -> None:
        await self.server.start()

    async def stop(self, drain_s: float) -> None:
        self.gate.is_stopping = True
        await self.server.stop(drain_s)

    def reload(self, config: Config) -> bool:
        """Take new tokens while listening; False if anything else differs, which needs a start."""
        changes = {"tokens": config.tokens, "token_file": config.token_file}
        if config != self._config.model_copy(update=changes):
            return False
        self.gate.tokens = tokens_of(config, self._context)
        self._config = config
        return True

    def statistics(self) -> ReceiverStatistics:
        """Return a picture of this moment."""
        counts, admission = self._counts, self._admission
        return ReceiverStatistics(
            received=counts.accepted_events + counts.rejected.total(),
            accepted=counts.accepted_events,
            rejected={str(reason): count for reason, count in counts.rejected.items() if count},
            received_bytes=admission.received_bytes,
            accepted_bytes=counts.accepted_bytes,
            requests=counts.requests,
            in_flight_requests=admission.in_flight_requests,
            in_flight_bytes=admission.in_flight_bytes,
            connections=self.server.connections,
            items={kind.value: one for kind, one in self.intake.counts.items()},
        )


def produces(config: Config) -> tuple[Signal, ...]:
    """Return the signals of what it accepts, in the form in which they are stored."""
    return otap_signals()


def make(config: Config, context: ReceiverContext) -> Receiver:
    """Make the receiver of a node."""
    return OtapReceiver(config, context)
