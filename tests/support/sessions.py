"""Processes that start others, Spark's among them: none of them is left behind."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

from tests.patience import SPARK_PATIENCE_S

from holdfast.prove.sessions import end_session


def run_apart(
    command: Sequence[str], *, timeout_s: float | None = SPARK_PATIENCE_S, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end in a session of its own, and end whatever it leaves there."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    finally:
        end_session(process.pid)
        process.wait()
    return subprocess.CompletedProcess(command, process.returncode, out, err)
