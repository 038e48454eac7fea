"""Item processors: what goes goes, and what is not touched stays byte for byte."""

from __future__ import annotations

import hashlib
import hmac
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.processors.passing import made
from tests.processors.requests import UNKNOWN, event_of_request, flat, requests
from tests.signals.otlp.telemetry import request
from tests.support.examples import examples

from holdfast.processors import attributes, filter_items, sample
from holdfast.processors.filter_items import SEVERITIES
from holdfast.signals.otlp import codec, items
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import REQUESTS
from holdfast.signals.otlp.problem import NotOtlp

by_kind = pytest.mark.parametrize("kind", OtlpKind)
# A message of each kind of item, to read one again.
_ITEM: dict[OtlpKind, Callable[[bytes], Any]] = {
    OtlpKind.TRACES: lambda data: _read("opentelemetry.proto.trace.v1.trace_pb2", "Span", data),
    OtlpKind.LOGS: lambda data: _read("opentelemetry.proto.logs.v1.logs_pb2", "LogRecord", data),
}


def _read(module: str, name: str, data: bytes) -> Any:
    import importlib

    return getattr(importlib.import_module(module), name).FromString(data)


def passed(processor: Any, kind: OtlpKind, payload: bytes) -> bytes:
    """Return what is left of a request; empty if it is filtered."""
    event = event_of_request(kind, payload)
    found = processor.process(event)
    if found is None:
        return b""
    assert (found.position, found.headers, found.signal) == (
        event.position, event.headers, event.signal,
    )  # fmt: skip
    assert found.items == codec.check(kind, found.payload)
    return bytes(found.payload)


# -------------------------------------------------------------------------- filter


def test_items_that_a_condition_drops_go_and_all_others_stay_as_they_were() -> None:
    drops = made(filter_items, drop=[{"status": ["ok"], "name": ["GET *"]}, {"service": ["cart"]}])

    @settings(max_examples=examples(30))
    @given(requests(OtlpKind.TRACES))
    def play(payload: bytes) -> None:
        kept = []
        for one in flat(OtlpKind.TRACES, payload):
            span = _ITEM[OtlpKind.TRACES](one.item)
            is_dropped = span.status.code == 1 and span.name == "GET /"
            if not is_dropped and b"cart" not in one.resource:
                kept.append(one)
        left = passed(drops, OtlpKind.TRACES, payload)
        assert flat(OtlpKind.TRACES, left) == kept
        if len(kept) == len(flat(OtlpKind.TRACES, payload)):
            assert left == payload

    play()


@settings(max_examples=examples(30))
@given(requests(OtlpKind.LOGS), st.sampled_from(sorted(SEVERITIES)))
def test_records_below_a_severity_go_and_those_without_one_stay(payload: bytes, word: Any) -> None:
    drops = made(filter_items, drop=[{"severity_below": word}])
    kept = [
        one
        for one in flat(OtlpKind.LOGS, payload)
        if not 0 < _ITEM[OtlpKind.LOGS](one.item).severity_number < SEVERITIES[word]
    ]
    assert flat(OtlpKind.LOGS, passed(drops, OtlpKind.LOGS, payload)) == kept


@settings(max_examples=examples(30))
@given(requests(OtlpKind.METRICS))
def test_points_are_kept_by_the_name_of_their_metric(payload: bytes) -> None:
    keeps = made(filter_items, keep=[{"name": ["pay", "re*"], "scope": ["http"]}])
    kept = [
        one
        for one in flat(OtlpKind.METRICS, payload)
        if b"GET /" not in one.metric and b"http" in one.scope
    ]
    assert flat(OtlpKind.METRICS, passed(keeps, OtlpKind.METRICS, payload)) == kept


@by_kind
def test_a_condition_about_another_signal_is_not_there(kind: OtlpKind) -> None:
    payload = request(kind, random.Random(1))
    of_logs = made(filter_items, keep=[{"severity_below": "fatal"}], drop=[{"body": ["*"]}])
    of_other = made(filter_items, keep=[{"signals": [kind.value], "name": ["nobody's"]}])
    assert (passed(of_logs, kind, payload) == payload) == (kind is not OtlpKind.LOGS)
    assert passed(of_other, kind, payload) == b""


