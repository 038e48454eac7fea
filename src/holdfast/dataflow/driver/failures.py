"""Why a query ended, in words for the operator who has to act on it, and whether to restart it.

One kind of failure is harmless: a Python process that did not come up in time. Spark starts a
Python process for each stream that plans, and others for the tasks. It gives the former ten seconds
and the latter sixty, neither of which can be set, and ends the query if that was not enough. Such a
query is sound, the machine was only busy with something else: restarted, it resumes from its
checkpoint, as after any other end. It is not restarted for ever: a Python that never comes up (none
is installed on an executor) is a fault that the operator has to fix.

Of an error in our part of a batch Spark has the text only. If the query is being stopped, it looks
there for an interruption, with a pattern that calls itself for each character that follows the name
of a Java error. On a stack of 1 MB it can do so for 1,000 characters and not for 2,000, and a trace
of Java has more: the query's thread ended with a StackOverflowError then, in the middle of finding
out how it had ended. So Spark is told such an error in a line (`told_briefly`).
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.dataflow.base.durable_file import NO_ROOM, is_disk_full, texts_of
from holdfast.errors import PipelineDiskFull, PipelineFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Of the reason, and of what is told beside it.
REASON_CHARACTERS_MAX = 300
# What Spark looks for: a query that is stopped has not failed if its job was cancelled, or if its
# error has the second of these, and then the name of an interruption.
_CANCELLED = "cancelled part of cancelled job group"
_JAVA_ERROR = "py4j.protocol.Py4JJavaError: An error occurred while calling"
_INTERRUPTIONS = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)

log = logging.getLogger("holdfast.dataflow")


def failed(query: str, error: Exception) -> PipelineFailed:
    """Return the error of a query that ended, with what to do next."""
    reason = reason_of(error)
    if is_disk_full(error):
        return PipelineDiskFull(
            f"query {query} ended because a disk is full: {reason}",
            hint="free space for its state directory, its sinks and Spark's own files "
            "(`spark.local.dir`); no data is lost, it resumes where it was",
        )
    hint = "no data is lost: restart it, and it resumes where it was"
    if "its columns are not known" in reason:
        hint = "declare them with `columns_are` of the source, or start when there is data"
    elif is_no_worker(error):
        hint = (
            "check that Holdfast's Python is installed where Spark runs; on a busy machine raise "
            "`worker_attempts`; no data is lost"
        )
    return PipelineFailed(f"query {query} ended: {reason}", hint=hint)


def hangs(query: str, waiting_for: str, quiet_s: float) -> PipelineFailed:
    """Return the error of a query that does not come back from what it does."""
    return PipelineFailed(
        f"query {query} has made no progress for {quiet_s:.0f} s: {waiting_for}",
        hint="no data is lost; check that its disk and its gateway respond, then restart it",
    )


def reason_of(error: Exception) -> str:
    """Return what an error of Spark says, in one line: ours, if there is one in it."""
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [
        line.removeprefix("Caused by: ").removeprefix(": ")
        for line in lines
        if line and not line.startswith("An error occurred while calling")
    ]
    told = f"{__name__}.{_BatchFailed.__name__}: "
    ours = [
        line.removeprefix(told)
        for line in lines
        if line.startswith(("holdfast.", "pyspark.errors", "FunctionFailed"))
    ]
    return ours[-1] if ours else lines[0] if lines else type(error).__name__


# What Spark 4.3 says: of a process that plans, and of one for tasks.
_TEXTS = (
    "Python worker failed to connect back",
    "waiting for the Python worker to connect back",
)


def is_no_worker(error: BaseException) -> bool:
    """Whether a query ended because a Python process did not come up in time."""
    return any(text in found for found in texts_of(error) for text in _TEXTS)


def told_briefly(
    run_batch: Callable[[DataFrame, int], None],
) -> Callable[[DataFrame, int], None]:
    """Return what runs a batch, with errors that Spark can read."""

    def run(batch: DataFrame, number: int) -> None:
        try:
            run_batch(batch, number)
        except Exception as error:
            if _JAVA_ERROR not in "".join(traceback.format_exception(error)):
                raise
            log.debug("batch %d failed", number, exc_info=error)
            raise _brief(error) from None

    return run


class _BatchFailed(Exception):
    """What Spark is told. It ends the query, and is read again when the query's error is."""


def _brief(error: Exception) -> _BatchFailed:
    """Return an error with the reason of another one, and what somebody will look for in it."""
    whole = "".join(traceback.format_exception(error))
    reason = reason_of(error)[:REASON_CHARACTERS_MAX]
    cancelled = [line for line in whole.splitlines() if _CANCELLED in line][:1]
    known = [text for text in (*_TEXTS, *NO_ROOM, *cancelled) if text in whole]
    known = [text.strip()[:REASON_CHARACTERS_MAX] for text in known if text not in reason]
    interruptions = [name for name in _INTERRUPTIONS if name in whole]
    if interruptions:
        known.append(f"{_JAVA_ERROR} {', '.join(interruptions)}")
    return _BatchFailed("; ".join([reason, *known]))


class Restarts:
    """How often one query may still be begun."""

    def __init__(self, attempts_max: int) -> None:
        self._attempts_max = attempts_max
        self._attempts = 1
        # How many batches it had done when it was begun last.
        self._batches_done = 0

    def may_begin(self, error: BaseException, batches_done: int = 0) -> bool:
        """Whether to begin it again, now that it ended; the count is of attempts in a row."""
        if not is_no_worker(error):
            return False
        if batches_done > self._batches_done:
            self._attempts = 0
        self._batches_done = batches_done
        self._attempts += 1
        return self._attempts <= self._attempts_max
