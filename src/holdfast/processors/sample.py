"""`sample`: lets a share of all traces through, whole, with the log records that belong to them.

Which ones is decided as OpenTelemetry's probability sampling says (W3C Trace Context Level 2), so
that every process, collector or SDK that does the same decides the same, whatever its share: of two
shares the traces of the smaller one are among those of the larger.

    randomness  R   `rv` of the trace state's `ot` member, else the last 56 bits of the trace id
    threshold   T   (1 - ratio) times 2 to the power of 56
    kept            if R >= T

What is kept of a trace says so: `th` in its trace state is raised to T, by which a backend can
count what was dropped. It is not lowered where an earlier sampler kept fewer.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field

from holdfast.processors.telemetry import TRACED, items_module, with_change
from holdfast.settings import Settings
from holdfast.signals.event import Event
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.signal import Takes

RANDOM_BITS = 56
_RANDOM_BYTES, _DIGITS = RANDOM_BITS // 8, RANDOM_BITS // 4
_ALL = 1 << RANDOM_BITS
_TRACE_ID_BYTES = 16
# The member of a trace state that is OpenTelemetry's, and what a trace state may have at most.
_MEMBER = "ot"
_MEMBERS_MAX = 32
_MEMBER_CHARACTERS_MAX = 256
_HEX = re.compile(rf"[0-9a-f]{{1,{_DIGITS}}}")


class Config(Settings):
    """Which share of all traces a destination gets. The rest is counted as `filtered`."""

    ratio: float = Field(gt=0, le=1)
    """The share: 0.1 keeps one trace in ten."""
    untraced: Literal["keep", "drop"] = "keep"
    """What becomes of log records (and spans) without a valid trace id."""


class TraceSampler:
    """Drops spans and log records by their trace ids."""

    def __init__(self, config: Config) -> None:
        self.threshold = threshold_of(config.ratio)
        self._threshold_bytes = self.threshold.to_bytes(_RANDOM_BYTES, "big")
        self._th = th_of(self.threshold)
        self._new_state = f"{_MEMBER}=th:{self._th}"
        self._drops_untraced = config.untraced == "drop"

    def process(self, event: Event) -> Event | None:
        """Return the event with the items of the traces that are kept."""
        if self.threshold == 0 and not self._drops_untraced:
            return event
        return with_change(event, self._sampled)

    def _sampled(self, payload: bytes, kind: OtlpKind) -> bytes | None:
        sample = self._sample_records if kind is OtlpKind.LOGS else self._sample_spans

        def change(request: Any) -> bool:
            flags = [sample(one.holder) for one in items_module().scopes(kind, request)]
            if any(dropped for dropped, _ in flags):
                items_module().prune(kind, request)
            return any(dropped or marked for dropped, marked in flags)

        changed: bytes | None = items_module().changed(payload, kind, change)
        return changed

    def _sample_records(self, holder: Any) -> tuple[int, bool]:
        dropped: int = items_module().drop_from(
            holder.log_records, lambda record: self._is_dropped(record.trace_id, None)
        )
        return dropped, False

    def _sample_spans(self, holder: Any) -> tuple[int, bool]:
        """Return how many went, and whether one of those that stay had to be marked."""
        dropped: int = items_module().drop_from(holder.spans, self._drops_span)
        is_marked = False
        for span in holder.spans if self.threshold else ():
            if _is_valid(span.trace_id):
                state = span.trace_state
                # Most have none.
                marked = (
                    with_threshold(state, self.threshold, self._th) if state else self._new_state
                )
                if marked is not None:
                    span.trace_state = marked
                    is_marked = True
        return dropped, is_marked

    def _drops_span(self, span: Any) -> bool:
        state: str = span.trace_state
        return self._is_dropped(span.trace_id, randomness_in(state) if "rv:" in state else None)

    def _is_dropped(self, trace_id: bytes, randomness: int | None) -> bool:
        if not _is_valid(trace_id):
            return self._drops_untraced
        if randomness is not None:
            return randomness < self.threshold
        return trace_id[-_RANDOM_BYTES:] < self._threshold_bytes


def _is_valid(trace_id: bytes) -> bool:
    return len(trace_id) == _TRACE_ID_BYTES and any(trace_id)


def threshold_of(ratio: float) -> int:
    """Return what a randomness must reach."""
    # At least one of 2 ** 56 is kept: a ratio that is not 0 does not become 0 by rounding.
    return _ALL - max(1, round(ratio * _ALL))


def th_of(threshold: int) -> str:
    """Return a threshold as it is written in a trace state: hexadecimal, without zeros behind."""
    return f"{threshold:0{_DIGITS}x}".rstrip("0") or "0"


def randomness_in(state: str) -> int | None:
    """Return the explicit randomness of a trace state, `rv`, if there is a sound one."""
    found = dict(_fields(dict(_members(state)).get(_MEMBER, ""))).get("rv", "")
    is_whole = len(found) == _DIGITS and _HEX.fullmatch(found)
    return int(found, 16) if is_whole else None


def with_threshold(state: str, threshold: int, th: str) -> str | None:
    """Return a trace state that names a threshold; None if it names that or a higher one.

    Or if there is no room for it, or the state is not a sound one: what others wrote is not ours
    to drop.
    """
    members = _members(state)
    if state.strip() and len(members) != state.count(",") + 1:
        return None  # not a trace state: it stays as it is
    fields = _fields(dict(members).get(_MEMBER, ""))
    known = dict(fields).get("th", "")
    if _HEX.fullmatch(known) and int(known.ljust(_DIGITS, "0"), 16) >= threshold:
        return None
    ours = [("th", th), *(field for field in fields if field[0] != "th")]
    value = ";".join(":".join(field) for field in ours)
    # What was changed stands first.
    others = [member for member in members if member[0] != _MEMBER]
    if len(value) > _MEMBER_CHARACTERS_MAX or len(others) >= _MEMBERS_MAX:
        return None
    return ",".join("=".join(member) for member in [(_MEMBER, value), *others])


def _members(state: str) -> list[tuple[str, str]]:
    pairs = (member.strip().partition("=") for member in state.split(","))
    return [(key, value) for key, equals, value in pairs if equals]


def _fields(value: str) -> list[tuple[str, str]]:
    pairs = (field.partition(":") for field in value.split(";"))
    return [(key, text) for key, colon, text in pairs if colon]


def takes(config: Config) -> Takes:
    """Spans and log records: data points belong to no trace."""
    return TRACED


def make(config: Config) -> TraceSampler:
    """Return a sampler."""
    return TraceSampler(config)
