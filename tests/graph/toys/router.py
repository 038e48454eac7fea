"""A router of the tests: by the first letter of the payload."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from holdfast.settings import Settings
from holdfast.signals.event import Event


class Config(Settings):
    """What the router may be told."""

    by_letter: dict[str, str] = Field(default_factory=dict)
    """The port of each letter."""


class LetterRouter:
    """Chooses a port."""

    def __init__(self, by_letter: Mapping[str, str]) -> None:
        self._by_letter = by_letter
        self.ports = frozenset(by_letter.values())

    def port(self, event: Event) -> str | None:
        return self._by_letter.get(event.payload[:1].decode())


def make(config: Config) -> LetterRouter:
    return LetterRouter(config.by_letter)
