"""Named results, and bars that noise alone does not fail."""

from __future__ import annotations

import pytest

from holdfast.bench.figures import Bar, Figures, Spread


def test_figures_are_medians_with_their_spread_beside_them() -> None:
    figures = Figures()
    figures.add("ratio", [0.5, 0.9, 0.7])
    figures.note("segments", 3)
    told = figures.as_dict()
    assert (told["ratio"], told["segments"]) == (0.7, 3)
    spread = told["spread"]
    assert isinstance(spread, dict)
    assert spread["ratio"]["min"] == 0.5
    assert spread["ratio"]["max"] == 0.9


@pytest.mark.parametrize(
    ("values", "reached", "within_spread"),
    [
        ([0.7, 0.85, 0.9], True, True),
        ([0.6, 0.7, 0.81], False, True),
        ([0.5, 0.6, 0.79], False, False),
    ],
)
def test_a_lower_bar_fails_only_when_all_rounds_lie_below_it(
    values: list[float], reached: bool, within_spread: bool
) -> None:
    verdict = Bar("ratio", at_least=0.8).judge(Spread.of(values))
    assert verdict == {"at_least": 0.8, "reached": reached, "within_spread": within_spread}


@pytest.mark.parametrize(
    ("values", "reached", "within_spread"),
    [
        ([150.0, 180.0, 250.0], True, True),
        ([190.0, 210.0, 250.0], False, True),
        ([201.0, 210.0, 250.0], False, False),
    ],
)
def test_an_upper_bar_fails_only_when_all_rounds_lie_above_it(
    values: list[float], reached: bool, within_spread: bool
) -> None:
    verdict = Bar("rss_mb", at_most=200).judge(Spread.of(values))
    assert verdict == {"at_most": 200, "reached": reached, "within_spread": within_spread}
