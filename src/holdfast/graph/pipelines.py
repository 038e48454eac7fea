"""Pipelines of a file: beside the nodes of a gateway, or alone in a file of their own.

A pipeline names quivers as the file does. Where the gateway of that file runs, it has them open, so
they are read where it serves them (`reaching`), with its own token; where it does not, their
directories are opened. The pipeline itself is the same in both cases, and so is its state.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from pydantic import Field

from holdfast.dataflow.driver.settings import SparkSettings
from holdfast.dataflow.driver.wire import Access
from holdfast.dataflow.spec import PipelineSettings
from holdfast.dataflow.spec.checks import Parse
from holdfast.dataflow.spec.vertices import SourceSettings, TargetSettings
from holdfast.errors import BadConfig, ConfigFinding
from holdfast.graph.document import Document, Substitution, read_document
from holdfast.graph.loader import FINDINGS_MAX, load
from holdfast.graph.model import Graph, GraphFile, Name
from holdfast.graph.paths import PIPELINES_DIR, plan
from holdfast.graph.pipeline_checks import check_pipelines
from holdfast.graph.serving import ACCESS_VERB
from holdfast.graph.validation import validated
from holdfast.quiver.base import names
from holdfast.quiver.engine.control import ask
from holdfast.settings import LocalPath, Secret, Settings


class PipelinesFile(Settings):
    """A file without a gateway."""

    data_dir: LocalPath = GraphFile.model_fields["data_dir"].default
    """The directory for everything durable, relative to the file."""
    pipelines: dict[Name, PipelineSettings] = Field(min_length=1)
    """The pipelines, by name."""
    spark: SparkSettings = SparkSettings()
    """Where they run."""


class LoadedPipelines(NamedTuple):
    """The pipelines of a file, and what they need to know of it."""

    pipelines: Mapping[str, PipelineSettings]
    warnings: tuple[ConfigFinding, ...]
    base_dir: Path
    data_dir: Path
    # Data directories of the file's own quivers (or their addresses, see `reaching`), by name.
    quivers: Mapping[str, str]
    spark: SparkSettings = SparkSettings()
    # Whether there is a gateway in the file.
    has_gateway: bool = False

    def state_dir(self, name: str) -> Path:
        """Return where a pipeline keeps its progress."""
        return self.data_dir / PIPELINES_DIR / name

    def reaching(self, access: Access) -> LoadedPipelines:
        """Return them with their gateway's quivers as the running gateway serves them."""
        quivers = {name: ",".join(found) for name, found in access.addresses.items()}
        ca_file = None if self.spark.ca_file is None else str(self.base_dir / self.spark.ca_file)
        pipelines = {
            name: _with_token(pipeline, quivers, access.token, ca_file)
            for name, pipeline in self.pipelines.items()
        }
        return self._replace(pipelines=pipelines, quivers=quivers)


def load_pipelines(
    path: str | os.PathLike[str], *, parse: Parse | None = None, imports: bool = False
) -> LoadedPipelines:
    """Return the pipelines of a file; raises `BadConfig` with everything that is wrong."""
    file = Path(os.path.abspath(path))
    document = read_document(file, Substitution(os.environ, file.parent))
    document.file = os.fspath(path)
    # A gateway's file is loaded whole: its pipelines may name its quivers, and are wrong if it is.
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
    data_dir = base_dir / settings.data_dir
    return LoadedPipelines(settings.pipelines, warnings, base_dir, data_dir, {}, settings.spark)


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
    return LoadedPipelines(
        pipelines,
        _told(document),
        graph.base_dir,
        graph.data_dir,
        quiver_directories(graph),
        graph.settings.spark,
        has_gateway=True,
    )


def quiver_directories(graph: Graph) -> dict[str, str]:
    """Return the data directories of a gateway's quivers by name, one for each worker."""
    found = {}
    for one in plan(graph):
        cores = sorted(one.directory.glob("core-*")) or [one.directory / names.core_dir(0)]
        found[one.name] = ",".join(map(str, cores))
    return found


def ask_for_access(data_dir: Path) -> Access | None:
    """Ask the gateway of a data directory how its quivers are reached; None if none runs."""
    answer = ask(PurePath(data_dir), ACCESS_VERB)
    if answer is None:
        return None
    if answer["access"] is None:
        raise BadConfig(
            "the gateway of this file runs, and serves its quivers to nobody",
            hint="add `flight: {}` to the file and start it again, or stop it",
        )
    return Access.from_fields(answer["access"])


def _with_token(
    pipeline: PipelineSettings, quivers: Mapping[str, str], token: str | None, ca_file: str | None
) -> PipelineSettings:
    """Give the gateway's own token to the vertices that use its quivers, unless they have one.

    It reaches only the vertices that use one of the gateway's quivers; one that names a token
    keeps it, since it may read from another gateway.
    """
    given = {"token": None if token is None else Secret(token), "ca_file": ca_file}
    vertices = {
        name: vertex.model_copy(
            update={
                kind: _given(settings, quivers, given)
                for kind in ("source", "sink")
                if (settings := getattr(vertex, kind)) is not None
            }
        )
        for name, vertex in pipeline.vertices.items()
    }
    return pipeline.model_copy(update={"vertices": vertices})


def _given(
    settings: SourceSettings | TargetSettings,
    quivers: Mapping[str, str],
    given: Mapping[str, Any],
) -> SourceSettings | TargetSettings:
    changes: dict[str, Any] = {}
    named = [settings.quiver] if isinstance(settings.quiver, str) else settings.quiver
    if set(named or ()) & set(quivers):
        changes = {key: getattr(settings, key) or value for key, value in given.items()}
    for further in ("fallback", "on_success"):
        target = getattr(settings, further, None)
        if isinstance(target, TargetSettings):
            changes[further] = _given(target, quivers, given)
    return settings.model_copy(update=changes)


def _told(document: Document) -> tuple[ConfigFinding, ...]:
    """Return the warnings; raise if there are errors."""
    findings = sorted(document.findings, key=lambda found: (found.line, found.column))
    errors = sum(found.severity == "error" for found in findings)
    if errors:
        raise BadConfig(
            f"the configuration has {f'{errors} errors' if errors > 1 else '1 error'}",
            hint="fix it, then run `holdfast dataflow validate` again",
            path=document.file,
            findings=findings[:FINDINGS_MAX],
        )
    return tuple(findings)
