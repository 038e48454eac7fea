"""A processor of the tests: drops what contains a word."""

from __future__ import annotations

from holdfast.settings import Settings
from holdfast.signals.event import Event


class Config(Settings):
    """What the processor may be told."""

    drop: str = "secret"
    """The word."""


class Dropper:
    """Lets everything else through."""

    def __init__(self, word: bytes) -> None:
        self._word = word

    def process(self, event: Event) -> Event | None:
        return None if self._word in event.payload else event


def make(config: Config) -> Dropper:
    if not config.drop:
        raise ValueError("an empty word is in everything")
    return Dropper(config.drop.encode())
