"""`holdfast prove --small-disk`: who may ask for it, and that nothing stays mounted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast import prove
from holdfast.errors import BadInput
from holdfast.operate.cli.cmd_prove import command
from holdfast.prove import small_disk
from holdfast.prove.journal import ProofJournal, count_refused
from holdfast.prove.small_disk import data_directory


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, [*arguments, "--json"], standalone_mode=False)


@pytest.mark.parametrize("name", prove.ON_SMALL_DISK)
def test_whoever_is_not_root_is_told_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_disk, "is_root", lambda: False)
    error = run(name, "--small-disk", "60MB").exception
    assert isinstance(error, BadInput)
    assert "by root" in error.message
    assert error.exit_code == 2


@pytest.mark.parametrize(
    ("name", "size", "says"),
    [
        ("store", "60MB", "store is not proven on a small disk"),
        ("quiver", "small", "'small' is not a size"),
        ("quiver", "1MB", "1048576 bytes cannot be proven on"),
        ("gateway", "2GB", "2147483648 bytes cannot be proven on"),
    ],
)
def test_what_cannot_be_proven_is_refused(
    name: str, size: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_disk, "is_root", lambda: True)
    error = run(name, "--small-disk", size).exception
    assert isinstance(error, BadInput)
    assert says in error.message


def test_refusals_are_counted_by_what_the_clients_were_told(tmp_path: Path) -> None:
    journal = ProofJournal(tmp_path / "0.journal")
    for name, why in [("a", "DiskFull"), ("b", "Overloaded"), ("c", "DiskFull")]:
        journal.sent(name, 1)
        journal.refused(name, "no", why)
    journal.close()
    assert count_refused(tmp_path, "DiskFull") == 2


def needs_a_mount() -> None:
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root on Linux")


@pytest.mark.parametrize("ending", [RuntimeError, KeyboardInterrupt])
def test_the_small_disk_is_unmounted_however_it_ends(
    tmp_path: Path, ending: type[BaseException]
) -> None:
    needs_a_mount()
    mounted = data_directory(tmp_path, small_disk.SIZE_BYTES_MIN)
    try:
        place = mounted.__enter__()
    except BadInput as error:
        pytest.skip(error.message)
    assert place.is_mount()
    (place / "data").write_bytes(b"x")
    assert not mounted.__exit__(ending, ending(), None)
    assert not place.is_mount()
    assert not list(place.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", prove.ON_SMALL_DISK)
def test_nothing_accepted_is_lost_on_a_disk_that_was_full(name: str) -> None:
    needs_a_mount()
    arguments = [name, "--small-disk", "40MB", "--kills", "2", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "prove", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if "the small disk failed at" in done.stderr:
        pytest.skip("a loop device cannot be mounted here")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["refused_disk_full"] > 0
    assert found["lost"] == 0
