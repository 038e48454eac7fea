"""Checks events in a process of its own, for a gateway that must not stand still meanwhile.

    python -m holdfast.receive.check_child

The first line of standard input is the validation as JSON; then each event comes as one line that
says how long it is, and its bytes. Each is answered with one line of JSON. It ends with its input.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from holdfast.signals.openlineage.names import names_of
from holdfast.signals.openlineage.validation import ValidationSettings, Validator, Verdict

# Behind the gateway, where there is one processor for both.
NICENESS = 5


def main(source: BinaryIO, target: BinaryIO) -> None:
    """Answer until the input ends."""
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
