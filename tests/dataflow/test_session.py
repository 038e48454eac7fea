"""The Spark session of pipelines: one's own is left as it is, and Spark Connect is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.dataflow.driver.session import require_classic, start_session
from holdfast.errors import BadConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_session_that_is_there_is_taken_as_it_is(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels: list[str] = []
    monkeypatch.setattr(type(spark.sparkContext), "setLogLevel", lambda _, one: levels.append(one))
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    found = start_session("local[7]", {"spark.sql.shuffle.partitions": "99"})
    assert found.sparkContext is spark.sparkContext
    assert levels == []
    assert spark.conf.get("spark.sql.shuffle.partitions") == partitions


def test_spark_connect_is_refused_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadConfig, match="do not run over Spark Connect"):
        start_session("sc://host:15002")
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    with pytest.raises(BadConfig, match="do not run over Spark Connect"):
        start_session("local[1]")


def test_a_session_of_spark_connect_is_refused() -> None:
    remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(BadConfig, match="do not run over Spark Connect"):
        require_classic(remote)
