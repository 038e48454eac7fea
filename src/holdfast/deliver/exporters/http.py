"""Sends events to an OpenLineage backend over HTTP, one by one or in batches, as they came in.

What is sent is the payload as it was accepted (or as processors left it), byte for byte; batches
are joined as text and not parsed. The exporter tries once: when, how often and in which order is
the delivery loop's business. It answers by event where the backend does, and otherwise for the
batch.
"""

from __future__ import annotations

import asyncio
import gzip
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

from pydantic import Field

from holdfast.deliver.exporter import (
    ALL_DELIVERED,
    Answer,
    Exporter,
    ExporterContext,
    Failure,
    FailureClass,
    all_failed,
)
from holdfast.deliver.exporters.classify import (
    SendFailed,
    failure_of_status,
    is_success,
    parse_retry_after_s,
)
from holdfast.deliver.exporters.credentials import (
    AuthSettings,
    ExtraHeaders,
    HeaderName,
    make_credentials,
)
from holdfast.deliver.exporters.dialects import (
    DIALECTS,
    PRESETS,
    UNREADABLE_ANSWER,
    DialectName,
    PresetName,
    read_batch_answer,
)
from holdfast.deliver.exporters.http_client import (
    CheckedUrl,
    EndpointPath,
    HttpClient,
    HttpClientSettings,
    endpoint_url,
)
from holdfast.deliver.exporters.http_connections import HttpAnswer
from holdfast.settings import SizeBytes
from holdfast.signals.event import Event

IDEMPOTENCY_NAMES = {"header": "Idempotency-Key", "query": "requestId"}

# Larger bodies are compressed in a thread, so that other destinations are not kept waiting.
COMPRESSED_INLINE_BYTES = 64 * 1024
GZIP_LEVEL = 6

# No longer wait is passed on; the delivery loop has its own, shorter limit.
MAX_RETRY_AFTER_S = 3600.0

_BATCH_NAMESPACE = uuid.UUID("0c1d1b0e-52a5-5d8f-9c37-6f7f0d1b8f3e")
_UNAUTHORIZED = 401


class Config(HttpClientSettings):
    """An OpenLineage backend that takes events over HTTP."""

    url: CheckedUrl
    """Address of the backend. A path in it stands before `path`, unless it ends with that already;
    a query goes along."""

    preset: PresetName = "openlineage"
    """Which product it is: sets `path` and `dialect` as its documentation says."""

    dialect: DialectName | None = None
    """How events stand in a request: `single`, `batch_array`, `batch_object`, `batch_ndjson`."""

    path: EndpointPath | None = None
    """Path of the endpoint, if it is not the preset's; empty if `url` has all of it."""

    batch_answer: Literal["partial_success", "status"] = "partial_success"
    """Whether the answer to a batch names the events that failed, or is its status alone."""

    max_batch_events: int = Field(default=100, ge=1, le=10_000)
    """How many events one request holds; 1 with `single`."""

    max_batch_bytes: SizeBytes = Field(default=4 * 2**20, ge=1)
    """How many bytes of events are put into one request; one event alone may be larger."""

    max_request_bytes: SizeBytes = Field(default=64 * 2**20, ge=1)
    """The largest body that is sent, before compression. What is larger counts as too large."""

    compression: Literal["none", "gzip"] = "none"
    """Whether bodies are compressed; the backend must know how to read that."""

    idempotency: Literal["header", "query", "none"] = "header"
    """Where a key goes that is the same each time a request is sent again."""

    idempotency_name: HeaderName | None = None
    """Name of that header or parameter, if it is not `Idempotency-Key` or `requestId`."""

    auth: AuthSettings | None = None
    """Credentials, by `type`: `api_key`, `bearer`, `basic`, `oauth2`."""

    headers: ExtraHeaders = Field(default_factory=dict)
    """Further headers. Their values are treated as secrets."""


def make(config: Config, context: ExporterContext) -> Exporter:
    """Return the exporter; certificates and secrets are looked at here, the backend is not."""
    return HttpExporter(config, context)


