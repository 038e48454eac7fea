"""The Spark session of pipelines: quiet, on UTC, with the settings that the watermark needs.

Python workers on this machine use the installed pyspark, not its zipped copy
(`worker_environment`). Spark puts `pyspark.zip` before everything else on a worker's path. There is
no compiled code in it, so every process that Spark starts for Python (one that plans for each
stream, some for each kind of work) compiles pyspark again: three times the CPU of a start. Spark
gives a process ten seconds, and on a busy machine that was not enough. So workers are started by a
launcher of ours that leaves the zip out; the same pyspark, unpacked and compiled, is in the
interpreter's own packages.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.dataflow.driver.java import spark_environment
from holdfast.dataflow.spec.checks import Parse, plausible
from holdfast.errors import BadConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
# For Spark, and then for its Java process, to end by itself; then it is killed.
STOP_PATIENCE_S = 10.0
# For a query to stop: what it does just then is cancelled, but a sink may be in the middle of it.
QUERY_STOP_PATIENCE_S = 60

# Of the process; they cannot be changed later.
_EVERYWHERE = {"spark.ui.showConsoleProgress": "false"}
# On one machine no page of Spark is served, and no other host is let in.
_LOCAL = {
    **_EVERYWHERE,
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
# What Spark itself logs, by its own setting: on a cluster it says what failed in executors.
LOG_LEVEL = "spark.log.level"
_LOCAL_LOG_LEVEL, _CLUSTER_LOG_LEVEL = "OFF", "WARN"
# What windows need: otherwise they stay open until the next row, or close too early.
WATERMARK_SETTINGS = {
    "spark.sql.streaming.multipleWatermarkPolicy": "min",
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
}
# Of each query.
QUERY_SETTINGS = {
    **WATERMARK_SETTINGS,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": STATE_STORE,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Without it the thread that stops a query that hangs would hang, too.
    "spark.sql.streaming.stopTimeout": f"{QUERY_STOP_PATIENCE_S}s",
    "spark.sql.adaptive.enabled": "false",
}

# How long a query waits with its start for another one's.
TURN_PATIENCE_S = 60.0
_turn = threading.Lock()

log = logging.getLogger("holdfast.dataflow")


def start_session(
    master: str = "local[*]", settings: Mapping[str, str] | None = None, *, name: str = "holdfast"
) -> SparkSession:
    """Return a session; the one that is there already, as it is, if there is one."""
    if master.startswith("sc://") or "SPARK_REMOTE" in os.environ:
        raise BadConfig(
            "pipelines do not run over Spark Connect: their driver is Spark's own",
            hint="name the cluster itself (spark://host:7077, yarn, k8s://…), or use `local[*]`",
        )
    os.environ.update(spark_environment())
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        return SparkSession.builder.getOrCreate()
    is_local = master.startswith("local") and not is_submitted()
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.update(worker_environment())
    builder = SparkSession.builder.appName(name)
    if not is_submitted():
        builder = builder.master(master)
    given = {**(_LOCAL if is_local else _EVERYWHERE), **QUERY_SETTINGS, **(settings or {})}
    log_level = given.pop(LOG_LEVEL, _LOCAL_LOG_LEVEL if is_local else _CLUSTER_LOG_LEVEL)
    for key, value in given.items():
        builder = builder.config(key, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what pyspark itself does while it starts
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel(log_level)
    return session


def require_classic(session: SparkSession) -> None:
    """Raise for a session of Spark Connect: it has no driver here, and no Java to talk to."""
    if type(session).__module__.startswith("pyspark.sql.connect"):
        raise BadConfig(
            "pipelines do not run over Spark Connect: their driver is Spark's own",
            hint="give a session that was made without `remote`, or use `holdfast dataflow run`",
        )


def is_submitted() -> bool:
    """Whether `spark-submit` started this process: then it has said where Spark runs."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def stop_session(session: SparkSession) -> None:
    """Stop Spark, and wait until its Java process is gone: pyspark leaves that to its exit."""
    java = session.sparkContext._gateway
    stopping = threading.Thread(target=_stop, args=(session,), name="spark-stop", daemon=True)
    stopping.start()
    stopping.join(STOP_PATIENCE_S)
    if stopping.is_alive():
        log.warning("Spark did not stop within %g s: killing it", STOP_PATIENCE_S)
    if java is None or is_submitted():
        return
    process: subprocess.Popen[bytes] = java.proc
    with contextlib.suppress(Exception):
        java.shutdown()
    if process.stdin is not None:
        process.stdin.close()  # it sees that, and ends
    try:
        process.wait(STOP_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _stop(session: SparkSession) -> None:
    with contextlib.suppress(Exception):  # a Java process that died answers nothing
        session.stop()


@contextlib.contextmanager
def starting_in_turn() -> Iterator[None]:
    """Let one query be started at a time: the first ones make what all of them share in Java.

    Parts of Spark are made when they are first needed, and two threads that need two of them in
    another order wait for each other for ever. One that takes long (a gateway does not answer)
    keeps the others for a while only.
    """
    is_mine = _turn.acquire(timeout=TURN_PATIENCE_S)
    try:
        yield
    finally:
        if is_mine:
            _turn.release()


def activate(session: SparkSession) -> None:
    """Let this thread work in a session.

    Spark looks for data sources in the session of the thread, and a thread that is not the one
    which started Spark has none.
    """
    assert session._jvm is not None, "BUG: a session without Java"
    session._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)


def query_session(
    session: SparkSession, shuffle_partitions: int, *, is_repeated: bool = False
) -> SparkSession:
    """Return a session for one query: its settings are its own.

    If an operator is in its plan repeatedly, Spark would shuffle the rows for it once, and would
    then find no watermark below the second one, which would never close a window.
    """
    mine = session.newSession()
    activate(mine)
    for key, value in QUERY_SETTINGS.items():
        mine.conf.set(key, value)
    mine.conf.set("spark.sql.shuffle.partitions", str(shuffle_partitions))
    if is_repeated:
        mine.conf.set("spark.sql.exchange.reuse", "false")
    return mine


_LAUNCHER = Path(__file__).parent / "python_home" / "bin" / "python"


def worker_environment() -> dict[str, str]:
    """Return what makes workers start quickly; for a Spark that runs on this machine only."""
    found = find_spec("pyspark")
    if found is None or found.origin is None or not os.access(_LAUNCHER, os.X_OK):
        return {}
    return {
        "PYSPARK_PYTHON": str(_LAUNCHER),
        # Whatever belongs to a data source is started by this one: also what plans and reads.
        "PYSPARK_DRIVER_PYTHON": str(_LAUNCHER),
        "HOLDFAST_PYTHON": sys.executable,
        "HOLDFAST_PYSPARK_LIB": str(Path(found.origin).parent / "python" / "lib"),
    }


def spark_parser(session: SparkSession) -> Parse:
    """Return what says what is wrong with an expression, as long as the session runs."""
    from pyspark.errors import ParseException

    # `functions.expr` does not parse before it is used, and then it wants columns.
    parser = session._jsparkSession.sessionState().sqlParser()

    def parse(text: str) -> str | None:
        try:
            parser.parseExpression(text)
        except ParseException as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            return lines[0] if lines else "it cannot be parsed"
        return plausible(text)

    return parse
