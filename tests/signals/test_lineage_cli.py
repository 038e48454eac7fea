"""`holdfast lineage lint`: one event, an array, or lines; exit code 1 for an invalid one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.signals.events import FACET, event_with, run_event

from holdfast.operate.cli import cli

GOOD = run_event()
LOOSE = run_event(producer="airflow")
BAD = event_with("job", {"sql": {**FACET, "query": 1}})
NESTED = event_with("run", {"mine": {**FACET, "cost": "high"}})


def lint(*arguments: str, given: str | bytes | None = None) -> Result:
    return CliRunner().invoke(
        cli, ["lineage", "lint", *arguments], input=given, standalone_mode=False
    )


def told(*arguments: str, given: str | bytes | None = None) -> tuple[int, dict[str, Any]]:
    result = lint(*arguments, "--json", given=given)
    assert result.exception is None
    found: dict[str, Any] = json.loads(result.stdout)
    return int(result.return_value), found


def lines(*events: Any) -> str:
    return "\n".join(json.dumps(event) for event in events)


@pytest.mark.parametrize(
    ("given", "places", "valid"),
    [
        (json.dumps(GOOD), ["event"], [True]),
        (json.dumps(BAD, indent=2), ["event"], [False]),
        (lines(GOOD, BAD, LOOSE) + "\n\n", ["line 1", "line 2", "line 3"], [True, False, True]),
        ("\n" + lines(GOOD) + "\n\n{broken\n", ["line 2", "line 4"], [True, False]),
        ("{broken\n" + lines(GOOD), ["line 1", "line 2"], [False, True]),
        (json.dumps([GOOD, BAD], indent=1), ["element 0", "element 1"], [True, False]),
        (json.dumps([GOOD])[:-1], ["event"], [False]),
        ("[]", ["event"], [False]),
        ("", ["event"], [False]),
    ],
)
def test_events_are_found(given: str, places: list[str], valid: list[bool]) -> None:
    code, found = told("-", given=given)
    assert [event["place"] for event in found["events"]] == places
    assert [event["valid"] for event in found["events"]] == valid
    assert found["invalid"] == valid.count(False)
    assert code == (0 if all(valid) else 1)


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "events.ndjson").write_text(lines(GOOD, BAD))
    code, found = told(str(tmp_path / "events.ndjson"))
    assert code == 1
    assert found["events"][1]["errors"] == [
        {
            "pointer": "/job/facets/sql/query",
            "facet": "job.sql",
            "rule": "type",
            "message": "must be a string, not an integer",
            "hint": "Send a string.",
        }
    ]
    assert found["events"][0]["kind"] == "run"


def test_the_level_decides() -> None:
    assert told("-", given=lines(LOOSE))[0] == 0
    assert told("-", "--level", "strict", given=lines(LOOSE))[0] == 1
    assert told("-", "--level", "core", given=lines(BAD))[0] == 0
    assert lint("-", "--level", "hard", given=lines(BAD)).exception is not None


def test_lint_is_thorough() -> None:
    _, found = told("-", given=lines(run_event(extra=[10**30])))
    assert [each["rule"] for each in found["events"][0]["warnings"]] == ["large_integer"]


def test_own_facets_are_checked(tmp_path: Path) -> None:
    base = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunFacet"
    own = {"properties": {"cost": {"type": "number"}}}
    content = {
        "$defs": {"M": {"allOf": [{"$ref": base}, own]}},
        "properties": {"mine": {"$ref": "#/$defs/M"}},
    }
    (tmp_path / "mine.json").write_text(json.dumps(content))
    assert told("-", given=lines(NESTED))[0] == 0
    assert told("-", "--facet-dir", str(tmp_path), given=lines(NESTED))[0] == 1


def test_people_can_read_it() -> None:
    result = lint("-", given=lines(GOOD, BAD, LOOSE))
    assert result.stdout.splitlines() == [
        "line 2: error: /job/facets/sql/query: must be a string, not an integer (type)",
        "    Send a string.",
        "line 3: warning: /producer: must be an absolute URI (format)",
        "    Send a URI with a scheme, such as https://example.com/producer.",
        "3 events at level standard: 2 valid, 1 invalid, 1 with warnings",
    ]


def test_a_key_cannot_move_the_cursor() -> None:
    result = lint("-", given=lines(event_with("run", {"\x1b[2J\u202e": 1})))
    assert "\x1b" not in result.stdout
    assert "\u202e" not in result.stdout
    assert "/run/facets/\\u001b[2J\\u202e" in result.stdout
