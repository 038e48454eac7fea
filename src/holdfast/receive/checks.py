"""Checking events without standing still: ordinary ones at once, heavy ones in another process.

Parsing and checking hold the interpreter's lock, so a thread would not help: an event of a million
values would stop everybody for seconds. What is heavy is known by counting, which is cheap and done
in turns. A heavy event goes to a child process (`child.py`), which is `python -m` this module.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.receive.child import CheckingChild, ChildAnswer, be_child
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
        self.child = CheckingChild(
            "holdfast.receive.checks",
            {"validation": settings.model_dump(mode="json"), "base_dir": os.fspath(base_dir)},
        )

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
        await self.child.close()

    async def _check_elsewhere(self, raw: bytes, thorough: bool, with_names: bool) -> Checked:
        """Let the child check an event."""
        asked = {"thorough": thorough, "with_names": with_names}
        return _checked((await self.child.ask(asked, raw)).fields)


async def _count_values(raw: bytes) -> int:
    """Return about how many values an event has; enough of them if there are too many."""
    values = 0
    for first in range(0, len(raw), _COUNT_BYTES):
        values += values_in(raw, first, first + _COUNT_BYTES)
        if values > MAX_VALUES:
            break
        await asyncio.sleep(0)
    return values


def _checked(told: Mapping[str, Any]) -> Checked:
    kind, names = told["kind"], told["names"]
    verdict = Verdict(
        None if kind is None else EventKind(kind),
        tuple(Problem(**one) for one in told["errors"]),
        tuple(Problem(**one) for one in told["warnings"]),
    )
    return Checked(verdict, None if names is None else Names(**names))


def _in_child(settings: Mapping[str, Any]) -> Callable[[Mapping[str, Any], bytes], ChildAnswer]:
    """Return what the child answers with."""
    validation = ValidationSettings.model_validate(settings["validation"])
    validator = Validator(validation, Path(settings["base_dir"]))

    def answer(request: Mapping[str, Any], raw: bytes) -> ChildAnswer:
        document, verdict = validator.parse_and_check(raw, thorough=request["thorough"])
        names = names_of(raw, document) if request["with_names"] and verdict.ok else None
        told = {"kind": verdict.kind, "errors": verdict.errors, "warnings": verdict.warnings}
        return ChildAnswer({**told, "names": None if names is None else names._asdict()}, b"")

    return answer


if __name__ == "__main__":
    be_child(_in_child)
