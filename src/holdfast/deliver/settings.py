"""What a destination may be told: order, limits, and how it takes a no."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from holdfast.quiver import SubscriberOptions
from holdfast.settings import DurationS, FileSettings, SizeBytes
from holdfast.settings.units import size_text
from holdfast.signals.registry import all_signals

MB = 1024 * 1024


REMOVED_KEYS = {
    "strict_order": "nothing is skipped any more unless `poison` is set",
    "poison_attempts": "see `poison`, which is off unless it is set",
    "refusals_max": "only 400, 422 and 413 are about an event; after any other answer it waits",
    "refusal_retry_s": "a destination that refuses is tried again after `retry_max` at most",
    "refusal_hold_s": "only 400, 422 and 413 are about an event, immediately",
}


class PoisonSettings(FileSettings):
    """When an event that alone makes a destination fail becomes a dead letter."""

    attempts: int = Field(default=5, ge=1)
    """An event that failed so often in a row is tried together with others from then on."""
    pairs: int = Field(default=20, ge=10, le=64)
    """So many times the event must fail while another one, sent right before or after it, is taken;
    first one that was taken before, which is sent again for that, then as many new ones from behind
    it. A destination that fails by chance makes a dead letter of a good event with a probability of
    at most 2 to the power of minus this: one in a million."""
    held_s: DurationS = Field(default=900.0, ge=0)
    """Nor does it become one before it failed for so long."""


class DeliverySettings(FileSettings):
    """How one destination is delivered to."""

    removed_keys: ClassVar[Mapping[str, str]] = REMOVED_KEYS

    order: Literal["received", "key"] = "received"
    """`received`: one after another, as they came. `key`: in order for each key, in parallel."""
    key: str | None = None
    """With `order: key`: what has to stay in order. For OpenLineage `root_job`, `job` or `run`; by
    default the first of these."""
    lanes: int = Field(default=8, ge=1, le=256)
    """With `order: key`: how many sends may be under way at once."""
    max_ahead_bytes: SizeBytes = Field(default=16 * MB, ge=1)
    """With `order: key`: how far other keys may run ahead of one that is stuck; then the
    destination stalls, and says which key it is."""
    window_bytes: SizeBytes = Field(default=4 * MB, ge=1)
    """With `order: received`: payload bytes that are read ahead (or one larger request)."""
    window_events: int = Field(default=2000, ge=1)
    """Events that are read ahead (or one larger request)."""
    signals: tuple[str, ...] | None = None
    """Deliver only these signals, such as `openlineage`; everything else in the quiver is
    `filtered` for this destination. By default everything is delivered, and what the destination
    cannot take is held."""

    retention_time_s: DurationS | None = Field(default=None, gt=0)
    """Events that waited longer are dropped, or block receivers: see `on_full`; null: they wait for
    as long as the quiver has room."""
    retention_bytes: SizeBytes | None = Field(default=None, gt=0)
    """Payload bytes that may wait; null: no limit but the quiver's own."""
    on_full: Literal["block", "drop_oldest"] | None = None
    """At a limit: `drop_oldest` loses the oldest of this destination, and says so; `block` refuses
    new events for everyone until there is room. By default `drop_oldest` if this destination has a
    limit of its own, and `block` if not."""

    send_timeout_s: DurationS = Field(default=30.0, gt=0)
    """How long one send may take."""
    retry_initial_s: DurationS = Field(default=0.5, gt=0)
    """The pause after the first failure is at most this long; each further one doubles that."""
    retry_max_s: DurationS = Field(default=60.0, gt=0)
    """No pause between tries is longer, unless the destination asks for it."""
    max_retry_after_s: DurationS = Field(default=300.0, gt=0)
    """A longer Retry-After is not believed."""
    auth_retry_s: DurationS = Field(default=300.0, gt=0)
    """After our credentials were refused: when to try again without being told to resume."""
    breaker_failures: int = Field(default=5, ge=1)
    """So many failed sends without a success between them stop all sending for a while."""
    breaker_open_s: DurationS = Field(default=10.0, gt=0)
    """For how long; then one event is tried."""
    poison: PoisonSettings | None = None
    """Set aside an event that alone makes the destination fail (5xx but 503, or an exception), once
    that is proven. Without it such an event is tried for ever, and the others wait behind it."""

    @field_validator("key")
    @classmethod
    def _is_an_order_key(cls, key: str | None) -> str | None:
        known = sorted({name for signal in all_signals() for name in signal.order_keys})
        if key is not None and key not in known:
            raise ValueError(f"there is no order key {key!r}; known keys: {', '.join(known)}")
        return key

    @field_validator("signals")
    @classmethod
    def _are_signals(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        known = sorted(signal.name for signal in all_signals())
        for name in names or ():
            if name not in known:
                raise ValueError(f"there is no signal {name!r}; known signals: {', '.join(known)}")
        return names

    @property
    def ahead_bytes(self) -> int:
        """How much may be read ahead of the oldest event that has no outcome."""
        return self.max_ahead_bytes if self.order == "key" else self.window_bytes

    @property
    def parallel_sends(self) -> int:
        """How many sends may be under way at once."""
        return self.lanes if self.order == "key" else 1

    @property
    def limits(self) -> str:
        """How much may wait, and what happens then, for people."""
        size_bytes, time_s = self.retention_bytes, self.retention_time_s
        room = "any number of bytes" if size_bytes is None else size_text(size_bytes)
        time = "any number of hours" if time_s is None else f"{time_s / 3600:g} hours"
        drops = self.when_full == "drop_oldest"
        then = "the oldest are dropped" if drops else "receivers answer 503"
        if size_bytes is None and time_s is None:
            return f"as long as the quiver has room, then {then}"
        return f"at most {time} and {room}, then {then}"

    @property
    def when_full(self) -> Literal["block", "drop_oldest"]:
        """What happens at a limit: nothing is dropped that nobody set a limit for."""
        has_limit = self.retention_time_s is not None or self.retention_bytes is not None
        return self.on_full or ("drop_oldest" if has_limit else "block")

    def subscriber_options(self) -> SubscriberOptions:
        """Return the limits as the quiver keeps them."""
        return SubscriberOptions(
            max_bytes=self.retention_bytes,
            max_age_s=self.retention_time_s,
            on_full=self.when_full,
        )
