"""Requests are counted, timed, joined and split as a reader of protobuf sees them."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest
from tests.signals.otlp.plain_reader import Reading, readings_of
from tests.signals.otlp.telemetry import mutated, request

from holdfast.signals.otlp import codec
from holdfast.signals.otlp.alike import alike_columns
from holdfast.signals.otlp.codec import RequestContents
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import REQUESTS, SHORT_REQUESTS
from holdfast.signals.otlp.problem import NotOtlp

DEFAULT_MUTANTS = 20_000
SLOW_MUTANTS = 1_000_000
_AT_ONCE = 20_000


def contents_of(reading: Reading) -> RequestContents:
    """Return what the codec is to find, by what the plain reader found."""
    ids = [bytes.fromhex(one) for one in reading.trace_ids]
    return RequestContents(
        services=tuple(dict.fromkeys(reading.services)),
        times_ns=array("Q", reading.times_ns),
        trace_ids=b"".join(one for one in ids if len(one) == codec.TRACE_ID_BYTES),
    )


def compare(seed: int, count: int) -> tuple[int, int]:
    """Compare verdicts and contents of broken requests; return how many were taken and refused."""
    chance = random.Random(seed)
    kinds = list(OtlpKind)
    sound = [(kind, request(kind, chance, items=1)) for kind in kinds for _ in range(20)]
    mutants = [(kind, mutated(body, chance)) for kind, body in chance.choices(sound, k=count)]
    taken = 0
    for (kind, body), reading in zip(mutants, readings_of(mutants), strict=True):
        try:
            items: int | None = codec.check(kind, body)
        except NotOtlp:
            items = None
        about = f"seed {seed}: {kind} {body.hex()}"
        assert (items is None) == (reading is None), about
        if reading is not None:
            taken += 1
            found = codec.contents(kind, body)
            assert found == contents_of(reading), about
            assert items == found.items == codec.count(kind, body), about
            assert b"".join(codec.split(body, 64)) == body, about
    return taken, count - taken


def test_broken_requests_get_the_verdict_of_the_plain_reader() -> None:
    taken, refused = compare(seed=1, count=DEFAULT_MUTANTS)
    assert taken > DEFAULT_MUTANTS // 20
    assert refused > DEFAULT_MUTANTS // 4


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_million_broken_requests_get_the_verdict_of_the_plain_reader() -> None:
    for seed in range(SLOW_MUTANTS // _AT_ONCE):
        compare(seed=1000 + seed, count=_AT_ONCE)


@pytest.mark.parametrize("kind", OtlpKind)
def test_joined_and_split_requests_hold_the_same_items(kind: OtlpKind) -> None:
    chance = random.Random(3)
    several = [request(kind, chance) for _ in range(5)]
    joined = codec.join(several)
    assert codec.check(kind, joined) == sum(codec.check(kind, one) for one in several)
    for max_bytes in (1, 200, 700, 10**6):
        parts = codec.split(joined, max_bytes)
        assert codec.join(parts) == joined
        assert sum(codec.check(kind, part) for part in parts) == codec.check(kind, joined)
        whole = [part for part in parts if len(part) > max_bytes]
        assert all(len(list(codec.field_ends(part))) == 1 for part in whole)


def test_a_request_without_items_is_one() -> None:
    assert codec.check(OtlpKind.LOGS, b"") == 0
    assert codec.contents(OtlpKind.LOGS, b"") == RequestContents((), array("Q"), b"")
    assert codec.split(b"", 10) == [b""]


def test_a_cut_request_has_no_borders() -> None:
    body = request(OtlpKind.TRACES, random.Random(1))
    with pytest.raises(NotOtlp):
        codec.split(body[:-1], 10)


def test_groups_and_unknown_fields_have_borders() -> None:
    # Field 9 as a group that holds another one and a number; then field 10 as 8 and as 4 bytes.
    body = bytes([0x4B, 0x53, 0x08, 0x01, 0x54, 0x4C, 0x51, *range(8), 0x55, *range(4)])
    assert codec.check(OtlpKind.TRACES, body) == 0
    assert list(codec.field_ends(body)) == [6, 15, 20]


def test_nothing_is_answered_but_what_was_not_taken() -> None:
    assert codec.response(OtlpKind.METRICS) == b""
    answer = codec.response(OtlpKind.METRICS, 3, "too old")
    assert answer == bytes([0x0A, 11, 0x08, 3, 0x12, 7]) + b"too old"


def test_the_traces_of_log_records_and_of_examples_are_known() -> None:
    trace, other = bytes(range(16)), bytes(range(1, 17))
    logs: Any = REQUESTS[OtlpKind.LOGS]()
    records = logs.resource_logs.add().scope_logs.add().log_records
    for id_ in (trace, other, trace, b"", b"short"):
        records.add(trace_id=id_)
    assert (
        codec.contents(OtlpKind.LOGS, logs.SerializeToString()).trace_ids == trace + other + trace
    )
    metrics: Any = REQUESTS[OtlpKind.METRICS]()
    held = metrics.resource_metrics.add().scope_metrics.add().metrics
    held.add().summary.data_points.add()
    held.add().gauge.data_points.add().exemplars.add(trace_id=trace)
    held.add().histogram.data_points.add().exemplars.add(trace_id=other)
    assert codec.contents(OtlpKind.METRICS, metrics.SerializeToString()).trace_ids == trace + other


@pytest.mark.parametrize("kind", [OtlpKind.TRACES, OtlpKind.LOGS])
@pytest.mark.parametrize("alike", [True, False])
def test_items_are_timed_in_columns_where_all_have_the_same_fields(
    kind: OtlpKind, alike: bool
) -> None:
    chance = random.Random(5)
    for _ in range(100):
        whole: Any = REQUESTS[kind]()
        times, ids = list[int](), list[bytes]()
        fields = _some_fields(kind, chance)
        for _ in range(chance.randrange(1, 4)):
            if kind is OtlpKind.TRACES:
                items = whole.resource_spans.add().scope_spans.add().spans
            else:
                items = whole.resource_logs.add().scope_logs.add().log_records
            for _ in range(chance.randrange(20)):
                given = {name: _value(name, chance) for name in fields}
                items.add(**given, dropped_attributes_count=chance.randrange(3))
                if not alike and chance.random() < 0.2:
                    items[-1].trace_id = chance.randbytes(chance.choice([0, 1, 15, 17]))
                    given["trace_id"] = items[-1].trace_id
                names = ("end_time_unix_nano", "time_unix_nano", "observed_time_unix_nano")
                times.append(next((given[name] for name in names if name in given), 0))
                ids.append(given.get("trace_id", b""))
        body = whole.SerializeToString()
        sound = b"".join(one for one in ids if len(one) == codec.TRACE_ID_BYTES)
        assert codec.contents(kind, body) == RequestContents((), array("Q", times), sound)
        found = alike_columns(kind, SHORT_REQUESTS[kind].FromString(body))
        assert found == ((array("Q", times), sound) if alike else found)


def _some_fields(kind: OtlpKind, chance: random.Random) -> list[str]:
    if kind is OtlpKind.TRACES:
        return ["trace_id", "end_time_unix_nano"]
    times = [["time_unix_nano"], ["observed_time_unix_nano"]]
    return chance.choice([*times, times[0] + times[1]]) + chance.choice([[], ["trace_id"]])


def _value(name: str, chance: random.Random) -> Any:
    return chance.randbytes(16) if name == "trace_id" else chance.choice([1, 0x4112, 2**64 - 1])
