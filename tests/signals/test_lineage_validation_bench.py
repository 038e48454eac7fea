"""The benchmark of validation: its events are what it says they are, and its figures are there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson

from holdfast.bench.figures import Figures
from holdfast.bench.lineage_validation import lineage_event, measure_lineage_validation
from holdfast.bench.scale import GATEWAY_QUICK
from holdfast.signals.openlineage.validation import (
    EventKind,
    ValidationSettings,
    Validator,
    Verdict,
)


def test_the_events_are_valid_distinct_and_of_the_promised_size() -> None:
    strict = Validator(ValidationSettings(level="strict"))
    events = [lineage_event(number) for number in (0, 1, 999_999)]
    assert len(set(events)) == len(events)
    for event in events:
        assert strict.parse_and_check(event) == (orjson.loads(event), Verdict(EventKind.RUN))
        assert 1_800 <= len(event) <= 2_000


def test_every_figure_is_there(tmp_path: Path) -> None:
    figures = Figures()
    told: list[str] = []
    scale = replace(GATEWAY_QUICK, validated_events=200, rounds=3)
    measure_lineage_validation(tmp_path, scale, figures, told.append)
    assert told
    assert set(figures.spreads) == {
        "parse_events_per_s",
        "validate_events_per_s",
        "validation_vs_parse",
    }
    assert all(spread.rounds == 3 for spread in figures.spreads.values())
    # Validation includes the parsing, so it cannot be cheaper.
    assert figures.spreads["validation_vs_parse"].median > 1
