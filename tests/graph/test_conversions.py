"""Telemetry in two forms: any destination takes either, and `validate` says what is converted."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from tests.signals.otlp.telemetry import request

from holdfast.dead_letters.queue import DeadLetterQueue
from holdfast.deliver.context import DeliveryContext, Taps
from holdfast.graph.delivery import delivery_context
from holdfast.graph.loader import load
from holdfast.graph.paths import DestinationPlan, FormChange, form_changes, plan
from holdfast.operate.cli.cmd_config import validate_command
from holdfast.quiver import Position
from holdfast.seam import Seam
from holdfast.signals.event import ArrowData, Event
from holdfast.signals.otap.from_otlp import otap_of
from holdfast.signals.otlp import codec
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.registry import otap_signals
from holdfast.signals.signal import Form

FILE = {
    "nodes": {
        "tables": {
            "kind": "receiver",
            "type": "otap",
            "to": ["buffer"],
            "config": {"listening_addr": "127.0.0.1:0"},
        },
        "requests": {
            "kind": "receiver",
            "type": "otlp",
            "to": ["buffer"],
            "config": {"listening_addr": "127.0.0.1:0"},
        },
        "buffer": {
            "kind": "processor",
            "type": "quiver",
            "to": ["as_tables", "as_requests", "lines", "quiet"],
        },
        "as_tables": {"kind": "exporter", "type": "otap", "config": {"url": "http://a:1"}},
        "as_requests": {"kind": "exporter", "type": "otlp", "config": {"url": "http://a:1"}},
        "lines": {"kind": "exporter", "type": "files", "config": {"directory": "out"}},
        "quiet": {
            "kind": "processor",
            "type": "filter_items",
            "config": {"drop": [{"name": ["none"]}]},
            "to": ["behind"],
        },
        "behind": {
            "kind": "exporter",
            "type": "otap",
            "config": {"url": "http://a:1"},
            "delivery": {"signals": ["traces"]},
        },
    }
}
ARROW, PROTOBUF = Form.ARROW, Form.PROTOBUF


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "graph.yaml"
    path.write_text(yaml.safe_dump(FILE, sort_keys=False))
    return path


def test_every_destination_takes_both_forms_and_validate_says_what_is_converted(
    file: Path,
) -> None:
    traces = [one for one in form_changes(load(file).graph) if one.signal == "traces"]
    assert traces == [
        FormChange("as_tables", "requests", "traces", (PROTOBUF, ARROW)),
        FormChange("as_requests", "tables", "traces", (ARROW, PROTOBUF)),
        FormChange("lines", "tables", "traces", (ARROW, PROTOBUF)),
        FormChange("behind", "tables", "traces", (ARROW, PROTOBUF, ARROW)),
        FormChange("behind", "requests", "traces", (PROTOBUF, ARROW)),
    ]
    said = CliRunner().invoke(validate_command, [str(file)])
    assert said.exception is None
    assert "note: 'as_requests' gets logs of 'tables' converted: arrow → protobuf" in said.output


@pytest.mark.parametrize("kind", list(OtlpKind))
def test_tables_reach_those_who_take_requests_as_requests(file: Path, kind: OtlpKind) -> None:
    body = request(kind, random.Random(3))
    (tables,) = otap_of(kind, [body])
    (signal,) = [one for one in otap_signals() if one.name == kind.value]
    headers = {"x-tenant": "one"}
    data = ArrowData("q", Position(7), tables, 5, kind.value, headers, count=signal.count)
    (quiver,) = plan(load(file).graph)
    contexts = {one.name: context(one, file.parent) for one in quiver.destinations}
    assert contexts["as_tables"].process(data) is data
    assert not contexts["as_tables"].converts(data)
    for name in ("as_requests", "lines", "behind"):
        assert contexts[name].converts(data)
        made = contexts[name].process(data)
        assert isinstance(made, Event)
        assert (made.position, made.headers, made.signal) == (data.position, headers, kind.value)
        assert made.items == data.items == codec.check(kind, body)
        assert codec.contents(kind, made.payload) == codec.contents(kind, body)


def context(one: DestinationPlan, folder: Path) -> DeliveryContext:
    with DeadLetterQueue.open(folder / f"letters-{one.name}") as letters:
        seam = Seam()
        return delivery_context(one, letters, Taps(seam.clock), seam, folder, folder)
