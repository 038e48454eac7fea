"""Sizes and durations as types of settings."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, SerializationInfo, WithJsonSchema

from holdfast.units import parse_duration_s, parse_size_bytes, written_duration, written_size

# With this in the context of a dump, sizes and durations are written as people write them. Without
# it they are numbers: what is stored must not depend on how we write for people.
IN_UNITS = "in_units"


def _in_units(context: Any) -> bool:
    return bool(context and context.get(IN_UNITS))


def _dumped_size(size_bytes: int, info: SerializationInfo) -> int | str:
    return written_size(size_bytes) if _in_units(info.context) else size_bytes


def _dumped_duration(duration_s: float, info: SerializationInfo) -> float | str:
    return written_duration(duration_s) if _in_units(info.context) else duration_s


SizeBytes = Annotated[
    int,
    BeforeValidator(parse_size_bytes),
    PlainSerializer(_dumped_size),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": r"^\d+(\.\d+)?\s*([KMGT](i?B)?|B)?$"},
            ]
        }
    ),
]
DurationS = Annotated[
    float,
    BeforeValidator(parse_duration_s),
    PlainSerializer(_dumped_duration),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0},
                {"type": "string", "pattern": r"^\d+(\.\d+)?\s*(us|ms|s|m|min|h|d)?$"},
            ]
        }
    ),
]
