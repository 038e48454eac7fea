"""The files sink: few files, and a reader that never sees a row twice or misses one for good.

Every step of publishing a batch is one at which the driver dies, the disk is full and stays so, or
a staged file cannot be read. Run again, as Spark does, the batch is there once.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from tests.dataflow.test_sinks import Sink, rows

from holdfast.dataflow.sink import files_writer
from holdfast.dataflow.sink.records import BatchRecords

TASKS: tuple[list[int], ...] = ([1, 2], [], [3], [4, 5])
ROWS = [1, 2, 3, 4, 5]
# The calls by which a batch is published, and how often each is made.
STEPS: dict[str, tuple[Any, str, int]] = {
    "read": (pq, "ParquetFile", 4),
    "write": (pq, "ParquetWriter", 1),
    "sync": (os, "fsync", 4),
    "name": (os, "replace", 2),
    "unlink": (os, "unlink", 3),
}


class Killed(BaseException):
    """The driver ends here."""


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    made = Sink("files", tmp_path)
    made.plan(0, 10)
    return made


def run_tasks(sink: Sink) -> list[WriterCommitMessage | None]:
    """Return what the tasks of the batch tell the driver."""
    return [sink.writer().write(rows(numbers)) for numbers in TASKS]


def names(sink: Sink) -> list[str]:
    return sorted(path.name for path in (sink.root / "out").glob("part-*"))


def staged(sink: Sink) -> list[Path]:
    return list((sink.root / "out" / "_holdfast" / "staging").iterdir())


def test_the_tasks_of_a_small_batch_share_one_file(sink: Sink) -> None:
    sink.write(0, *TASKS)
    (name,) = names(sink)
    assert name.endswith("-0000000000-000-00000.parquet")
    assert pq.read_table(sink.root / "out" / name)["number"].to_pylist() == ROWS
    assert staged(sink) == []


def test_a_large_batch_keeps_the_files_of_its_tasks(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_writer, "ONE_FILE_BYTES", 10)
    sink.write(0, *TASKS)
    assert len(names(sink)) == 3
    assert sink.contents() == ROWS


def test_a_batch_that_was_published_in_parts_becomes_one_file(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver of a version before died between the renames, or between the last and the record."""
    with monkeypatch.context() as patched:
        patched.setattr(files_writer, "ONE_FILE_BYTES", 10)
        patched.setattr(BatchRecords, "record", _raise(Killed()))
        with pytest.raises(Killed):
            sink.write(0, *TASKS)
    assert len(names(sink)) == 3
    sink.write(0, *TASKS)
    assert len(names(sink)) == 1
    assert sink.contents() == ROWS


def _raise(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def failing(
    monkeypatch: pytest.MonkeyPatch, step: str, nth: int, error: BaseException, *, for_good: bool
) -> list[int]:
    """Let the nth call of a step fail, or all from there on; return the list of calls."""
    module, name, _ = STEPS[step]
    real, calls = getattr(module, name), list[int]()

    def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(len(calls))
        if len(calls) == nth + 1 or (for_good and len(calls) > nth):
            raise error
        return real(*args, **kwargs)

    monkeypatch.setattr(module, name, call)
    return calls


CASES = [(step, nth) for step, (_, _, times) in STEPS.items() for nth in range(times)]


@pytest.mark.parametrize(("step", "nth"), CASES)
def test_a_driver_that_dies_at_any_step_leaves_a_batch_that_counts_once(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, step: str, nth: int
) -> None:
    messages = run_tasks(sink)
    with monkeypatch.context() as patched:
        failing(patched, step, nth, Killed(), for_good=True)
        with pytest.raises(Killed):
            sink.writer().commit(messages, 0)
    assert sink.contents() in ([], ROWS)
    sink.write(0, *TASKS)
    assert sink.contents() == ROWS
    sink.write(0, *TASKS)
    assert sink.contents() == ROWS
    assert len(names(sink)) == 1


@pytest.mark.parametrize("nth", range(STEPS["sync"][2]))
def test_a_disk_that_stays_full_takes_a_batch_in_the_files_of_its_tasks(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    messages = run_tasks(sink)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with monkeypatch.context() as patched:
        failing(patched, "write", 0, full, for_good=True)
        # The record needs room, too: with none the batch does not count yet.
        failing(patched, "sync", nth, full, for_good=True)
        with contextlib.suppress(OSError):
            sink.writer().commit(messages, 0)
    assert sink.contents() in ([], ROWS)
    sink.write(0, *TASKS)
    assert sink.contents() == ROWS


@pytest.mark.parametrize("nth", range(STEPS["read"][2]))
def test_a_staged_file_that_cannot_be_read_ends_the_batch_before_anything_is_seen(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    messages = run_tasks(sink)
    with monkeypatch.context() as patched:
        failing(patched, "read", nth, OSError(errno.EIO, os.strerror(errno.EIO)), for_good=True)
        with pytest.raises(OSError, match="Input/output error"):
            sink.writer().commit(messages, 0)
    assert sink.contents() == []
    sink.write(0, *TASKS)
    assert sink.contents() == ROWS
