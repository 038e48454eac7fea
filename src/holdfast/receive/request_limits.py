"""The bounds of requests, as they are configured."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from holdfast.receive.body import BodyLimits
from holdfast.settings import DurationS, FileSettings, SizeBytes

MB = 1024 * 1024


class RequestLimits(FileSettings):
    """Bounds of requests."""

    max_body_bytes: SizeBytes = Field(default=32 * MB, ge=1)
    """One body as it is sent; larger is 413."""
    max_expanded_bytes: SizeBytes = Field(default=32 * MB, ge=1)
    """One body unpacked; larger is 413."""
    max_batch_events: int = Field(default=10_000, ge=1)
    """Events in one batch; more is 413."""
    max_requests: int = Field(default=512, ge=1)
    """Requests under way at once; more are 503."""
    max_in_flight_bytes: SizeBytes = Field(default=128 * MB, ge=1)
    """Bodies under way at once, as sent and unpacked together; more is 503."""
    body_timeout_s: DurationS = Field(default=10.0, gt=0)
    """The longest pause of a client while it sends a body; longer is 503."""
    min_body_bytes_per_s: SizeBytes = Field(default=16 * 1024, ge=1)
    """The slowest pace of a body after `body_timeout`; slower is 503."""

    @model_validator(mode="after")
    def _one_body_fits(self) -> Self:
        if self.max_in_flight_bytes < self.max_body_bytes + self.max_expanded_bytes:
            raise ValueError(
                "max_in_flight_bytes must hold one body, as sent and unpacked "
                "(max_body_bytes + max_expanded_bytes)"
            )
        return self

    @property
    def body(self) -> BodyLimits:
        """The bounds of one body."""
        return BodyLimits(
            max_body_bytes=self.max_body_bytes,
            max_expanded_bytes=self.max_expanded_bytes,
            timeout_s=self.body_timeout_s,
            min_bytes_per_s=self.min_body_bytes_per_s,
        )
