"""The keys of a file: without units, because values have them; and the keys of older versions.

In the code a number has its unit in its name: `send_timeout_s`, `max_body_bytes`. In a file the
value has it (`30s`, `32MB`), so the key does not: `send_timeout`, `max_body_size`. A rate keeps its
`_per_s`, because no value says per what it is. `key_of` is that rule; what follows from it, and
`CONVERTED`, is all that is accepted of the keys of versions before, with a warning: the names of
the fields, which were the keys then. `SYNONYMS` are names that others have for the same, and stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, model_validator


def key_of(name: str) -> str:
    """Return the key in a file of a field in the code."""
    if name.endswith("_per_s"):
        return name
    if name.endswith("_bytes"):
        return f"{name.removesuffix('_bytes')}_size"
    return name.removesuffix("_s")


class OldKey(NamedTuple):
    """What replaces a key of a version before; its number times the factor is the new value."""

    key: str
    factor: float = 1.0


_HOUR_S = 3600.0
# Keys that counted in a unit of their own.
CONVERTED = {"retention_hours": OldKey("retention_time", _HOUR_S)}
# Keys of configurations of OTAP dataflow. They are read without a warning, for good.
SYNONYMS = {
    "max_retain_after_ingestion_hours": OldKey("max_age", _HOUR_S),
    "steady_state_headroom": OldKey("keep_delivered"),
}


def old_names(key: str) -> tuple[str, ...]:
    """Return every name that a key can have had."""
    size = (f"{key.removesuffix('_size')}_bytes",) if key.endswith("_size") else ()
    named = {**CONVERTED, **SYNONYMS}.items()
    return (f"{key}_s", *size, *(old for old, new in named if new.key == key))


class FileKeys(BaseModel):
    """Gives a model the keys of the rule; those of versions before are accepted, too."""

    model_config = ConfigDict(alias_generator=key_of)

    # Keys that have no effect any more, and what is in their place. They are read past.
    removed_keys: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def old_keys(cls) -> dict[str, OldKey]:
        """Return the keys of versions before, and what each of them is today."""
        keys = cls._names_by_key()
        old = {name: OldKey(key) for key, name in keys.items() if name != key}
        return old | {name: new for name, new in CONVERTED.items() if new.key in keys}

    @classmethod
    def _names_by_key(cls) -> dict[str, str]:
        return {field.alias or name: name for name, field in cls.model_fields.items()}

    @model_validator(mode="before")
    @classmethod
    def _with_the_keys_of_today(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        keys, today = cls._names_by_key(), {}
        others = {name: new for name, new in SYNONYMS.items() if new.key in keys}
        known = cls.old_keys() | others
        for key, item in value.items():
            if key in cls.removed_keys:
                continue
            new = known.get(key, OldKey(key))
            if new.key in today:
                raise ValueError(f"{key!r} and {new.key!r} are the same; keep one of them")
            counts = new.factor != 1.0 and isinstance(item, int | float)
            today[new.key] = item * new.factor if counts else item
        return today
