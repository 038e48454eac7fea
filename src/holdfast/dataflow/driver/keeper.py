"""Keeps one pipeline of a driver going: begins it again, after a pause that grows, when it fails.

Each pipeline has a thread of its own: one that fails, or waits for a gateway that does not answer,
does not stop the others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.dataflow.base.durable_file import is_disk_full
from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.driver.drive import drive
from holdfast.dataflow.driver.lineage import LineageSender, RunReporter
from holdfast.dataflow.driver.run import PipelineRun
from holdfast.dataflow.driver.settings import SparkSettings
from holdfast.dataflow.driver.state_dir import StateDir
from holdfast.dataflow.driver.wire import PipelineFigures, PipelineState, QueryStatistics
from holdfast.dataflow.spec import PipelineSettings
from holdfast.errors import BadConfig, HoldfastError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("holdfast.pipelines")


class PipelineKeeper:
    """One pipeline, in a thread."""

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
        if self._stop.is_set():
            return
        message = error.message if isinstance(error, HoldfastError) else f"{error}"
        reason = message.strip().partition("\n")[0] or type(error).__name__
        restarts = self.figures.restarts_total + 1
        state: PipelineState = "disk_full" if is_disk_full(error) else "waiting"
        self.figures = replace(self.figures, state=state, error=reason, restarts_total=restarts)
        log.error("%s failed: %s; restarting in %g s", self.name, reason, pause_s)
        self._stop.wait(pause_s)
