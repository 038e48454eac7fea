"""A child process for what would hold up everybody else: one request after another, bounded.

Parsing and checking hold the interpreter's lock, so a thread would not help. The child is started
when there is something for it, and ends when there was nothing for `IDLE_S`. One that dies, or
takes too long, costs the request it had (503, which clients send again) and is started again for
the next.

The child is `python -m MODULE`. The first line of its standard input is its settings as JSON; then
each request comes as one line of JSON that says how long its bytes are, and these bytes. Each is
answered the same way. It ends with its input.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import orjson

from holdfast.receive.responses import Reason, Refused

# How long a request may take, its wait for others included.
CHECK_TIMEOUT_S = 30.0
# After which a child that has nothing to do ends.
IDLE_S = 60.0
# The longest line of an answer.
_LINE_BYTES_MAX = 64 * 1024 * 1024
# How much is handed over at once.
_SLICE_BYTES = 1024 * 1024
_RETRY_AFTER_S = 5.0
# Of a child: behind the gateway, where there is one processor for both.
NICENESS = 5

log = logging.getLogger("holdfast.receive")


class ChildAnswer(NamedTuple):
    """What a child said to one request."""

    fields: Mapping[str, Any]
    data: bytes


class CheckingChild:
    """The child of one receiver."""

    def __init__(self, module: str, settings: Mapping[str, object]) -> None:
        self._module = module
        self._settings_line = orjson.dumps(settings)
        self.one_by_one = asyncio.Lock()
        self.process: Process | None = None
        self._idle: asyncio.TimerHandle | None = None
        # How many were started.
        self.started = 0

    async def ask(self, fields: Mapping[str, object], raw: bytes) -> ChildAnswer:
        """Let the child handle a request; whatever goes wrong there costs this request alone."""
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S), self.one_by_one:
                try:
                    return await self._ask(fields, raw)
                except BaseException:
                    # Also when the sender went away: what it answers next would be for another.
                    self._end()
                    raise
        except (OSError, EOFError, ValueError, TimeoutError) as error:
            log.warning("a heavy event was not checked: %s", type(error).__name__)
            raise Refused(
                Reason.UNAVAILABLE,
                "this event is large, and could not be checked in time",
                "send it again, or a smaller one",
                retry_after_s=_RETRY_AFTER_S,
            ) from None

    async def close(self) -> None:
        """End the child, if there is one."""
        process = self.process
        self._end()
        if process is not None:
            await process.wait()

    async def _ask(self, fields: Mapping[str, object], raw: bytes) -> ChildAnswer:
        """Send a request in slices: a full pipe must not keep the loop from other work."""
        process = await self._running()
        assert process.stdin is not None, "BUG: a child without pipes"
        assert process.stdout is not None, "BUG: a child without pipes"
        process.stdin.write(orjson.dumps({**fields, "size_bytes": len(raw)}) + b"\n")
        view = memoryview(raw)
        for first in range(0, len(raw), _SLICE_BYTES):
            process.stdin.write(view[first : first + _SLICE_BYTES])
            await process.stdin.drain()
        line = await process.stdout.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        answer = orjson.loads(line)
        data = await process.stdout.readexactly(answer["size_bytes"])
        self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._end)
        return ChildAnswer(answer, data)

    async def _running(self) -> Process:
        """Return the child, started if there is none or if it has died."""
        if self._idle is not None:
            self._idle.cancel()
        if self.process is None or self.process.returncode is not None:
            self.started += 1
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", self._module),
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,
                limit=_LINE_BYTES_MAX,
            )
            assert self.process.stdin is not None, "BUG: a child without pipes"
            self.process.stdin.write(self._settings_line + b"\n")
        return self.process

    def _end(self) -> None:
        process, self.process = self.process, None
        if self._idle is not None:
            self._idle.cancel()
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()


def be_child(
    prepare: Callable[[Any], Callable[[Mapping[str, Any], bytes], ChildAnswer]],
) -> None:
    """Answer until the input ends; `prepare` is given the settings, and returns what answers."""
    os.nice(NICENESS)
    source, target = sys.stdin.buffer, sys.stdout.buffer
    answer = prepare(orjson.loads(source.readline()))
    while line := source.readline():
        request = orjson.loads(line)
        raw = source.read(request["size_bytes"])
        if len(raw) < request["size_bytes"]:
            return
        fields, data = answer(request, raw)
        del raw
        target.write(orjson.dumps({**fields, "size_bytes": len(data)}) + b"\n")
        target.write(data)
        target.flush()
