"""What is wrong with the pipelines of a file, at the lines that have to change."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.dataflow.spec import PipelineSettings, check
from holdfast.dataflow.spec.checks import Parse
from holdfast.graph.document import Document, TreePath


def check_pipelines(
    pipelines: Mapping[str, PipelineSettings],
    document: Document,
    *,
    parse: Parse | None = None,
    imports: bool = False,
) -> None:
    """Write down everything that is wrong with pipelines, at their lines."""
    for name, pipeline in pipelines.items():
        for found in check(pipeline, parse=parse, imports=imports):
            at: TreePath = ("pipelines", name, *found.path)
            place = document.key_place(at) if found.at_key else document.value_place(at)
            is_warning = found.severity == "warning"
            document.find(place, found.message, found.hint, is_warning=is_warning)
