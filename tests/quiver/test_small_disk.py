"""A real file system of 24 MB is filled, its owner is killed, and the next one drains it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.patience import APPEND_S, until

from holdfast.errors import NotAccepted, StorageFailed
from holdfast.quiver import (
    AppendConfig,
    Quiver,
    QuiverConfig,
    RetentionConfig,
    SegmentConfig,
    WalConfig,
)
from holdfast.quiver.base.config import MB
from holdfast.quiver.read.lease import LeasedBundle

# All defaults but small segments, and appends that do not wait long; the cap is far too large.
CONFIG = QuiverConfig(
    append=AppendConfig(timeout_s=APPEND_S),
    segment=SegmentConfig(target_size_bytes=2 * MB),
    wal=WalConfig(file_size_bytes=MB),
    retention=RetentionConfig(tick_s=0.05),
)
REFUSALS = 6
FILL = """
import os, signal, sys
from tests.quiver.test_small_disk import CONFIG, fill
from holdfast.quiver import Quiver
quiver = Quiver.open(sys.argv[1], CONFIG)
quiver.register("s")
print(fill(quiver), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def fill(quiver: Quiver) -> int:
    """Append until that was refused some times; return how many were taken."""
    stored = refused = 0
    while refused < REFUSALS:
        try:
            quiver.append_raw(os.urandom(50_000))
            stored += 1
        except NotAccepted:
            refused += 1
    return stored


@pytest.fixture(params=["tmpfs", "ext4"])
def small_disk(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system of its own, always unmounted."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root on Linux")
    with tempfile.TemporaryDirectory() as folder:
        place, image = Path(folder, "mounted"), Path(folder, "image")
        place.mkdir()
        commands = [["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(place)]]
        if request.param == "ext4":
            image.write_bytes(bytes(24 * MB))
            commands = [
                ["mkfs.ext4", "-q", "-F", str(image)],
                ["mount", "-o", "loop", str(image), str(place)],
            ]
        try:
            for command in commands:
                subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip(f"{request.param} cannot be mounted here")
        try:
            yield place
        finally:
            # Lazily: a mapped file keeps it busy until its memory is given back.
            subprocess.run(["umount", "-l", str(place)], check=True)


def is_acked(delivery: LeasedBundle) -> bool:
    try:
        delivery.ack()
    except StorageFailed:
        return False
    return True


def drain(quiver: Quiver) -> int:
    acked = 0
    with quiver.lease("s") as lease:
        while (delivery := lease.poll(timeout_s=APPEND_S)) is not None:
            # Without a reserve acks may come faster than what they free: then they come again.
            until(partial(is_acked, delivery))
            acked += 1
    return acked


@pytest.mark.slow
@pytest.mark.parametrize("reserved", [True, False], ids=["reserve", "no reserve"])
def test_a_real_disk_that_is_full_is_opened_drained_and_written_again(
    small_disk: Path, *, reserved: bool
) -> None:
    root = small_disk / "quiver"
    filled = subprocess.run(
        [sys.executable, "-c", FILL, str(root)], capture_output=True, text=True, check=False
    )
    assert filled.returncode == -signal.SIGKILL, filled.stderr
    stored = int(filled.stdout)
    if not reserved:  # as in a directory of the version before
        shutil.rmtree(root / "reserve")
    with contextlib.suppress(OSError), open(small_disk / "another", "wb") as another:
        while True:  # another program takes the rest
            another.write(bytes(4096))
            another.flush()
    for _ in range(2):
        Quiver.open(root, CONFIG).close()
    with Quiver.open(root, CONFIG) as quiver:
        # A refusal in time may come for what is stored all the same (`stored="maybe"`).
        assert stored <= drain(quiver) <= stored + REFUSALS
        (small_disk / "another").unlink()
        for _ in range(100):
            with contextlib.suppress(NotAccepted):
                quiver.append_raw(b"there is room")
                return
    raise AssertionError("there is no room")
