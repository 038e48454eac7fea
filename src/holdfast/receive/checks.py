"""Checking events without standing still: ordinary ones at once, heavy ones in another process.

Parsing and checking hold the interpreter's lock, so a thread would not help: an event of a million
values would stop everybody for seconds. What is heavy is known by counting, which is cheap and done
in turns. A heavy event goes to one child process, which is started when there is one, checks one
after another, and ends when there was none for `IDLE_S`. A child that dies, or takes too long,
costs the request it had (503, which clients send again) and is started again for the next.

The child is `python -m holdfast.receive.checks`. The first line of its standard input is the
validation as JSON; then each event comes as one line that says how long it is, and its bytes. Each
is answered with one line of JSON. It ends with its input.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import orjson

from holdfast.receive.responses import Reason, Refused
from holdfast.signals.openlineage.json_text import MAX_VALUES, too_many_values, values_in
from holdfast.signals.openlineage.names import Names, names_of
from holdfast.signals.openlineage.problem import Problem
from holdfast.signals.openlineage.validation import (
    EventKind,
    ValidationSettings,
    Validator,
    Verdict,
)

# An event is heavy from here on; a smaller one takes some milliseconds at most.
HEAVY_VALUES = 20_000
HEAVY_BYTES = 2 * 1024 * 1024
# Too small to be either.
LIGHT_BYTES = 40 * 1024
# How much is counted at once.
_COUNT_BYTES = 1024 * 1024
# How long a heavy event may take, its wait for others included.
CHECK_TIMEOUT_S = 30.0
# After which a child that has nothing to do ends.
IDLE_S = 60.0
# The longest answer of a child.
_ANSWER_BYTES_MAX = 64 * 1024 * 1024
_RETRY_AFTER_S = 5.0
# Of a child: behind the gateway, where there is one processor for both.
NICENESS = 5

log = logging.getLogger("holdfast.receive")


class Checked(NamedTuple):
    """What was found about one event."""

    verdict: Verdict
    # If they were asked for, and it is valid.
    names: Names | None


class Checks:
    """Checks the events of one receiver."""

    def __init__(self, validation: ValidationSettings | None, base_dir: Path) -> None:
        settings = validation or ValidationSettings()
        self.validator = Validator(settings, base_dir)
        self._settings_line = orjson.dumps(
            {"validation": settings.model_dump(mode="json"), "base_dir": os.fspath(base_dir)}
        )
        self._child: Process | None = None
        self._one_by_one = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None
        # How many children were started.
        self.children_started = 0

    async def check(
        self, raw: bytes, *, thorough: bool = False, with_names: bool = False
    ) -> Checked:
        """Check one event; raises `Refused` if a heavy one could not be."""
        values = await _count_values(raw) if len(raw) > LIGHT_BYTES else 0
        if values > MAX_VALUES:
            return Checked(Verdict(None, (too_many_values(),)), None)
        if values > HEAVY_VALUES or len(raw) > HEAVY_BYTES:
            return await self._check_elsewhere(raw, thorough, with_names)
        return self.check_here(raw, thorough=thorough, with_names=with_names)

    def check_here(
        self, raw: bytes, *, thorough: bool = False, with_names: bool = False
    ) -> Checked:
        """Check one event without waiting; one of at most `LIGHT_BYTES` is certainly not heavy."""
        document, verdict = self.validator.parse_and_check(raw, thorough=thorough)
        wanted = with_names and verdict.ok
        return Checked(verdict, names_of(raw, document) if wanted else None)

    async def close(self) -> None:
        """End the child, if there is one."""
        child = self._child
        self._end_child()
        if child is not None:
            await child.wait()

    # -------------------------------------------------------------- another process

    async def _check_elsewhere(self, raw: bytes, thorough: bool, with_names: bool) -> Checked:
        """Let the child check an event; whatever goes wrong there costs this request alone."""
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S), self._one_by_one:
                try:
                    return await self._ask_child(raw, thorough, with_names)
                except BaseException:
                    # Also when the sender went away: what it answers next would be for another.
                    self._end_child()
                    raise
        except (OSError, EOFError, ValueError, TimeoutError) as error:
            log.warning("a heavy event was not checked: %s", type(error).__name__)
            raise Refused(
                Reason.UNAVAILABLE,
                "this event is large, and could not be checked in time",
                "send it again, or a smaller one",
                retry_after_s=_RETRY_AFTER_S,
            ) from None

    async def _ask_child(self, raw: bytes, thorough: bool, with_names: bool) -> Checked:
        """Send an event in slices: a full pipe must not keep the loop from other work."""
        child = await self._running_child()
        assert child.stdin is not None, "BUG: a child without pipes"
        assert child.stdout is not None, "BUG: a child without pipes"
        request = {"size_bytes": len(raw), "thorough": thorough, "with_names": with_names}
        child.stdin.write(orjson.dumps(request) + b"\n")
        view = memoryview(raw)
        for first in range(0, len(raw), _COUNT_BYTES):
            child.stdin.write(view[first : first + _COUNT_BYTES])
            await child.stdin.drain()
        line = await child.stdout.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        self._let_it_idle()
        return _checked(line)

    async def _running_child(self) -> Process:
        """Return the child, started if there is none or if it has died."""
        if self._idle is not None:
            self._idle.cancel()
        if self._child is None or self._child.returncode is not None:
            self.children_started += 1
            self._child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "holdfast.receive.checks"),
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,
                limit=_ANSWER_BYTES_MAX,
            )
            assert self._child.stdin is not None, "BUG: a child without pipes"
            self._child.stdin.write(self._settings_line + b"\n")
        return self._child

    def _let_it_idle(self) -> None:
        self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._end_child)

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if self._idle is not None:
            self._idle.cancel()
        if child is not None and child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()


async def _count_values(raw: bytes) -> int:
    """Return about how many values an event has; enough of them if there are too many."""
    values = 0
    for first in range(0, len(raw), _COUNT_BYTES):
        values += values_in(raw, first, first + _COUNT_BYTES)
        if values > MAX_VALUES:
            break
        await asyncio.sleep(0)
    return values


def _checked(line: bytes) -> Checked:
    told = orjson.loads(line)
    kind, names = told["kind"], told["names"]
    verdict = Verdict(
        None if kind is None else EventKind(kind),
        tuple(Problem(**one) for one in told["errors"]),
        tuple(Problem(**one) for one in told["warnings"]),
    )
    return Checked(verdict, None if names is None else Names(**names))


def main(source: BinaryIO, target: BinaryIO) -> None:
    """Be the child: answer until the input ends."""
    settings = orjson.loads(source.readline())
    validation = ValidationSettings.model_validate(settings["validation"])
    validator = Validator(validation, Path(settings["base_dir"]))
    while line := source.readline():
        request = orjson.loads(line)
        raw = source.read(request["size_bytes"])
        if len(raw) < request["size_bytes"]:
            return
        document, verdict = validator.parse_and_check(raw, thorough=request["thorough"])
        names = names_of(raw, document) if request["with_names"] and verdict.ok else None
        answer = {**_fields(verdict), "names": None if names is None else names._asdict()}
        del raw, document
        target.write(orjson.dumps(answer) + b"\n")
        target.flush()


def _fields(verdict: Verdict) -> dict[str, Any]:
    return {"kind": verdict.kind, "errors": verdict.errors, "warnings": verdict.warnings}


if __name__ == "__main__":
    os.nice(NICENESS)
    main(sys.stdin.buffer, sys.stdout.buffer)
