"""Pauses between tries: full jitter, doubling, a ceiling, and what the destination asks for."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from holdfast.deliver.sending import Backoff
from holdfast.deliver.settings import DeliverySettings

SETTINGS = DeliverySettings(retry_max_s=60.0)


class Highest(random.Random):
    """Draws the longest pause that may be."""

    def uniform(self, a: float, b: float) -> float:
        return b


def test_the_longest_pause_doubles_up_to_the_ceiling() -> None:
    backoff = Backoff(SETTINGS, Highest())
    pauses_s = [backoff.pause_s(failures) for failures in range(1, 10)]
    assert pauses_s == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


@given(st.integers(0, 10**12), st.integers())
def test_a_pause_is_never_beyond_the_ceiling(failures: int, seed: int) -> None:
    pause_s = Backoff(SETTINGS, random.Random(seed)).pause_s(failures)
    assert 0 <= pause_s <= 60.0


@given(st.floats(allow_nan=True, allow_infinity=True), st.integers())
def test_what_is_asked_for_is_kept_to_within_its_bound(asked_s: float, seed: int) -> None:
    pause_s = Backoff(SETTINGS, random.Random(seed)).pause_s(3, asked_s)
    assert 0 <= pause_s <= 300.0
    if asked_s > 0 and not math.isnan(asked_s):
        assert pause_s >= min(asked_s, 300.0)


def test_pauses_are_spread_over_the_whole_range() -> None:
    backoff = Backoff(SETTINGS, random.Random(1))
    pauses_s = sorted(backoff.pause_s(20) for _ in range(1000))
    assert pauses_s[0] < 3.0
    assert pauses_s[-1] > 57.0
    assert 24.0 < pauses_s[500] < 36.0
