"""Names of files as text that can be stored, though a name on disk may be any bytes.

A name that is UTF-8 is its own text. A byte that is not stands in the text as one of 128 characters
at the very end of Unicode, U+10FF80 to U+10FFFF: the last of its digits are the byte. They are for
private use, and nobody uses them; a name that does hold one is treated as if it were not UTF-8, so
that every name has one text, and every text that `is_stored_name` stands for one name.

    b"caf\\xe9"  <->  "caf\\U0010ffe9"
"""

from __future__ import annotations

import re

_FIRST = 0x10FF80
_SURROGATE = re.compile("[\ud800-\udfff]")
_LONE = re.compile("[\udc80-\udcff]")
_ESCAPED = re.compile("[\U0010ff80-\U0010ffff]")
_ODD = re.compile("[\udc80-\udcff\U0010ff80-\U0010ffff]")


def stored_name(name: str) -> str:
    """Return the text that stands for a name as Python has it from the disk."""
    if name.isascii() or not _ODD.search(name):
        return name
    spelled = _ESCAPED.sub(lambda found: _lone_surrogates(found[0].encode()), name)
    return _LONE.sub(lambda found: chr(_FIRST - 0xDC80 + ord(found[0])), spelled)


def disk_name(stored: str) -> str:
    """Return the name on disk that a text stands for, with lone surrogates as Python has them."""
    if stored.isascii():
        return stored
    return _ESCAPED.sub(lambda found: chr(0xDC80 - _FIRST + ord(found[0])), stored)


def stored_name_of(name: bytes) -> str:
    """Return the text that stands for the bytes of a name."""
    return stored_name(name.decode("utf-8", "surrogateescape"))


def name_bytes(stored: str) -> bytes:
    """Return the bytes of the name that a text stands for."""
    return disk_name(stored).encode("utf-8", "surrogateescape")


def is_stored_name(text: str) -> bool:
    """Whether a text is the one that stands for a name."""
    if text.isascii():
        return True
    if _SURROGATE.search(text):
        return False
    return not _ESCAPED.search(text) or stored_name_of(name_bytes(text)) == text


def _lone_surrogates(data: bytes) -> str:
    return data.decode("ascii", "surrogateescape")
