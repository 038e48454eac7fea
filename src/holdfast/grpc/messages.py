"""Messages of a call: each has five bytes before it, whether it is compressed, and its length.

The length is what a peer says. Nothing is set aside for it: pieces are kept as they come, and the
bounds hold for what came.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from typing import NamedTuple

import zstandard

from holdfast.bodies import Decoding, Pieces
from holdfast.grpc.status import CallFailed, StatusCode

PREFIX_BYTES = 5
IDENTITY = b"identity"
# What can be read and written; told to clients in this order.
ENCODINGS = (IDENTITY, b"gzip", b"zstd")
ACCEPT_ENCODING = b",".join(ENCODINGS)
_ZSTD_AT_A_LEVEL = re.compile(rb"zstdarrow\d{1,2}")
_GZIP_LEVEL = 1
_ZSTD_LEVEL = 1
_TIMEOUT_UNITS_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_TIMEOUT_DIGITS_MAX = 8


class MessageLimits(NamedTuple):
    """Bounds of one message."""

    max_bytes: int
    max_expanded_bytes: int
    # The longest pause of a peer while it sends, and the slowest pace after that.
    timeout_s: float
    min_bytes_per_s: int


class Message(NamedTuple):
    """A message as it came."""

    pieces: Pieces
    is_packed: bool


class MessageReader:
    """Puts the messages of one direction of one call together, from any pieces."""

    __slots__ = ("_expected_bytes", "_head", "_is_packed", "_max_bytes", "_pieces")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._head = b""
        self._is_packed = False
        # -1: the next byte belongs to a head.
        self._expected_bytes = -1
        self._pieces = Pieces()

    @property
    def is_between(self) -> bool:
        """Whether no message has begun and not ended."""
        return self._expected_bytes < 0 and not self._head

    @property
    def missing_bytes(self) -> int:
        """What is still to come of the message that has begun."""
        return max(self._expected_bytes - self._pieces.size_bytes, 0)

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield the messages that the next bytes complete; raises `CallFailed`.

        Frames of HTTP/2 end anywhere: a piece may hold the end of a message and half the head of
        the next one.
        """
        at = 0
        while True:
            if self._expected_bytes < 0:
                missing_bytes = PREFIX_BYTES - len(self._head)
                head = self._head + data[at : at + missing_bytes]
                at += missing_bytes
                if len(head) < PREFIX_BYTES:
                    self._head = head
                    return
                self._head = b""
                self._begin(head)
            missing_bytes = self._expected_bytes - self._pieces.size_bytes
            self._pieces.add(data[at : at + missing_bytes])
            at += missing_bytes
            if at > len(data):
                return
            pieces, self._pieces = self._pieces, Pieces()
            self._expected_bytes = -1
            yield Message(pieces, self._is_packed)
            if at == len(data):
                return

    def _begin(self, data: bytes) -> None:
        if data[0] > 1:
            raise CallFailed(
                StatusCode.INVALID_ARGUMENT,
                "a message begins with a byte that is neither 0 nor 1; check the framing",
            )
        self._is_packed = data[0] == 1
        self._expected_bytes = int.from_bytes(data[1:PREFIX_BYTES], "big")
        if self._expected_bytes > self._max_bytes:
            raise too_large(self._max_bytes)


def too_large(limit_bytes: int) -> CallFailed:
    """Return the answer to a message over its bound."""
    return CallFailed(
        StatusCode.RESOURCE_EXHAUSTED,
        f"the message is larger than {limit_bytes} bytes; send smaller batches",
    )


def unpacking(encoding: bytes, max_expanded_bytes: int) -> Decoding:
    """Return what unpacks a message in bounded pieces; raises `CallFailed`."""
    if encoding == IDENTITY:
        raise CallFailed(
            StatusCode.INVALID_ARGUMENT,
            "a message is marked as compressed, and grpc-encoding does not say how",
        )
    return Decoding([encoding], max_expanded_bytes)


def read_encoding(name: bytes) -> bytes:
    """Return the encoding that a peer names; raises `CallFailed` if it cannot be read.

    The OpenTelemetry Collector calls zstd at a level of its own `zstdarrow5`, say.
    """
    encoding = b"zstd" if _ZSTD_AT_A_LEVEL.fullmatch(name) else name
    check_encoding(encoding)
    return encoding


def check_encoding(encoding: bytes) -> None:
    """Raise `CallFailed` if messages of this encoding cannot be read."""
    if encoding not in ENCODINGS:
        raise CallFailed(
            StatusCode.UNIMPLEMENTED,
            f"this grpc-encoding is not supported; use {ACCEPT_ENCODING.decode()}",
        )


def framed(body: bytes, encoding: bytes = IDENTITY) -> bytes:
    """Return a message with its head, compressed as asked."""
    if encoding == IDENTITY:
        return b"\0%b%b" % (len(body).to_bytes(4, "big"), body)
    smaller = packed(body, encoding)
    return b"\1%b%b" % (len(smaller).to_bytes(4, "big"), smaller)


def packed(body: bytes, encoding: bytes) -> bytes:
    """Return a body compressed by gzip or zstd."""
    if encoding == b"gzip":
        return gzip.compress(body, _GZIP_LEVEL, mtime=0)
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(body)


def parse_timeout_s(text: bytes) -> float:
    """Return the seconds of a `grpc-timeout`; raises `CallFailed`."""
    digits, unit = text[:-1], text[-1:]
    if unit not in _TIMEOUT_UNITS_S or not digits.isdigit() or len(digits) > _TIMEOUT_DIGITS_MAX:
        raise CallFailed(StatusCode.INVALID_ARGUMENT, "this is not a grpc-timeout")
    return int(digits) * _TIMEOUT_UNITS_S[unit]


def written_timeout(timeout_s: float) -> bytes:
    """Return a `grpc-timeout`, never longer than asked for.

    In the finest unit that eight digits can hold. Rounded down: a server that works longer than its
    client waits works for nobody.
    """
    for unit, step_s in ((b"u", 1e-6), (b"m", 1e-3), (b"S", 1.0)):
        count = int(timeout_s / step_s)
        if count < 10**_TIMEOUT_DIGITS_MAX:
            return b"%d%b" % (max(count, 1), unit)
    return b"%dH" % min(int(timeout_s / 3600), 10**_TIMEOUT_DIGITS_MAX - 1)
