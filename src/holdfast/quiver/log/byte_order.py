"""Byte order: files hold numbers as little-endian machines have them, and are read by no other."""

from __future__ import annotations

import sys
from pathlib import PurePath

from holdfast.errors import CannotOpen

NEEDED = "little"


def machine_order() -> str:
    """Return this machine's byte order: "little" or "big"."""
    return sys.byteorder


def check_machine(root: PurePath) -> None:
    """Raise `CannotOpen` on a machine that would write and read other numbers."""
    if machine_order() != NEEDED:
        raise CannotOpen(
            f"this machine is {machine_order()}-endian",
            hint="data directories are for little-endian machines, as almost all are",
            path=str(root),
        )
