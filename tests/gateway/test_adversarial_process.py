"""Attempts to starve a real gateway process."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import pytest
from tests.gateway.processes import Gateway
from tests.graph.lineage import run_event
from tests.patience import until


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


STUBBORN = """\
import asyncio
import pathlib


async def deliver(events):
    pathlib.Path(__file__).with_name("called").touch()
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
"""


@pytest.mark.slow
def test_a_function_that_cannot_be_cancelled_does_not_keep_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stubborn_function.py").write_text(STUBBORN)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = {"function": "stubborn_function:deliver", "timeout": "1s"}
    out = {"kind": "exporter", "type": "python", "config": config}
    gateway = Gateway(tmp_path, {"out": out}, drain="100ms")
    gateway.start()
    try:
        assert gateway.post(json.dumps(run_event()).encode())[0] == 200
        until((tmp_path / "called").exists, "a call")
        gateway.stop()
    finally:
        gateway.kill()
    stopped, left = gateway.messages()[-2:]
    assert stopped == "stopped; kept for the next start: out 1"
    assert "ignores its cancellation" in left
