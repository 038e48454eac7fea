"""The driver process beside a gateway: all pipelines of a file on one Spark session.

Run as `python -m holdfast.operate.drivers.process`; see wire.py for what it is told and tells. It
ends when all pipelines have ended for good, when it is told to (SIGTERM), when the gateway is gone
(its standard input ends) or when Java is; then the gateway starts it again.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import IO, TYPE_CHECKING

from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.lineage import LineageSender, lineage_sender
from holdfast.dataflow.session import start_session, stop_session
from holdfast.errors import HoldfastError
from holdfast.graph.model import LoggingSettings
from holdfast.graph.pipelines import LoadedPipelines, load_pipelines
from holdfast.operate import logs
from holdfast.operate.drivers.keeper import Keeper
from holdfast.operate.drivers.session_end import end_own_session
from holdfast.operate.drivers.wire import ENDED, Orders, encode_figures

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TELL_EVERY_S = 1.0
# How often it is looked whether the gateway is there.
LOOK_EVERY_S = 1.0
# When the gateway is gone nobody else looks after us: how long an orderly end may take.
ORPHAN_PATIENCE_S = 20.0
# For all pipelines to stop, beyond what each query has for that (dataflow/session.py).
STOP_PATIENCE_S = 90.0
# For Spark to answer: starting a query takes a minute or two on a machine that is very busy.
ANSWER_PATIENCE_S = 600.0
# For Java to write down what its threads do.
STACKS_PATIENCE_S = 5.0
# How it ends; 0: all pipelines have ended for good. Whoever told it to stop knows that.
_JAVA_ENDED, _SPARK_HANGS, _TOLD_TO_STOP = 70, 71, 72

log = logging.getLogger("holdfast.pipelines")


def main() -> int:
    """Run pipelines until the end."""
    figures = _keep_stdout()
    # What all threads do, in the log: `kill -USR2` of this process, `kill -QUIT` of its Java.
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    orders = Orders.decode(sys.stdin.buffer.readline())
    handler = logs.set_up(LoggingSettings(format="json", max_lines_per_s=1000))
    stop = threading.Event()
    _listen(stop)
    try:
        loaded = load_pipelines(orders.file)
        if orders.access is not None:
            loaded = loaded.reaching(orders.access)
        sender = lineage_sender(loaded.spark.lineage, orders.lineage_url)
        try:
            return _run(loaded, stop, figures, sender)
        finally:
            if sender is not None:
                sender.close()
    except HoldfastError as error:
        log.error("%s; %s", error.message, error.hint)
        return error.exit_code
    finally:
        handler.close()


def _keep_stdout() -> IO[bytes]:
    """Keep the standard output for figures: whatever Java or a console sink prints is a log."""
    mine = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    return mine


def _listen(stop: threading.Event) -> None:
    parent = os.getppid()

    def end(number: int, frame: FrameType | None) -> None:
        stop.set()

    def follow_parent() -> None:
        # Somebody else may hold the other end of the pipe: then it does not end.
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


def _run(
    loaded: LoadedPipelines,
    stop: threading.Event,
    figures: IO[bytes],
    sender: LineageSender | None,
) -> int:
    keepers = [
        Keeper(
            name,
            pipeline,
            Places(loaded.state_dir(name).absolute(), loaded.base_dir, loaded.quivers),
            loaded.spark,
            stop,
            sender,
        )
        for name, pipeline in loaded.pipelines.items()
    ]
    _tell(figures, keepers)
    session = start_session(loaded.spark.master, loaded.spark.conf)
    log.info("Spark %s runs on %s", session.version, loaded.spark.master)
    try:
        for keeper in keepers:
            keeper.start(session)
        while not stop.wait(TELL_EVERY_S):
            _tell(figures, keepers)
            if all(keeper.figures.state in ENDED for keeper in keepers):
                return 0
            complaints = [one.complaint(ANSWER_PATIENCE_S) for one in keepers]
            if any(complaints):
                _tell_stacks([told for told in complaints if told], session)
                return _SPARK_HANGS
            if _java_ended(session):
                log.error("the Java process of Spark ended")
                return _JAVA_ENDED
        _join(keepers)
        return _TOLD_TO_STOP
    finally:
        _tell(figures, keepers)
        stop_session(session)


def _join(keepers: Sequence[Keeper]) -> None:
    """Wait for all pipelines, for so long; then everything here is killed."""
    give_up_s = time.monotonic() + STOP_PATIENCE_S
    for keeper in keepers:
        if not keeper.join(give_up_s - time.monotonic()):
            log.error("%s does not stop within %g s: left as it is", keeper.name, STOP_PATIENCE_S)


def _tell(figures: IO[bytes], keepers: Sequence[Keeper]) -> None:
    try:
        figures.write(encode_figures({keeper.name: keeper.figures for keeper in keepers}))
    except OSError:
        log.debug("nobody reads the figures")


def _tell_stacks(complaints: Sequence[str], session: SparkSession) -> None:
    """Write down what everybody does while Spark hangs: soon nobody will do anything."""
    for complaint in complaints:
        log.error("%s; Spark is begun again", complaint)
    faulthandler.dump_traceback(all_threads=True)
    java = session.sparkContext._gateway
    if java is not None:
        java.proc.send_signal(signal.SIGQUIT)
        time.sleep(STACKS_PATIENCE_S)


def _java_ended(session: SparkSession) -> bool:
    java = session.sparkContext._gateway
    return java is None or java.proc.poll() is not None


if __name__ == "__main__":
    code = main()
    # Threads that wait for a Java process that is gone must not keep us.
    logging.shutdown()
    end_own_session()
    os._exit(code)