def test_values_of_attributes_are_compared_as_text() -> None:
    made_request: Any = REQUESTS[OtlpKind.TRACES]()
    spans = made_request.resource_spans.add().scope_spans.add().spans
    for name, field, value in [
        ("a", "int_value", 200),
        ("b", "int_value", 503),
        ("c", "bool_value", True),
        ("d", "string_value", "5xx"),
        ("e", "bytes_value", b"503"),
    ]:
        setattr(spans.add(name=name).attributes.add(key="http.status").value, field, value)
    payload = made_request.SerializeToString()
    keeps = made(filter_items, keep=[{"attributes": {"http.status": ["5*", "true"]}}])
    left: Any = REQUESTS[OtlpKind.TRACES].FromString(passed(keeps, OtlpKind.TRACES, payload))
    assert [span.name for span in left.resource_spans[0].scope_spans[0].spans] == ["b", "c", "d"]


# ---------------------------------------------------------------------- attributes


@by_kind
def test_attributes_are_changed_and_nothing_else(kind: OtlpKind) -> None:
    """Against a model: a list of keys and values, edited one action after the other."""
    key = "0123456789abcdef"
    edits = made(
        attributes,
        hash_key=key,
        actions=[
            {"action": "update", "key": "http.route", "value": "/"},
            {"action": "insert", "key": "host", "value": 7},
            {"action": "hash", "key": "user.*"},
            {"action": "delete", "key": "http.s*"},
        ],
    )

    def model(pairs: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        pairs = [(k, "/" if k == "http.route" else v) for k, v in pairs]
        if all(k != "host" for k, _ in pairs):
            pairs.append(("host", 7))
        pairs = [(k, digest(v) if k.startswith("user.") else v) for k, v in pairs]
        return [(k, v) for k, v in pairs if not k.startswith("http.s")]

    def digest(value: Any) -> Any:
        if value is None:
            return None
        text = str(value).lower() if isinstance(value, bool) else value
        data = text if isinstance(text, bytes) else str(text).encode()
        return hmac.new(key.encode(), data, hashlib.sha256).hexdigest()

    @settings(max_examples=examples(30))
    @given(requests(kind))
    def play(payload: bytes) -> None:
        before, after = (
            _taken_apart(kind, payload),
            _taken_apart(kind, passed(edits, kind, payload)),
        )
        assert after == [(rest, model(pairs)) for rest, pairs in before]

    play()


def _taken_apart(kind: OtlpKind, payload: bytes) -> list[tuple[object, list[tuple[str, Any]]]]:
    """Return every item without its attributes, and these."""
    found = []
    request_: Any = REQUESTS[kind].FromString(payload)
    for one in items.scopes(kind, request_):
        for _, several in items.lists_of_scope(kind, one.holder):
            for item in several:
                pairs = [(a.key, _plain(a.value)) for a in item.attributes]
                item.ClearField("attributes")
                assert UNKNOWN in item.SerializeToString()
                found.append((item.SerializeToString(deterministic=True), pairs))
    return [((rest, index), pairs) for index, (rest, pairs) in enumerate(found)]


def _plain(value: Any) -> Any:
    which = value.WhichOneof("value")
    if which is None:
        return None
    found = getattr(value, which)
    return found.SerializeToString(deterministic=True) if which == "array_value" else found


def test_resource_scope_and_events_have_attributes_of_their_own() -> None:
    edits = made(
        attributes,
        actions=[
            {"action": "insert", "key": "env", "value": "prod", "at": "resource"},
            {"action": "insert", "key": "lib", "value": True, "at": "scope"},
            {"action": "delete", "key": "*", "at": "span_event"},
            {"action": "insert", "key": "ratio", "value": 0.5, "signals": ["logs"]},
        ],
    )
    request_: Any = REQUESTS[OtlpKind.TRACES]()
    span = request_.resource_spans.add().scope_spans.add().spans.add(name="a")
    span.events.add(name="e").attributes.add(key="k")
    payload = passed(edits, OtlpKind.TRACES, request_.SerializeToString())
    left = REQUESTS[OtlpKind.TRACES].FromString(payload).resource_spans[0]  # type: ignore[attr-defined]
    assert left.resource.attributes[0].value.string_value == "prod"
    assert left.scope_spans[0].scope.attributes[0].value.bool_value is True
    (after,) = left.scope_spans[0].spans
    assert (after.name, len(after.attributes), len(after.events[0].attributes)) == ("a", 0, 0)


def test_a_plain_digest_is_that_of_the_text_and_a_key_makes_another() -> None:
    plain, keyed = attributes.digest_with(None), attributes.Config.model_validate(
        {"actions": [{"action": "hash", "key": "a"}], "hash_key": "k" * 16}
    )  # fmt: skip
    value = _ITEM[OtlpKind.TRACES](b"").attributes.add().value
    value.string_value = "ada@example.org"
    assert plain(value) == hashlib.sha256(b"ada@example.org").hexdigest()
    assert attributes.digest_with(keyed.hash_key)(value) not in (plain(value), None)
    assert "kkkk" not in repr(keyed)


@pytest.mark.parametrize(
    "fields",
    [
        {"action": "insert", "key": "a"},
        {"action": "delete", "key": "a", "value": 1},
        {"action": "update", "key": "a", "value": 2**63},
        {"action": "hash", "key": "a", "at": "span_event", "signals": ["logs"]},
    ],
)
def test_an_action_that_means_nothing_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        made(attributes, actions=[fields])
    with pytest.raises(ValidationError, match="fewer than 16"):
        made(attributes, actions=[{"action": "hash", "key": "a"}], hash_key="short")
    with pytest.raises(ValidationError, match="no item has all of these"):
        made(filter_items, drop=[{"body": ["a"], "status": ["ok"]}])


# ------------------------------------------------------------------------ sampling


@pytest.mark.parametrize(
    ("ratio", "th"), [(1, "0"), (0.5, "8"), (0.25, "c"), (0.75, "4"), (2**-56, "f" * 14)]
)
def test_thresholds_are_those_of_the_specification(ratio: float, th: str) -> None:
    assert sample.th_of(sample.threshold_of(ratio)) == th
    assert sample.th_of(sample.threshold_of(0.1)).startswith("e6666")


@settings(max_examples=examples(30))
@given(requests(OtlpKind.TRACES), st.floats(0.001, 0.999))
def test_spans_are_sampled_by_their_randomness_and_marked(payload: bytes, ratio: float) -> None:
    threshold = sample.threshold_of(ratio)
    expected = []
    for one in flat(OtlpKind.TRACES, payload):
        span = _ITEM[OtlpKind.TRACES](one.item)
        randomness = int.from_bytes(span.trace_id[-7:], "big")
        if "rv" in span.trace_state:
            randomness = 2**56 - 1
        is_traced = any(span.trace_id)
        if is_traced and randomness < threshold:
            continue
        if is_traced and not (span.trace_state == "ot=th:f" and threshold <= 0xF << 52):
            th = f"ot=th:{sample.th_of(threshold)}"
            span.trace_state = {
                "": th,
                "a=b": f"{th},a=b",
                "ot=rv:ffffffffffffff,a=b": f"{th};rv:ffffffffffffff,a=b",
                "ot=th:f": th,
            }[span.trace_state]
        expected.append(one._replace(item=span.SerializeToString(deterministic=True)))
    left = passed(made(sample, ratio=ratio), OtlpKind.TRACES, payload)
    assert flat(OtlpKind.TRACES, left) == expected


def test_a_smaller_share_is_within_a_larger_one_and_records_go_with_their_traces() -> None:
    chance = random.Random(5)
    ids = [chance.randbytes(16) for _ in range(1000)]
    spans: Any = REQUESTS[OtlpKind.TRACES]()
    logs: Any = REQUESTS[OtlpKind.LOGS]()
    for trace_id in ids:
        spans.resource_spans.add().scope_spans.add().spans.add(trace_id=trace_id)
        logs.resource_logs.add().scope_logs.add().log_records.add(trace_id=trace_id)
    kept: dict[float, set[bytes]] = {}
    for ratio in (0.05, 0.2, 0.5):
        sampler = made(sample, ratio=ratio)
        left: Any = REQUESTS[OtlpKind.TRACES].FromString(
            passed(sampler, OtlpKind.TRACES, spans.SerializeToString())
        )
        kept[ratio] = {one.scope_spans[0].spans[0].trace_id for one in left.resource_spans}
        left = REQUESTS[OtlpKind.LOGS].FromString(
            passed(sampler, OtlpKind.LOGS, logs.SerializeToString())
        )
        assert {one.scope_logs[0].log_records[0].trace_id for one in left.resource_logs} == kept[
            ratio
        ]
        assert 0.7 * ratio < len(kept[ratio]) / len(ids) < 1.3 * ratio
    assert kept[0.05] < kept[0.2] < kept[0.5]


@pytest.mark.parametrize("trace_id", [b"", bytes(16), b"short"])
def test_what_belongs_to_no_trace_is_kept_unless_told_otherwise(trace_id: bytes) -> None:
    logs: Any = REQUESTS[OtlpKind.LOGS]()
    logs.resource_logs.add().scope_logs.add().log_records.add(trace_id=trace_id)
    payload = logs.SerializeToString()
    assert passed(made(sample, ratio=0.001), OtlpKind.LOGS, payload) == payload
    assert passed(made(sample, ratio=1, untraced="drop"), OtlpKind.LOGS, payload) == b""


@pytest.mark.parametrize(
    "state", ["no member at all", ",".join(f"m{n}=x" for n in range(32)), f"ot=x:{'y' * 250}"]
)
def test_a_trace_state_without_room_stays_as_it_is(state: str) -> None:
    assert sample.with_threshold(state, 1 << 55, "8") is None


# ----------------------------------------------------------------------------- all


ALL = [
    made(filter_items, drop=[{"name": ["nobody's"]}]),
    made(attributes, actions=[{"action": "delete", "key": "nobody's"}]),
    made(sample, ratio=1),
]


@by_kind
@pytest.mark.parametrize("processor", ALL)
def test_a_request_without_their_business_keeps_its_bytes(kind: OtlpKind, processor: Any) -> None:
    # A field written twice, and one behind another: nobody would write it like that.
    payload = UNKNOWN + request(kind, random.Random(2)) + UNKNOWN + request(kind, random.Random(3))
    event = event_of_request(kind, payload)
    assert processor.process(event) is event


@pytest.mark.parametrize("processor", ALL[:2])
def test_what_cannot_be_read_is_not_passed_on(processor: Any) -> None:
    with pytest.raises(NotOtlp):
        processor.process(event_of_request(OtlpKind.TRACES, b"\x0a\x05no"))


def test_slices_without_a_change_keep_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "SLICE_BYTES", 1)
    request_: Any = REQUESTS[OtlpKind.TRACES]()
    for name in ("a", "b", "c"):
        request_.resource_spans.add().scope_spans.add().spans.add(name=name)
    first, second, third = codec.split(request_.SerializeToString(), 1)
    odd = bytes([first[0], first[1] | 0x80, 0]) + first[2:]  # a length with a byte too many
    drops = made(filter_items, drop=[{"name": ["b"]}])
    assert passed(drops, OtlpKind.TRACES, odd + second + third) == odd + third


def test_many_items_are_dropped_in_one_pass() -> None:
    request_: Any = REQUESTS[OtlpKind.TRACES]()
    spans = request_.resource_spans.add().scope_spans.add().spans
    for number in range(20_000):
        spans.add(name="ab"[number % 2])
    looked: list[str] = []

    def is_dropped(span: Any) -> bool:
        looked.append(span.name)
        return bool(span.name == "a")

    assert items.drop_from(spans, is_dropped) == 10_000
    assert len(looked) == 20_000
    assert {span.name for span in spans} == {"b"}
