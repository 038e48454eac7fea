"""The driver process beside a gateway: all pipelines of a file on one Spark session.

It is started by operate/driver_main.py; see wire.py for what gateway and driver say to each other.
It ends when all pipelines have ended for good, on SIGTERM, when the gateway is gone (its standard
input ends) or when Java is; then the gateway starts it again.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import IO, TYPE_CHECKING

from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.driver.keeper import PipelineKeeper
from holdfast.dataflow.driver.lineage import LineageSender
from holdfast.dataflow.driver.session import start_session, stop_session
from holdfast.dataflow.driver.session_end import end_own_session
from holdfast.dataflow.driver.settings import SparkSettings
from holdfast.dataflow.driver.wire import ENDED, encode_figures
from holdfast.dataflow.spec import PipelineSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPORT_EVERY_S = 1.0
# How often to check whether the gateway still runs.
LOOK_EVERY_S = 1.0
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

log = logging.getLogger("holdfast.pipelines")


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
        while os.getppid() == parent and not _has_ended(0, LOOK_EVERY_S):
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
    """Run all pipelines until they end, or `stop`; return the exit code of the process."""
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
    java = session.sparkContext._gateway
    return java is None or java.proc.poll() is not None
