"""A problem: what is wrong with an event, where, and what to do, without showing its data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

# A pointer names keys of the event. A key may be as long as the event itself; what is told of it
# may not.
MAX_POINTER_PART_CHARS = 200


@dataclass(frozen=True)
class Problem:
    """One finding. `facet` is "slot.key" if it lies in a facet; `rule` is one short word."""

    pointer: str
    facet: str | None
    rule: str
    message: str
    hint: str

    def to_fields(self) -> dict[str, str]:
        """Return it for JSON, without what does not apply."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def pointer_to(path: Iterable[str | int]) -> str:
    """Return a JSON pointer (RFC 6901)."""
    return "".join("/" + _part(str(step)) for step in path)


def _part(step: str) -> str:
    if len(step) > MAX_POINTER_PART_CHARS:
        step = step[:MAX_POINTER_PART_CHARS] + "…"
    return step.replace("~", "~0").replace("/", "~1")
