"""The ways through a graph: what fills a quiver, and by which processors events leave it.

Receivers lead to a quiver, a quiver to exporters, by processors on the way. A file without a quiver
has one all the same, between its receivers and what they lead to. Processors may also stand before
the quiver, in one line from a receiver: what they drop is never stored. Each exporter is one
destination with all the *chains* that lead to it; exporters that take turns behind a port are one
destination together, under the name of that port. Pipelines of the same file may read and write its
quivers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import NamedTuple

from holdfast.dataflow.compiler.places import subscriber
from holdfast.dataflow.spec import PipelineSettings
from holdfast.deliver.settings import DeliverySettings
from holdfast.graph import quiver_node
from holdfast.graph.model import Graph, Node, PortSettings
from holdfast.quiver.engine.verbs import StartPosition
from holdfast.signals.registry import signal_named
from holdfast.signals.signal import Form, Signal, Takes

IMPLICIT_QUIVER = "quiver"
# Of the data directory.
DEAD_LETTERS_DIR = "dead_letters"
PIPELINES_DIR = "pipelines"


@dataclass(frozen=True)
class ChainStep:
    """A processor on the way, and the port by which events leave it if its ports differ."""

    node: Node
    port: str | None = None


ProcessorSteps = tuple[ChainStep, ...]


@dataclass(frozen=True)
class DestinationPlan:
    """One subscriber of a quiver: who sends, and what happens to events on the way."""

    name: str
    # Several take turns.
    exporters: tuple[Node, ...]
    # One that is empty: nothing on the way.
    chains: tuple[ProcessorSteps, ...] = ((),)

    @property
    def delivery(self) -> DeliverySettings:
        """How events are delivered to it."""
        delivery = self.exporters[0].delivery
        assert delivery is not None, "BUG: an exporter without delivery settings"
        return delivery

    @property
    def takes(self) -> Takes:
        """What its exporters take: all of them, since who has its turn is known too late."""
        all_take = [node.component.takes(node.config) for node in self.exporters]
        named = [one.signals for one in all_take if one.signals is not None]
        return Takes(
            frozenset.intersection(*(one.forms for one in all_take)),
            frozenset.intersection(*named) if named else None,
            all_take[0].sent_as,
        )

    def refusal_of(self, signal: Signal) -> str | None:
        """Say which component on the way cannot take a signal; None if all can."""
        for chain in self.chains:
            given = signal
            for node in (*(step.node for step in chain), *self.exporters):
                takes = node.component.takes(node.config)
                taken = given.taken_by(takes)
                if taken is None:
                    what = f"the {node.kind} {node.name!r} takes {takes}"
                    return f"{what}, not {given.name} ({given.form})"
                given = taken if node.kind == "processor" else given
            if given.taken_by(self.takes) is None:
                return f"the exporters that take turns do not all take {given.name} in one form"
        return None

    def forms_of(self, signal: Signal) -> tuple[Form, ...]:
        """Return the forms that a signal has on its way, where it is not refused.

        More than one: it is converted.
        """
        forms = [signal.form]
        for chain in self.chains:
            given: Signal | None = signal
            takes = [step.node.component.takes(step.node.config) for step in chain]
            for one in (*takes, self.takes):
                given = None if given is None else given.taken_by(one)
                if given is not None and given.form not in forms:
                    forms.append(given.form)
        sent_as = self.takes.sent_as
        return (*forms, sent_as) if sent_as not in (None, forms[-1]) else tuple(forms)


@dataclass(frozen=True)
class QuiverPlan:
    """One buffer, what fills it, and what empties it."""

    name: str
    directory: Path
    config: quiver_node.Config
    receivers: tuple[Node, ...]
    destinations: tuple[DestinationPlan, ...]
    # The exporter that takes its segments to data nodes; there is one at most.
    to_nodes: Node | None = None
    # By receiver: the processors that its events pass before they are stored.
    before: Mapping[str, ProcessorSteps] = field(default_factory=dict)


@dataclass
class _FoundPaths:
    """Destinations as they are found, chain by chain."""

    to_nodes: Node | None = None

    exporters: dict[str, tuple[Node, ...]] = field(default_factory=dict)
    chains: dict[str, list[ProcessorSteps]] = field(default_factory=dict)

    def add(self, name: str, exporters: tuple[Node, ...], chain: ProcessorSteps) -> None:
        self.exporters[name] = exporters
        chains = self.chains.setdefault(name, [])
        # Two ports of the same processor may lead to the same exporter without a router between
        # them: the same steps twice would only be tried twice.
        if chain not in chains:
            chains.append(chain)

    def plans(self) -> tuple[DestinationPlan, ...]:
        return tuple(
            DestinationPlan(name, exporters, tuple(self.chains[name]))
            for name, exporters in self.exporters.items()
        )


def plan(graph: Graph) -> tuple[QuiverPlan, ...]:
    """Return what to run. The graph is sound: every name is known, and nothing goes in a circle."""
    if graph.keeps_nothing:
        return ()
    if not graph.quivers:
        return (_implicit(graph),)
    return tuple(_explicit(graph, node) for node in graph.quivers)


def direct_plan(graph: Graph) -> QuiverPlan | None:
    """Return what receives and delivers where nothing is kept; its quiver is never opened."""
    return _implicit(graph) if graph.keeps_nothing else None


def quiver_directory(graph: Graph, name: str, config: quiver_node.Config) -> Path:
    """Return where a quiver's data is."""
    return graph.data_dir / name if config.path is None else graph.base_dir / config.path


