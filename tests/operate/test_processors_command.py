"""`holdfast processors test`: rows in, rows out, and why a row does not come out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.errors import BadInput
from holdfast.operate.cli import cli

GRAPH = """
nodes:
  lineage: {kind: receiver, type: openlineage, to: [buffer]}
  buffer: {kind: processor, type: quiver, to: [only_prod, screen]}
  only_prod:
    kind: processor
    type: filter
    config: {keep: [{job_namespace: ["prod-*"]}]}
    to: [renamed]
  renamed:
    kind: processor
    type: rename
    config: {namespaces: [{exact: prod-a, to: production}]}
    to: [marquez]
  marquez: {kind: exporter, type: http, config: {url: "http://127.0.0.1:1"}}
  screen: {kind: exporter, type: console}
"""
EVENTS = [
    {"job": {"namespace": "prod-a", "name": "j"}},
    {"job": {"namespace": "test", "name": "j"}},
]


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "gateway.yaml"
    path.write_text(GRAPH)
    return str(path)


def run(*arguments: str, given: str | None = None) -> tuple[str, str]:
    text = "".join(f"{json.dumps(event)}\n" for event in EVENTS) if given is None else given
    result = CliRunner().invoke(
        cli, ["processors", "test", *arguments], input=text, catch_exceptions=False,
        standalone_mode=False,
    )  # fmt: skip
    return result.stdout, result.stderr


def test_what_passes_is_printed_as_a_destination_gets_it(config: str) -> None:
    out, err = run(config, "--destination", "marquez")
    assert out == 'marquez  {"job": {"namespace": "production", "name": "j"}}\n'
    assert err.splitlines() == [
        "line 2: marquez does not get it: stopped by 'only_prod'",
        "1 event passed, 1 stopped",
    ]


def test_events_can_be_in_a_file_and_answers_be_json(config: str, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text(json.dumps(EVENTS[1]) + "\n\n")
    out, _ = run(config, str(file), "--json")
    assert [json.loads(line) for line in out.splitlines()] == [
        {"line": 1, "destination": "marquez", "event": None, "stopped_by": "only_prod"},
        {"line": 1, "destination": "screen", "event": EVENTS[1], "stopped_by": None},
    ]


TELEMETRY = """
nodes:
  telemetry: {kind: receiver, type: otlp, to: [buffer]}
  buffer: {kind: processor, type: quiver, to: [useful, spans]}
  useful:
    kind: processor
    type: filter_items
    config: {drop: [{severity_below: info}]}
    to: [no_names]
  no_names:
    kind: processor
    type: attributes
    config: {actions: [{action: delete, key: "enduser.*"}]}
    to: [screen]
  screen: {kind: exporter, type: console}
  spans: {kind: exporter, type: console, delivery: {signals: [traces]}}
"""


def test_requests_of_otlp_in_json_are_tried_item_by_item(tmp_path: Path) -> None:
    path = tmp_path / "collector.yaml"
    path.write_text(TELEMETRY)
    attributes = [{"key": key, "value": {"stringValue": "a"}} for key in ("enduser.id", "url.path")]
    records = [{"severityNumber": 5}, {"severityNumber": 9, "attributes": attributes}]
    given = [
        {"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]},
        {"resourceLogs": [{"scopeLogs": [{"logRecords": records[:1]}]}]},
        {
            "resourceSpans": [
                {"scopeSpans": [{"spans": [{"traceId": "5b8efff798038103d269b633813fc60c"}]}]}
            ]
        },
    ]
    out, _ = run(str(path), "--json", given="".join(f"{json.dumps(one)}\n" for one in given))
    left = {"severityNumber": 9, "attributes": attributes[1:]}
    assert [list(json.loads(line).values()) for line in out.splitlines()] == [
        [1, "screen", {"resourceLogs": [{"scopeLogs": [{"logRecords": [left]}]}]}, None],
        [1, "spans", None, "delivery.signals"],
        [2, "screen", None, "useful"],
        [2, "spans", None, "delivery.signals"],
        [3, "screen", given[2], None],
        [3, "spans", given[2], None],
    ]
    with pytest.raises(BadInput, match="line 1 is not OTLP"):
        run(str(path), given='{"resourceLogs": 1}\n')
    with pytest.raises(BadInput, match="cannot take openlineage"):
        run(str(path), "--destination", "screen", given='{"job": {}}\n')


def test_an_unknown_destination_and_a_line_that_is_no_json_are_refused(config: str) -> None:
    with pytest.raises(BadInput, match="there is no destination 'x'"):
        run(config, "--destination", "x")
    with pytest.raises(BadInput, match="line 1 is not JSON"):
        run(config, given="{nope\n")