class HttpExporter:
    """One backend. A send is one request, and a second one if a token had to be renewed.

    What does not change from request to request is put together once, here: address, headers, and
    whether an answer speaks for each event or for all.
    """

    # A request that nobody waits for any more ends its connection.
    ends_when_cancelled = True

    def __init__(self, config: Config, context: ExporterContext) -> None:
        preset = PRESETS[config.preset]
        name: DialectName = config.dialect or preset.dialect
        path = preset.path(name) if config.path is None else config.path
        self._config = config
        self._dialect = DIALECTS[name]
        self._url = endpoint_url(config.url, path)
        self._clock = context.seam.clock
        self._client = HttpClient(config, context)
        self._headers, self._credentials = make_credentials(
            config.auth, config.headers, self._client, self._clock
        )
        self._headers["Content-Type"] = self._dialect.content_type
        if config.compression == "gzip":
            self._headers["Content-Encoding"] = "gzip"
        self._answers_by_event = self._dialect.many and config.batch_answer == "partial_success"
        self.max_batch_events = config.max_batch_events if self._dialect.many else 1
        self.max_batch_bytes = min(config.max_batch_bytes, config.max_request_bytes)

    async def start(self) -> None:
        await self._client.start()

    async def close(self) -> None:
        await self._client.close()

    async def send(self, events: Sequence[Event]) -> Answer:
        if self._dialect.many:
            # One event that is not JSON would make the whole batch unreadable.
            # Refused here, for good: a backend would answer 400 for the batch, and the loop would
            # have to find the culprit by halving.
            broken = {i: _NOT_JSON for i, event in enumerate(events) if not event.is_json}
            if broken:
                return await self._send_others(events, broken)
        elif len(events) != 1:
            raise AssertionError(f"BUG: {len(events)} events for a dialect that takes one")
        return await self._send_all(events)

    async def _send_others(self, events: Sequence[Event], broken: Mapping[int, Failure]) -> Answer:
        places = [i for i in range(len(events)) if i not in broken]
        if not places:
            return Answer(broken)
        answer = await self._send_all([events[i] for i in places])
        return Answer({**broken, **{places[i]: why for i, why in answer.failed.items()}})

    async def _send_all(self, events: Sequence[Event]) -> Answer:
        body = self._dialect.body([event.payload for event in events])
        # Before it is compressed: the limit is about what the backend has to hold in memory.
        if len(body) > self._config.max_request_bytes:
            return all_failed(len(events), _over_the_limit(len(body)))
        if self._config.compression == "gzip":
            body = await _compressed(body)
        try:
            reply = await self._post(body, _idempotency_key(events))
        except SendFailed as failed:
            return all_failed(len(events), failed.failure)
        return self._answer(reply, len(events))

    async def _post(self, body: bytes, key: str) -> HttpAnswer:
        url, post = self._url, partial(self._client.post, needs_body=self._answers_by_event)
        where = self._config.idempotency
        if where != "none":
            name = self._config.idempotency_name or IDEMPOTENCY_NAMES[where]
            if where == "header":
                post = partial(post, key=(name, key))
            else:
                url = url.update_query({name: key})
        credentials = await self._credentials.headers()
        reply = await post(url, body, self._headers | credentials)
        # A token may end, or be withdrawn, before its time. One new token, one more try; fixed
        # credentials say no, and the destination stops.
        if reply.status == _UNAUTHORIZED and self._credentials.refused(credentials):
            credentials = await self._credentials.headers()
            reply = await post(url, body, self._headers | credentials)
        return reply

    def _answer(self, reply: HttpAnswer, count: int) -> Answer:
        if not is_success(reply.status):
            wait_s = parse_retry_after_s(
                reply.header(b"retry-after"),
                self._clock.wall_ns(),
                MAX_RETRY_AFTER_S,
            )
            failure = failure_of_status(
                reply.status, location=reply.header(b"location") or "", retry_after_s=wait_s
            )
            return all_failed(count, failure)
        if not self._answers_by_event:
            return ALL_DELIVERED
        # A 2xx whose body cannot be understood proves nothing about single events: the batch is
        # sent again, with the same idempotency key.
        answer = None if reply.body is None else read_batch_answer(reply.body, count)
        return all_failed(count, UNREADABLE_ANSWER) if answer is None else answer


_NOT_JSON = Failure(
    FailureClass.PERMANENT, "the event is not JSON, so no batch can hold it", "json"
)


def _idempotency_key(events: Sequence[Event]) -> str:
    """Return a key for exactly these events: a batch that is cut differently is another request.

    Made from positions in the quiver and not at random: after a crash the same events get the same
    key.
    """
    if len(events) == 1:
        return events[0].idempotency_key
    return str(uuid.uuid5(_BATCH_NAMESPACE, " ".join(e.idempotency_key for e in events)))


async def _compressed(body: bytes) -> bytes:
    if len(body) <= COMPRESSED_INLINE_BYTES:
        return gzip.compress(body, GZIP_LEVEL, mtime=0)
    return await asyncio.to_thread(gzip.compress, body, GZIP_LEVEL, mtime=0)


def _over_the_limit(size_bytes: int) -> Failure:
    reason = f"the request has {size_bytes} bytes, more than `max_request_size`"
    return Failure(FailureClass.TOO_LARGE, reason, "max_request_bytes")
