"""From a file to a graph: read, check everything, and tell all that is wrong at once.

    read         YAML, with the place of every key and value; references are replaced in values
    write out    short forms become long ones, so that nothing behind this knows them
    validate     the file by its model, then each `config` by the model of its component
    check        what only the whole shows: connections, addresses, directories, pipelines

Each step goes on with what the one before it could make sense of. A finding is written into the
document, with its place; whether there is a graph is decided at the end, by all of them together.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.deliver.settings import DeliverySettings
from holdfast.errors import BadConfig, ConfigFinding, HoldfastError
from holdfast.extras import install_command
from holdfast.graph.checks import check_graph
from holdfast.graph.document import Document, Substitution, TreePath, read_document
from holdfast.graph.model import (
    Graph,
    GraphFile,
    HandlerSettings,
    Node,
    NodeSettings,
    TelemetrySettings,
)
from holdfast.graph.otap_spelling import write_out_otap
from holdfast.graph.pipeline_checks import check_beside_gateway, check_pipelines
from holdfast.graph.registry import Component, Kind, Registry
from holdfast.graph.shorthand import write_out
from holdfast.graph.validation import nearest, rest_of, validated
from holdfast.settings import Settings

# One file can have very many; a reader needs the first ones.
FINDINGS_MAX = 1000


class Loaded(NamedTuple):
    """A graph, what is odd about it, and the file it is from."""

    graph: Graph
    warnings: tuple[ConfigFinding, ...]
    document: Document
    # Keys that the command line gave instead of the file.
    flags: Mapping[str, Any] = {}


def load(
    path: str | os.PathLike[str],
    *,
    registry: Registry | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Loaded:
    """Return the graph of a file; raises `BadConfig` with every finding if anything is wrong.

    `flags` are keys of data nodes that come before those of the file (graph/shorthand.py).
    """
    file = Path(os.path.abspath(path))
    variables = os.environ if environment is None else environment
    document = read_document(file, Substitution(variables, file.parent))
    document.file = os.fspath(path)
    write_out_otap(document)
    write_out(document, flags or {})
    graph = None
    if not document.findings or document.value is not None:
        graph = _Loader(document, registry or Registry.standard()).graph(file)
    findings = sorted(document.findings, key=lambda found: (found.line, found.column))
    errors = [found for found in findings if found.severity == "error"]
    if errors or graph is None:
        count = f"{len(errors)} errors" if len(errors) > 1 else "1 error"
        raise BadConfig(
            f"the configuration has {count}",
            hint="fix it, then run `holdfast validate` again",
            path=document.file,
            findings=findings[:FINDINGS_MAX],
        )
    return Loaded(graph, tuple(findings), document, flags or {})


class _Loader:
    """Checks one document."""

    def __init__(self, document: Document, registry: Registry) -> None:
        self._document = document
        self._registry = registry

    def graph(self, file: Path) -> Graph | None:
        """Return the graph, or None if it has no shape at all."""
        self._import_receivers()
        settings = validated(GraphFile, self._document.value, self._document, ())
        is_sound = settings is not None
        if settings is None:
            # What is wrong does not keep the rest from being checked: all errors in one pass.
            # The sections that are sound, without those that are not. It is never run: `is_sound`
            # stays False, and the caller gets None. It only lets the checks below see the rest of
            # the file.
            settings = rest_of(GraphFile, self._document.value, _indivisible)
            self._look_at_configs(() if settings is None else settings.nodes)
        if settings is None:
            return None
        nodes = {name: self._node(name, one) for name, one in settings.nodes.items()}
        handlers = {
            name: self._handler(name, one) for name, one in settings.dead_letters.handlers.items()
        }
        known = {name: node for name, node in nodes.items() if node is not None}
        told = {name: node for name, node in handlers.items() if node is not None}
        own = None if settings.telemetry is None else self._telemetry(settings.telemetry)
        graph = Graph(file, settings, known, told, own)
        # A name whose node is wrong is still a name: nobody needs to hear that it is unknown.
        check_graph(graph, self._document, names=set(self._document.value["nodes"]))
        check_pipelines(settings.pipelines, self._document)
        check_beside_gateway(graph, self._document)
        is_sound = is_sound and len(known) + len(told) == len(nodes) + len(handlers)
        is_sound = is_sound and (own is not None or settings.telemetry is None)
        return graph if is_sound else None

    def _node(self, name: str, settings: NodeSettings) -> Node | None:
        """Return a node whose settings are checked by its component; None, and findings, if wrong.

        Processors are made here, so that a bad pattern is found with its line; exporters and
        receivers touch the outside world, and are made when the gateway starts.
        """
        at: TreePath = ("nodes", name)
        key = "type" if settings.type else "plugin_urn"
        component = self._component(settings.kind, settings.type or settings.plugin_urn, at, key)
        if component is None:
            return None
        config = self._config(component, settings.config, at)
        if config is None:
            return None
        processor = None
        if component.kind == "processor" and hasattr(component.code, "make"):
            try:
                processor = component.code.make(config)
            except (HoldfastError, ValueError) as error:
                place = self._document.value_place((*at, "config"))
                self._document.find(place, f"it cannot be made: {error}")
                return None
        delivery = settings.delivery
        node = Node(name, component, config, settings.ports, delivery, processor)
        if node.kind == "exporter" and not node.sends_parts and delivery is None:
            node = replace(node, delivery=DeliverySettings())
        return node

    def _handler(self, name: str, settings: HandlerSettings) -> Node | None:
        at: TreePath = ("dead_letters", "handlers", name)
        component = self._component("exporter", settings.type, at, "type")
        config = None if component is None else self._config(component, settings.config, at)
        if component is None or config is None:
            return None
        return Node(name, component, config, delivery=settings.delivery or DeliverySettings())

    def _telemetry(self, settings: TelemetrySettings) -> Node | None:
        """Return what sends our own telemetry: an exporter `otlp` by its settings, no node."""
        component = Registry.standard().find("exporter", "otlp")
        assert component is not None, "BUG: there is no exporter `otlp`"
        config = self._config(component, settings.config, ("telemetry",))
        return None if config is None else Node("telemetry", component, config)

    def _component(self, kind: Kind, name: str, at: TreePath, key: str) -> Component | None:
        """Return the component of a type; if there is none, say which one is probably meant."""
        component = self._registry.find(kind, name)
        if component is not None:
            return component
        place = self._document.value_place((*at, key))
        others = [one.kind for one in self._registry if name in (one.type, *one.aliases)]
        hint = nearest(name, self._registry.types(kind), f"known {kind}s")
        if others:
            hint = f"{name!r} is a type of {others[0]}: change `kind`, or `type`"
        self._document.find(place, f"there is no {kind} of type {name!r}", hint)
        return None

    def _config(
        self, component: Component, value: Mapping[str, Any], at: TreePath
    ) -> Settings | None:
        """Check `config` against its component's model, if that is installed."""
        try:
            model = component.config_model
        except ImportError as error:
            extra = install_command(component.extra) if component.extra else str(error)
            message = f"the {component.kind} {component.type!r} is not installed"
            self._document.find(self._document.key_place(at), message, extra)
            return None
        return validated(model, dict(value), self._document, (*at, "config"))

    def _import_receivers(self) -> None:
        """Import the receivers, which register their signals: `delivery` may name these.

        Before anything is validated, because validating `delivery.signals` asks which signals
        there are.
        """
        for _, component, _ in self._found():
            if component.kind == "receiver":
                with suppress(ImportError):  # reported with its node
                    _ = component.code

    def _look_at_configs(self, others: Collection[str]) -> None:
        """Check the settings of nodes that are wrong otherwise; others are checked anyway."""
        for name, component, config in self._found():
            if name not in others and isinstance(config, dict):
                self._config(component, config, ("nodes", name))

    def _found(self) -> Iterator[tuple[str, Component, object]]:
        """Yield the nodes of the file whose type is known, before anything of it is checked."""
        value = self._document.value
        nodes = value.get("nodes") if isinstance(value, dict) else None
        for name, node in nodes.items() if isinstance(nodes, dict) else ():
            if not isinstance(node, dict):
                continue
            kind, named = node.get("kind"), node.get("type") or node.get("plugin_urn")
            if isinstance(kind, str) and isinstance(named, str):
                component = self._registry.find(kind, named)
                if component is not None:
                    yield name, component, {} if node.get("config") is None else node["config"]


def _indivisible(path: TreePath) -> TreePath:
    """Return what an error takes with it: of a node all but its delivery, else its section.

    Too much taken away hides other errors of the same section; too little leaves half a node,
    about which every later check would complain once more.
    """
    if path[:1] == ("nodes",):
        return path[:3] if path[2:3] == ("delivery",) else path[:2]
    if path[:1] == ("pipelines",):
        return path[:2]
    if path[:2] == ("dead_letters", "handlers"):
        return path[:3]
    return path[:2]
