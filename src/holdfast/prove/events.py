"""The events of a proof: every one can be told from its name alone, so that damage is seen."""

from __future__ import annotations

import hashlib

BODY_BYTES_MAX = 3000


def body_of(name: str) -> bytes:
    """Return the content that the event with this name must have."""
    digest = hashlib.sha256(name.encode()).digest()
    length = int.from_bytes(digest[:4], "little") % BODY_BYTES_MAX
    return (digest * (length // len(digest) + 1))[:length]


def payload_of(name: str) -> bytes:
    """Return a raw event: its name, a zero byte, its content."""
    return name.encode() + b"\0" + body_of(name)


def name_in(payload: bytes) -> str | None:
    """Return the name of a raw event, or None if it is not what was sent."""
    name, _, body = payload.partition(b"\0")
    text = name.decode("utf-8", "replace")
    return text if body == body_of(text) else None
