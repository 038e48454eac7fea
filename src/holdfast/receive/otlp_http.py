"""OTLP over HTTP: a path for each signal, protobuf or JSON, and answers in the same form.

A refusal is a google.rpc.Status. By its HTTP status a client decides whether it keeps its data:
503 where it should send again, another one only where that would be in vain. 500 and 408 are never
given, because clients drop what was answered so.
"""

from __future__ import annotations

from functools import lru_cache

import orjson

from holdfast.quiver import Receipt
from holdfast.receive.admission import Tokens
from holdfast.receive.body import BodyLimits
from holdfast.receive.http_app import Endpoint, HttpApp, HttpRequest, RequestCounts
from holdfast.receive.otlp_intake import FAST_BYTES, OtlpIntake, OtlpSender
from holdfast.receive.receiver import ReceiverContext
from holdfast.receive.responses import (
    JSON_TYPE,
    STATUS_OF,
    OnStored,
    Reason,
    Refused,
    Response,
    retry_headers,
)
from holdfast.signals.otlp.codec import response_message, status
from holdfast.signals.otlp.json_form import to_document
from holdfast.signals.otlp.kinds import OtlpKind

PROTOBUF_TYPE = b"application/x-protobuf"
_PROTOBUF_TYPES = {PROTOBUF_TYPE, b"application/protobuf"}
# What gRPC calls the reasons; clients of OTLP over HTTP look at the HTTP status.
_CODES = {
    400: 3,
    401: 16,
    403: 7,
    404: 12,
    405: 12,
    413: 8,
    415: 3,
    431: 3,
    503: 14,
}
_ACCEPTED = Response(200, b"", content_type=PROTOBUF_TYPE)
_ACCEPTED_JSON = Response(200, b"{}")


def otlp_app(
    context: ReceiverContext,
    intake: OtlpIntake,
    counts: RequestCounts,
    *,
    limits: BodyLimits,
    tokens: Tokens,
    answers_browsers: bool,
) -> HttpApp:
    """Return the app with a path for each signal."""
    endpoints: dict[str, Endpoint] = {
        kind.http_path: OtlpExport(kind, intake, counts, answers_browsers) for kind in OtlpKind
    }
    app = HttpApp(
        context,
        counts,
        endpoints=endpoints,
        pages={},
        limits=limits,
        tokens=tokens,
        not_found_hint=f"send telemetry to {', '.join(kind.http_path for kind in OtlpKind)}",
        on_close=intake.close,
    )
    app.refuse = refuse_with_status
    app.held_bytes_max = FAST_BYTES
    return app


class OtlpExport:
    """Takes the requests of one signal."""

    is_counted = True

    def __init__(
        self, kind: OtlpKind, intake: OtlpIntake, counts: RequestCounts, answers_browsers: bool
    ) -> None:
        self._kind = kind
        self._intake = intake
        self._counts = counts
        self._answers_browsers = answers_browsers

    def check_type(self, content_type: bytes) -> None:
        _is_json(content_type)

    async def handle(self, request: HttpRequest, body: bytes) -> Response:
        is_json = _is_json(request.content_type)
        sender = OtlpSender(request.client, request.headers)
        size_bytes = len(body)
        taking = self._intake.take(self._kind, body, sender, is_json=is_json)
        del body  # see `HttpApp._handle`
        is_stored, left_out = await taking
        if is_stored:
            self._count(size_bytes)
        else:
            self._counts.dropped_before_buffer += 1
        if left_out is None:
            return _ACCEPTED_JSON if is_json else _ACCEPTED
        answer = response_message(self._kind, *left_out)
        if is_json:
            return Response(200, orjson.dumps(to_document(answer)))
        return Response(200, answer.SerializeToString(), content_type=PROTOBUF_TYPE)

    def offer(self, request: HttpRequest, body: bytes, on_stored: OnStored) -> bool:
        # JSON has to become protobuf first, which may take a child process.
        if _is_json(request.content_type) or self._comes_from_a_browser(request):
            return False
        sender = OtlpSender(request.client, request.headers)
        return self._intake.offer(self._kind, body, sender, on_stored)

    def accepted(self, receipt: Receipt, size_bytes: int) -> Response:
        self._count(size_bytes)
        return _ACCEPTED

    def _count(self, size_bytes: int) -> None:
        self._counts.accepted_events += 1
        self._counts.accepted_bytes += size_bytes

    def _comes_from_a_browser(self, request: HttpRequest) -> bool:
        """Whether the answer needs headers, which only the long way adds: cors.py."""
        return self._answers_browsers and any(name == b"origin" for name, _ in request.headers)


@lru_cache(maxsize=64)
def _is_json(content_type: bytes) -> bool:
    """Whether the body is JSON, and not protobuf; raises `Refused` if it is neither."""
    kind = content_type.partition(b";")[0].strip().lower()
    if kind in _PROTOBUF_TYPES:
        return False
    if kind == JSON_TYPE:
        return True
    raise Refused(
        Reason.CONTENT_TYPE,
        "the content type is not one of OTLP",
        "send application/x-protobuf or application/json",
    )


def refuse_with_status(refused: Refused, content_type: bytes) -> Response:
    """Return the answer to a request that is not taken, in the form in which it came.

    JSON if nothing is known of the form: whoever sends neither is a person with curl.
    """
    http_status = STATUS_OF[refused.reason]
    code, message = _CODES[http_status], f"{refused.message}; {refused.hint}"
    headers = (*refused.headers, *retry_headers(http_status, refused.retry_after_s))
    if content_type.partition(b";")[0].strip().lower() in _PROTOBUF_TYPES:
        return Response(http_status, status(code, message), headers, PROTOBUF_TYPE)
    return Response(http_status, orjson.dumps({"code": code, "message": message}), headers)
