"""A benchmark leaves nothing on the disk, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S

from holdfast.bench.runner import scratch

FILLS_UNTIL_ENDED = """
import signal, sys
from pathlib import PurePath
from holdfast.bench.runner import scratch
# What was started in the background of a shell ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)
with scratch(PurePath(sys.argv[1])) as folder:
    (folder / "deep").mkdir()
    (folder / "deep" / "data").write_bytes(b"x" * 1000)
    sys.stdout.write("filled\\n")
    sys.stdout.flush()
    signal.pause()
"""


def test_the_folder_is_there_and_then_gone(tmp_path: Path) -> None:
    with scratch(tmp_path / "new") as folder:
        (folder / "data").write_bytes(b"x")
        assert folder.parent == tmp_path / "new"
    assert list((tmp_path / "new").iterdir()) == []


def test_an_error_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), scratch(tmp_path) as folder:  # noqa: PT012
        (folder / "data").write_bytes(b"x")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(signal, "pause"), reason="needs POSIX signals")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, how: signal.Signals) -> None:
    command = [sys.executable, "-c", FILLS_UNTIL_ENDED, str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "filled\n"
        assert os.listdir(tmp_path)
        child.send_signal(how)
        assert child.wait(timeout=PATIENCE_S) != 0
    assert os.listdir(tmp_path) == []
