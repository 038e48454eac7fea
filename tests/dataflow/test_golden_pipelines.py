"""Pipelines that an earlier version began go on: with open windows, and with the same results."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from tests.dataflow.golden.shapes import ALL, BEFORE, EXPECTED, SHAPES, START, feed, pipeline

from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.driver.run import PipelineRun
from holdfast.dataflow.spec import PipelineSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOLDEN = Path(__file__).parent / "golden" / "v1"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def unpacked(name: str, folder: Path) -> Path:
    """Return a folder with a golden pipeline in it."""
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def results(folder: Path, columns: tuple[str, ...]) -> list[tuple[object, ...]]:
    """Return what a sink has, windows by their first second."""
    found = [row for path in folder.glob("*.parquet") for row in pq.read_table(path).to_pylist()]
    starts = [[row["window_start"]] if "window_start" in row else [] for row in found]
    return sorted(
        (*(round((start - START).total_seconds()) for start in begun), *(row[c] for c in columns))
        for begun, row in zip(starts, found, strict=True)
    )


@pytest.mark.parametrize("name", SHAPES)
def test_state_of_the_version_before_goes_on(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    folder = unpacked(name, tmp_path)
    feed(folder, name, range(BEFORE.stop, ALL.stop))
    settings = PipelineSettings.model_validate(pipeline(name))
    with PipelineRun("golden", settings, Places(folder / "state", folder), spark) as run:
        run.drain(close=True)
    for sink, (columns, expected) in EXPECTED[name].items():
        assert results(folder / "out" / sink, columns) == expected(), sink
