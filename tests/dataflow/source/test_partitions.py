"""What one task reads: as much as a task may, but no more than a core's share."""

from __future__ import annotations

import os

import pytest

from holdfast.dataflow.source.partitions import SegmentPiece, split
from holdfast.dataflow.source.quiver_location import QuiverLocation
from holdfast.quiver import Position

MB = 2**20


def pieces(*sizes_mb: float) -> list[SegmentPiece]:
    place = QuiverLocation("quiver", "/data")
    return [
        SegmentPiece(place, "q", f"{n}", Position(n), Position(n + 1), int(size * MB))
        for n, size in enumerate(sizes_mb)
    ]


@pytest.mark.parametrize(
    ("sizes_mb", "cores", "groups"),
    [
        ((), 2, []),
        ((33,) * 17, 2, [3, 3, 3, 3, 3, 2]),
        # Little to read: each core has some of it.
        ((33, 33), 2, [1, 1]),
        ((33, 33, 33, 33), 4, [1, 1, 1, 1]),
        # But a segment is never cut.
        ((33,), 8, [1]),
        ((500, 1, 1), 1, [1, 2]),
        # Too little for tasks of its own: the batches of a pipeline that keeps up.
        ((0.25, 0.25, 0.25), 8, [3]),
    ],
)
def test_a_task_reads_much_and_no_core_is_left_out(
    sizes_mb: tuple[float, ...], cores: int, groups: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    there = pieces(*sizes_mb)
    made = split(there, 128 * MB)
    assert [len(group) for group in made] == groups
    assert [piece for group in made for piece in group] == there
