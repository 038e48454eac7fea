"""What can be wrong with a request."""

from __future__ import annotations


class NotOtlp(Exception):
    """The bytes are not a request of OTLP. The message is for the sender, without its data."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        # Where in a JSON document, such as `resourceSpans[0].scopeSpans`.
        self.path = path

    def inside(self, step: str) -> NotOtlp:
        """Return it as seen from one level further out."""
        dot = "." if self.path and not self.path.startswith("[") else ""
        return NotOtlp(self.reason, f"{step}{dot}{self.path}")

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.path else self.reason


class TooMuchMemory(Exception):
    """Reading the request takes more memory than its reader may have."""
