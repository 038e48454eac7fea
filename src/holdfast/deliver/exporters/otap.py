"""Sends traces, metrics and logs on as OTAP: Arrow tables over streams of gRPC.

What came as tables is sent as tables, a bundle as a batch, and is delivered when its status says
so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator
from yarl import URL

from holdfast.deliver.exporter import (
    Answer,
    Exporter,
    ExporterContext,
    Failure,
)
from holdfast.deliver.exporters.credentials import (
    AuthSettings,
    ExtraHeaders,
    make_credentials,
)
from holdfast.deliver.exporters.http_client import (
    CheckedUrl,
    HttpClient,
    HttpClientSettings,
    in_our_spelling,
)
from holdfast.extras import need
from holdfast.settings import DurationS, FileSettings, SizeBytes
from holdfast.signals.event import ArrowData, headers_sent_on
from holdfast.signals.otap.payloads import number_of
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.signal import Form, Takes

if TYPE_CHECKING:  # it needs protobuf, and what a graph names is imported to be validated
    from holdfast.deliver.exporters.otap_streams import OtapMessage

MB = 1024 * 1024
_UNAUTHENTICATED = "UNAUTHENTICATED"


class ArrowSettings(FileSettings):
    """How tables are written."""

    payload_compression: Literal["none", "zstd"] = "none"
    """How the columns of each table are compressed, by Arrow itself. What `compression` does to the
    whole batch is mostly better."""


class Config(HttpClientSettings):
    """A backend that takes OTAP: another Holdfast, or a collector with `otelarrow`."""

    url: CheckedUrl
    """Address of the backend, such as `http://localhost:4317`; `https` speaks TLS."""
    compression: Literal["none", "gzip", "zstd"] = "zstd"
    """How batches are compressed."""
    arrow: ArrowSettings = ArrowSettings()
    """How tables are written."""
    max_stream_lifetime: DurationS = Field(default=300.0, gt=0)
    """How long a stream is used before another is begun: a backend remembers what a stream has
    brought, and behind a balancer the next one may go elsewhere."""
    max_batch_events: int = Field(default=100, ge=1, le=10_000)
    """How many stored batches or requests are on their way at once, without a status."""
    max_batch_bytes: SizeBytes = Field(default=4 * MB, ge=1)
    """How many bytes of them."""
    auth: AuthSettings | None = None
    """Credentials, by `type`: `api_key`, `bearer`, `basic`, `oauth2`. Told when a stream begins."""
    headers: ExtraHeaders = Field(default_factory=dict)
    """Further headers of every stream. Their values are treated as secrets."""

    @model_validator(mode="before")
    @classmethod
    def _with_our_spelling(cls, value: Any) -> Any:
        return in_our_spelling(value)

    @model_validator(mode="after")
    def _has_no_proxy(self) -> Self:
        if self.proxy is not None:
            raise ValueError("`proxy` is for HTTP, and OTAP is gRPC")
        return self


def takes(config: Config) -> Takes:
    """Return what it can be given: the tables of telemetry."""
    return Takes(frozenset({Form.ARROW}), frozenset(kind.value for kind in OtlpKind))


def make(config: Config, context: ExporterContext) -> Exporter:
    """Return the exporter; certificates and secrets are looked at here, the backend is not."""
    need("otel")
    return OtapExporter(config, context)


class OtapExporter:
    """One backend."""

    def __init__(self, config: Config, context: ExporterContext) -> None:
        from holdfast.deliver.exporters.otap_streams import OtapStreams
        from holdfast.signals.otap.stream_encoder import StreamEncoder

        packing: Literal["zstd"] | None = None
        if config.arrow.payload_compression != "none":
            packing = config.arrow.payload_compression
        self._client = HttpClient(config, context)
        self._fixed_headers, self._credentials = make_credentials(
            config.auth, config.headers, self._client, context.seam.clock
        )
        self._streams = OtapStreams(
            URL(config.url),
            config,
            context,
            compression=config.compression,
            lifetime_s=config.max_stream_lifetime,
            make_encoder=partial(StreamEncoder, compression=packing),
            headers=self._headers,
        )
        self._used_credentials: Mapping[str, str] = {}
        self.max_batch_events = config.max_batch_events
        self.max_batch_bytes = config.max_batch_bytes

    async def start(self) -> None:
        await self._client.start()
        await self._streams.start()

    async def close(self) -> None:
        await self._streams.close()
        await self._client.close()

    async def _headers(self) -> Mapping[str, str]:
        self._used_credentials = await self._credentials.headers()
        return {**self._fixed_headers, **self._used_credentials}

    async def send(self, events: Sequence[ArrowData]) -> Answer:
        sends = [self._deliver(_message_of(data)) for data in events]
        failures = enumerate(await asyncio.gather(*sends))
        return Answer({place: failure for place, failure in failures if failure is not None})

    async def _deliver(self, message: OtapMessage) -> Failure | None:
        """Send one batch, and once more if a token had to be renewed."""
        failure = await self._streams.send(message)
        if failure is None or failure.code != _UNAUTHENTICATED:
            return failure
        if not self._credentials.refused(self._used_credentials):
            return failure
        return await self._streams.send(message)


def _message_of(data: ArrowData) -> OtapMessage:
    from holdfast.deliver.exporters.otap_streams import OtapMessage

    tables = {slot: rows for slot, rows in data.slots.items() if number_of(slot) is not None}
    size_bytes = sum(rows.nbytes for rows in tables.values())
    return OtapMessage(OtlpKind(data.signal), tables, headers_sent_on(data), size_bytes)
