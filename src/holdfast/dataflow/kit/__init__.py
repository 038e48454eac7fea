"""Tests of pipelines: rows in, rows out, and a clock that the test turns.

    harness = PipelineHarness(pipeline, tmp_path)
    harness.feed("events", [{"event_time": at(3), "key": "a", "number": 1}])
    harness.close()
    assert harness.rows("out") == [...]

What runs is the pipeline itself, on Spark, with its own queries, watermark and sinks; only its
quivers are temporary ones, and its sinks are folders that the harness reads.
"""

from holdfast.dataflow.kit.harness import PipelineHarness

# Its former name.
Bench = PipelineHarness

__all__ = ["Bench", "PipelineHarness"]
