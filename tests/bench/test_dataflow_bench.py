"""The benchmark of the dataflow ends by itself, also if Spark does not."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from holdfast.bench.dataflow_reading import _killed_after
from holdfast.bench.runner import load
from holdfast.errors import CheckFailed

HANGS = [sys.executable, "-c", "import threading; threading.Event().wait()"]


def session_of(process: subprocess.Popen[bytes]) -> Any:
    gateway = SimpleNamespace(proc=process)
    return SimpleNamespace(sparkContext=SimpleNamespace(_gateway=gateway))


def test_a_spark_that_hangs_is_killed_and_told_of() -> None:
    def ask(java: subprocess.Popen[bytes]) -> None:
        with _killed_after(0.01, session_of(java)):
            java.wait()
            raise ConnectionError("Java does not answer")

    with subprocess.Popen(HANGS) as java:
        with pytest.raises(CheckFailed, match=r"after 0 min, and was killed"):
            ask(java)
        assert java.returncode < 0


def test_an_error_of_another_kind_is_left_as_it_is() -> None:
    with subprocess.Popen(HANGS) as java:
        with pytest.raises(ConnectionError), _killed_after(3600.0, session_of(java)):
            raise ConnectionError("something else")
        assert java.poll() is None
        java.kill()


def test_what_is_measured_is_enough_to_be_held_against_its_bars() -> None:
    full: Any = load("dataflow").full
    assert full.rounds >= 7
    assert full.rows >= 10_000_000
    assert full.fewer_rows >= 3_000_000
