"""What a driver does with one pipeline: run it until it is stopped, or asked to drain."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Literal

from holdfast.dataflow.driver.lineage import RunReporter
from holdfast.dataflow.driver.run import PipelineRun
from holdfast.dataflow.driver.wire import QueryStatistics
from holdfast.errors import HoldfastError, PipelineFailed

LOOK_EVERY_S = 0.5

End = Literal["stopped", "drained", "closed"]
ReportStatistics = Callable[[Sequence[QueryStatistics]], None]


def drive(
    run: PipelineRun,
    stop: threading.Event,
    report: ReportStatistics,
    reporter: RunReporter | None = None,
) -> End:
    """Run a pipeline until something ends it; `report` gets its statistics, again and again."""
    if reporter is None:
        return _drive(run, stop, report)

    def report_all(statistics: Sequence[QueryStatistics]) -> None:
        report(statistics)
        reporter.running(statistics)

    try:
        end = _drive(run, stop, report_all, reporter.started)
    except Exception as error:
        reporter.ended(error.message if isinstance(error, HoldfastError) else str(error))
        raise
    reporter.ended()
    return end


def _drive(
    run: PipelineRun,
    stop: threading.Event,
    report: ReportStatistics,
    report_started: Callable[[], None] = lambda: None,
) -> End:
    run.start()
    report_started()
    while not stop.is_set():
        run.wait(LOOK_EVERY_S)
        if (ended := run.ended_queries()) and not stop.is_set():
            raise PipelineFailed(
                f"query {ended[0]} ended without being asked to",
                hint="no data is lost: restart it, and it resumes where it was",
            )
        report(run.statistics())
        asked = run.state_dir.asked()
        if asked is not None:
            return drain(run, report, close=asked.close)
    run.finish()
    return "stopped"


def drain(run: PipelineRun, report: ReportStatistics, *, close: bool) -> End:
    """Drain a pipeline, and leave the outcome for the process that asked."""
    try:
        run.drain(close=close)
    except HoldfastError as error:
        run.state_dir.report_drained([], error.message)
        raise
    statistics = run.statistics()
    report(statistics)
    run.state_dir.report_drained([one.to_fields() for one in statistics])
    return "closed" if close else "drained"
