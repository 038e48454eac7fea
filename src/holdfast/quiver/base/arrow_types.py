"""What is inside an Arrow type, and which types Arrow itself cannot be trusted with."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa


def parts(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yield the type and all types inside it; extension types as what they are stored as."""
    if isinstance(kind, pa.BaseExtensionType):
        yield from parts(kind.storage_type)
        return
    yield kind
    if pa.types.is_dictionary(kind):
        yield from parts(kind.value_type)
    for place in range(kind.num_fields):
        yield from parts(kind.field(place).type)


def has_dictionary(kind: pa.DataType) -> bool:
    """Whether the type is a dictionary, or has one inside."""
    return any(pa.types.is_dictionary(part) for part in parts(kind))


def has_half_float_dictionary(kind: pa.DataType) -> bool:
    """Whether a dictionary of half floats is inside: Arrow unifies those into other values."""
    return any(
        pa.types.is_dictionary(part) and pa.types.is_float16(part.value_type)
        for part in parts(kind)
    )


def check_readable(kind: pa.DataType) -> None:
    """Raise for a type that Arrow writes without complaint, and cannot read."""
    for part in parts(kind):
        if not pa.types.is_dictionary(part):
            continue
        values = part.value_type
        if pa.types.is_dictionary(values) or isinstance(values, pa.BaseExtensionType):
            raise pa.ArrowNotImplementedError(f"a dictionary of {values} cannot be read back")


def can_be_filtered(kind: pa.DataType) -> bool:
    """Whether Arrow filters the type: views and runs it refuses, unions inside maps it breaks."""
    return not any(
        _is_view(part) or pa.types.is_run_end_encoded(part) or pa.types.is_union(part)
        for part in parts(kind)
    )


def slices_take_all(kind: pa.DataType) -> bool:
    """Whether Arrow writes the values of a whole array with every slice of it."""
    return any(
        _is_view(part)
        or pa.types.is_list_view(part)
        or pa.types.is_large_list_view(part)
        or (pa.types.is_union(part) and part.mode == "dense")
        for part in parts(kind)
    )


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))
