"""`partial_success`: the sound items of a request are taken, and nobody loses the others."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.processors.requests import Flat, flat, requests
from tests.receive.harness import Place
from tests.receive.test_otlp_grpc import export, running
from tests.receive.test_otlp_http import JSON, post, receiver, status_of
from tests.signals.otlp.telemetry import request
from tests.support.examples import examples

from holdfast.receive import otlp_checks
from holdfast.receive.receiver import ItemCounts
from holdfast.signals.otlp import codec
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import COUNTED_REQUESTS, REQUESTS, RESPONSES
from holdfast.signals.otlp.partial import divide
from holdfast.signals.otlp.problem import NotOtlp

# A text that is not UTF-8, in a field that all kinds of items have: `attributes`.
NOT_UTF8 = {
    OtlpKind.TRACES: b"\x4a\x03\x0a\x01\xff",
    OtlpKind.LOGS: b"\x32\x03\x0a\x01\xff",
    OtlpKind.METRICS: b"\x3a\x03\x0a\x01\xff",
}


def spans(*ids: tuple[bytes, bytes]) -> bytes:
    made: Any = REQUESTS[OtlpKind.TRACES]()
    for trace_id, span_id in ids:
        scope = made.resource_spans.add().scope_spans.add()
        scope.spans.add(trace_id=trace_id, span_id=span_id, name="a")
    written: bytes = made.SerializeToString()
    return written


GOOD = (b"t" * 16, b"s" * 8)
HALF = spans(GOOD, (b"t" * 15, b"s" * 8), (b"t" * 16, bytes(8)))


@pytest.mark.parametrize("kind", [OtlpKind.LOGS, OtlpKind.METRICS])
def test_a_request_is_divided_into_what_can_be_read_and_what_cannot(kind: OtlpKind) -> None:
    @settings(max_examples=examples(30))
    @given(requests(kind), st.data())
    def play(body: bytes, data: st.DataObject) -> None:
        whole = flat(kind, body)
        flags = data.draw(st.lists(st.booleans(), min_size=len(whole), max_size=len(whole)))
        broken, places = COUNTED_REQUESTS[kind].FromString(body), iter(flags)
        for items in codec.item_lists(kind, broken):
            items[:] = [item + NOT_UTF8[kind] * next(places) for item in items]
        sent = broken.SerializeToString()
        sound = [one for one, is_broken in zip(whole, flags, strict=True) if not is_broken]
        if not any(flags):
            assert divide(kind, sent) == (sent, len(whole), b"", 0)
        elif not sound:
            with pytest.raises(NotOtlp, match="none of its"):
                divide(kind, sent)
        else:
            found = divide(kind, sent)
            assert flat(kind, found.sound) == sound
            assert (found.items, found.rejected_items) == (len(sound), sum(flags))
            assert codec.count(kind, found.rejected) == sum(flags)
            with pytest.raises(NotOtlp):
                codec.check(kind, found.rejected)

    play()


def test_what_is_around_the_items_has_to_be_sound() -> None:
    # An attribute of the resource of a sound span.
    resource = b"\x0a\x05\x0a\x03\x0a\x01\xff" + spans(GOOD)[2:]
    body = HALF + b"\x0a" + bytes([len(resource)]) + resource
    with pytest.raises(NotOtlp):
        divide(OtlpKind.TRACES, body)
    with pytest.raises(NotOtlp):
        divide(OtlpKind.TRACES, HALF[:-1])


@pytest.mark.parametrize("heavy_bytes", [0, 10**6], ids=["in the child", "here"])
def test_spans_without_valid_ids_are_left_out_and_kept_as_a_letter(
    place: Place, monkeypatch: pytest.MonkeyPatch, heavy_bytes: int
) -> None:
    monkeypatch.setattr(otlp_checks, "HEAVY_BYTES", heavy_bytes)
    with running(place, partial_success=True) as server:
        status, answer = export(server.target, HALF)
        told: Any = RESPONSES[OtlpKind.TRACES].FromString(answer)
        assert (status, told.partial_success.rejected_spans) == ("OK", 2)
        assert "2 of 3 spans are not valid and were left out" in told.partial_success.error_message
        assert export(server.target, spans(GOOD)) == ("OK", b"")
        counts = server.receiver.statistics().items["traces"]
    assert counts == ItemCounts(accepted=2, refused=0, rejected=2)
    assert [flat(OtlpKind.TRACES, body) for body in place.stored()] == [
        flat(OtlpKind.TRACES, spans(GOOD))
    ] * 2
    (letter,) = place.letters()
    left_out: list[Flat] = flat(OtlpKind.TRACES, letter.payload)
    assert left_out == flat(OtlpKind.TRACES, HALF)[1:]
    assert letter.slot == OtlpKind.TRACES.slot


def test_json_is_answered_in_json_and_what_is_not_valid_at_all_is_refused(place: Place) -> None:
    made = receiver(place, partial_success=True)
    span = {"traceId": "74" * 16, "spanId": "73" * 8}
    document = {"resourceSpans": [{"scopeSpans": [{"spans": [span, {"name": "without ids"}]}]}]}
    reply = post(made.app, orjson.dumps(document), headers=JSON)
    assert reply.status == 200
    assert int(reply.document["partialSuccess"]["rejectedSpans"]) == 1
    status, code, message = status_of(post(made.app, spans((b"", b""))))
    assert (status, code) == (400, 3)
    assert "none of its 1 spans is valid" in message


def test_by_default_ids_are_not_looked_at_and_what_cannot_be_read_is_refused(place: Place) -> None:
    made = receiver(place)
    assert post(made.app, HALF).body == b""
    assert place.stored() == [HALF]
    logs = request(OtlpKind.LOGS, random.Random(1))
    broken: Any = COUNTED_REQUESTS[OtlpKind.LOGS].FromString(logs)
    next(codec.item_lists(OtlpKind.LOGS, broken))[0] += NOT_UTF8[OtlpKind.LOGS]
    assert post(made.app, broken.SerializeToString(), OtlpKind.LOGS).status == 400
    assert place.stored() == [HALF]
