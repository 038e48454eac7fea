"""What a benchmark ran on: without it, no figure can be compared with another."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path, PurePath

import pyarrow as pa
import xxhash

from holdfast import __version__

# Filesystems that live in memory: their sync costs nothing and proves nothing.
IN_MEMORY = {"ramfs", "tmpfs"}


def describe(directory: PurePath) -> dict[str, object]:
    """Return processor, memory, filesystem and versions."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "load_average": _load_average(),
        "memory_mb": _memory_mb(),
        "filesystem": filesystem(directory),
        "free_disk_mb": shutil.disk_usage(directory).free // 1_000_000,
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "pyarrow": pa.__version__,
        "xxhash": xxhash.VERSION,
        "holdfast": __version__,
    }


def filesystem(directory: PurePath) -> str:
    """Return the type of the filesystem that holds a directory, "unknown" where nobody says."""
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return "unknown"
    here = Path(directory).resolve()
    best, kind = -1, "unknown"
    for line in mounts.read_text().splitlines():
        _, point, found, *_ = line.split(" ")
        place = Path(point.encode().decode("unicode_escape"))
        # Later mounts hide earlier ones at the same place.
        if here.is_relative_to(place) and len(place.parts) >= best:
            best, kind = len(place.parts), found
    return kind


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _load_average() -> list[float]:
    return [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else []


def _memory_mb() -> int | None:
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 1_000_000
