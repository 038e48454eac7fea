"""The JavaScript SDK of OpenTelemetry as a sender: where it is, and a process that uses it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Self

import pytest
from tests.gateway.telemetry import Sending
from tests.patience import PATIENCE_S

from holdfast.signals.otlp.kinds import OtlpKind

MODULES = Path(__file__).parents[2] / "build" / "js" / "node_modules"
SENDER = Path(__file__).with_name("sender.js")

needs_javascript = pytest.mark.skipif(
    not MODULES.exists() or shutil.which("node") is None,
    reason="needs Node.js and the JavaScript SDK: make setup-js",
)


class JavaScriptSender:
    """A line in, one item of each signal out, and a line with the result of each."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            ["node", str(SENDER), url, str(int(PATIENCE_S * 1000))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "NODE_PATH": str(MODULES)},
        )

    def send_one_of_each(self) -> list[Sending]:
        """Send, and return what the SDK says of it."""
        commands, results = self._process.stdin, self._process.stdout
        assert commands is not None
        assert results is not None
        commands.write("\n")
        commands.flush()
        told = [json.loads(results.readline()) for _ in OtlpKind]
        return [Sending(OtlpKind(one["kind"]), tuple(one["ids"]), one["answered"]) for one in told]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        with self._process:
            pass
