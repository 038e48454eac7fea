"""Sends traces, metrics and logs on as OTLP, over gRPC or HTTP: the bytes that came, joined.

Requests that follow each other are sent as one if they are of one signal, came with the same kept
headers and go to the same place: concatenated requests of OTLP are one request. What is too large
is cut at the borders of resources. Nothing is decoded.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator
from yarl import URL

from holdfast.deliver.exporter import (
    Answer,
    Exporter,
    ExporterContext,
    Failure,
    FailureClass,
)
from holdfast.deliver.exporters.classify import SendFailed
from holdfast.deliver.exporters.credentials import (
    AuthSettings,
    ExtraHeaders,
    make_credentials,
)
from holdfast.deliver.exporters.http_client import (
    CheckedUrl,
    EndpointPath,
    HttpClient,
    HttpClientSettings,
    endpoint_url,
    in_our_spelling,
)
from holdfast.extras import need
from holdfast.grpc.status import fields_of
from holdfast.settings import FileSettings, SizeBytes
from holdfast.signals.event import Event, headers_sent_on, unsendable_header
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.signal import Form, Takes

MB = 1024 * 1024
# Partial successes are logged this often.
_WARNING_INTERVAL_S = 60.0
_REFUSALS = (FailureClass.PERMANENT, FailureClass.TOO_LARGE)
# More than this is a negative number, or nonsense.
_ITEMS_MAX = 2**62
_UNAUTHORIZED_CODES = ("401", "UNAUTHENTICATED")

log = logging.getLogger("holdfast.deliver")

Protocol = Literal["grpc", "http"]
OtlpPresetName = Literal["otlp", "jaeger", "tempo", "loki", "prometheus", "mimir"]


class OtlpPreset(NamedTuple):
    """What a product's documentation says."""

    protocol: Protocol
    kinds: tuple[OtlpKind, ...]
    # What stands before `/v1/…` in a path of HTTP.
    prefix: str = ""


OTLP_PRESETS: dict[OtlpPresetName, OtlpPreset] = {
    "otlp": OtlpPreset("grpc", tuple(OtlpKind)),
    "jaeger": OtlpPreset("grpc", (OtlpKind.TRACES,)),
    "tempo": OtlpPreset("grpc", (OtlpKind.TRACES,)),
    "loki": OtlpPreset("http", (OtlpKind.LOGS,), "/otlp"),
    "prometheus": OtlpPreset("http", (OtlpKind.METRICS,), "/api/v1/otlp"),
    "mimir": OtlpPreset("http", (OtlpKind.METRICS,), "/otlp"),
}


class EndpointSettings(FileSettings):
    """Where one signal goes, if that differs."""

    url: CheckedUrl | None = None
    """Address of the backend for this signal."""
    path: EndpointPath | None = None
    """Path of the endpoint, over HTTP; empty if `url` has all of it."""
    headers: ExtraHeaders = Field(default_factory=dict)
    """Further headers for this signal. Their values are treated as secrets."""


class Config(HttpClientSettings):
    """A backend that takes OTLP: another collector, Jaeger, Tempo, Loki, Prometheus, Mimir."""

    url: CheckedUrl
    """Address of the backend, such as `http://localhost:4317`; `https` speaks TLS. Over HTTP the
    path of the signal is added (`/v1/traces`)."""
    preset: OtlpPresetName = "otlp"
    """Which product it is: sets `protocol`, the paths, and which signals it takes."""
    protocol: Protocol | None = None
    """`grpc` or `http` (protobuf); by default the preset's."""
    compression: Literal["none", "gzip", "zstd"] = "gzip"
    """How requests are compressed."""
    traces: EndpointSettings = EndpointSettings()
    """Where traces go, if that differs."""
    metrics: EndpointSettings = EndpointSettings()
    """Where metrics go, if that differs."""
    logs: EndpointSettings = EndpointSettings()
    """Where logs go, if that differs."""
    max_batch_events: int = Field(default=1000, ge=1, le=10_000)
    """How many stored requests are joined to one."""
    max_batch_bytes: SizeBytes = Field(default=2 * MB, ge=1)
    """How many bytes of them, before compression."""
    max_request_bytes: SizeBytes = Field(default=4 * MB, ge=1)
    """A stored request that is larger is cut between resources. Collectors refuse more than 4MB
    over gRPC unless they are told otherwise."""
    auth: AuthSettings | None = None
    """Credentials, by `type`: `api_key`, `bearer`, `basic`, `oauth2`."""
    headers: ExtraHeaders = Field(default_factory=dict)
    """Further headers of every request, such as a tenant. Their values are treated as secrets."""

    @model_validator(mode="before")
    @classmethod
    def _with_our_spelling(cls, value: Any) -> Any:
        return in_our_spelling(value)

    @model_validator(mode="after")
    def _fits_the_protocol(self) -> Self:
        if self.speaks == "grpc":
            if self.proxy is not None:
                raise ValueError("`proxy` is for `protocol: http`")
            for kind in OtlpKind:
                if self.of(kind).path is not None:
                    raise ValueError(f"`{kind}.path` is for `protocol: http`")
        return self

    @property
    def speaks(self) -> Protocol:
        """The protocol, said or by default."""
        return self.protocol or OTLP_PRESETS[self.preset].protocol

    def of(self, kind: OtlpKind) -> EndpointSettings:
        """Return what is said of one signal."""
        endpoint: EndpointSettings = getattr(self, kind.value)
        return endpoint


