"""What a user writes: pipelines of vertices and edges, in a file or in Python, the same object.

    functions.py   a Python function, named or given
    vertices.py    sources, maps, filters, flat maps, reduces, sinks
    pipeline.py    a pipeline, and its edges: `a -> b`, `a.late -> b`, and which tags go that way
    builder.py     the same, written in Python
    checks.py      what is wrong with one: findings with their place in the tree

Nothing here needs Spark.
"""

from holdfast.dataflow.spec.builder import Pipeline
from holdfast.dataflow.spec.checks import PipelineFinding, PipelinePath, check
from holdfast.dataflow.spec.pipeline import PipelineSettings

__all__ = ["Pipeline", "PipelineFinding", "PipelinePath", "PipelineSettings", "check"]
