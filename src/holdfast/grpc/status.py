"""How a call ends: status codes, and what a peer is told beside them.

Clients decide by the code whether they send again. `RetryInfo` says when; it travels in the trailer
`grpc-status-details-bin`, as a google.rpc.Status that holds it, and once more by itself, which is
where the Python SDK of OpenTelemetry looks for it. These messages have a handful of fields that
never change, so they are written and read here, and no descriptor is loaded for them.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from enum import IntEnum
from urllib.parse import unquote_to_bytes

_RETRY_INFO = b"type.googleapis.com/google.rpc.RetryInfo"
_RETRY_INFO_TRAILER = b"google.rpc.retryinfo-bin"
# Told to a client, or believed of a server: an hour is an outage, not a wait.
RETRY_AFTER_MAX_S = 3600.0
_VARINT_BYTES_MAX = 10
_SIGN_BIT = 1 << 63
# What a message in a trailer may hold; the rest is cut.
MESSAGE_BYTES_MAX = 1024


class StatusCode(IntEnum):
    """The codes of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class CallFailed(Exception):
    """A call ended with another status than OK. A handler raises it, and a client sees it."""

    def __init__(
        self,
        code: StatusCode,
        message: str,
        *,
        retry_after_s: float | None = None,
        maybe_done: bool = False,
    ) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message
        # When to send again, if the server says so.
        self.retry_after_s = retry_after_s
        # Whether the server may have done it anyway; only a client asks.
        self.maybe_done = maybe_done


def trailers_of(failure: CallFailed) -> list[tuple[bytes, bytes]]:
    """Return the trailers that tell a client how its call failed."""
    text = _cut(failure.message)
    trailers = [(b"grpc-status", b"%d" % failure.code), (b"grpc-message", _quoted(text))]
    if failure.retry_after_s is not None:
        retry_info = _retry_info(failure.retry_after_s)
        details = _details(failure.code, text, retry_info)
        trailers += [
            (b"grpc-status-details-bin", _binary(details)),
            (_RETRY_INFO_TRAILER, _binary(retry_info)),
        ]
    return trailers


def failure_of(code_text: bytes, message: bytes, details: bytes) -> CallFailed | None:
    """Return how a call failed by its trailers, and None if it did not."""
    try:
        code = StatusCode(int(code_text))
    except ValueError:
        code = StatusCode.UNKNOWN
    if code is StatusCode.OK:
        return None
    text = unquote_to_bytes(message[: 3 * MESSAGE_BYTES_MAX]).decode("utf-8", "replace")
    return CallFailed(code, text[:MESSAGE_BYTES_MAX], retry_after_s=_retry_after_s(details))


def _cut(message: str) -> bytes:
    encoded = message.encode("utf-8", "replace")[:MESSAGE_BYTES_MAX]
    return encoded.decode("utf-8", "ignore").encode()


def _quoted(text: bytes) -> bytes:
    """Return a message as a header may hold it: printable ASCII, the rest percent-encoded."""
    return b"".join(
        b"%c" % byte if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte  # noqa: PLR2004
        for byte in text
    )


# -------------------------------------------------------------------- protobuf


def _binary(value: bytes) -> bytes:
    """Return a value as a header may hold it whose name ends with `-bin`."""
    return base64.b64encode(value).rstrip(b"=")


def _retry_info(retry_after_s: float) -> bytes:
    """Return a google.rpc.RetryInfo."""
    wait_ns = int(min(max(retry_after_s, 0.0), RETRY_AFTER_MAX_S) * 1e9)
    seconds, nanos = divmod(wait_ns, 10**9)
    return _field(1, b"\x08" + _varint(seconds) + b"\x10" + _varint(nanos))


def _details(code: StatusCode, text: bytes, retry_info: bytes) -> bytes:
    """Return a google.rpc.Status with a RetryInfo in it."""
    return (
        b"\x08"
        + _varint(code)
        + _field(2, text)
        + _field(3, _field(1, _RETRY_INFO) + _field(2, retry_info))
    )


def _retry_after_s(details: bytes) -> float | None:
    """Return the wait that a server asked for; None if it did not, or cannot be understood."""
    try:
        status = base64.b64decode(details + b"=" * (-len(details) % 4), validate=True)
        for number, packed in fields_of(status):
            if number != 3 or not isinstance(packed, bytes):  # noqa: PLR2004
                continue
            inner = dict(fields_of(packed))
            retry_info = inner.get(2)
            if inner.get(1) == _RETRY_INFO and isinstance(retry_info, bytes):
                return _duration_s(dict(fields_of(retry_info)).get(1, b""))
    except (ValueError, binascii.Error):
        return None
    return None


def _duration_s(duration: int | bytes) -> float:
    parts = dict(fields_of(duration)) if isinstance(duration, bytes) else {}
    seconds, nanos = parts.get(1, 0), parts.get(2, 0)
    if not isinstance(seconds, int) or not isinstance(nanos, int):
        raise ValueError("a duration has two numbers")
    wait_s = (0 if seconds & _SIGN_BIT else seconds) + (0 if nanos & _SIGN_BIT else nanos) / 1e9
    return min(wait_s, RETRY_AFTER_MAX_S)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:  # noqa: PLR2004
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(value)) + value


def fields_of(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message, those of fixed length left out; raises `ValueError`."""
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        kind = key & 7
        if kind == 0:
            number, at = _read_varint(message, at)
            yield key >> 3, number
            continue
        if kind == 2:  # noqa: PLR2004
            length, at = _read_varint(message, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError("not a protobuf field")
        if at + length > len(message):
            raise ValueError("a field ends too early")
        if kind == 2:  # noqa: PLR2004
            yield key >> 3, message[at : at + length]
        at += length


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    number = 0
    for index in range(_VARINT_BYTES_MAX):
        if at + index >= len(message):
            break
        byte = message[at + index]
        number |= (byte & 0x7F) << 7 * index
        if byte <= 0x7F:  # noqa: PLR2004
            return number, at + index + 1
    raise ValueError("a number ends too early")
