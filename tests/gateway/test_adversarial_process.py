"""Attempts to starve a real gateway process."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest
from tests.gateway.processes import Gateway


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the limits of a process")
def test_it_takes_all_the_open_files_that_it_may_have(tmp_path: Path) -> None:
    """A shell that grants few would let a thousand idle connections stop it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    gateway = Gateway(tmp_path, {"out": {"kind": "exporter", "type": "console"}})
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 256), hard))
    try:
        gateway.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        assert gateway._process is not None
        limits = Path(f"/proc/{gateway._process.pid}/limits").read_text().splitlines()
        (granted,) = [line.split()[3:5] for line in limits if line.startswith("Max open files")]
        assert granted[0] == granted[1]
    finally:
        gateway.kill()
