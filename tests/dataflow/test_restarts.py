"""Queries whose Python process is late are restarted a few times; one that hangs is given up."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.dataflow.late_worker import ATTEMPTS
from tests.dataflow.quivers import fill
from tests.patience import SPARK_PATIENCE_S
from tests.support.sessions import run_apart

from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.compiler.tails import Tail
from holdfast.dataflow.driver.failures import Restarts, failed, is_no_worker, told_briefly
from holdfast.dataflow.driver.process import drive
from holdfast.dataflow.driver.progress import BATCH_PATIENCE_S, LONG_BATCH_S, QueryProgress
from holdfast.dataflow.driver.run import PipelineRun
from holdfast.dataflow.driver.session import QUERY_SETTINGS
from holdfast.dataflow.source.checkpoint import Checkpoint
from holdfast.dataflow.spec import Pipeline
from holdfast.errors import PipelineFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parents[2]

# As Spark 4.3 says it.
PLANNING = Exception(
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "
    "Python worker failed to connect back. SQLSTATE: XXKST"
)
IN_A_TASK = Exception(
    "Lost task 0.0: java.net.SocketTimeoutException: Timed out while waiting for the Python worker "
    "to connect back after 60000 ms"
)
OTHER = Exception("[STREAM_FAILED] … terminated with exception: column `a` cannot be resolved")


# ------------------------------------------------------------------ what Spark is told

TRACE = "\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAG.scala:1)\n"
JOB = "An error occurred while calling o1.collectToPython.\n: "


class JavaError(Exception):
    """As py4j's: what it says has all of Java's trace."""

    def __init__(self, *lines: str) -> None:
        super().__init__(JOB + "".join(f"{line}\n{TRACE * 40}" for line in lines))


JavaError.__module__, JavaError.__qualname__ = "py4j.protocol", "Py4JJavaError"


def told(error: Exception) -> str:
    """Return what Spark is told of a batch that fails so: py4j's text."""

    def fail(batch: DataFrame, number: int) -> None:
        raise error

    batch: Any = None
    try:
        told_briefly(fail)(batch, 7)
    except Exception:
        return traceback.format_exc()
    raise AssertionError("it did not fail")


CANCELLED = (
    "org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 5 cancelled part of cancelled job "
    "group 6f1c. SQLSTATE: XXKDA"
)
INTERRUPTION = "java.nio.channels.ClosedByInterruptException"
INTERRUPTED = f"Caused by: {INTERRUPTION}"
CRASHED = "org.apache.spark.SparkException: Job aborted: Python worker exited unexpectedly"


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (JavaError(CANCELLED), ["org.apache.spark.SparkException", "cancelled", "group 6f1c"]),
        (JavaError(CRASHED, INTERRUPTED), [INTERRUPTION, CRASHED]),
        (JavaError(CRASHED, "Caused by: No space left on device"), ["No space left on device"]),
        (JavaError(CRASHED, f"Caused by: {IN_A_TASK}"), ["waiting for the Python worker"]),
        (JavaError("x" * 100_000, "y" * 100_000, CANCELLED), ["group 6f1c"]),
    ],
)
def test_of_an_error_of_java_in_a_batch_spark_is_told_what_it_can_read(
    error: Exception, kept: list[str]
) -> None:
    """Its pattern calls itself for each character that follows the name of an error of Java."""
    text = told(error)
    _, _, followed = text.partition("py4j.protocol.Py4JJavaError")
    assert len(followed) < 1000
    assert len(text) < 4000, "with where it was raised"
    assert all(part in text for part in kept)


def test_an_interruption_is_found_where_spark_looks_for_it() -> None:
    text = told(JavaError(CRASHED, INTERRUPTED))
    pattern = r"py4j.protocol.Py4JJavaError: An error occurred while calling(.|\n)*(java.nio\S+)"
    assert re.search(pattern, text)
    assert failed("one", Exception(text)).message.startswith(f"query one ended: {CRASHED}; ")


