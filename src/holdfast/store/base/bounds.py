"""Settings of a store as frozen dataclasses: every value within its bounds, units as people write.

Not pydantic, as in configuration files: a store is opened by every command of `files`, `store` and
`gc`, and loading pydantic takes longer than most of them. What a field may be stands with the field
(`count`, `size_bytes`, `duration_s`, `choice`), and is checked when settings are made.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

from holdfast.units import parse_duration_s, parse_size_bytes


class BoundedSettings:
    """What frozen dataclasses of settings have in common: values outside of bounds are refused."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            given = getattr(self, field.name)
            checked = _checked(field.name, given, field.metadata)
            if checked is not given:
                object.__setattr__(self, field.name, checked)


def count(default: int | None, *, least: int = 0, most: int | None = None) -> Any:
    """Return a field for a whole number."""
    return dataclasses.field(
        default=default, metadata={"kind": operator.index, "least": least, "most": most}
    )


def size_bytes(default: int | None, *, least: int = 0, most: int | None = None) -> Any:
    """Return a field for bytes, which may be written as `32MB`."""
    metadata = {"kind": parse_size_bytes, "least": least, "most": most}
    return dataclasses.field(default=default, metadata=metadata)


def duration_s(default: float, *, above: float | None = None, most: float | None = None) -> Any:
    """Return a field for seconds, which may be written as `72h`."""
    metadata = {"kind": parse_duration_s, "above": above, "most": most}
    return dataclasses.field(default=default, metadata=metadata)


def rate_per_s() -> Any:
    """Return a field for a rate that may be left out."""
    return dataclasses.field(default=None, metadata={"kind": float, "above": 0})


def choice(default: str, *others: str) -> Any:
    """Return a field for one of some words."""
    return dataclasses.field(default=default, metadata={"words": (default, *others)})


def _checked(name: str, given: Any, known: Any) -> Any:
    """Return a value as its field has it, or say why it cannot be."""
    if words := known.get("words"):
        if given not in words:
            raise ValueError(f"{name} is {given!r}; it is one of {', '.join(words)}")
        return given
    if "kind" not in known or given is None:
        return given
    try:
        if isinstance(given, bool):
            raise ValueError(f"{given} is no number")
        value = known["kind"](given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from None
    least, above, most = known.get("least"), known.get("above"), known.get("most")
    if least is not None and value < least:
        raise ValueError(f"{name} is {value}; it is at least {least}")
    if above is not None and value <= above:
        raise ValueError(f"{name} is {value}; it is more than {above}")
    if most is not None and value > most:
        raise ValueError(f"{name} is {value}; it is at most {most}")
    return value
