"""The head of a request, as the parser tells of it, and the bound of what it may take.

The parser shows a field only once it is complete, and keeps it till then. So two things are
counted, each up to the bound: what was shown, and the bytes that came since while nothing was. What
stands behind a chunked body counts, too: trailers, and anything else that the parser reads and does
not show.

Trailers are not fields of the head, and are left out: whoever stands in between has decided by the
head, and a token in a trailer would pass it unseen (RFC 9110, section 6.5.1).
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.receive.responses import content_length

# What a field takes on the wire besides its name and its value.
_FIELD_BYTES = len(b": \r\n")


class HeadTooLarge(Exception):
    """It is above its bound."""


class UnknownCoding(Exception):
    """The body is coded in a way that is not known."""


class RequestHead:
    """What came of a head. `on_url` and `on_header` are called by the parser."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.begin()

    def begin(self) -> None:
        """Forget all of it; another one may come."""
        self.url = b""
        # With names in lower case. Others keep the list: it is never changed afterwards.
        self.fields: list[tuple[bytes, bytes]] = []
        self.expects_continue = False
        # What comes from here on are trailers.
        self.is_complete = False
        self._shown_bytes = 0
        self._unshown_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Take a part of the request target."""
        self._show(len(url))
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field."""
        self._show(len(name) + len(value) + _FIELD_BYTES)
        if self.is_complete:
            return
        # Blanks around a value are no part of it, and the parser leaves those behind it.
        name, value = name.lower(), value.strip(b" \t")
        if name == b"expect" and value.lower() == b"100-continue":
            self.expects_continue = True
        elif name == b"transfer-encoding" and value.lower() != b"chunked":
            raise UnknownCoding
        self.fields.append((name, value))

    def came(self, size_bytes: int) -> None:
        """Note that so many bytes are given to the parser."""
        self._unshown_bytes += size_bytes

    def went_on(self) -> None:
        """Note that the parser showed something, of the body perhaps: it keeps nothing older."""
        self._unshown_bytes = 0

    @property
    def is_too_large(self) -> bool:
        """Whether it is above its bound by now."""
        return max(self._shown_bytes, self._unshown_bytes) > self._bytes_max

    def _show(self, size_bytes: int) -> None:
        self._shown_bytes += size_bytes
        self._unshown_bytes = 0
        if self._shown_bytes > self._bytes_max:
            raise HeadTooLarge

    @property
    def announced_bytes(self) -> int:
        """How long it says that the body is; 0 if it does not."""
        lengths = [value for name, value in self.fields if name == b"content-length"]
        return content_length(lengths[0]) if lengths else 0

    def framing(self) -> Iterator[bytes]:
        """Yield the lines that say where the body ends."""
        for name, value in self.fields:
            if name in (b"content-length", b"transfer-encoding"):
                yield name + b": " + value + b"\r\n"
