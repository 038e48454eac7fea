"""Why a query ended, in words for whoever has to do something about it."""

from __future__ import annotations

from holdfast.dataflow.driver.restarts import is_no_worker
from holdfast.dataflow.durable_file import is_disk_full
from holdfast.errors import PipelineDiskFull, PipelineFailed


def failed(query: str, error: Exception) -> PipelineFailed:
    """Return the error of a query that ended, with what to do next."""
    reason = reason_of(error)
    if is_disk_full(error):
        return PipelineDiskFull(
            f"the query {query} ended, because a disk is full: {reason}",
            hint="make room for its state directory, its sinks and Spark's own files "
            "(`spark.local.dir`); nothing is lost, it goes on where it was",
        )
    hint = "nothing is lost: it goes on where it was when it is started again"
    if "its columns are not known" in reason:
        hint = "say what they are with `columns_are` of the source, or start when there is data"
    elif is_no_worker(error):
        hint = "is Holdfast's Python there where Spark runs? A machine that is too busy needs more "
        hint += "`worker_attempts`; nothing is lost"
    return PipelineFailed(f"the query {query} ended: {reason}", hint=hint)


def hangs(query: str, waiting_for: str, quiet_s: float) -> PipelineFailed:
    """Return the error of a query that does not come back from what it does."""
    return PipelineFailed(
        f"the query {query} does not go on since {quiet_s:.0f} s: {waiting_for}",
        hint="nothing is lost: start it again; does a disk or a gateway that it reads hang?",
    )


def reason_of(error: Exception) -> str:
    """Return what an error of Spark says, in one line: ours, if there is one in it."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [
        line.removeprefix("Caused by: ").removeprefix(": ")
        for line in lines
        if line and not line.startswith("An error occurred while calling")
    ]
    ours = [
        line for line in told if line.startswith(("holdfast.", "pyspark.errors", "FunctionFailed"))
    ]
    return ours[-1] if ours else told[0] if told else type(error).__name__
