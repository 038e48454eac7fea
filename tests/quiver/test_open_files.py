"""A process may have few open files: a quiver's do not grow with what it holds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.quiver import Bundle, Quiver

OPEN_FILES = Path("/proc/self/fd")
SEGMENTS = 60


@pytest.mark.skipif(not OPEN_FILES.exists(), reason="only Linux tells")
def test_reading_a_backlog_of_small_segments_leaves_no_file_open(tmp_path: Path) -> None:
    """Such as a quiet gateway has after an outage: one every five seconds."""
    with Quiver.open(tmp_path / "q") as quiver:
        cursor = quiver.cursor("reader")
        for number in range(SEGMENTS):
            quiver.append_raw(b"%d" % number)
            quiver.flush()
        before = len(os.listdir(OPEN_FILES))
        planned = cursor.plan()
        assert planned is not None
        # Held all at once, as a scan holds what it reads.
        bundles: list[Bundle] = list(cursor.read(planned))
        assert [bundle.payloads for bundle in bundles] == [[b"%d" % n] for n in range(SEGMENTS)]
        assert len(os.listdir(OPEN_FILES)) < before + SEGMENTS // 2
