"""Tests of pipelines: rows in, rows out, and a clock that the test turns.

    bench = Bench(pipeline, tmp_path)
    bench.feed("events", [{"event_time": at(3), "key": "a", "number": 1}])
    bench.close()
    assert bench.rows("out") == [...]

What runs is the pipeline itself, on Spark, with its own queries, watermark and sinks; only its
quivers are temporary ones, and its sinks are folders that the bench reads.
"""

from holdfast.dataflow.kit.bench import Bench

__all__ = ["Bench"]
