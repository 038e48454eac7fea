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

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError
from pyspark.sql.datasource import WriterCommitMessage
from tests.dataflow.test_sinks import Sink, rows

from holdfast.dataflow.base import growing_files as growing_module
from holdfast.dataflow.sink import files_writer
from holdfast.dataflow.sink.options import parse_sink_options
from holdfast.dataflow.sink.records import BatchRecords
from holdfast.dataflow.source.intake import FilesIntake
from holdfast.dataflow.spec.vertices import TargetSettings
from holdfast.errors import BadInput, Damaged, DiskFull
from holdfast.quiver import Quiver

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


@pytest.mark.thinned(3)
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


# ------------------------------------------------------------------- files that grow

BEFORE = [10, 11, 12]
ALL = sorted([*BEFORE, *ROWS])
# What is done to add a batch to the newest file: once more is read than written.
GROWING_STEPS = {"read": 7, "write": 1, "sync": 4, "name": 2, "unlink": 3}
GROWING_CASES = [(step, nth) for step, times in GROWING_STEPS.items() for nth in range(times)]


@pytest.fixture
def growing(tmp_path: Path) -> Sink:
    """A sink with one batch in a file that may grow, and another batch that is to come."""
    made = Sink("files", tmp_path, target_size="1MB")
    made.plan(0, 5)
    made.write(0, BEFORE[:1], BEFORE[1:])
    made.plan(1, 10)
    return made


def test_small_batches_share_a_file_of_few_row_groups(growing: Sink) -> None:
    for number in range(1, 30):
        growing.plan(number, 10 * number)
        growing.write(number, [number + 20], [], [number + 60])
    (name,) = names(growing)
    assert name.endswith("-0000000000-000-00000.parquet")
    expected = [*BEFORE, *range(21, 50), *range(61, 90)]
    assert growing.contents() == sorted(expected)
    with pq.ParquetFile(growing.root / "out" / name) as file:
        assert file.metadata.num_row_groups == 3  # what was there, and that of two tasks
    assert staged(growing) == []


def test_a_file_that_is_large_enough_is_left_as_it_is(growing: Sink) -> None:
    (first,) = names(growing)
    size = os.path.getsize(growing.root / "out" / first)
    options = {"checkpointLocation": growing.checkpoint, "files": growing.root / "out"}
    growing.options = parse_sink_options(
        {name: str(value) for name, value in {**options, "target_size": size + 100}.items()}
    )
    growing.write(1, *TASKS)
    growing.plan(2, 20)
    growing.write(2, [20])
    assert len(names(growing)) == 3
    assert growing.contents() == [*ALL, 20]


def test_a_batch_of_other_columns_begins_another_file(growing: Sink) -> None:
    other = pa.record_batch({"number": pa.array([77], pa.int64())})
    growing.writer().commit([growing.writer().write(iter([other]))], 1)
    assert len(names(growing)) == 2
    assert growing.contents() == [*BEFORE, 77]


def test_a_batch_without_rows_changes_no_file(growing: Sink) -> None:
    growing.write(1, [], [])
    assert growing.contents() == BEFORE
    assert len(names(growing)) == 1


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("step", "nth"), GROWING_CASES)
def test_a_driver_that_dies_while_a_file_grows_leaves_each_row_once(
    growing: Sink, monkeypatch: pytest.MonkeyPatch, step: str, nth: int
) -> None:
    messages = run_tasks(growing)
    with monkeypatch.context() as patched:
        failing(patched, step, nth, Killed(), for_good=True)
        with pytest.raises(Killed):
            growing.writer().commit(messages, 1)
    assert growing.contents() in (BEFORE, ALL)
    for _ in range(2):
        growing.write(1, *TASKS)
        assert growing.contents() == ALL
    assert len(names(growing)) == 1
    growing.plan(2, 20)
    growing.write(2, [20])
    assert growing.contents() == [*ALL, 20]


