"""A receiver of the tests: settings of every shape, and nothing that listens."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from holdfast.receive.listening import AddressText
from holdfast.settings import DurationS, Secret, Settings, SizeBytes


class ByKey(Settings):
    """One way to say who may send."""

    type: Literal["key"]
    key: Secret
    """The key."""


class ByName(Settings):
    """Another."""

    type: Literal["name"]
    name: str
    """The name."""


class Limits(Settings):
    """Bounds."""

    max_body: SizeBytes = 1024
    """The largest."""
    timeout: DurationS = 2.5
    """The longest."""


class Config(Settings):
    """What a receiver may be told."""

    listen: AddressText = "127.0.0.1:0"
    """Where."""
    limits: Limits = Limits()
    """Bounds."""
    tokens: dict[str, Secret] = Field(default_factory=dict)
    """Who."""
    auth: Annotated[ByKey | ByName, Field(discriminator="type")] | None = None
    """How."""
    names: list[str] = Field(default_factory=list)
    """Which."""
    ratio: float = 0.5
    """How much."""
    strict: bool = False
    """How hard."""
