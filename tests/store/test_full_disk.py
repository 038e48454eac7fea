"""A store on a disk that is full and stays so: what frees it works, what fills it fails, typed.

On a real file system of a few megabytes, for which a test needs to be root.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.errors import DiskFull
from holdfast.operate.cli import cli

DISK_BYTES = 40_000_000
COMMIT_BYTES = 6_000_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    if os.geteuid() != 0 or not shutil.which("mkfs.ext4"):
        pytest.skip("a file system is made and mounted by root, with mkfs.ext4")
    image, place = tmp_path / "image", tmp_path / "disk"
    image.touch()
    os.truncate(image, DISK_BYTES)
    place.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
    if subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def run(place: Path, *words: str) -> Any:
    """Run a command with --json, and return what it says."""
    variables = {"HOLDFAST_STORE": str(place / "store")}
    result = CliRunner(env=variables).invoke(
        cli, [*words, "--json"], catch_exceptions=False, standalone_mode=False
    )
    if result.exception is not None:
        raise result.exception
    return json.loads(result.stdout)


def fill(place: Path) -> Path:
    """Leave no byte free."""
    filler = place / "filler"
    with open(filler, "ab", buffering=0) as file:
        size_bytes = 1 << 20
        while size_bytes >= 512:
            try:
                file.write(os.urandom(size_bytes))
            except OSError:
                size_bytes //= 2
    return filler


def folder_of(tmp_path: Path, name: str, size_bytes: int = COMMIT_BYTES) -> str:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "file").write_bytes(random.Random(name).randbytes(size_bytes))
    return str(folder)


@pytest.mark.slow
def test_a_full_disk_is_left_by_deleting_and_collecting(small_disk: Path, tmp_path: Path) -> None:
    """Nothing could be deleted: SQLite had no room to note it."""
    run(small_disk, "store", "create")
    run(small_disk, "files", "put", "one", folder_of(tmp_path, "one"))
    run(small_disk, "files", "put", "two", folder_of(tmp_path, "two"))
    fill(small_disk)
    with pytest.raises(DiskFull, match=r"full.*holdfast gc run"):
        run(small_disk, "files", "put", "three", folder_of(tmp_path, "three", 3_000_000))
    fill(small_disk)
    run(small_disk, "files", "get", "one", str(tmp_path / "out"))
    assert (tmp_path / "out/file").read_bytes() == (tmp_path / "one/file").read_bytes()
    fill(small_disk)
    assert run(small_disk, "store", "fsck")["ok"]
    run(small_disk, "files", "rm", "one", "--yes")
    done = run(small_disk, "gc", "run")
    assert done["bytes_deleted"] >= COMMIT_BYTES
    assert not list((small_disk / "store/tmp").glob("*"))
    run(small_disk, "files", "put", "three", str(tmp_path / "three"))
    report = run(small_disk, "store", "fsck", "--scrub")
    assert (report["ok"], report["commits"]) == (True, 2)


@pytest.mark.slow
def test_a_put_that_fills_the_disk_leaves_nothing_that_a_collection_does_not_take(
    small_disk: Path, tmp_path: Path
) -> None:
    run(small_disk, "store", "create")
    run(small_disk, "files", "put", "one", folder_of(tmp_path, "one"))
    objects = sorted(path.name for path in (small_disk / "store/chunks").rglob("*.*"))
    with pytest.raises(DiskFull):
        run(small_disk, "files", "put", "large", folder_of(tmp_path, "large", DISK_BYTES))
    run(small_disk, "gc", "run")
    assert sorted(path.name for path in (small_disk / "store/chunks").rglob("*.*")) == objects
    assert not list((small_disk / "store/tmp").glob("*"))
    assert run(small_disk, "gc", "status")["leases"] == []
    run(small_disk, "files", "put", "two", folder_of(tmp_path, "two"))
    assert run(small_disk, "store", "fsck", "--scrub")["ok"]
