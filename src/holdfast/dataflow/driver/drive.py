"""What a driver does with one pipeline: run it until it is told to stop, or asked to drain."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Literal

from holdfast.dataflow.driver.lineage import RunReporter
from holdfast.dataflow.driver.progress import QueryStatistics
from holdfast.dataflow.driver.run import PipelineRun
from holdfast.errors import HoldfastError, PipelineFailed

LOOK_EVERY_S = 0.5

End = Literal["stopped", "drained", "closed"]
Tell = Callable[[Sequence[QueryStatistics]], None]


def drive(
    run: PipelineRun, stop: threading.Event, tell: Tell, reporter: RunReporter | None = None
) -> End:
    """Run a pipeline until something ends it; `tell` hears how it goes, `reporter` tells others."""
    if reporter is None:
        return _drive(run, stop, tell)

    def tell_all(told: Sequence[QueryStatistics]) -> None:
        tell(told)
        reporter.running(told)

    try:
        end = _drive(run, stop, tell_all, reporter.started)
    except Exception as error:
        reporter.ended(error.message if isinstance(error, HoldfastError) else str(error))
        raise
    reporter.ended()
    return end


def _drive(
    run: PipelineRun,
    stop: threading.Event,
    tell: Tell,
    tell_started: Callable[[], None] = lambda: None,
) -> End:
    run.start()
    tell_started()
    while not stop.is_set():
        run.wait(LOOK_EVERY_S)
        if (ended := run.ended_queries()) and not stop.is_set():
            raise PipelineFailed(
                f"query {ended[0]} ended without being asked to",
                hint="no data is lost: restart it, and it resumes where it was",
            )
        tell(run.statistics())
        asked = run.state_dir.asked()
        if asked is not None:
            return drain(run, tell, close=asked.close)
    run.finish()
    return "stopped"


def drain(run: PipelineRun, tell: Tell, *, close: bool) -> End:
    """Drain a pipeline, and leave word of it for whoever asked."""
    try:
        run.drain(close=close)
    except HoldfastError as error:
        run.state_dir.tell_drained([], error.message)
        raise
    told = run.statistics()
    tell(told)
    run.state_dir.tell_drained([one.to_fields() for one in told])
    return "closed" if close else "drained"
