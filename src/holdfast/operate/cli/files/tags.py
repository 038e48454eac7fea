"""Tags as they are shown: text, #NUMBER, or 0xHEX for any other bytes."""

from __future__ import annotations

from holdfast.operate.cli.output import printable

_NUMBER_BYTES = 8
_NUMBER_MAX = 1 << 63


def shown_tag(tag: bytes) -> str:
    """Return a tag for people."""
    try:
        text = tag.decode()
    except UnicodeDecodeError:
        text = None
    if text is not None and printable(text) == text and not text.startswith(("#", "0x")):
        return text
    if text is None and len(tag) == _NUMBER_BYTES:
        return f"#{int.from_bytes(tag, 'big') - _NUMBER_MAX}"
    return f"0x{tag.hex()}"
