"""The settings of a destination: order, limits, retries, and when an event is given up.

There are few of them on purpose. A key that nobody can choose well is a constant with a reason
(below), and its old name is still understood, with a word on what happens instead. Nothing is
dropped by default: a limit, and what happens at it, is always something that somebody wrote down.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from holdfast.quiver import SubscriberOptions
from holdfast.settings import DurationS, FileSettings, SizeBytes
from holdfast.signals.registry import all_signals
from holdfast.units import size_text

MB = 1024 * 1024
# In order, one request is under way: more than the next few need not be in memory.
WINDOW_BYTES = 4 * MB
# By key, a stuck one holds what came after it in memory, while the others continue for this long.
KEY_AHEAD_BYTES = 16 * MB
# Most failures are over in a moment (a restart, a connection that was closed).
RETRY_INITIAL_S = 0.5
# An outage is not: meanwhile one event, not each of them, finds out whether it is over.
BREAKER_OPEN_S = 10.0

REMOVED_KEYS = {
    "strict_order": "nothing is skipped any more unless `poison` is set",
    "poison_attempts": "see `poison`, which is off unless it is set",
    "refusals_max": "only 400, 422 and 413 are about an event; after any other answer it waits",
    "refusal_retry_s": "a destination that refuses is tried again after `retry_max` at most",
    "refusal_hold_s": "only 400, 422 and 413 are about an event, immediately",
    "max_ahead_bytes": "set `read_ahead_size`",
    "window_bytes": "set `read_ahead_size`",
    "window_events": "at most 2,000 events are read ahead",
    "retry_initial_s": "the first pause is 0.5 s, or `retry_max` if that is shorter",
    "max_retry_after_s": "a Retry-After is honoured for up to 5 minutes",
    "auth_retry_s": "refused credentials are tried again after 5 minutes, or when you resume",
    "breaker_failures": "sending is suspended after 5 failures in a row",
    "breaker_open_s": "sending is suspended for 10 s, or `retry_max` if that is shorter",
}


class PoisonSettings(FileSettings):
    """When an event that alone makes a destination fail becomes a dead letter."""

    attempts: int = Field(default=5, ge=1)
    """After this many failures in a row, an event is sent in pairs with others."""
    pairs: int = Field(default=20, ge=10, le=64)
    """How many times the event must fail while another one, sent right before or after it, is
    taken; first one that was taken before, which is sent again for that, then as many new ones
    from behind it. A destination that fails by chance makes a dead letter of a good event with a
    probability of at most 2 to the power of minus this: one in a million."""
    held_s: DurationS = Field(default=900.0, ge=0)
    """It does not become a dead letter before it has failed for this long."""


class DeliverySettings(FileSettings):
    """How one destination is delivered to."""

    removed_keys: ClassVar[Mapping[str, str]] = REMOVED_KEYS

    # What nobody needs to set for one destination: what a process can afford, and what a backend
    # can stand, differ far less from place to place than these have room for.
    #
    # Small events must not make the window long: each costs memory beside its payload.
    window_events: ClassVar[int] = 2000
    # A longer Retry-After is more often a mistake than a wish, and would look like a stop.
    max_retry_after_s: ClassVar[float] = 300.0
    # Refused credentials are repaired by people; until then a try is an entry in somebody's log of
    # attacks. `holdfast destination resume` does not wait for it.
    auth_retry_s: ClassVar[float] = 300.0
    # One failure may be chance, five in a row without a success between them are an outage.
    breaker_failures: ClassVar[int] = 5

    order: Literal["received", "key"] = "received"
    """`received`: one after another, as they came. `key`: in order for each key, in parallel."""
    key: str | None = None
    """With `order: key`: what has to stay in order. For OpenLineage `root_job`, `job` or `run`; by
    default the first of these."""
    lanes: int = Field(default=8, ge=1, le=256)
    """With `order: key`: how many sends may be under way at once."""
    read_ahead_bytes: SizeBytes | None = Field(default=None, ge=1)
    """Payload that is read ahead of the oldest event that is not delivered yet (or one larger
    request): by default 4MB, and 16MB with `order: key`. With `order: key` it is also how far other
    keys may get ahead of one that is stuck; then the destination stalls, and says which key it
    is."""
    signals: tuple[str, ...] | None = None
    """Deliver only these signals, such as `openlineage`; everything else in the quiver is
    `filtered` for this destination. By default everything is delivered, and what the destination
    cannot take is held."""

    after_outage: Literal["oldest_first", "newest_first"] = "oldest_first"
    """What waited during an outage, or while Holdfast did not run: `newest_first` sends what comes
    in from then on first and, while nothing does, what waited, from its newest end. Only for
    signals that promise no order: traces, metrics, logs."""

    on_damage: Literal["skip", "send_rest"] = "skip"
    """A bundle of record batches of which the disk lost some slots is not sent, and has the outcome
    `damaged`. With `send_rest` its other slots are sent, marked with what they lack; the outcome
    stays `damaged`."""

    retention_time_s: DurationS | None = Field(default=None, gt=0)
    """Events that waited longer are dropped, or block receivers: see `on_full`; null: they wait for
    as long as the quiver has room."""
    retention_bytes: SizeBytes | None = Field(default=None, gt=0)
    """Payload bytes that may wait; null: no limit but the quiver's own."""
    on_full: Literal["block", "drop_oldest"] | None = None
    """At a limit: `drop_oldest` loses the oldest of this destination, and says so; `block` refuses
    new events for everyone until there is room. By default `drop_oldest` if this destination has a
    limit of its own, and `block` if not."""

    max_bytes_per_s: SizeBytes | None = Field(default=None, ge=1)
    """How fast payload is sent at most, so that a backend that was away is not flooded by what
    waited for it; null: as fast as it takes it."""
    send_timeout_s: DurationS = Field(default=30.0, gt=0)
    """How long one send may take."""
    retry_max_s: DurationS = Field(default=60.0, gt=0)
    """The longest pause between two tries, unless the destination asks for more with Retry-After
    (at most 5 minutes). The first pause is half a second, and each further one doubles it."""
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
        known = sorted({signal.name for signal in all_signals()})
        for name in names or ():
            if name not in known:
                raise ValueError(f"there is no signal {name!r}; known signals: {', '.join(known)}")
        return names

    @model_validator(mode="after")
    def _keeps_the_order_of_keys(self) -> Self:
        if self.after_outage == "newest_first" and self.order == "key":
            raise ValueError(
                "`order: key` keeps an order, and `after_outage: newest_first` does not"
            )
        return self

    @property
    def ahead_bytes(self) -> int:
        """How much may be read ahead of the oldest event that has no outcome."""
        by_default = KEY_AHEAD_BYTES if self.order == "key" else WINDOW_BYTES
        return self.read_ahead_bytes or by_default

    @property
    def retry_initial_s(self) -> float:
        """The pause after the first failure is at most this long."""
        return min(RETRY_INITIAL_S, self.retry_max_s)

    @property
    def breaker_open_s(self) -> float:
        """For how long sending is suspended; then one event is tried."""
        return min(BREAKER_OPEN_S, self.retry_max_s)

    @property
    def parallel_sends(self) -> int:
        """How many sends may be under way at once."""
        return self.lanes if self.order == "key" else 1

    @property
    def limits(self) -> str:
        """How much may wait, and what happens then, for people."""
        size_bytes, time_s = self.retention_bytes, self.retention_time_s
        drops = self.when_full == "drop_oldest"
        then = "the oldest are dropped" if drops else "receivers answer 503"
        room = "" if size_bytes is None else size_text(size_bytes)
        if time_s is not None:
            return f"at most {time_s / 3600:g} hours{room and ' and '}{room}, then {then}"
        if room:
            return f"as long as they take at most {room}, then {then}"
        return f"as long as the quiver has room, then {then}"

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
