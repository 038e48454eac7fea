"""What the console does by a command of the command line, in a process of its own.

To submit a corrected event, and to say what holds a watermark, are commands already: `dead-letters`
and `dataflow`. The console runs them, so that there is one way to do each. They validate, and open
connections like any client: in a process of its own, one that hangs can be ended. A store is looked
into in the same way (store_reader.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from asyncio.subprocess import PIPE
from typing import Any

from holdfast.errors import BadInput, HoldfastError, Overloaded

# How long a command may take, and how many wait for their turn: there is one at a time.
COMMAND_S = 120.0
WAITING_MAX = 4
# Of what it prints. More is refused: a browser would not show it either.
OUTPUT_BYTES_MAX = 8 * 1024 * 1024
# "It found nothing" is no failure here.
FOUND_NOTHING = 1


class CommandRunner:
    """Runs one command at a time: `holdfast` itself, or another module that answers as it does."""

    def __init__(self, module: str = "holdfast", limit_s: float = COMMAND_S) -> None:
        self.limit_s = limit_s
        self._module = module
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def run(self, *words: str, stdin: bytes = b"", by_hand: str = "") -> Any:
        """Run `holdfast WORDS… --json`; return what it prints, or raise what it reports.

        `by_hand` is the command that does the same without a limit, where it is not `words`.
        """
        if self._waiting >= WAITING_MAX:
            raise Overloaded("other requests are being worked on", hint="try again in a moment")
        self._waiting += 1
        try:
            async with self._turn:
                return await self._run(words, stdin, by_hand or f"holdfast {words[0]}")
        finally:
            self._waiting -= 1

    async def _run(self, words: tuple[str, ...], stdin: bytes, by_hand: str) -> Any:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", self._module, *words, stdin=PIPE, stdout=PIPE, stderr=PIPE
        )
        try:
            async with asyncio.timeout(self.limit_s):
                output, errors = await process.communicate(stdin)
        except TimeoutError:
            hint = f"run it yourself: `{by_hand}` has no limit"
            raise Overloaded(f"it took longer than {self.limit_s:g} s", hint=hint) from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if len(output) > OUTPUT_BYTES_MAX:
            raise Overloaded("there is too much to show", hint="ask for something narrower")
        if process.returncode not in (0, FOUND_NOTHING) or not output.strip():
            raise _reported(errors)
        return json.loads(output)


def _reported(errors: bytes) -> HoldfastError:
    """Return what a command reported: the last line on standard error is JSON, if it knew why."""
    lines = errors.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"]
    try:
        told = json.loads(lines[-1])
        return BadInput(told["message"], hint=told["hint"])
    except (ValueError, KeyError, TypeError):
        return BadInput(f"the command failed: {lines[-1][:500]}", hint="the log may have more")
