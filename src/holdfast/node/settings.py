"""What can be set of a data node."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from holdfast.remote.settings import FlightSettings
from holdfast.settings import DurationS, Settings, SizeBytes

MB = 1024 * 1024


class DataNodeSettings(Settings):
    """A data node: how much it keeps, and for how long. By default all of it, for ever."""

    max_age: DurationS | None = Field(default=None, gt=0)
    """Remove parts whose newest event came longer ago."""
    max_size: SizeBytes | None = Field(default=None, gt=0)
    """Remove the oldest parts while all together have more bytes."""
    min_free: SizeBytes = 256 * MB
    """Take nothing in while the disk would have less free than this; senders wait meanwhile."""
    cold_store: str | None = None
    """A file store, a folder or `s3://…`: what is to be removed becomes hourly commits there first.

    Nothing is removed that it does not have. It must exist (`holdfast store create`).
    """
    cold_database: str | None = None
    """Its database, if the store is in a bucket."""
    quarantine_max_size: SizeBytes = Field(default=4096 * MB, gt=0)
    """Take nothing new in while damaged parts that no sound copy replaced have more bytes."""
    quarantine_max_parts: int = Field(default=1000, ge=1)
    """Nor while there are more of them. Sound copies of them are always taken."""
    sweep_interval: DurationS = Field(default=10.0, gt=0)
    """How often it looks for parts to remove."""
    clock_grace: DurationS = 3600.0
    """A clock that is further ahead of the newest part at the start is believed after so long."""
    flight: FlightSettings = FlightSettings(listen="127.0.0.1:8816")
    """Where it listens, who may call, and TLS."""

    @model_validator(mode="after")
    def _has_something_for_the_cold_tier(self) -> Self:
        if self.cold_store is not None and self.max_age is None and self.max_size is None:
            raise ValueError("a cold store takes what max_age or max_size remove; set one of them")
        return self
