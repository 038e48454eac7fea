"""Print what one event passes through, from an HTTP request to a line in a file.

A gateway runs in this process: an OpenLineage receiver, a quiver, a `files` exporter. A few events
go through it first, so that everything is open and cached. Then each of a number of events is
followed alone: every function of Holdfast is noted that runs, on any thread, until the event is in
the file, the ledger knows it, and nothing runs any more.

What one event meets depends on the moment: a timer fires, a thread has to wait. So only what
*every* one of these events passed is counted, and of calls the smallest number. On a busy machine
an event takes so long that a timer fires during each of them: so after each one nothing is sent
for as long as it took, and what runs then is told, too.

    functions   distinct functions that were entered
    modules     distinct modules of these
    crossings   calls from one module into another
    mutual      pairs of modules that called each other
    way         the modules, in the order in which an event first entered them
    sometimes   modules that only some of the events passed
    idle        modules that ran while no event was under way
"""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from functools import reduce
from operator import and_
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import holdfast
from holdfast.graph.loader import load
from holdfast.graph.runtime import Gateway

SOURCE = str(Path(holdfast.__file__).parent) + "/"
PATIENCE_S = 60.0
WARM_EVENTS = 5
EVENTS = 8
QUIET_S = 0.03
QUIET_TRIES = 10
# Of one function each; newer versions of Python do not even call them.
COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}
GRAPH = """
nodes:
  lineage: {kind: receiver, type: openlineage, config: {listen: "127.0.0.1:0"}, to: [buffer]}
  buffer: {kind: processor, type: quiver, to: [out]}
  out: {kind: exporter, type: files, config: {directory: out}}
"""


class Steps(NamedTuple):
    """What one event passed."""

    functions: set[tuple[str, int]]
    modules: dict[str, None]
    crossings: Counter[tuple[str, str]]


class Walk:
    """Notes calls while an event is followed."""

    def __init__(self) -> None:
        self.calls = 0
        self._now: Steps | None = None
        self._idle = Steps(set(), {}, Counter())
        self._events: list[Steps] = []

    def begin(self) -> None:
        """Follow the next event."""
        self._now = Steps(set(), {}, Counter())

    def end(self) -> None:
        """Keep what it passed, and note what runs without one."""
        assert self._now is not None
        self._events.append(self._now)
        self._now = self._idle

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        """Note a call of one of Holdfast's functions; `sys.setprofile` calls this."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(SOURCE):
            return
        if code.co_name in COMPREHENSIONS:
            return
        self.calls += 1
        steps = self._now
        if steps is None:
            return
        module = _module(code.co_filename)
        steps.functions.add((module, code.co_firstlineno))
        steps.modules.setdefault(module)
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(SOURCE):
            caller = caller.f_back
        if caller is not None and (above := _module(caller.f_code.co_filename)) != module:
            steps.crossings[above, module] += 1

    def result(self) -> dict[str, Any]:
        """Return what every event passed."""
        functions = set.intersection(*(one.functions for one in self._events))
        passed = {module for module, _ in functions}
        crossings = reduce(and_, (one.crossings for one in self._events))
        mutual = sorted({tuple(sorted(pair)) for pair in crossings if pair[::-1] in crossings})
        return {
            "functions": len(functions),
            "modules": len(passed),
            "crossings": crossings.total(),
            "mutual": [" <> ".join(pair) for pair in mutual],
            "way": [module for module in self._events[0].modules if module in passed],
            "sometimes": sorted({m for one in self._events for m in one.modules} - passed),
            "idle": sorted(self._idle.modules),
        }


def _module(path: str) -> str:
    return path.removeprefix(SOURCE).removesuffix(".py").replace("/", ".")


async def walk(folder: Path) -> dict[str, Any]:
    """Send events through a gateway in `folder`; return what every one of them passes."""
    counted = Walk()
    # Before any thread exists: each has a profile function of its own.
    threading.setprofile(counted.profile)
    sys.setprofile(counted.profile)
    path = folder / "graph.yaml"
    path.write_text(GRAPH)
    gateway = Gateway(load(path).graph)
    await gateway.start()
    try:
        connection = http.client.HTTPConnection(gateway.addresses["lineage"][0].partition("//")[2])
        for _ in range(WARM_EVENTS):
            await _send(connection, folder)
        for _ in range(EVENTS):
            await _quiet(counted)
            began_s = time.monotonic()
            counted.begin()
            await _send(connection, folder)
            await _quiet(counted)
            counted.end()
            await asyncio.sleep(time.monotonic() - began_s)
        connection.close()
        return counted.result()
    finally:
        await gateway.stop(PATIENCE_S)
        sys.setprofile(None)
        threading.setprofile(None)


async def _send(connection: http.client.HTTPConnection, folder: Path) -> None:
    """Post one event; return when it was written to the file, and the ledger after that."""
    written, ledger = _size(folder / "out"), _size(folder, "ledger")
    status = await asyncio.to_thread(_post, connection)
    assert status == http.client.OK, status
    await _grown(folder / "out", written)
    await _grown(folder, ledger, "ledger")


async def _quiet(counted: Walk) -> None:
    """Wait until nothing was called for a moment; timers that never rest end this, too."""
    for _ in range(QUIET_TRIES):
        before = counted.calls
        await asyncio.sleep(QUIET_S)
        if counted.calls == before:
            return


def _post(connection: http.client.HTTPConnection) -> int:
    event = {
        "eventTime": "2026-01-02T03:04:05Z",
        "eventType": "START",
        "producer": "https://example.com/walk",
        "schemaURL": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent",
        "run": {"runId": str(uuid.uuid4())},
        "job": {"namespace": "walk", "name": "one event"},
    }
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/api/v1/lineage", json.dumps(event), headers)
    answer = connection.getresponse()
    answer.read()
    return answer.status


async def _grown(folder: Path, size_bytes: int, part: str = "") -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while _size(folder, part) <= size_bytes:
        assert time.monotonic() < give_up_s, f"nothing was written to {folder}"
        await asyncio.sleep(0.01)


def _size(folder: Path, part: str = "") -> int:
    """Return the bytes of the files below a folder, or of those with a folder of that name."""
    files = (path for path in folder.rglob("*") if not part or part in path.parts)
    return sum(path.stat().st_size for path in files if path.is_file())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        sys.stdout.write(json.dumps(asyncio.run(walk(Path(name))), indent=2) + "\n")
