"""One Spark session for all tests of a process: starting one takes seconds."""

from __future__ import annotations

import os
import signal
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.dataflow.driver.java import spark_environment
from holdfast.dataflow.driver.session import worker_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.dataflow.compiler.rows import Make

JVM_GRACE_S = 30.0


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Make:
    """Make harnesses of pipelines, on the session of all tests."""
    from holdfast.dataflow.kit import PipelineHarness

    return lambda pipeline: PipelineHarness(pipeline, tmp_path, session=spark)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A quiet `local[2]`, bound to loopback, that writes below a temporary folder."""
    folder = tmp_path_factory.mktemp("spark")
    os.environ.update({**spark_environment(), **worker_environment()})
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = build_session(folder)
    gateway = session.sparkContext._gateway
    yield session
    session.stop()
    assert gateway is not None
    end_jvm(gateway)


def build_session(folder: Path) -> SparkSession:
    """Return a session with the settings of all tests."""
    from pyspark.sql import SparkSession

    from holdfast.dataflow.driver.session import WATERMARK_SETTINGS

    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for name, value in {**settings, **WATERMARK_SETTINGS}.items():
        builder = builder.config(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what pyspark itself does while it starts
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def end_jvm(gateway: object) -> None:
    """End the JVM that pyspark leaves running until its parent exits."""
    process: subprocess.Popen[bytes] = gateway.proc  # type: ignore[attr-defined]
    gateway.shutdown()  # type: ignore[attr-defined]
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(JVM_GRACE_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
