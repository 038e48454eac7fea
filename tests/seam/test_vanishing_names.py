"""Listing a directory in which somebody else works: a name that goes meanwhile is not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.seam.disk import RealDisk


def test_a_file_that_goes_while_its_directory_is_listed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(name)
    scandir = os.scandir

    @contextmanager
    def scan_and_remove(path: Path) -> Iterator[list[os.DirEntry[str]]]:
        with scandir(path) as scan:
            entries = list(scan)
        (tmp_path / "b").unlink()
        yield entries

    monkeypatch.setattr(os, "scandir", scan_and_remove)
    assert [entry.name for entry in RealDisk().list(tmp_path)] == ["a", "c"]