def takes(config: Config) -> Takes:
    """Return what it can be given: requests of OTLP, of the signals that the product knows."""
    kinds = OTLP_PRESETS[config.preset].kinds
    return Takes(frozenset({Form.PROTOBUF}), frozenset(kind.value for kind in kinds))


def make(config: Config, context: ExporterContext) -> Exporter:
    """Return the exporter; certificates and secrets are looked at here, the backend is not."""
    need("otel")
    return OtlpExporter(config, context)


class OtlpExporter:
    """One backend. A send is one request for each run of events that can be joined."""

    def __init__(self, config: Config, context: ExporterContext) -> None:
        # Only now: what a graph names is imported to be validated, also where it is not installed.
        from holdfast.deliver.exporters.otlp_transport import (
            GrpcTransport,
            HttpTransport,
            OtlpTransport,
        )

        self._config = config
        self._name = context.name
        self._clock = context.seam.clock
        self._client = HttpClient(config, context)
        self._transports: dict[OtlpKind, OtlpTransport] = {}
        self._headers: dict[OtlpKind, Mapping[str, str]] = {}
        by_url: dict[str, GrpcTransport] = {}
        for kind in OTLP_PRESETS[config.preset].kinds:
            own = config.of(kind)
            self._headers[kind], self._credentials = make_credentials(
                config.auth, {**config.headers, **own.headers}, self._client, self._clock
            )
            url = own.url or config.url
            if config.speaks == "http":
                self._transports[kind] = HttpTransport(
                    endpoint_of(config, kind), self._client, config.compression, self._clock
                )
            else:
                # Signals that go to the same place share a connection.
                if url not in by_url:
                    by_url[url] = GrpcTransport(URL(url), config, config.compression, context)
                self._transports[kind] = by_url[url]
        self.max_batch_events = config.max_batch_events
        self.max_batch_bytes = min(config.max_batch_bytes, config.max_request_bytes)
        # Items that the backend said it left out, of requests that it took.
        self._rejected_total = 0
        self._warned_s: float | None = None

    async def start(self) -> None:
        await self._client.start()
        for transport in set(self._transports.values()):
            await transport.start()

    async def close(self) -> None:
        for transport in set(self._transports.values()):
            await transport.close()
        await self._client.close()

    async def send(self, events: Sequence[Event]) -> Answer:
        failed: dict[int, Failure] = {}
        rejected = Counter[str]()
        ended: Failure | None = None
        # Runs and not groups: events are sent in their order, and one of another signal in between
        # ends a run.
        for key, run in groupby(enumerate(events), lambda one: _joins_with(one[1])):
            places = [index for index, _ in run]
            if ended is None:
                payloads = [events[index].payload for index in places]
                failure = await self._send_run(key, payloads, rejected)
                if failure is not None and failure.kind not in _REFUSALS:
                    # Nothing overtakes what was not delivered.
                    ended = failure
            else:
                failure = ended
            if failure is not None:
                failed.update(dict.fromkeys(places, failure))
        return Answer(failed, rejected)

    async def _send_run(
        self, key: _RunKey, bodies: list[bytes], rejected: Counter[str]
    ) -> Failure | None:
        """Send requests that can be joined; those that are too large alone in parts.

        Several that the backend finds too large together are not cut here: the delivery loop sends
        fewer of them then, which it can account for one by one.
        """
        kind, kept = OtlpKind(key.signal), dict(key.headers)
        if (name := unsendable_header(kept)) is not None:
            reason = f"its header {name} begins or ends with a blank, or has control characters"
            return Failure(FailureClass.PERMANENT, reason, "header")
        body = b"".join(bodies)
        if len(body) <= self._config.max_request_bytes:
            failure = await self._send_one(kind, body, kept, rejected)
            if len(bodies) > 1 or failure is None or failure.kind is not FailureClass.TOO_LARGE:
                return failure
            return await self._send_parts(kind, body, kept, rejected, len(body) // 2)
        return await self._send_parts(kind, body, kept, rejected, self._config.max_request_bytes)

    async def _send_parts(
        self,
        kind: OtlpKind,
        body: bytes,
        kept: Mapping[str, str],
        rejected: Counter[str],
        max_bytes: int,
    ) -> Failure | None:
        """Send a request in parts, as small as it takes.

        If one of them fails, the others may be there already, and come again with the next try:
        OTLP has no name for a request by which a backend could know it.
        """
        from holdfast.signals.otlp.codec import split
        from holdfast.signals.otlp.problem import NotOtlp

        try:
            parts = split(body, max_bytes)
        except NotOtlp:
            return Failure(FailureClass.PERMANENT, "this is not a request of OTLP", "otlp")
        if len(parts) == 1 and len(body) > self._config.max_request_bytes:
            reason = f"one resource has {len(body)} bytes, more than `max_request_size`"
            return Failure(FailureClass.TOO_LARGE, reason, "max_request_bytes")
        if len(parts) == 1:
            return Failure(FailureClass.TOO_LARGE, "one resource is too large", "resource")
        for part in parts:
            failure = (
                await self._send_one(kind, part, kept, rejected)
                if len(part) <= self._config.max_request_bytes
                else await self._send_parts(
                    kind, part, kept, rejected, self._config.max_request_bytes
                )
            )
            if failure is not None and failure.kind is FailureClass.TOO_LARGE:
                failure = await self._send_parts(kind, part, kept, rejected, len(part) // 2)
            if failure is not None:
                return failure
        return None

    async def _send_one(
        self, kind: OtlpKind, body: bytes, kept: Mapping[str, str], rejected: Counter[str]
    ) -> Failure | None:
        """Send one request, and once more if a token had to be renewed."""
        transport = self._transports[kind]
        try:
            credentials = await self._credentials.headers()
            headers = {**kept, **self._headers[kind], **credentials}
            try:
                answer = await transport.export(kind, body, headers)
            except SendFailed as refused:
                if refused.failure.code not in _UNAUTHORIZED_CODES:
                    raise
                if not self._credentials.refused(credentials):
                    raise
                headers |= await self._credentials.headers()
                answer = await transport.export(kind, body, headers)
        except SendFailed as failed:
            return failed.failure
        if left_out := _rejected_items(answer):
            rejected[kind.value] += left_out
            self._tell_partial_success(kind, left_out)
        return None

    def _tell_partial_success(self, kind: OtlpKind, rejected: int) -> None:
        """Log that the backend left out items; it says that they must not be sent again."""
        self._rejected_total += rejected
        now_s = self._clock.monotonic_s()
        if self._warned_s is None or now_s - self._warned_s >= _WARNING_INTERVAL_S:
            self._warned_s = now_s
            log.warning(
                "%s: the backend left out %d %s of a request that it took; %d items so far",
                self._name,
                rejected,
                kind.items,
                self._rejected_total,
            )


def _rejected_items(answer: bytes) -> int:
    """Return how many items the answer of a backend says it left out; 0 if it cannot be read.

    The same fields for all signals: `partial_success`, and in it the number.
    """
    try:
        partial = dict(fields_of(answer)).get(1, b"")
        rejected = dict(fields_of(partial)).get(1, 0) if isinstance(partial, bytes) else 0
    except ValueError:
        return 0
    return rejected if isinstance(rejected, int) and rejected < _ITEMS_MAX else 0


class _RunKey(NamedTuple):
    """What events have in common that are sent as one."""

    signal: str
    headers: tuple[tuple[str, str], ...]


def _joins_with(event: Event) -> _RunKey:
    return _RunKey(event.signal, tuple(sorted(headers_sent_on(event).items())))


def endpoint_of(config: Config, kind: OtlpKind) -> URL:
    """Return where a signal is posted to over HTTP."""
    own = config.of(kind)
    path = OTLP_PRESETS[config.preset].prefix + kind.http_path if own.path is None else own.path
    return endpoint_url(own.url or config.url, path)
