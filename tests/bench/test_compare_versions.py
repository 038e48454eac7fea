"""The script that compares two versions: everybody has every turn, and costs count as costs."""

from __future__ import annotations

import importlib
import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "compare_versions.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_every_contender_has_every_turn_equally_often(script: dict[str, Any]) -> None:
    contenders = ["before", "after", "control"]
    orders = list(script["turns"](6, contenders))
    for place in range(3):
        assert Counter(order[place] for order in orders) == dict.fromkeys(contenders, 2)


def test_a_ratio_is_of_speed_for_rates_and_for_costs(script: dict[str, Any]) -> None:
    found = {
        "before": [{"deliver_mb_s": 100.0, "cpu_us": 10.0}],
        "after": [{"deliver_mb_s": 80.0, "cpu_us": 20.0}],
    }
    assert script["ratios"]("deliver_mb_s", found, "after", "before") == [0.8]
    assert script["ratios"]("cpu_us", found, "after", "before") == [0.5]
    assert script["is_cost"]("write_amplification") is None


def test_a_figure_is_missed_only_if_every_round_lies_below(
    script: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    def rounds(*values: float) -> list[dict[str, float]]:
        return [{"deliver_mb_s": value} for value in values]

    found = {"before": rounds(100, 100), "after": rounds(70, 90), "control": rounds(100, 110)}
    assert script["print_table"](found, "before", "before", 0.8)
    assert not script["print_table"](found, "before", "before", 0.95)
    assert "below 0.95 in every round: deliver_mb_s" in capsys.readouterr().out


def test_every_section_is_there(script: dict[str, Any]) -> None:
    for section in script["SECTIONS"].values():
        if section.scale == "STORE_FULL":
            pytest.importorskip("blake3")
        module = importlib.import_module(f"holdfast.bench.{section.module}")
        scale = getattr(importlib.import_module("holdfast.bench.scale"), section.scale)
        assert callable(getattr(module, section.function))
        assert all(hasattr(scale, name) for name in section.changes)
        assert all(hasattr(module, name) for name in section.without)
