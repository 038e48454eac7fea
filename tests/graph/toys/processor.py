"""A processor of the tests: drops what contains a word."""

from __future__ import annotations

from holdfast.settings import Settings
from holdfast.signals.event import Event


class Config(Settings):
    """What the processor may be told."""

    drop: str = "secret"
    """The word."""
    fail: str = ""
    """A word that it fails at; empty: it never does."""


class Dropper:
    """Lets everything else through."""

    def __init__(self, word: bytes, fails_at: bytes) -> None:
        self._word = word
        self._fails_at = fails_at

    def process(self, event: Event) -> Event | None:
        if self._fails_at and self._fails_at in event.payload:
            raise ZeroDivisionError
        return None if self._word in event.payload else event


def make(config: Config) -> Dropper:
    if not config.drop:
        raise ValueError("an empty word is in everything")
    return Dropper(config.drop.encode(), config.fail.encode())
