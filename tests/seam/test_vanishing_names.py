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


def test_what_goes_while_a_tree_is_measured_counts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stays").write_bytes(bytes(5000))
    stays_bytes = RealDisk().used_bytes(tmp_path)
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: [*listdir(path), "gone"])
    assert RealDisk().used_bytes(tmp_path) == stays_bytes
