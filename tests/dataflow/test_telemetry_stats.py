"""examples/telemetry_stats.yaml can be run as it is, and its own tests pass.

That its results are a plain count of what is stored, with kills: `holdfast prove telemetry`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.dataflow.kit import CasesFile, run_case
from holdfast.graph.document import Substitution, read_document
from holdfast.graph.loader import load
from holdfast.graph.pipelines import load_pipelines

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
