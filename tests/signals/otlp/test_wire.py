"""Where fields stand: many messages at once, or one after the other."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import HistogramDataPoint
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from holdfast.signals.otlp.flat import wire
from holdfast.signals.otlp.flat.wire import SeveralValues, fields_of, messages_of
from holdfast.signals.otlp.problem import NotOtlp

_HISTOGRAM: Any = HistogramDataPoint.DESCRIPTOR
_SPAN: Any = Span.DESCRIPTOR


@pytest.fixture(params=[1, 1_000], ids=["together", "one by one"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "TOGETHER_MIN", request.param)


@pytest.mark.usefixtures("_way")
def test_fields_stand_where_a_reader_finds_them() -> None:
    spans = [
        Span(name="n" * length, flags=7, trace_state="s", kind=Span.SPAN_KIND_SERVER)
        for length in (0, 1, 127, 128, 20_000)
    ]
    messages = messages_of([span.SerializeToString() for span in spans])
    found = fields_of(messages, _SPAN)
    assert set(found) == {"name", "flags", "trace_state", "kind"}
    whole = messages.content.tobytes()
    names = found["name"].in_order()
    assert names.rows.tolist() == [1, 2, 3, 4]
    for row, first, end in zip(*(one.tolist() for one in names), strict=True):
        assert whole[first:end].decode() == spans[row].name
    # Field 16, which begins with two bytes.
    assert messages.words_at(found["flags"].firsts, "<u4").tolist() == [7] * 5


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize(
    "body",
    [
        b"\x01" + bytes(8),  # field 0
        b"\x00\x01",
        b"\x0b\x0c",  # a group
        b"\x85\x02" + bytes(4),  # field 32
        b"\x85",
        b"\x4a\x05abcd",  # longer than the message
        b"\x4a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x50" + b"\xff" * 10,  # a number without an end
        b"\x50\x80",
        b"\x11" + bytes(7),
    ],
)
def test_what_no_writer_makes_is_refused(body: bytes) -> None:
    for bodies in ([body], [b"\x50\x01", body], [body, b"\x50\x01"]):
        with pytest.raises(NotOtlp):
            fields_of(messages_of(bodies), _HISTOGRAM)


@pytest.mark.usefixtures("_way")
def test_a_list_of_numbers_that_is_not_one_field_is_left_to_protobuf() -> None:
    # Bucket counts, field 6: each by itself, or in two lists.
    with pytest.raises(NotOtlp):
        fields_of(messages_of([b"\x31" + bytes(8)]), _HISTOGRAM)
    with pytest.raises(SeveralValues):
        fields_of(messages_of([2 * (b"\x32\x08" + bytes(8))]), _HISTOGRAM)
