"""examples/telemetry_stats.yaml: it can be run as it is, its own tests pass, and it counts right.

What Spark counts is compared with a plain count over the stored requests, by the checker of
`holdfast prove telemetry`, which does the same live and with kills.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.dataflow.quivers import open_when_free

from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.driver.run import PipelineRun
from holdfast.dataflow.kit import CasesFile, run_case
from holdfast.graph.document import Substitution, read_document
from holdfast.graph.loader import load
from holdfast.graph.pipelines import load_pipelines
from holdfast.prove.journal import ProofJournal
from holdfast.prove.service_calls import service_request
from holdfast.prove.telemetry_stats_checker import (
    GRAPH,
    LOGS,
    SPANS,
    StatisticsVerdict,
    check_statistics,
)
from holdfast.quiver import QuiverConfig
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.registry import extractors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"
EXAMPLE, TESTS = EXAMPLES / "telemetry_stats.yaml", EXAMPLES / "telemetry_stats_tests.yaml"


def cases() -> CasesFile:
    document = read_document(TESTS, Substitution({}, TESTS.parent))
    return CasesFile.model_validate(document.value)


def test_the_example_is_sound() -> None:
    assert load(EXAMPLE).warnings == ()
    pipelines = load_pipelines(EXAMPLE).pipelines
    assert set(pipelines) == {"span-stats", "log-stats", "service-graph"}
    assert {case.pipeline for case in cases().tests.values()} == set(pipelines)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_example_s_own_tests_pass(spark: SparkSession, tmp_path: Path) -> None:
    pipelines = load_pipelines(EXAMPLE).pipelines
    for number, (name, case) in enumerate(cases().tests.items()):
        outcome = run_case(name, case, pipelines, tmp_path / str(number), spark)
        assert outcome.wrong == (), name


class Stored:
    """Telemetry of some minutes in a quiver beside the example, and who was answered for it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.buffer = root / "holdfast_data" / "buffer" / "core-00"
        (root / "journals").mkdir()
        self.count = 0

    def add(self, requests: int, *, every_s: float = 1.0) -> None:
        """Store requests of all kinds, three to a segment: a backlog has many."""
        first_ns = time.time_ns()
        config = QuiverConfig(extractors=extractors())
        journal = ProofJournal(self.root / "journals" / "0.journal")
        with open_when_free(self.buffer, config) as quiver:
            # It never reads, so everything stays: what all have read is removed.
            if "count" not in quiver.subscribers():
                quiver.register("count")
            for place in range(requests):
                self.count += 1
                kind = list(OtlpKind)[self.count % len(OtlpKind)]
                names = [f"0-{self.count}.{n}" for n in range(5 if self.count % 2 else 1)]
                at_ns = first_ns + round(place * every_s * 1e9)
                journal.sent(f"0-{self.count}", len(names))
                quiver.append_raw(service_request(kind, names, at_ns), slot=kind.slot)
                journal.answered(f"0-{self.count}", self.count)
                if self.count % len(OtlpKind) == 0:
                    quiver.flush()
        journal.close()

    def check(self) -> StatisticsVerdict:
        return check_statistics(self.root / "journals", self.root, self.buffer)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_its_results_are_a_plain_count_of_what_is_stored(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / EXAMPLE.name).write_text(EXAMPLE.read_text())
    loaded = load_pipelines(tmp_path / EXAMPLE.name)
    stored = Stored(tmp_path)
    stored.add(180)
    for name, pipeline in loaded.pipelines.items():
        places = Places(tmp_path / "state" / name, loaded.base_dir, loaded.quivers)
        with PipelineRun(name, pipeline, places, spark) as run:
            run.drain(close=True)
    verdict = stored.check()
    assert verdict.ok, verdict
    assert verdict.counted_spans == verdict.spans == verdict.logs == verdict.points == 180
    # All calls of large requests; those with an end in the next request, if that is in the window.
    assert verdict.counted_calls > 60
    assert verdict.rows > 3 * len((SPANS, LOGS, GRAPH))

    for sink in (SPANS, LOGS, GRAPH):
        (file, *_) = sorted((tmp_path / sink).glob("*.parquet"))
        again = file.with_name("again.parquet")
        shutil.copyfile(file, again)
        assert any(text.startswith(f"{sink} has") for text in failed(stored).examples)
        again.unlink()
        file.rename(tmp_path / "away")
        assert any(text.startswith(f"{sink} lacks") for text in failed(stored).examples)
        (tmp_path / "away").rename(file)
        assert stored.check().ok

    stored.add(len(OtlpKind))
    verdict = failed(stored)
    assert (verdict.lost, verdict.duplicated, verdict.invented) == (0, 0, 0)
    assert any(text.startswith(f"{SPANS} lacks") for text in verdict.examples)
    assert any(text.startswith(f"{LOGS} lacks") for text in verdict.examples)


def failed(stored: Stored) -> StatisticsVerdict:
    """Return the verdict, which is not that all is well."""
    verdict = stored.check()
    assert not verdict.ok
    return verdict
