"""Every component by its type: where its code is, and one line about it.

A component is a module with a `Config` (its settings) and a function `make` (but for `quiver` and
`nodes`, which are not made of events that pass: the gateway knows them). A receiver also says
which signals it `produces`, a processor or an exporter what it `takes`, if that is not the default.
It is imported when a graph names it, so that a sidecar does not load Kafka's client to write files.
Others bring theirs
through the entry-point groups `holdfast.receivers`, `holdfast.processors` and `holdfast.exporters`:
the name of the entry point is the type, its value the module.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any, Literal, NamedTuple

from holdfast.settings import Settings
from holdfast.signals.signal import RAW_EVENTS, Signal, Takes

Kind = Literal["receiver", "processor", "exporter"]
ConfigModel = type[Settings]
KINDS: tuple[Kind, ...] = ("receiver", "processor", "exporter")


class Component(NamedTuple):
    """One type of node."""

    type: str
    kind: Kind
    module: str
    summary: str
    # Other names for it, such as the URNs of OTAP configurations.
    aliases: tuple[str, ...] = ()
    # What `pip install holdfast[…]` adds it, if the base does not have it.
    extra: str | None = None

    @property
    def code(self) -> Any:
        """Its module; importing it may raise `ImportError`.

        Imported with each use, which is a lookup after the first: a component is a constant that is
        there before anything is loaded, and `holdfast components` lists those that are not
        installed.
        """
        return importlib.import_module(self.module)

    @property
    def config_model(self) -> ConfigModel:
        """The model of its settings."""
        model: ConfigModel = self.code.Config
        return model

    def produces(self, config: Settings) -> tuple[str | Signal, ...]:
        """Return the signals that a receiver accepts; empty if it does not say.

        By name or, where one comes in several forms, as they are.
        """
        declare: Callable[[Settings], tuple[str | Signal, ...]] | None
        declare = getattr(self.code, "produces", None)
        return () if declare is None else declare(config)

    def needs(self, config: Settings) -> tuple[str, ...]:
        """Return the extras that it needs with these settings, beyond its own."""
        declare: Callable[[Settings], tuple[str, ...]] | None = getattr(self.code, "needs", None)
        return () if declare is None else declare(config)

    def takes(self, config: Settings) -> Takes:
        """Return what a processor or an exporter can be given."""
        declare: Callable[[Settings], Takes] | None = getattr(self.code, "takes", None)
        return RAW_EVENTS if declare is None else declare(config)


# The persistence component of OTAP dataflow, as it was proposed, and as it is called today.
OTAP_PERSISTENCE = "urn:otap:processor:persistence"
DURABLE_BUFFER = ("urn:otel:processor:durable_buffer", "processor:durable_buffer")
OTLP_HTTP = ("urn:otel:exporter:otlp_http", "exporter:otlp_http")

QUIVER = Component(
    "quiver",
    "processor",
    "holdfast.graph.quiver_node",
    "Holds every event until each destination has it; receivers lead to one.",
    (OTAP_PERSISTENCE, "persistence", *DURABLE_BUFFER),
)

NODES = Component(
    "nodes",
    "exporter",
    "holdfast.handoff.settings",
    "Sends sealed segments to data nodes as they are, and keeps what one of them misses.",
)

COMPONENTS: tuple[Component, ...] = (
    Component(
        "openlineage",
        "receiver",
        "holdfast.receive.openlineage",
        "Takes OpenLineage events over HTTP.",
        ("urn:holdfast:openlineage:receiver",),
    ),
    Component(
        "otlp",
        "receiver",
        "holdfast.receive.otlp",
        "Takes OpenTelemetry's traces, metrics and logs over OTLP.",
        ("urn:otel:otlp:receiver", "urn:otel:receiver:otlp", "receiver:otlp"),
        extra="otel",
    ),
    Component(
        "otap",
        "receiver",
        "holdfast.receive.otap",
        "Takes OpenTelemetry's traces, metrics and logs as Arrow tables over OTAP.",
        ("urn:otel:otap:receiver", "urn:otel:receiver:otap", "receiver:otap"),
        extra="otel",
    ),
    QUIVER,
    Component(
        "filter",
        "processor",
        "holdfast.processors.filter",
        "Lets events through, or not, by patterns.",
    ),
    Component(
        "route",
        "processor",
        "holdfast.processors.route",
        "Sends each event out by the port of a rule.",
    ),
    Component(
        "redact",
        "processor",
        "holdfast.processors.redact",
        "Removes secrets from SQL, URIs and fields.",
    ),
    Component("rename", "processor", "holdfast.processors.rename", "Renames namespaces."),
    Component("trim", "processor", "holdfast.processors.trim", "Replaces facets above a size."),
    Component(
        "filter_items",
        "processor",
        "holdfast.processors.filter_items",
        "Lets spans, data points and log records through, or not.",
        extra="otel",
    ),
    Component(
        "attributes",
        "processor",
        "holdfast.processors.attributes",
        "Adds, changes, removes and hashes attributes of telemetry.",
        extra="otel",
    ),
    Component(
        "sample",
        "processor",
        "holdfast.processors.sample",
        "Lets a share of all traces through, with their log records.",
        ("probabilistic_sampler",),
        extra="otel",
    ),
    Component(
        "http",
        "exporter",
        "holdfast.deliver.exporters.http",
        "Posts events to a backend: Marquez, DataHub, OpenMetadata, or your own.",
    ),
    Component(
        "otlp",
        "exporter",
        "holdfast.deliver.exporters.otlp",
        "Sends traces, metrics and logs on over OTLP, gRPC or HTTP: to a collector or a backend.",
        (
            *("urn:otel:otlp:exporter", "urn:otel:exporter:otlp_grpc", "exporter:otlp_grpc"),
            *OTLP_HTTP,
        ),
        extra="otel",
    ),
    Component(
        "otap",
        "exporter",
        "holdfast.deliver.exporters.otap",
        "Sends traces, metrics and logs on as Arrow tables over OTAP.",
        ("urn:otel:otap:exporter", "urn:otel:exporter:otap", "exporter:otap"),
        extra="otel",
    ),
    Component(
        "files", "exporter", "holdfast.deliver.exporters.files", "Writes NDJSON or Parquet files."
    ),
    Component(
        "kafka",
        "exporter",
        "holdfast.deliver.exporters.kafka",
        "Produces to Kafka, with the keys of the OpenLineage clients.",
        extra="kafka",
    ),
    Component(
        "python", "exporter", "holdfast.deliver.exporters.python", "Calls a function of yours."
    ),
    NODES,
    Component("console", "exporter", "holdfast.deliver.exporters.console", "Prints events."),
    Component(
        "log",
        "exporter",
        "holdfast.deliver.exporters.log",
        "Writes one line to Holdfast's own log per event, without its payload.",
    ),
)


class Registry:
    """The components that a graph may use."""

    def __init__(self, components: Iterable[Component]) -> None:
        self._components = list(components)

    @classmethod
    def standard(cls) -> Registry:
        """Return Holdfast's own components, and those that installed packages bring."""
        return cls([*COMPONENTS, *_installed()])

    def __iter__(self) -> Iterator[Component]:
        return iter(self._components)

    @cached_property
    def _by_name(self) -> dict[tuple[str, str], Component]:
        # The first one of a name stays: a package cannot replace what Holdfast brings.
        found: dict[tuple[str, str], Component] = {}
        for component in self._components:
            for name in (component.type, *component.aliases):
                found.setdefault((component.kind, name), component)
        return found

    def find(self, kind: str, name: str) -> Component | None:
        """Return the component of a kind by its type or one of its aliases."""
        return self._by_name.get((kind, name))

    def types(self, kind: str) -> list[str]:
        """Return the types of a kind."""
        return [component.type for component in self._components if component.kind == kind]


def _installed() -> Iterator[Component]:
    """Yield what packages bring. Nothing of them is imported: one that is broken must not keep a
    graph from starting that does not use it.
    """
    for kind in KINDS:
        for entry in entry_points(group=f"holdfast.{kind}s"):
            summary = f"From the package {entry.dist.name}." if entry.dist else "Installed."
            yield Component(entry.name, kind, entry.value, summary)