def dead_letters_directory(graph: Graph) -> Path:
    """Return where dead letters are kept."""
    path = graph.settings.dead_letters.path
    return graph.data_dir / DEAD_LETTERS_DIR if path is None else graph.base_dir / path


class FormChange(NamedTuple):
    """What is received in one form and sent, or processed, in another."""

    destination: str
    receiver: str
    signal: str
    forms: tuple[Form, ...]

    def __str__(self) -> str:
        """Say it to people."""
        way = " → ".join(self.forms)
        return f"{self.destination!r} gets {self.signal} of {self.receiver!r} converted: {way}"


def form_changes(graph: Graph) -> Iterator[FormChange]:
    """Yield what is converted on its way through a sound graph."""
    for quiver in plan(graph):
        for one, receiver in product(quiver.destinations, quiver.receivers):
            for produced in receiver.component.produces(receiver.config):
                signal = signal_named(produced) if isinstance(produced, str) else produced
                wanted = one.delivery.signals
                if signal is None or (wanted is not None and signal.name not in wanted):
                    continue
                forms = one.forms_of(signal)
                if len(forms) > 1:
                    yield FormChange(one.name, receiver.name, signal.name, forms)


def group_name(node: Node, port: str) -> str:
    """Return the destination that exporters behind a port are together."""
    return f"{node.name}.{port}"


def takes_turns(port: PortSettings) -> bool:
    """Whether what is behind a port is one destination."""
    return port.dispatch_strategy == "round_robin" and len(port.destinations) > 1


def _explicit(graph: Graph, node: Node) -> QuiverPlan:
    config = node.config
    assert isinstance(config, quiver_node.Config), f"BUG: {node}"
    known = graph.of_kind("receiver")
    before = {
        one.name: steps for one in known for quiver, steps in ways_in(graph, one) if quiver is node
    }
    receivers = tuple(one for one in known if one.name in before)
    found = _FoundPaths()
    _walk(graph, node, (), found)
    directory = quiver_directory(graph, node.name, config)
    return QuiverPlan(
        node.name, directory, config, receivers, found.plans(), found.to_nodes, before
    )


def ways_in(graph: Graph, receiver: Node) -> list[tuple[Node, ProcessorSteps]]:
    """Return the quivers that a receiver leads to, and the processors before each.

    In a sound graph there is one.
    """
    found: list[tuple[Node, ProcessorSteps]] = []
    waiting: list[tuple[Node, ProcessorSteps]] = [(receiver, ())]
    while waiting:
        node, steps = waiting.pop()
        passed = {step.node.name for step in steps}
        for target in (graph.nodes[name] for name in node.destinations if name in graph.nodes):
            if target.is_quiver:
                found.append((target, steps))
            elif target.kind == "processor" and target.name not in passed:
                waiting.append((target, (*steps, ChainStep(target))))
    return found


