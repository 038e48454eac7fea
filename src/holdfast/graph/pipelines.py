"""Pipelines of a file: beside the nodes of a gateway, or alone in a file of their own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from holdfast.dataflow.spec import PipelineSettings
from holdfast.dataflow.spec.checks import Parse
from holdfast.errors import BadConfig, ConfigFinding
from holdfast.graph.document import Document, read_document
from holdfast.graph.loader import FINDINGS_MAX, load
from holdfast.graph.model import GraphFile, Name
from holdfast.graph.paths import quiver_directory
from holdfast.graph.pipeline_checks import check_pipelines
from holdfast.graph.quiver_node import Config as QuiverNode
from holdfast.graph.substitution import Substitution
from holdfast.graph.validation import validated
from holdfast.settings import Settings


class PipelinesFile(Settings):
    """A file without a gateway."""

    data_dir: str = GraphFile.model_fields["data_dir"].default
    """The directory for everything durable, relative to the file."""
    pipelines: dict[Name, PipelineSettings] = Field(min_length=1)
    """The pipelines, by name."""


class LoadedPipelines(NamedTuple):
    """The pipelines of a file, and what they need to know of it."""

    pipelines: Mapping[str, PipelineSettings]
    warnings: tuple[ConfigFinding, ...]
    base_dir: Path
    data_dir: Path
    # Data directories of the file's own quivers, by name.
    quivers: Mapping[str, str]


def load_pipelines(
    path: str | os.PathLike[str], *, parse: Parse | None = None, imports: bool = False
) -> LoadedPipelines:
    """Return the pipelines of a file; raises `BadConfig` with everything that is wrong."""
    file = Path(os.path.abspath(path))
    document = read_document(file, Substitution(os.environ, file.parent))
    document.file = os.fspath(path)
    if isinstance(document.value, dict) and "nodes" in document.value:
        return _of_graph(path, document, parse, imports)
    settings = None
    if not document.findings or document.value is not None:
        settings = validated(PipelinesFile, document.value, document, ())
    if settings is not None:
        check_pipelines(settings.pipelines, document, parse=parse, imports=imports)
    warnings = _told(document)
    assert settings is not None, "BUG: a file without settings and without findings"
    base_dir = file.parent
    return LoadedPipelines(settings.pipelines, warnings, base_dir, base_dir / settings.data_dir, {})


def _of_graph(
    path: str | os.PathLike[str], document: Document, parse: Parse | None, imports: bool
) -> LoadedPipelines:
    loaded = load(path)
    graph = loaded.graph
    pipelines = graph.settings.pipelines
    if not pipelines:
        place = document.key_place(("nodes",))
        document.find(place, "there are no pipelines in this file", "add `pipelines:`")
    check_pipelines(pipelines, document, parse=parse, imports=imports)
    quivers = {
        node.name: str(quiver_directory(graph, node.name, node.config))
        for node in graph.quivers
        if isinstance(node.config, QuiverNode)
    }
    return LoadedPipelines(pipelines, _told(document), graph.base_dir, graph.data_dir, quivers)


def _told(document: Document) -> tuple[ConfigFinding, ...]:
    """Return the warnings; raise if there are errors."""
    findings = sorted(document.findings, key=lambda found: (found.line, found.column))
    errors = sum(found.severity == "error" for found in findings)
    if errors:
        raise BadConfig(
            f"the configuration has {f'{errors} errors' if errors > 1 else '1 error'}",
            hint="mend it, and look again with `holdfast dataflow validate`",
            path=document.file,
            findings=findings[:FINDINGS_MAX],
        )
    return tuple(findings)