@pytest.mark.slow
def test_spark_s_own_pattern_overflows_on_a_trace_and_not_on_what_it_is_told(
    spark: SparkSession,
) -> None:
    """If this fails with a newer Spark, `told_briefly` can go."""
    assert spark._jvm is not None
    runtime = spark._jvm.org.apache.spark.sql.execution.streaming.runtime
    pattern = runtime.StreamExecution.PROXY_ERROR()
    error = JavaError(CRASHED, INTERRUPTED)
    assert pattern.findFirstIn(told(error)).isDefined()
    assert not pattern.findFirstIn(told(JavaError(CANCELLED))).isDefined()
    with pytest.raises(Exception, match="StackOverflowError"):
        pattern.findFirstIn("".join(traceback.format_exception(error)))


def test_errors_without_java_are_told_as_they_are() -> None:
    told_now = told(PipelineFailed("the folder is gone", hint="mount it"))
    assert told_now.endswith("PipelineFailed: the folder is gone. mount it\n")


# ------------------------------------------------------------------------ counting


def test_it_is_told_from_everything_else() -> None:
    behind = PipelineFailed("the query ended", hint="…")
    behind.__cause__ = PLANNING
    inside = Exception("Job aborted")
    inside._cause = IN_A_TASK  # type: ignore[attr-defined]
    assert [is_no_worker(one) for one in (PLANNING, IN_A_TASK, behind, inside, OTHER)] == [
        True, True, True, True, False,
    ]  # fmt: skip


def test_so_many_in_a_row() -> None:
    restarts = Restarts(3)
    assert [restarts.may_begin(PLANNING) for _ in range(3)] == [True, True, False]


def test_a_batch_in_between_begins_the_count_anew() -> None:
    restarts = Restarts(2)
    assert restarts.may_begin(PLANNING, batches_done=0)
    assert [restarts.may_begin(PLANNING, batches_done=4) for _ in range(3)] == [True, True, False]


def test_nothing_else_is_tried_again() -> None:
    assert not Restarts(3).may_begin(OTHER)


# ------------------------------------------------------------------------- queries


class Asked:
    """What is asked of a query of Spark."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.status = {"message": "Initializing sources"}
        self.recentProgress: list[dict[str, Any]] = []

    def exception(self) -> Exception | None:
        return self.error


class Stand:
    """A query, those that are begun after it, and a clock."""

    def __init__(self, attempts_max: int, *next_ones: Asked) -> None:
        self.now_s = 1000.0
        self.has_jobs = False
        first, *others = next_ones
        waiting = iter(others)
        self.progress = QueryProgress(
            "events", first, None, lambda: next(waiting), Restarts(attempts_max),  # type: ignore[arg-type, return-value]
            Checkpoint("none"), clock_s=lambda: self.now_s,
        )  # fmt: skip

    @property
    def query(self) -> Any:
        return self.progress.spark

    def stuck(self) -> tuple[str, float] | None:
        return self.progress.stuck(600, lambda _: self.has_jobs)

    def says(self, message: str, *reported: str) -> None:
        self.query.status = {"message": message}
        self.query.recentProgress = [
            {"batchId": 0, "timestamp": moment, "durationMs": {}} for moment in reported
        ]
        self.progress.look()


def test_a_query_without_its_process_is_begun_again_and_another_one_is_not() -> None:
    late, well, wrong = Asked(PLANNING), Asked(), Asked(OTHER)
    stand = Stand(2, late, well)
    for _ in range(3):
        stand.progress.begin_again()
    assert stand.query is well
    for attempts_max, only in ((1, late), (2, wrong)):
        stand = Stand(attempts_max, only)
        stand.progress.begin_again()
        assert stand.query is only


def test_a_query_that_plans_for_ever_is_told() -> None:
    stand = Stand(1, Asked())
    assert stand.stuck() is None
    stand.now_s += 599
    stand.says("Getting offsets from x")
    assert stand.stuck() is None
    stand.now_s += 601
    assert stand.stuck() == ("Getting offsets from x", 601)


def test_an_idle_query_and_a_long_batch_are_not_stuck(caplog: pytest.LogCaptureFixture) -> None:
    stand = Stand(1, Asked())
    stand.has_jobs = True
    for turn in range(100):
        stand.says("Getting offsets from x", f"10:00:{turn}")
        stand.now_s += 10
        assert stand.stuck() is None
    stand.says("Processing new data", "10:02:00")
    with caplog.at_level(logging.WARNING, "holdfast.dataflow"):
        for _ in range(5):
            assert stand.stuck() is None
            stand.now_s += LONG_BATCH_S + 1
    assert [record.getMessage() for record in caplog.records] == [
        "events: its batch is still running, 601 s later"
    ] * 4


@pytest.mark.parametrize("at_work", ["no job", "a job", "a sink"])
def test_a_batch_that_nothing_is_done_for_is_told(at_work: str) -> None:
    """Threads of Java that wait for each other: no task will end, and no error will come."""
    stand = Stand(1, Asked())
    stand.progress.tail = SimpleNamespace(is_called=at_work == "a sink")  # type: ignore[assignment]
    stand.has_jobs = at_work == "a job"
    stand.says("Processing new data")
    assert stand.stuck() is None
    stand.now_s += BATCH_PATIENCE_S + 1
    told = stand.stuck()
    if at_work == "no job":
        assert told == ("Processing new data", BATCH_PATIENCE_S + 1)
        return
    assert told is None
    stand.has_jobs, stand.progress.tail = False, None
    stand.now_s += BATCH_PATIENCE_S
    assert stand.stuck() is None
    stand.now_s += 1
    assert stand.stuck() is not None


def test_a_query_that_ends_by_itself_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was the end of its pipeline, and nobody began it again."""
    run = SimpleNamespace(
        start=lambda: None,
        wait=lambda timeout_s: True,
        ended_queries=lambda: ["events"],
    )
    with pytest.raises(PipelineFailed, match="query events ended without being asked to"):
        drive(run, threading.Event(), lambda told: None)  # type: ignore[arg-type]


