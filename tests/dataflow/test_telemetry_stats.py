"""examples/telemetry_stats.yaml can be run as it is."""

from __future__ import annotations

from pathlib import Path

from holdfast.graph.loader import load
from holdfast.graph.pipelines import load_pipelines

EXAMPLE = Path(__file__).parents[2] / "examples" / "telemetry_stats.yaml"


def test_the_example_is_sound() -> None:
    assert load(EXAMPLE).warnings == ()
    pipelines = load_pipelines(EXAMPLE).pipelines
    assert set(pipelines) == {"span-stats", "log-stats", "service-graph"}