def _implicit(graph: Graph) -> QuiverPlan:
    config = quiver_node.Config()
    receivers = tuple(graph.of_kind("receiver"))
    found = _FoundPaths()
    # All receivers lead to the same nodes, so the first one speaks for them.
    for receiver in receivers[:1]:
        _walk(graph, receiver, (), found)
    directory = quiver_directory(graph, IMPLICIT_QUIVER, config)
    return QuiverPlan(IMPLICIT_QUIVER, directory, config, receivers, found.plans(), found.to_nodes)


def _walk(graph: Graph, node: Node, chain: ProcessorSteps, found: _FoundPaths) -> None:
    """Follow every port to exporters, noting the processors passed on the way.

    A depth-first walk that visits a node once for each path to it, not once: the path is what
    matters. Files have tens of nodes, and circles were refused before.
    """
    for port_name, port in node.ports.items():
        if node.processor is not None:
            further = (*chain, ChainStep(node, port_name if node.routes else None))
        else:
            further = chain
        behind = [graph.nodes[name] for name in port.destinations]
        if takes_turns(port):
            found.add(group_name(node, port_name), tuple(behind), further)
            # Exporters that take turns are one destination, so they are not walked into one by
            # one.
            continue
        for target in behind:
            if target.sends_parts:
                found.to_nodes = target
            elif target.kind == "exporter":
                found.add(target.name, (target,), further)
            else:
                _walk(graph, target, further, found)


def reached(graph: Graph, start: Node) -> Iterator[Node]:
    """Yield every node behind another one, once."""
    seen: set[str] = set()
    waiting = list(start.destinations)
    while waiting:
        name = waiting.pop()
        if name in seen or name not in graph.nodes:
            continue
        seen.add(name)
        yield graph.nodes[name]
        waiting += graph.nodes[name].destinations


class Reader(NamedTuple):
    """A source of a pipeline that reads a quiver of the same file."""

    pipeline: str
    vertex: str
    quiver: str
    subscriber: str
    start: StartPosition


def state_dir(graph: Graph, pipeline: str) -> Path:
    """Return where a pipeline that runs beside its gateway keeps its progress."""
    return graph.data_dir / PIPELINES_DIR / pipeline


def named_sources(pipelines: Mapping[str, PipelineSettings]) -> Iterator[tuple[str, str]]:
    """Yield pipeline and quiver of every source, as they are named."""
    for name, pipeline in pipelines.items():
        for vertex in pipeline.vertices.values():
            for quiver in vertex.source.quiver if vertex.source else ():
                yield name, quiver


def readers(graph: Graph) -> Iterator[Reader]:
    """Yield every reading of the file's own quivers by its own pipelines."""
    names = {one.name for one in plan(graph)}
    for name, pipeline in graph.settings.pipelines.items():
        for vertex, settings in pipeline.vertices.items():
            source = settings.source
            for quiver in () if source is None else source.quiver:
                if source is not None and quiver in names:
                    called = subscriber(name, vertex)
                    yield Reader(name, vertex, quiver, called, source.start)


def writers(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """Yield pipeline, vertex and quiver of every sink that writes into the file's own quivers."""
    names = {one.name for one in plan(graph)}
    for name, pipeline in graph.settings.pipelines.items():
        for vertex, settings in pipeline.vertices.items():
            if settings.sink is not None and settings.sink.quiver in names:
                yield name, vertex, settings.sink.quiver


def reads_own_quivers(graph: Graph) -> bool:
    """Whether a pipeline of the file needs its gateway to serve a quiver."""
    if not graph.settings.spark.run:
        return False
    return any(True for _ in readers(graph)) or any(True for _ in writers(graph))
