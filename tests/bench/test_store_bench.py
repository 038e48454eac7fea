"""What the store's benchmark checks before it believes a figure."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.bench.store_backup import _compare
from holdfast.errors import CheckFailed


def test_a_restored_file_is_compared_by_its_bytes(tmp_path: Path) -> None:
    """Programs restore sizes and times, too: a file that has both may still be another."""
    for name, data in (("left", b"stored"), ("right", b"ruined")):
        (tmp_path / name / "folder").mkdir(parents=True)
        path = tmp_path / name / "folder" / "file"
        path.write_bytes(data)
        os.utime(path, ns=(10**18, 10**18))
    with pytest.raises(CheckFailed, match="differs"):
        _compare(tmp_path / "left", tmp_path / "right")
