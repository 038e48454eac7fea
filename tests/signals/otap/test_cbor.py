"""Lists and maps within attributes: CBOR as others write and read it, and nothing that grows."""

from __future__ import annotations

import struct
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValueList

from holdfast.signals.otap.cbor import cbor_of_list, cbor_of_map, message_of
from holdfast.signals.otap.payloads import ValueType
from holdfast.signals.otap.problem import NotOtap

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.binary(max_size=300)
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=40,
)


def filled(value: AnyValue, plain: Any) -> AnyValue:
    """Return a value of OTLP with what Python has."""
    if isinstance(plain, bool):
        value.bool_value = plain
    elif isinstance(plain, int):
        value.int_value = plain
    elif isinstance(plain, float):
        value.double_value = plain
    elif isinstance(plain, str):
        value.string_value = plain
    elif isinstance(plain, bytes):
        value.bytes_value = plain
    elif isinstance(plain, list):
        value.array_value.SetInParent()
        for one in plain:
            filled(value.array_value.values.add(), one)
    elif isinstance(plain, dict):
        value.kvlist_value.SetInParent()
        for key, one in plain.items():
            pair = value.kvlist_value.values.add(key=key)
            pair.value.SetInParent()
            filled(pair.value, one)
    return value


@settings(max_examples=50, deadline=None)
@given(plain=st.lists(_VALUES, max_size=5), indefinite=st.booleans())
def test_lists_are_what_another_library_reads_and_writes(plain: Any, indefinite: bool) -> None:
    message = filled(AnyValue(), plain).array_value.SerializeToString()
    assert cbor2.loads(cbor_of_list(message)) == plain
    written = cbor2.dumps(plain, indefinite_containers=indefinite)
    back = ArrayValue.FromString(message_of(written, ValueType.SLICE))
    assert back == ArrayValue.FromString(message)


@settings(max_examples=30, deadline=None)
@given(plain=st.dictionaries(st.text(max_size=4), _VALUES, max_size=5), canonical=st.booleans())
def test_maps_are_what_another_library_reads_and_writes(plain: Any, canonical: bool) -> None:
    message = filled(AnyValue(), plain).kvlist_value.SerializeToString()
    assert cbor2.loads(cbor_of_map(message)) == plain
    back = KeyValueList.FromString(message_of(cbor2.dumps(plain), ValueType.MAP))
    assert back == KeyValueList.FromString(message)
    # Shorter numbers of the same value.
    short = KeyValueList.FromString(
        message_of(cbor2.dumps(plain, canonical=canonical), ValueType.MAP)
    )
    assert {pair.key for pair in short.values} == set(plain)


def test_keys_that_are_there_twice_stay() -> None:
    pairs = KeyValueList()
    for number in (1, 2):
        pairs.values.add(key="k").value.int_value = number
    written = cbor_of_map(pairs.SerializeToString())
    assert KeyValueList.FromString(message_of(written, ValueType.MAP)) == pairs


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (b"\x81" * 100_000, "nested too deeply"),
        (b"\x9f" * 100_000, "nested too deeply"),
        (b"\x81\xa1\x61k" * 50_000, "nested too deeply"),
        (b"\x9b" + b"\xff" * 8, "cut short"),
        (b"\x81\x7b" + b"\xff" * 8, "cut short"),
        (b"\x81\x61\xff", "not UTF-8"),
        (b"\x81\xd8\x1c\x80", "a tag"),
        (b"\x81\x1b" + b"\xff" * 8, "more than 64 bits"),
        (b"\x81\xa1\x01\x01", "not a text"),
        (b"\x81\xf8\xff", "a kind that OTLP does not have"),
        (b"\x81\x1c", "no length"),
        (b"\x81\x5f\x61a\xff", "pieces of another kind"),
        (b"\x80\x00", "more behind"),
        (b"\xa0", "not the slice"),
        (b"", "cut short"),
    ],
)
def test_what_is_no_value_is_refused(written: bytes, reason: str) -> None:
    with pytest.raises(NotOtap, match=reason):
        message_of(written, ValueType.SLICE)


def test_floats_of_all_lengths_are_doubles() -> None:
    written = b"\x83\xf9\x3e\x00\xfa\x3f\xc0\x00\x00\xfb" + struct.pack(">d", 1.5)
    values = ArrayValue.FromString(message_of(written, ValueType.SLICE)).values
    assert [value.double_value for value in values] == [1.5, 1.5, 1.5]
