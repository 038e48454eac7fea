"""On the real disk: a file that is cut, or fails, under an open reader ends no process.

Each reader is a process of its own, so that a signal is seen. The same through the simulated disk,
page by page: `test_unreadable_sector.py`.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_S, until
from tests.quiver import real_damage
from tests.quiver.real_damage import EVENTS, SEALED

from holdfast.quiver.base import names
from holdfast.quiver.segments import manifest

FAILING_MOUNT = str(Path(__file__).with_name("failing_mount.py"))
READERS = ["lease", "cursor", "scan"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("made")
    run(directory, "make")
    return directory


def run(directory: Path, *args: str) -> dict[str, Any]:
    command = [sys.executable, real_damage.__file__, str(directory), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, f"it ended with {done.returncode}: {done.stderr}"
    found: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
    return found


def second_segment(directory: Path) -> tuple[Path, manifest.FileSummary]:
    segment = sorted((directory / names.SEGMENTS_DIR).iterdir())[1]
    summary = manifest.decode((segment / names.MANIFEST).read_bytes())
    return segment / summary.files[0].name, summary.files[0]


@pytest.mark.parametrize("reader", READERS)
def test_a_real_file_that_is_cut_under_an_open_reader_costs_what_is_gone(
    made: Path, tmp_path: Path, reader: str
) -> None:
    directory = shutil.copytree(made, tmp_path / "data")
    path, file = second_segment(directory)
    first = file.batches[0]
    cut = f"truncate -s {first.offset + first.length + 10} {shlex.quote(str(path))}"
    result = run(directory, reader, cut)
    lost = set(range(SEALED // 2 + first.rows, SEALED))
    assert lost
    assert set(range(EVENTS)) - set(result["found"]) == lost
    assert result["typed"]
    assert result["holds"]


@pytest.fixture
def mount(made: Path, tmp_path: Path) -> Iterator[Path]:
    """Mount a copy through a file system that fails where it is told to."""
    pytest.importorskip("fuse", reason="needs fusepy")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK) or shutil.which("fusermount") is None:
        pytest.skip("needs /dev/fuse")
    shutil.copytree(made, tmp_path / "root" / "data")
    mounted = tmp_path / "mount"
    mounted.mkdir()
    args = [str(tmp_path / "root"), str(mounted), str(tmp_path / "control")]
    server = subprocess.Popen([sys.executable, FAILING_MOUNT, *args])
    try:
        until(lambda: os.path.ismount(mounted), "a mount")
        yield mounted / "data"
    finally:
        subprocess.run(["fusermount", "-u", str(mounted)], check=False)
        server.wait(PATIENCE_S)


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_a_page_that_was_read_soundly_and_then_fails_costs_what_lies_in_it(
    mount: Path, tmp_path: Path, reader: str
) -> None:
    path, file = second_segment(mount)
    last = file.batches[-1]
    told = f"{path.parent.name}/{path.name} {last.offset} {last.length}"
    fail = f"echo {shlex.quote(told)} > {shlex.quote(str(tmp_path / 'control'))}"
    result = run(mount, reader, fail)
    assert set(range(EVENTS)) - set(result["found"]) == set(range(SEALED - last.rows, SEALED))
    assert result["typed"]
    assert result["holds"]