# --------------------------------------------------------------------- the real thing


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_query_goes_on_though_its_process_came_up_too_late(tmp_path: Path) -> None:
    fill(tmp_path / "q", [(1.0, "a", 0), (2.0, "b", 1)], [(3.0, "a", 2)])
    done = run_apart(
        [sys.executable, "-m", "tests.dataflow.late_worker", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["rows"], told["queries"], told["late"]) == (3, 1, 1)
    # On a busy machine Spark has given one up before it came to leave its mark.
    assert ATTEMPTS <= told["late_again"] <= 1 + ATTEMPTS
    assert "query events ended: " in told["error"]
    assert "Python worker failed to connect back" in told["error"]
    assert "worker_attempts" in told["hint"]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_nobody_waits_for_ever_for_a_query_that_does_not_stop(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A sink that hangs in the driver: Spark cannot interrupt that."""
    monkeypatch.setitem(QUERY_SETTINGS, "spark.sql.streaming.stopTimeout", "1s")
    entered, released = threading.Event(), threading.Event()

    def hang(tail: Tail, batch: DataFrame, number: int) -> None:
        entered.set()
        released.wait(SPARK_PATIENCE_S)

    monkeypatch.setattr(Tail, "__call__", hang)
    fill(tmp_path / "q", [(1.0, "a", 0)])
    pipeline = (
        Pipeline()
        .source("events", quiver="q", quiver_config="tests.dataflow.quivers:CONFIG")
        .sink(name="out", files="out")
        .after("events")
        .sink(name="other", files="other")
        .settings
    )
    with PipelineRun("hung", pipeline, Places(tmp_path / "state", tmp_path), spark) as run:
        run.start()
        assert entered.wait(SPARK_PATIENCE_S), "no batch came"
        with caplog.at_level(logging.ERROR, "holdfast.dataflow"):
            run.stop()
        assert run.not_stopped == ["events"]
        released.set()
    said = [record.getMessage() for record in caplog.records]
    told = next(one for one in said if one.startswith("events did not stop"))
    assert told.startswith("events did not stop; it is at: Processing new data; ")
    assert "failed to stop within 1000 milliseconds" in told
