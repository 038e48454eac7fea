"""Telemetry is shown readably: by `explain TRACE_ID`, `quiver cat`, and a tap."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from click.testing import CliRunner
from tests.signals.otlp.telemetry import request
from tests.support.clock import ManualClock

from holdfast.deliver.context import Taps
from holdfast.operate.cli import cli
from holdfast.quiver import Position, Quiver, QuiverConfig
from holdfast.signals.event import ArrowData, Event
from holdfast.signals.otap.from_otlp import otap_of
from holdfast.signals.otlp.json_form import request_document
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.registry import extractors, signal_named

KIND = OtlpKind.TRACES
BODIES = [request(KIND, random.Random(number)) for number in range(3)]


@pytest.fixture(params=["sealed", "open"])
def data(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    with Quiver.open(tmp_path / "q", QuiverConfig(extractors=extractors())) as quiver:
        for body in BODIES:
            quiver.append_raw(body, slot=KIND.slot)
        if request.param == "sealed":
            quiver.flush()
    return tmp_path / "q"


def trace_id(body: bytes) -> str:
    document: Any = request_document(KIND, body)
    found: str = document["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["traceId"]
    return found


def run(*words: object) -> str:
    done = CliRunner().invoke(cli, [str(word) for word in words], standalone_mode=False)
    assert done.exception is None, done.exception
    return done.output


def test_explain_finds_a_trace_by_its_id(data: Path) -> None:
    wanted = trace_id(BODIES[1])
    for written in (wanted, wanted.upper()):
        told = json.loads(run("explain", written, data, "--json"))
        (match,) = told["matches"]
        assert (match["seq"], match["slot"], match["column"]) == (1, KIND.slot, "payload")
        assert wanted in match["excerpt"]
        assert [one["seq"] for one in told["explanations"]] == [1]


@pytest.mark.parametrize("is_sealed", [True, False])
def test_explain_finds_a_trace_in_tables(tmp_path: Path, is_sealed: bool) -> None:
    with Quiver.open(tmp_path / "q", QuiverConfig(extractors=extractors())) as quiver:
        for body in BODIES:
            (tables,) = otap_of(KIND, [body])
            quiver.append(tables)
        if is_sealed:
            quiver.flush()
    wanted = trace_id(BODIES[1])
    told = json.loads(run("explain", wanted, tmp_path / "q", "--json"))
    assert {(one["seq"], one["column"]) for one in told["matches"]} == {(1, "trace_id")}
    assert all(one["excerpt"] == wanted for one in told["matches"])


def test_cat_prints_requests_as_json(data: Path) -> None:
    rows = [json.loads(line) for line in run("quiver", "cat", data).splitlines()]
    assert [row["payload"] for row in rows] == [request_document(KIND, body) for body in BODIES]


def test_a_tap_shows_tables_as_the_request_that_they_stand_for() -> None:
    taps = Taps(ManualClock())
    taps.read("out", 0)
    (tables,) = otap_of(KIND, [BODIES[0]])
    broken = tables | {"otap_span_attrs": pa.record_batch({"x": pa.array(["odd"])})}
    for slots in (tables, broken):
        taps.see("out", ArrowData("q", Position(0), slots, 0, "traces"))
    good, bad = taps.read("out", 0)["events"]
    spans = orjson.loads(good["payload"])["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert spans[0]["traceId"] == trace_id(BODIES[0])
    assert "otap_spans" in good["slot"]
    assert "odd" in bad["payload"]


def test_a_tap_shows_requests_as_json() -> None:
    taps = Taps(ManualClock())
    taps.read("out", 0)
    signal = signal_named("traces")
    assert signal is not None
    large = request(KIND, random.Random(9), items=100)
    for body in (BODIES[0], b"\xff", large, bytes(2**21)):
        taps.see("out", Event("q", (0, 0), KIND.slot, body, {}, 0, "traces", signal.read))  # type: ignore[arg-type]
    good, bad, cut, largest = (one["payload"] for one in taps.read("out", 0)["events"])
    assert orjson.loads(good) == request_document(KIND, BODIES[0], 3)
    assert orjson.loads(bad) == {"not_otlp": "/w=="}
    (first, *_), more = orjson.loads(cut)["resourceSpans"], orjson.loads(cut)["more"]
    assert len(first["scopeSpans"][0]["spans"]) == 3
    assert more in (97, 197)
    assert largest == "2097152 bytes of traces: too large to be shown"
