"""Sizes and durations as people write them, and what no setting may be."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from holdfast.settings import DurationS, Secret, Settings, SizeBytes
from holdfast.settings.units import IN_UNITS
from holdfast.units import parse_duration_s, parse_size_bytes, written_duration, written_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("32MB", 32 << 20),
        ("32MiB", 32 << 20),
        ("32 mb", 32 << 20),
        ("1.5k", 1536),
        ("2T", 2 << 40),
        ("7B", 7),
        ("7", 7),
        (7, 7),
        (0, 0),
    ],
)
def test_sizes(text: object, size_bytes: int) -> None:
    assert parse_size_bytes(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("25ms", 0.025), ("10s", 10.0), ("5m", 300.0), ("5min", 300.0), ("72h", 259200.0), (3, 3.0)],
)
def test_durations(text: object, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("wrong", ["", "MB", "-1", -1, True, None, "1 2MB", "5 parsecs", 1.5, [1]])
def test_what_is_no_size(wrong: object) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size_bytes(wrong)


@pytest.mark.parametrize("wrong", ["", "s", "-1s", -1, True, None, "1h30", math.inf, math.nan, []])
def test_what_is_no_duration(wrong: object) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration_s(wrong)


# Text with a unit goes through a float, which holds whole numbers up to here.
@given(st.integers(0, 2**53))
def test_bytes_are_taken_as_they_are(size_bytes: int) -> None:
    assert parse_size_bytes(size_bytes) == parse_size_bytes(f"{size_bytes} B") == size_bytes


class Toy(Settings):
    """Some settings."""

    size: SizeBytes = 1
    wait: DurationS = 1.0
    ratio: float = 0.5
    token: Secret | None = None


@pytest.mark.parametrize(
    "wrong", [{"sise": 1}, {"ratio": math.inf}, {"ratio": math.nan}, {"wait": math.inf}]
)
def test_unknown_keys_and_endless_numbers_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Toy.model_validate(wrong)


def test_a_secret_is_never_shown() -> None:
    toy = Toy(token=Secret("hunter2"))
    assert "hunter2" not in f"{toy!r} {toy} {toy.model_dump_json()}"
    with pytest.raises(ValidationError) as error:
        Toy.model_validate({"token": {"oops": "hunter2"}})
    assert "hunter2" not in str(error.value)


@given(st.integers(0, 2**50) | st.integers(0, 2**12).map(lambda count: count * 2**20))
def test_a_size_is_written_as_it_is_read(size_bytes: int) -> None:
    assert parse_size_bytes(written_size(size_bytes)) == size_bytes


@given(st.floats(0, 1e9) | st.integers(0, 10**7).map(lambda count: count / 1000))
def test_a_duration_is_written_as_it_is_read(duration_s: float) -> None:
    assert parse_duration_s(written_duration(duration_s)) == duration_s


@pytest.mark.parametrize(
    ("number", "text"), [(0.0, "0s"), (0.025, "25ms"), (90.0, "90s"), (1209600.0, "14d")]
)
def test_durations_are_written_in_the_largest_unit_that_is_whole(number: float, text: str) -> None:
    assert written_duration(number) == text


def test_sizes_are_written_in_the_largest_unit_that_is_whole() -> None:
    assert [written_size(n) for n in (0, 1000, 2**10, 256 * 2**20)] == [0, 1000, "1KB", "256MB"]


def test_dumps_have_numbers_unless_units_are_asked_for() -> None:
    class Example(Settings):
        size: SizeBytes = 2**20
        wait: DurationS | None = 60.0

    assert Example().model_dump(mode="json") == {"size": 2**20, "wait": 60.0}
    in_units = Example().model_dump(mode="json", context={IN_UNITS: True})
    assert in_units == {"size": "1MB", "wait": "1m"}
