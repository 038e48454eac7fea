"""The driver process beside a gateway: all pipelines of a file on one Spark session.

It is started by operate/driver_main.py; see wire.py for what gateway and driver say to each other.
It ends when all pipelines have ended for good, on SIGTERM, when the gateway is gone (its standard
input ends) or when Java is; then the gateway starts it again.

From the inside out: `drive` runs a pipeline once, until it is stopped or asked to drain (also for
`holdfast dataflow run`, without a gateway); a `PipelineKeeper` restarts it when it fails;
`run_pipelines` has a keeper for each pipeline, and reports what they do.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import IO, TYPE_CHECKING, Literal

from holdfast.dataflow.base.durable_file import is_disk_full
from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.driver.child import end_own_session
from holdfast.dataflow.driver.lineage import LineageSender, RunReporter
from holdfast.dataflow.driver.run import PipelineRun
from holdfast.dataflow.driver.session import start_session, stop_session
from holdfast.dataflow.driver.settings import SparkSettings
from holdfast.dataflow.driver.state_dir import StateDir
from holdfast.dataflow.driver.wire import (
    ENDED,
    PipelineFigures,
    PipelineState,
    QueryStatistics,
    encode_figures,
)
from holdfast.dataflow.spec import PipelineSettings
from holdfast.errors import BadConfig, HoldfastError, PipelineFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPORT_EVERY_S = 1.0
# How often to look at the queries of a pipeline, and whether the gateway still runs.
QUERIES_EVERY_S = 0.5
GATEWAY_EVERY_S = 1.0
# Without a gateway no other process ends this one: how long an orderly end may take.
ORPHAN_PATIENCE_S = 20.0
# For all pipelines to stop, beyond what each query has for that (session.py).
STOP_PATIENCE_S = 90.0
# For Spark to answer: starting a query takes a minute or two on a machine that is very busy.
ANSWER_PATIENCE_S = 600.0
# For Java to write down what its threads do.
STACKS_PATIENCE_S = 5.0
# Exit codes; 0: all pipelines have ended for good.
_JAVA_ENDED, _SPARK_HANGS, _STOPPED = 70, 71, 72

End = Literal["stopped", "drained", "closed"]
ReportStatistics = Callable[[Sequence[QueryStatistics]], None]

log = logging.getLogger("holdfast.pipelines")


def drive(
    run: PipelineRun,
    stop: threading.Event,
    report: ReportStatistics,
    reporter: RunReporter | None = None,
) -> End:
    """Run a pipeline until something ends it; `report` gets its statistics, again and again."""

    def report_all(statistics: Sequence[QueryStatistics]) -> None:
        report(statistics)
        if reporter is not None:
            reporter.running(statistics)

    try:
        run.start()
        if reporter is not None:
            reporter.started()
        end = _until_ended(run, stop, report_all)
    except Exception as error:
        if reporter is not None:
            reporter.ended(error.message if isinstance(error, HoldfastError) else str(error))
        raise
    if reporter is not None:
        reporter.ended()
    return end


def _until_ended(run: PipelineRun, stop: threading.Event, report: ReportStatistics) -> End:
    """Look at a pipeline until it is stopped, fails, or has done what it was asked for."""
    while not stop.is_set():
        run.wait(QUERIES_EVERY_S)
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


class PipelineKeeper:
    """Keeps one pipeline going: restarts it, after a pause that grows, when it fails.

    Each has a thread of its own: one that fails, or waits for a gateway that does not answer, does
    not stop the others.
    """

    def __init__(
        self,
        name: str,
        pipeline: PipelineSettings,
        places: Places,
        settings: SparkSettings,
        stop: threading.Event,
        sender: LineageSender | None = None,
    ) -> None:
        self.name = name
        self.figures = PipelineFigures("starting")
        self._pipeline = pipeline
        self._places = places
        self._settings = settings
        self._stop = stop
        self._sender = sender
        self._thread: threading.Thread | None = None
        self._running: PipelineRun | None = None
        # Queries of a run that is over.
        self._not_stopped: list[str] = []

    def complaint(self, patience_s: float) -> str:
        """Return what only a new Spark would fix; "" if there is nothing."""
        if self._not_stopped:
            return f"queries of {self.name} do not stop: {', '.join(self._not_stopped)}"
        run = self._running
        asking_s = 0.0 if run is None else run.asking_s
        return f"Spark has not answered {self.name} for {asking_s:.0f} s" * (asking_s > patience_s)

    def start(self, session: SparkSession) -> None:
        """Begin."""
        thread = threading.Thread(
            target=self._keep, args=(session,), name=f"pipeline-{self.name}", daemon=True
        )
        self._thread = thread
        thread.start()

    def join(self, patience_s: float) -> bool:
        """Wait until the pipeline has ended; False if it has not in time."""
        if self._thread is None:
            return True
        self._thread.join(max(0.0, patience_s))
        return not self._thread.is_alive()

    def _keep(self, session: SparkSession) -> None:
        """Run the pipeline again and again, until it has ended for good or is stopped.

        The pause between two failures doubles. It starts over after a run that lasted at least as
        long as the longest pause: that failure was another one.
        """
        pause_s = self._settings.restart_min
        while not self._stop.is_set():
            began_s = time.monotonic()
            try:
                self._run(session)
            except BadConfig as error:
                self._refuse(error)
            except Exception as error:  # whatever Spark raises
                if time.monotonic() - began_s >= self._settings.restart_max:
                    pause_s = self._settings.restart_min
                self._wait(error, pause_s)
                if self._not_stopped:
                    return  # Spark does not start a query beside itself
                pause_s = min(2 * pause_s, self._settings.restart_max)
                continue
            return

    def _run(self, session: SparkSession) -> None:
        """Run the pipeline once, from opening its state directory to its end.

        `stop` is called before the run is left, whatever ended it: only then is it known which
        queries did not stop, and the next run must not start beside those.
        """
        if StateDir(self._places.state_dir).is_closed:
            log.info("%s is closed: all its windows are written", self.name)
            self.figures = replace(self.figures, state="closed")
            return
        self.figures = replace(self.figures, state="starting", queries=())
        with PipelineRun(self.name, self._pipeline, self._places, session) as run:
            log.info("started %s, %d queries", self.name, len(run.plan.queries))
            self._running = run
            try:
                end = drive(run, self._stop, self._report, self._reporter())
            finally:
                run.stop()
                self._not_stopped, self._running = run.not_stopped, None
        self.figures = replace(self.figures, state=end)
        log.info("%s is %s", self.name, end)

    def _reporter(self) -> RunReporter | None:
        """Return what reports this run as lineage; None if no lineage is sent."""
        settings = self._settings.lineage
        if self._sender is None or settings is None:
            return None
        return RunReporter(settings, self._sender, self.name, self._pipeline, self._places)

    def _report(self, statistics: Sequence[QueryStatistics]) -> None:
        self.figures = replace(self.figures, state="running", error="", queries=tuple(statistics))

    def _refuse(self, error: BadConfig) -> None:
        """Give up: a restart helps only after the file is changed."""
        self.figures = replace(self.figures, state="refused", error=error.message)
        log.error("%s cannot run: %s; %s", self.name, error.message, error.hint)

    def _wait(self, error: Exception, pause_s: float) -> None:
        """Note why the pipeline failed, and wait before it is restarted."""
        if self._stop.is_set():
            return
        message = error.message if isinstance(error, HoldfastError) else f"{error}"
        reason = message.strip().partition("\n")[0] or type(error).__name__
        restarts = self.figures.restarts_total + 1
        state: PipelineState = "disk_full" if is_disk_full(error) else "waiting"
        self.figures = replace(self.figures, state=state, error=reason, restarts_total=restarts)
        log.error("%s failed: %s; restarting in %g s", self.name, reason, pause_s)
        self._stop.wait(pause_s)


def keep_stdout() -> IO[bytes]:
    """Keep the standard output for statistics: what Java or a console sink prints is a log."""
    mine = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    return mine


def listen(stop: threading.Event) -> None:
    """Set `stop` on SIGTERM, and when the gateway has ended; then kill this session later."""
    parent = os.getppid()

    def end(number: int, frame: FrameType | None) -> None:
        stop.set()

    def follow_parent() -> None:
        # Another process may hold the other end of the pipe: then it does not end.
        while os.getppid() == parent and not _has_ended(0, GATEWAY_EVERY_S):
            pass
        stop.set()
        threading.Event().wait(ORPHAN_PATIENCE_S)
        end_own_session()
        os._exit(1)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=follow_parent, name="parent", daemon=True).start()


def _has_ended(pipe: int, wait_s: float) -> bool:
    """Whether a pipe has come to its end; waits a little for that.

    It is the file that is read, not its buffer: Python locks that one at exit, and we may still
    read then.
    """
    readable, _, _ = select.select([pipe], [], [], wait_s)
    return bool(readable) and not os.read(pipe, 1)


def run_pipelines(
    pipelines: Mapping[str, tuple[PipelineSettings, Places]],
    spark: SparkSettings,
    stop: threading.Event,
    figures: IO[bytes],
    sender: LineageSender | None,
) -> int:
    """Run all pipelines until they end, or `stop`; return the exit code of the process.

    Spark is shared by all of them, so what only a new Spark would fix ends the process: the gateway
    starts another one, and every pipeline resumes from its checkpoint.
    """
    keepers = [
        PipelineKeeper(name, pipeline, places, spark, stop, sender)
        for name, (pipeline, places) in pipelines.items()
    ]
    _report(figures, keepers)
    session = start_session(spark.master, spark.conf)
    log.info("Spark %s is running on %s", session.version, spark.master)
    try:
        for keeper in keepers:
            keeper.start(session)
        while not stop.wait(REPORT_EVERY_S):
            _report(figures, keepers)
            if all(keeper.figures.state in ENDED for keeper in keepers):
                return 0
            complaints = [one.complaint(ANSWER_PATIENCE_S) for one in keepers]
            if any(complaints):
                _log_stacks([one for one in complaints if one], session)
                return _SPARK_HANGS
            if _java_ended(session):
                log.error("the Java process of Spark ended")
                return _JAVA_ENDED
        _join(keepers)
        return _STOPPED
    finally:
        _report(figures, keepers)
        stop_session(session)


def _join(keepers: Sequence[PipelineKeeper]) -> None:
    """Wait for all pipelines, up to `STOP_PATIENCE_S`; then this process is killed."""
    give_up_s = time.monotonic() + STOP_PATIENCE_S
    for keeper in keepers:
        if not keeper.join(give_up_s - time.monotonic()):
            log.error("%s did not stop within %g s: abandoned", keeper.name, STOP_PATIENCE_S)


def _report(figures: IO[bytes], keepers: Sequence[PipelineKeeper]) -> None:
    """Write a line of statistics; a gateway that does not read it is about to end."""
    try:
        figures.write(encode_figures({keeper.name: keeper.figures for keeper in keepers}))
    except OSError:
        log.debug("the gateway does not read the statistics")


def _log_stacks(complaints: Sequence[str], session: SparkSession) -> None:
    """Log what all threads do while Spark hangs, before they are killed."""
    for complaint in complaints:
        log.error("%s; restarting Spark", complaint)
    faulthandler.dump_traceback(all_threads=True)
    java = session.sparkContext._gateway
    if java is not None:
        java.proc.send_signal(signal.SIGQUIT)
        time.sleep(STACKS_PATIENCE_S)


def _java_ended(session: SparkSession) -> bool:
    """Whether Spark's Java process is gone; every question to it would raise then."""
    java = session.sparkContext._gateway
    return java is None or java.proc.poll() is not None