def test_a_reader_sees_a_batch_or_not_at_every_step_of_its_way(
    growing: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any program that reads the folder, at any moment: no row twice, and none gone."""
    seen, is_reading = [], False

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal is_reading
            if not is_reading:
                is_reading = True
                seen.append(growing.contents())
                is_reading = False
            return real(*args, **kwargs)

        return call

    messages = run_tasks(growing)
    with monkeypatch.context() as patched:
        for module, name, _ in STEPS.values():
            if name not in ("ParquetFile", "ParquetWriter"):
                patched.setattr(module, name, watched(getattr(module, name)))
        growing.writer().commit(messages, 1)
    assert seen[0] == BEFORE
    assert seen[-1] == ALL
    assert all(found in (BEFORE, ALL) for found in seen)


@pytest.mark.parametrize("then", ["alike", "without rows", "with `target_size: 0`"])
def test_a_batch_that_is_run_again_takes_the_place_of_what_it_had_added(
    growing: Sink, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """The driver died when the file had grown and the batch was not noted."""
    with monkeypatch.context() as patched:
        patched.setattr(BatchRecords, "record", _raise(Killed()))
        with pytest.raises(Killed):
            growing.write(1, *TASKS)
    assert growing.contents() == ALL
    if then == "with `target_size: 0`":
        growing = Sink("files", growing.root)
    again = [[]] if then == "without rows" else TASKS
    growing.write(1, *again)
    assert growing.contents() == (BEFORE if then == "without rows" else ALL)
    assert len(names(growing)) == 1


def test_a_disk_that_is_full_while_a_file_grows_takes_the_batch_beside_it(
    growing: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = run_tasks(growing)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with monkeypatch.context() as patched:
        failing(patched, "write", 0, full, for_good=True)
        growing.writer().commit(messages, 1)
    assert growing.contents() == ALL
    assert len(names(growing)) == 4
    growing.plan(2, 20)
    growing.write(2, [20])
    assert growing.contents() == [*ALL, 20]


def test_a_batch_in_a_file_that_grew_waits_for_room_to_be_written_again(
    growing: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside that file its rows would be there twice."""
    with monkeypatch.context() as patched:
        patched.setattr(BatchRecords, "record", _raise(Killed()))
        with pytest.raises(Killed):
            growing.write(1, *TASKS)
    messages = run_tasks(growing)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with monkeypatch.context() as patched:
        failing(patched, "write", 0, full, for_good=True)
        with pytest.raises(DiskFull, match="not enough disk space to write batch 1 again"):
            growing.writer().commit(messages, 1)
    assert growing.contents() == ALL
    growing.write(1, *TASKS)
    assert growing.contents() == ALL


def test_a_newest_file_that_cannot_be_read_is_named(growing: Sink) -> None:
    (name,) = names(growing)
    path = growing.root / "out" / name
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(Damaged, match="newest file of a sink cannot be read") as raised:
        growing.write(1, *TASKS)
    assert raised.value.path == str(path)
    path.rename(growing.root / "aside")
    growing.write(1, *TASKS)
    assert growing.contents() == ROWS


def test_a_damaged_page_in_the_newest_file_costs_no_later_batch(
    growing: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = run_tasks(growing)
    real = growing_module.write_joined

    def fail_once(pieces: Any, target: Path, last: Any = None) -> None:
        if len(pieces) == 4:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(pieces, target, last)

    monkeypatch.setattr(files_writer, "write_joined", fail_once)
    growing.writer().commit(messages, 1)
    assert growing.contents() == ALL
    assert len(names(growing)) == 2


def test_a_source_does_not_take_in_a_file_that_may_grow(growing: Sink, tmp_path: Path) -> None:
    """It takes each file once, and what is added later would be lost."""
    with (
        Quiver.open(tmp_path / "rows") as quiver,
        Quiver.open(tmp_path / "rejected") as rejected,
    ):
        intake = FilesIntake(
            tmp_path / "state", quiver, rejected, growing.root / "out", "parquet", "event_time"
        )
        with pytest.raises(BadInput, match="a sink may add rows to the file"):
            intake.take(lambda: False)


def test_no_other_sink_has_a_target_size() -> None:
    with pytest.raises(ValidationError, match="`target_size` is of `files`"):
        TargetSettings.model_validate({"console": True, "target_size": "1MB"})
    with pytest.raises(ValidationError, match="268435456"):
        TargetSettings.model_validate({"files": "out", "target_size": "257MiB"})
