"""What tests/conftest.py makes of a mark, and of a folder in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import can_hold_tests, needs_spark, thin_out


class Cell(pytest.Item):
    """A test of a matrix."""

    def runtest(self) -> None:
        raise AssertionError("nobody runs it")


def test_every_nth_cell_of_a_thinned_matrix_is_quick(request: pytest.FixtureRequest) -> None:
    def cells(test: str, marks: list[pytest.MarkDecorator]) -> list[pytest.Item]:
        made = [Cell.from_parent(request.session, name=f"{test}[{n}]") for n in range(8)]
        for item in made:
            item.own_markers.extend(decorator.mark for decorator in marks)
        return list[pytest.Item](made)

    thinned, whole = cells("thinned", [pytest.mark.thinned(3)]), cells("whole", [])
    thin_out([*thinned, *whole])

    def quick(items: list[pytest.Item]) -> list[int]:
        return [n for n, item in enumerate(items) if item.get_closest_marker("slow") is None]

    assert quick(thinned) == [0, 3, 6]
    assert quick(whole) == list(range(8))


def test_whoever_needs_spark_is_found() -> None:
    tests = Path(__file__).parents[1]
    assert needs_spark(tests / "dataflow" / "test_spark.py")
    assert not needs_spark(tests / "dataflow" / "test_claims.py")


def test_a_folder_that_is_not_there_or_has_no_room_holds_no_tests(tmp_path: Path) -> None:
    assert not can_hold_tests(tmp_path / "none")
    assert not can_hold_tests(Path("/proc"))
