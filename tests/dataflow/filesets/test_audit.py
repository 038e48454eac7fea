"""The check on Spark says of a store damaged on purpose what the check in one process says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.store.fsck.stage import LIMITS, filled_store
from tests.store.fsck.ways import WAYS

from holdfast.dataflow.filesets.audit import SparkEngine
from holdfast.store.fsck.check import check
from holdfast.store.fsck.findings import FsckReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Those that leave each other alone.
CHOSEN = ("leaked_object", "leaked_row", "wrong_holds", "commit_object_lost", "row_lost")


def as_said(report: FsckReport) -> tuple[object, ...]:
    counted = (report.commits, report.chunks, report.objects, report.references)
    return sorted(map(str, report.findings)), counted, report.unknown_names, report.omitted


def test_the_same_is_found_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    with filled_store(tmp_path) as damaged:
        engine = SparkEngine(spark, damaged.store, LIMITS)
        for way in WAYS:
            if way.name in CHOSEN:
                way.damage(damaged)
        chunk = damaged.file_chunk("two", "d1/new")
        damaged.store.objects.delete_many([chunk.object_key()])
        index = damaged.root("one")
        damaged.replace_object(index, damaged.object(index)[:-1] + b"?")
        damaged.store.objects.put("chunks/00/whatever", [b"of somebody else"])
        expected = damaged.check()
        assert len(expected.counts()) > 5
        assert as_said(check(damaged.store, engine, LIMITS)) == as_said(expected)


@pytest.mark.slow
def test_a_sound_store_is_sound_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    with filled_store(tmp_path) as sound:
        report = check(sound.store, SparkEngine(spark, sound.store, LIMITS), LIMITS)
        assert report.ok
        assert as_said(report) == as_said(sound.check())
