"""How a request of OTLP is sent, over gRPC or HTTP, and what the answers mean.

The specification says which answers a client may repeat. That is about clients that would
otherwise drop data; here nothing is dropped, so its table decides only how long to wait. What
decides whether a request is held or given up is whether the answer is about *it*:

| gRPC                                           | HTTP               | class       |
|------------------------------------------------|--------------------|-------------|
| INVALID_ARGUMENT                               | 400, 422           | `permanent` |
| "larger than", "too large", "exceeds",         | 413                | `too_large` |
| "smaller batches" in RESOURCE_EXHAUSTED or     |                    |             |
| OUT_OF_RANGE                                   |                    |             |
| UNAUTHENTICATED, PERMISSION_DENIED             | 401, 403, 407      | `auth`      |
| everything else, also INTERNAL, UNKNOWN and    | everything else,   | `transient` |
| RESOURCE_EXHAUSTED without RetryInfo           | also 500           |             |

INTERNAL, UNKNOWN and 500 are what servers say when they fail, whatever they were sent: a backend in
a rolling update says it to all. A client that drops then loses data; a buffer waits.
RESOURCE_EXHAUSTED is a quota as often as a size, and only its text tells them apart.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Protocol

from yarl import URL

from holdfast import __version__
from holdfast.deliver.exporter import ExporterContext, Failure, FailureClass
from holdfast.deliver.exporters.classify import (
    SendFailed,
    failure_of_connecting,
    failure_of_status,
    is_success,
    parse_retry_after_s,
)
from holdfast.deliver.exporters.http_client import (
    ClientCertificates,
    HttpClient,
    HttpClientSettings,
)
from holdfast.grpc.client import GrpcClient, GrpcTarget
from holdfast.grpc.messages import packed
from holdfast.grpc.status import CallFailed, StatusCode
from holdfast.seam.clock import Clock
from holdfast.signals.otlp.kinds import OtlpKind

# Larger bodies are compressed in a thread, so that other destinations are not kept waiting.
COMPRESSED_INLINE_BYTES = 64 * 1024
MAX_RETRY_AFTER_S = 3600.0
DEFAULT_PORTS = {"http": 80, "https": 443}
_CONTENT_TYPE = "application/x-protobuf"
_TOO_LARGE = re.compile(r"larger than|too large|exceeds|smaller batches", re.IGNORECASE)
_SIZE_CODES = (StatusCode.RESOURCE_EXHAUSTED, StatusCode.OUT_OF_RANGE)
_AUTH_CODES = (StatusCode.UNAUTHENTICATED, StatusCode.PERMISSION_DENIED)


class OtlpTransport(Protocol):
    """A way to one endpoint."""

    async def export(self, kind: OtlpKind, body: bytes, headers: Mapping[str, str]) -> bytes:
        """Send a request once, and return the answer (empty if unknown); or raise `SendFailed`."""

    async def start(self) -> None:
        """Get ready; connect to nobody."""

    async def close(self) -> None:
        """Let go of connections."""


def grpc_target(url: URL, settings: HttpClientSettings, context: ExporterContext) -> GrpcTarget:
    """Return where a backend is, and how to speak to it; certificates are looked at here."""
    tls = None
    if url.scheme == "https":
        tls = ClientCertificates(settings.tls, context, ("h2",)).current
    assert url.host is not None, "BUG: an address without a host"
    return GrpcTarget(
        host=url.host,
        port=url.port or DEFAULT_PORTS[url.scheme],
        tls=tls,
        connect_timeout_s=settings.connect_timeout,
        max_response_bytes=settings.max_response_bytes,
        user_agent=f"holdfast/{__version__}",
    )


def metadata_of(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Return headers as a call of gRPC has them."""
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


class GrpcTransport:
    """OTLP over gRPC."""

    def __init__(
        self, url: URL, settings: HttpClientSettings, compression: str, context: ExporterContext
    ) -> None:
        self._settings = settings
        self._encoding = compression.replace("none", "identity").encode()
        self._clock = context.seam.clock
        self._client: GrpcClient | None = None
        self._target = grpc_target(url, settings, context)

    async def start(self) -> None:
        self._client = GrpcClient(self._target, self._clock)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def export(self, kind: OtlpKind, body: bytes, headers: Mapping[str, str]) -> bytes:
        assert self._client is not None, "BUG: the transport was not started"
        try:
            return await self._client.call(
                kind.grpc_path,
                body,
                timeout_s=self._settings.total_timeout,
                metadata=metadata_of(headers),
                encoding=self._encoding,
            )
        except CallFailed as failed:
            raise SendFailed(failure_of_call(failed)) from None
        except OSError as error:
            raise SendFailed(failure_of_connecting(error)) from None


class HttpTransport:
    """OTLP over HTTP, as protobuf."""

    def __init__(
        self,
        url: URL,
        client: HttpClient,
        compression: str,
        clock: Clock,
    ) -> None:
        self._url = url
        self._client = client
        self._compression = compression
        self._clock = clock
        self._headers = {"Content-Type": _CONTENT_TYPE}
        if compression != "none":
            self._headers["Content-Encoding"] = compression

    async def start(self) -> None:
        """Nothing: the client is its exporter's."""

    async def close(self) -> None:
        """Nothing: the client is its exporter's."""

    async def export(self, kind: OtlpKind, body: bytes, headers: Mapping[str, str]) -> bytes:
        if self._compression != "none":
            encoding = self._compression.encode()
            if len(body) <= COMPRESSED_INLINE_BYTES:
                body = packed(body, encoding)
            else:
                body = await asyncio.to_thread(packed, body, encoding)
        reply = await self._client.post(
            self._url, body, {**headers, **self._headers}, needs_body=False
        )
        if is_success(reply.status):
            return reply.body or b""
        wait_s = parse_retry_after_s(
            reply.header(b"retry-after"), self._clock.wall_ns(), MAX_RETRY_AFTER_S
        )
        location = reply.header(b"location") or ""
        raise SendFailed(failure_of_status(reply.status, location=location, retry_after_s=wait_s))


def failure_of_call(failed: CallFailed) -> Failure:
    """Return what the status of a call means. The server's text is never quoted."""
    code, said = failed.code.name, f"the backend answered {failed.code.name}"
    if failed.maybe_done:
        # Not an answer: these words are our client's own.
        said = f"no usable answer: {failed.message}"
    if failed.code in _AUTH_CODES:
        return Failure(FailureClass.AUTH, f"{said}; check the credentials", code)
    if failed.code is StatusCode.INVALID_ARGUMENT:
        return Failure(FailureClass.PERMANENT, said, code)
    if failed.code in _SIZE_CODES and _TOO_LARGE.search(failed.message):
        return Failure(FailureClass.TOO_LARGE, said, code)
    if failed.code is StatusCode.UNIMPLEMENTED:
        said += "; check `url`: does it take this signal over gRPC, and `compression`?"
    return Failure(
        FailureClass.TRANSIENT,
        said,
        code,
        retry_after_s=failed.retry_after_s,
        maybe_delivered=failed.maybe_done,
    )
