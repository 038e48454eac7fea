"""Sends traces, metrics and logs on as OTAP: Arrow tables over streams of gRPC.

What came as tables is sent as tables, a bundle as a batch. Requests of OTLP that follow each other
are made into batches, several into one. Each unit is delivered when all batches that it is in have
a status that says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pydantic import Field, model_validator
from yarl import URL

from holdfast.deliver.exporter import (
    Answer,
    Exporter,
    ExporterContext,
    Failure,
    FailureClass,
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
from holdfast.signals.event import ArrowData, Event, Unit, headers_sent_on
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
    proxy: None = None
    """Always null: a proxy is for HTTP, and OTAP is gRPC."""

    @model_validator(mode="before")
    @classmethod
    def _with_our_spelling(cls, value: Any) -> Any:
        return in_our_spelling(value)


def takes(config: Config) -> Takes:
    """Return what it can be given: tables, and requests of OTLP, which it makes tables of."""
    return Takes(
        frozenset({Form.PROTOBUF, Form.ARROW}),
        frozenset(kind.value for kind in OtlpKind),
        sent_as=Form.ARROW,
    )


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

    async def send(self, events: Sequence[Unit]) -> Answer:
        failed: dict[int, Failure] = {}
        sends: list[Awaitable[Failure | None]] = []
        senders: list[Sequence[int]] = []
        for places, run in _runs(events):
            try:
                messages = await asyncio.to_thread(_messages_of, run)
            except Exception as error:
                # Not its text, which may quote what is in it.
                reason = f"it cannot be made into tables: {type(error).__name__}"
                failure = Failure(FailureClass.PERMANENT, reason, "otap")
                failed.update(dict.fromkeys(places, failure))
                continue
            # One unit that is too large goes out in parts; of several, the loop sends fewer.
            deliver = self._deliver_in_parts if len(places) == 1 else self._deliver
            sends += map(deliver, messages)
            senders += [places] * len(messages)
        for sender, said in zip(senders, await asyncio.gather(*sends), strict=True):
            if said is not None:
                failed.update(dict.fromkeys(sender, said))
        return Answer(failed)

    async def _deliver_in_parts(self, message: OtapMessage) -> Failure | None:
        """Send one batch; if the backend finds it too large, in halves, as small as it takes.

        If one of them fails, the other may be there already, and comes again with the next try.
        """
        failure = await self._deliver(message)
        if failure is None or failure.kind is not FailureClass.TOO_LARGE:
            return failure
        for part in await asyncio.to_thread(_halves_of, message):
            failure = await self._deliver_in_parts(part)
            if failure is not None:
                return failure
        return failure

    async def _deliver(self, message: OtapMessage) -> Failure | None:
        """Send one batch, and once more if a token had to be renewed."""
        failure = await self._streams.send(message)
        if failure is None or failure.code != _UNAUTHENTICATED:
            return failure
        if not self._credentials.refused(self._used_credentials):
            return failure
        return await self._streams.send(message)


def _runs(events: Sequence[Unit]) -> Iterator[tuple[list[int], list[Unit]]]:
    """Yield what can be made into batches together, with the places of it.

    Requests that follow each other, of one signal and with the same headers; each bundle of tables
    by itself, because their ids begin anew.
    """
    for _, run in groupby(enumerate(events), lambda one: _joins_with(*one)):
        places, units = zip(*run, strict=True)
        yield list(places), list(units)


def _joins_with(place: int, unit: Unit) -> tuple[object, ...]:
    if isinstance(unit, ArrowData):
        return (place,)
    return (unit.signal, *sorted(headers_sent_on(unit).items()))


def _halves_of(message: OtapMessage) -> list[OtapMessage]:
    """Return the items of a batch in two batches, none if it has only one. In any thread.

    By way of requests, since ids and what refers to them begin anew with each batch.
    """
    from holdfast.deliver.exporters.otap_streams import OtapMessage
    from holdfast.signals.otap.from_otlp import otap_of
    from holdfast.signals.otap.to_otlp import otlp_of
    from holdfast.signals.otlp.flat.pieces import pieces_of

    kind = message.kind
    requests = otlp_of(kind, message.tables)
    half_bytes = sum(map(len, requests)) // 2
    pieces = [piece for one in requests for piece in pieces_of(kind, one, half_bytes)]
    if len(pieces) <= 1:
        return []
    middle = len(pieces) // 2
    return [
        OtapMessage(kind, tables, message.headers, sum(rows.nbytes for rows in tables.values()))
        for half in (pieces[:middle], pieces[middle:])
        for tables in otap_of(kind, half)
    ]


def _messages_of(units: Sequence[Unit]) -> list[OtapMessage]:
    """Return the batches of some units. In any thread."""
    from holdfast.deliver.exporters.otap_streams import OtapMessage
    from holdfast.signals.otap.from_otlp import otap_of

    kind, headers = OtlpKind(units[0].signal), headers_sent_on(units[0])
    found: Sequence[Mapping[str, pa.RecordBatch]]
    if isinstance(units[0], ArrowData):
        slots = units[0].slots
        found = [{slot: rows for slot, rows in slots.items() if number_of(slot) is not None}]
    else:
        found = otap_of(kind, [unit.payload for unit in units if isinstance(unit, Event)])
    return [
        OtapMessage(kind, tables, headers, sum(rows.nbytes for rows in tables.values()))
        for tables in found
        if tables
    ]
