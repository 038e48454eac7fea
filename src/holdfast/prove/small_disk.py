"""A small file system for the data of a proof, so that its disk is really full now and then.

It is ext4 in a file beside the journals, mounted in the proof's folder, and always unmounted. What
is on it stays in that file: after a proof that failed it can be mounted again and looked at.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import BadInput
from holdfast.seam.owners import is_root

# Less leaves no room beside the reserves of a gateway's quivers; more takes too long to fill.
SIZE_BYTES_MIN = 32 << 20
SIZE_BYTES_MAX = 1 << 30
# How long a prover waits for the disk to be full.
FILL_SECONDS_MAX = 300.0
# Appends to a full disk are refused this soon, so that many are tried.
APPEND_TIMEOUT_S = 2.0
# Of the strikes at random moments, every so many are on a disk that was filled before.
FILL_EVERY_STRIKES = 2


def check_small_disk(size_bytes: int) -> None:
    """Refuse what cannot be made here."""
    if not SIZE_BYTES_MIN <= size_bytes <= SIZE_BYTES_MAX:
        raise BadInput(
            f"a small disk of {size_bytes} bytes cannot be proven on",
            hint=f"name a size from {SIZE_BYTES_MIN} to {SIZE_BYTES_MAX} bytes, such as 60MB",
        )
    if sys.platform != "linux" or not is_root():
        raise BadInput(
            "a small disk can only be mounted by root, on Linux",
            hint="run it as root, or leave --small-disk out",
        )


@contextmanager
def data_directory(directory: Path, small_disk_bytes: int | None) -> Iterator[Path]:
    """Yield where the data goes: into the proof's folder, or on a small disk mounted there."""
    if small_disk_bytes is None:
        yield directory
        return
    check_small_disk(small_disk_bytes)
    image, place = directory / "small-disk.ext4", directory / "small-disk"
    place.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(small_disk_bytes)
    try:
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
        _run("mount", "-o", "loop", str(image), str(place))
        yield place
    finally:
        # Lazily: a process that was killed may still be on its way out.
        if os.path.ismount(place):
            _run("umount", "--lazy", str(place))


def _run(*command: str) -> None:
    try:
        # In a session of its own: Ctrl-C must not end what unmounts.
        subprocess.run(command, check=True, capture_output=True, text=True, start_new_session=True)
    except (OSError, subprocess.CalledProcessError) as error:
        output = getattr(error, "stderr", None) or str(error)
        raise BadInput(
            f"the small disk failed at {command[0]}: {output.strip().splitlines()[-1]}",
            hint="it needs mkfs.ext4, mount, and loop devices",
        ) from error
