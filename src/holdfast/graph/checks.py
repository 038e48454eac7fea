"""What can be wrong with a graph as a whole, each finding at the line that has to change.

**All findings in one pass.** Whoever fixes a file wants the whole list, so a check never stops at
the first error, and none may crash on what an earlier one has reported. The order of `check_graph`
serves that: single nodes first, then single connections, then (only if every name is known and
nothing goes in a circle) the paths through the graph, then what only a plan shows.

**Errors and warnings.** An error is what would lose events, never start, or mean something else
than it says. A warning is what does nothing, or works and is probably not meant.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from holdfast.bucket_url import is_bucket
from holdfast.errors import BadInput
from holdfast.graph import quiver_node
from holdfast.graph.addresses import (
    addresses_in,
    clash,
    flight_addresses,
    listeners_of,
    reaches,
)
from holdfast.graph.direct_checks import check_keeps_nothing
from holdfast.graph.document import Document, Location, TreePath
from holdfast.graph.model import Graph, Node
from holdfast.graph.nodes_checks import check_beside_others, check_limits, check_to_nodes
from holdfast.graph.paths import (
    DestinationPlan,
    ProcessorSteps,
    dead_letters_directory,
    direct_plan,
    group_name,
    named_sources,
    plan,
    quiver_directory,
    reached,
    takes_turns,
    ways_in,
    writers,
)
from holdfast.graph.validation import nearest
from holdfast.quiver.cores import check_count
from holdfast.quiver.ledger.subscriber import NAME_PATTERN
from holdfast.receive.listening import Address, parse_address
from holdfast.signals.registry import ROWS, all_signals, signal_named
from holdfast.signals.signal import Signal
from holdfast.units import written_size

BEHIND_HINT = (
    "let receivers lead to the quiver and the quiver to {name!r}: what a processor does not let "
    "through is then an outcome in the ledger, and nothing accepted is lost by its settings"
)


def check_graph(graph: Graph, document: Document, names: Collection[str]) -> None:
    """Write down everything that is wrong; `names` are those of all nodes, also of wrong ones."""
    checker = _Checker(graph, document, names)
    checker.names_mean_one_thing()
    checker.settings_fit_the_kind()
    checker.addresses()
    checker.directories()
    checker.own_telemetry()
    # Counted from here: mistakes in single settings do not keep the plan from being looked at.
    before = document.errors
    check_to_nodes(graph, document)
    checker.connections()
    if not checker.is_whole() or checker.circles():
        return
    checker.flow()
    # What only a plan shows. Where the connections are wrong there is none; errors elsewhere in the
    # file do not matter.
    if document.errors == before:
        checker.destinations()


class _Checker:
    def __init__(self, graph: Graph, document: Document, names: Collection[str]) -> None:
        self._graph = graph
        self._document = document
        self._names = names

    # --------------------------------------------------------------- where things stand

    def _node_place(self, name: str) -> Location:
        return self._document.key_place(("nodes", name))

    def _setting_place(self, node: Node, key: str) -> Location:
        """Return where a setting of a node is written, or the node if it is a default."""
        at: TreePath = ("nodes", node.name, "config", key)
        written = at in self._document.values
        return self._document.value_place(at) if written else self._node_place(node.name)

    def _arrows(self, node: Node) -> Iterator[tuple[str, Location, str]]:
        """Yield each destination of a node: its port, where it is written, and its name."""
        short = ("nodes", node.name, "to") in self._document.values
        for port_name, port in node.ports.items():
            at: TreePath = (
                ("nodes", node.name, "to")
                if short
                else ("nodes", node.name, "out_ports", port_name, "destinations")
            )
            for index, name in enumerate(port.destinations):
                yield port_name, self._document.value_place((*at, index)), name

    def _error(self, place: Location, message: str, hint: str = "") -> None:
        self._document.find(place, message, hint)

    def _warn(self, place: Location, message: str, hint: str = "") -> None:
        self._document.find(place, message, hint, is_warning=True)

    # ------------------------------------------------------------------------ single nodes

    def names_mean_one_thing(self) -> None:
        """A handler is a destination like any other: it cannot have the name of a node."""
        for name in self._graph.settings.dead_letters.handlers:
            if name in self._names:
                place = self._document.key_place(("dead_letters", "handlers", name))
                self._error(place, f"{name!r} is the name of a node, too", "choose another one")

    def connections(self) -> None:
        """Every destination is a node that events can go to."""
        for node in self._graph.nodes.values():
            seen: set[tuple[str, str]] = set()
            for port, place, name in self._arrows(node):
                if (port, name) in seen:
                    self._error(place, f"{name!r} is named twice", "an event goes there once")
                seen.add((port, name))
                self._check_arrow(node, place, name)

    def _check_arrow(self, node: Node, place: Location, name: str) -> None:
        """Check one connection by itself, before the ways through the whole graph are looked at."""
        target = self._graph.nodes.get(name)
        if name not in self._names:
            hint = nearest(name, self._names, "known nodes")
            self._error(place, f"there is no node {name!r}", hint)
        elif node.kind == "exporter":
            self._error(place, "an exporter has no destinations", "remove its destinations")
        elif target is not None and target.kind == "receiver":
            self._error(
                place,
                f"{name!r} is a receiver: it has no input",
                "name an exporter",
            )

    def settings_fit_the_kind(self) -> None:
        """`delivery` is for exporters, and the cap fits the number of workers."""
        workers = self._graph.settings.workers
        for node in self._graph.nodes.values():
            at: TreePath = ("nodes", node.name)
            if node.delivery is not None and node.kind != "exporter":
                place = self._document.key_place((*at, "delivery"))
                self._error(place, "only exporters deliver", "move it to the exporters")
            if isinstance(node.config, quiver_node.Config):
                try:
                    check_count(workers, node.config.as_config())
                except BadInput as error:
                    place = self._document.value_place((*at, "config", "retention", "size_cap"))
                    self._error(place, error.message, error.hint)

    # ------------------------------------------------------------------- between nodes

    def is_whole(self) -> bool:
        """Whether every node and every name is known, so that ways can be followed."""
        known = self._graph.nodes
        return len(known) == len(self._names) and all(
            name in known for node in known.values() for name in node.destinations
        )

    def circles(self) -> bool:
        """Tell of nodes that lead back to themselves; whether there are any."""
        told: set[str] = set()
        for node in self._graph.nodes.values():
            behind = {one.name for one in reached(self._graph, node)}
            if node.name not in behind or node.name in told:
                continue
            # All that can reach this node and are reached by it: the same circle seen from any of
            # its members, so that it is reported once.
            circle = sorted(
                name
                for name in behind
                if node.name in {one.name for one in reached(self._graph, self._graph.nodes[name])}
            )
            told.update(circle)
            message = f"these components form a cycle: {', '.join(circle)}"
            place = next(place for _, place, name in self._arrows(node) if name in circle)
            self._error(place, message, "remove one of these connections")
        return bool(told)

    def flow(self) -> None:
        """Receivers lead to one quiver, quivers to exporters."""
        check_keeps_nothing(self._graph, self._document)
        if self._graph.quivers:
            self._flow_by_quivers()
        else:
            self._flow_without_quiver()
        self._unused()

    def _flow_by_quivers(self) -> None:
        """Check that each receiver fills one quiver, and that nothing gets around it.

        What a receiver answers for must be durable; with two quivers, one could accept an event
        that the other refuses.
        """
        before: set[str] = set()
        for node in self._graph.of_kind("receiver"):
            ways = ways_in(self._graph, node)
            before |= {step.node.name for _, steps in ways for step in steps}
            if not ways:
                message = f"the receiver {node.name!r} does not lead to a quiver"
                names = ", ".join(one.name for one in self._graph.quivers)
                self._error(self._node_place(node.name), message, f"add `to: [{names}]`")
            if len({quiver.name for quiver, _ in ways}) > 1:
                message = f"the receiver {node.name!r} leads to two quivers"
                hint = "an event is accepted by one; let that one lead to all destinations"
                self._error(self._node_place(node.name), message, hint)
            elif len(ways) > 1:
                message = f"several paths lead from {node.name!r} to its quiver"
                self._error(self._node_place(node.name), message, "an event is stored once")
        for node in self._graph.nodes.values():
            for _, place, name in self._arrows(node):
                self._check_step(node, place, self._graph.nodes[name], before)
        for name in sorted(before):
            self._check_before(self._graph.nodes[name])

    def _check_step(self, node: Node, place: Location, target: Node, before: set[str]) -> None:
        """Check one connection; `before` are the processors that lead to a quiver."""
        is_in_front = node.kind == "receiver" or node.name in before
        if is_in_front and not target.is_quiver and target.name not in before:
            hint = BEHIND_HINT.format(name=target.name)
            self._error(place, f"{target.name!r} bypasses the quiver", hint)
        elif target.is_quiver and not is_in_front:
            hint = BEHIND_HINT.format(name=node.name)
            self._error(place, f"{node.name!r} comes before the quiver {target.name!r}", hint)

    def _check_before(self, node: Node) -> None:
        """Check a processor before a quiver, which it may be, and hardly ever is meant to be."""
        place = self._node_place(node.name)
        if node.routes:
            message = f"{node.name!r} comes before the quiver, and chooses between ports"
            self._error(place, message, "let the quiver lead to it: before a quiver is one way")
            return
        message = f"{node.name!r} comes before the quiver: what it drops is answered with success, "
        message += "is in no ledger and cannot be replayed"
        hint = "let the quiver lead to it, unless a smaller buffer is worth that"
        self._warn(place, message, hint)

    def _flow_without_quiver(self) -> None:
        """Check that all receivers lead to the same nodes: they share the implicit quiver."""
        receivers = self._graph.of_kind("receiver")
        for node in receivers:
            if not node.destinations:
                message = f"the receiver {node.name!r} leads nowhere"
                self._error(self._node_place(node.name), message, "add `to: […]`")
            elif node.ports != receivers[0].ports:
                message = f"{node.name!r} and {receivers[0].name!r} lead to different nodes"
                hint = "add a node of type quiver for each of them"
                self._error(self._node_place(node.name), message, hint)

    def _unused(self) -> None:
        """Warn of what is written in the file and does nothing, or only fills the disk.

        Warnings, since a file that is being written has such nodes for a while; and a quiver that
        nobody reads is a legitimate recorder, for as long as its caps are meant.
        """
        sources = [*self._graph.quivers, *self._graph.of_kind("receiver")]
        used = {one.name for source in sources for one in reached(self._graph, source)}
        read = {quiver for _, quiver in named_sources(self._graph.settings.pipelines)}
        for node in self._graph.nodes.values():
            if node.kind != "receiver" and not node.is_quiver and node.name not in used:
                message = f"{node.name!r} is not connected, and is not started"
                self._warn(self._node_place(node.name), message, "connect it, or remove it")
            if node.is_quiver and not node.destinations and node.name not in read:
                message = f"nothing reads the quiver {node.name!r}"
                hint = "what it accepts is removed by age and size alone; add `to: […]`"
                self._warn(self._node_place(node.name), message, hint)
            if node.processor is not None and not node.destinations:
                message = f"{node.name!r} has no destinations"
                self._warn(self._node_place(node.name), message, "connect it, or remove it")
        if not self._graph.of_kind("receiver"):
            place = self._document.key_place(("nodes",))
            self._warn(place, "there is no receiver: only what is stored already is delivered")

    # --------------------------------------------------------------------- destinations

    def destinations(self) -> None:
        """What only the ways through a sound graph show."""
        owners: dict[str, str] = {}
        direct = direct_plan(self._graph)
        for quiver in (*plan(self._graph), *(() if direct is None else (direct,))):
            sources = [found for node in quiver.receivers for found in _received(node)]
            sources += self._written(quiver.name)
            check_limits(self._graph, quiver, self._document)
            check_beside_others(self._graph, quiver, self._document)
            for node in quiver.receivers:
                self._check_signals_before(node, quiver.before.get(node.name, ()))
            fed = [(one.name, one.exporters[0].name) for one in quiver.destinations]
            if quiver.to_nodes is not None:
                fed.append((quiver.to_nodes.name, quiver.to_nodes.name))
            for name, exporter in fed:
                # A destination is one subscriber, and a subscriber belongs to one quiver. Two of
                # them would be two orders, two lags and two accounts under one name.
                if owners.setdefault(name, quiver.name) != quiver.name:
                    message = f"{name!r} is fed by two quivers"
                    hint = "a destination has one order; add a second exporter"
                    self._error(self._node_place(exporter), message, hint)
            for one in quiver.destinations:
                if not _exclude_each_other(one.chains):
                    message = f"several paths lead to {one.name!r}"
                    hint = "it gets each event once, by the first path that lets it through"
                    self._warn(self._node_place(one.exporters[0].name), message, hint)
                self._check_limit(one.exporters[0], quiver.config)
                if all(node.kind == "exporter" for node in one.exporters):
                    first: TreePath = ("nodes", one.exporters[0].name)
                    self._check_signals(one, sources, first)
                    self._check_newest_first(one, sources, first)
                    self._check_order(one, sources)
        received = [found for node in self._graph.of_kind("receiver") for found in _received(node)]
        for name, node in self._graph.handlers.items():
            at: TreePath = ("dead_letters", "handlers", name)
            handler = DestinationPlan(name, (node,))
            self._check_signals(handler, received, at)
            self._check_newest_first(handler, received, at)
        self._signals_are_known()
        for node in self._graph.nodes.values():
            self._check_turns(node)
            self._check_routes(node)
        self._check_loops()

    def _written(self, quiver: str) -> Iterator[tuple[str, Signal]]:
        """Yield the pipelines of the file that write into a quiver."""
        for pipeline, vertex, name in writers(self._graph):
            if name == quiver:
                yield f"the pipeline sink {f'{pipeline}.{vertex}'!r} writes", ROWS

    def _signals_are_known(self) -> None:
        for node in self._graph.of_kind("receiver"):
            for name in node.component.produces(node.config):
                if isinstance(name, str) and signal_named(name) is None:
                    message = f"{node.name!r} receives {name!r}, which is not a signal"
                    known = ", ".join(dict.fromkeys(known.name for known in all_signals()))
                    self._error(self._node_place(node.name), message, f"known signals: {known}")

    def _check_signals(
        self, one: DestinationPlan, sources: Iterable[tuple[str, Signal]], at: TreePath
    ) -> None:
        """A destination takes what fills its quiver, and knows the order of it."""
        place, delivery = self._document.key_place(at), one.delivery
        for source, signal in sources:
            if delivery.signals is not None and signal.name not in delivery.signals:
                continue
            refusal = one.refusal_of(signal)
            if refusal is not None:
                message = f"{one.name!r} cannot take what {source}: {refusal}"
                hint = "choose another one, or leave the signal out: `delivery: {signals: […]}`"
                self._error(place, message, hint)
            elif delivery.order == "key" and signal.order_key(delivery.key) is None:
                named = "" if delivery.key is None else f" {delivery.key!r}"
                message = f"{one.name!r} has `order: key`, and {signal.name} has no order key"
                known = ", ".join(signal.order_keys)
                hint = f"its order keys: {known}" if known else "use `order: received`"
                self._error(place, message + named, hint)

    def _check_signals_before(self, receiver: Node, steps: ProcessorSteps) -> None:
        """Processors before the quiver take what the receiver accepts, all of it."""
        for node in (step.node for step in steps):
            takes = node.component.takes(node.config)
            for source, signal in _received(receiver):
                if not takes.includes(signal):
                    message = f"{node.name!r} cannot take what {source}: it takes {takes}, not "
                    message += f"{signal.name} ({signal.form})"
                    hint = "let the quiver lead to it, on the way to a destination"
                    self._error(self._node_place(node.name), message, hint)

    def _check_order(self, one: DestinationPlan, sources: Iterable[tuple[str, Signal]]) -> None:
        """Several workers have several orders: what promises one needs a key to keep it by."""
        workers = self._graph.settings.workers
        wanted = one.delivery.signals
        known = [signal for _, signal in sources if wanted is None or signal.name in wanted]
        is_any_order_fine = bool(known) and not any(signal.promises_order for signal in known)
        if workers == 1 or one.delivery.order != "received" or is_any_order_fine:
            return
        for node in one.exporters:
            at: TreePath = ("nodes", node.name, "delivery", "order")
            written = at in self._document.values
            place = self._document.value_place(at) if written else self._node_place(node.name)
            message = f"{node.name!r} is delivered in the order received, and there are "
            message += f"{workers} workers: each has an order of its own"
            self._error(place, message, "use `delivery: {order: key}`, or one worker")

    def _check_newest_first(
        self, one: DestinationPlan, sources: Iterable[tuple[str, Signal]], at: TreePath
    ) -> None:
        """Only what promises no order may be delivered newest first."""
        if one.delivery.after_outage != "newest_first":
            return
        wanted = one.delivery.signals
        known = [signal for _, signal in sources if wanted is None or signal.name in wanted]
        ordered = ", ".join(signal.name for signal in known if signal.promises_order)
        if ordered or not known:
            message = f"{one.name!r} is delivered newest first after an outage, and "
            message += f"{ordered} promises an order" if ordered else "it is not known what it gets"
            hint = "list what it gets in `delivery.signals`, or use `after_outage: oldest_first`"
            self._error(
                self._document.value_place((*at, "delivery", "after_outage")), message, hint
            )

    def _check_limit(self, node: Node, quiver: quiver_node.Config) -> None:
        """What may wait is at least a segment: nothing smaller can be dropped."""
        limit_bytes = None if node.delivery is None else node.delivery.retention_bytes
        if limit_bytes is not None and limit_bytes < quiver.segment.target_size:
            at: TreePath = ("nodes", node.name, "delivery", "retention_size")
            segment = written_size(quiver.segment.target_size)
            message = f"retention_size is less than a segment ({segment})"
            hint = "raise it, or lower `segment.target_size` of the quiver"
            self._error(self._document.value_place(at), message, hint)
        cap_bytes = quiver.retention.size_cap
        if limit_bytes is not None and limit_bytes > cap_bytes:
            at = ("nodes", node.name, "delivery", "retention_size")
            message = f"retention_size is more than the quiver holds ({written_size(cap_bytes)})"
            hint = "lower it, or raise the quiver's `retention.size_cap`, which is reached first"
            self._warn(self._document.value_place(at), message, hint)

    def _check_turns(self, node: Node) -> None:
        """Check exporters that take turns: one subscriber, so one kind of delivery."""
        for port_name, port in node.ports.items():
            if node.kind == "receiver" and self._graph.quivers:
                continue  # one destination, the quiver
            if not takes_turns(port):
                continue
            at: TreePath = ("nodes", node.name, "out_ports", port_name)
            place = self._document.value_place((*at, "dispatch_strategy"))
            members = [self._graph.nodes[name] for name in port.destinations]
            if any(one.kind != "exporter" for one in members):
                hint = "put processors before this node, or use broadcast"
                self._error(place, "only exporters can take turns", hint)
            elif any(one.sends_parts for one in members):
                continue  # told already
            elif any(one.delivery != members[0].delivery for one in members):
                hint = "give them the same `delivery`"
                self._error(place, "exporters that take turns are one destination", hint)
            if not NAME_PATTERN.fullmatch(name := group_name(node, port_name)):
                self._error(
                    place, f"{name!r} is too long a name", "shorten the node's or the port's"
                )

    def _check_routes(self, node: Node) -> None:
        """A port that a router uses and that leads nowhere is events that nobody gets."""
        used = getattr(node.processor, "ports", None)
        if not node.routes or used is None:
            return
        for port in sorted(set(used) - set(node.ports)):
            message = f"{node.name!r} sends events to the port {port!r}, and nothing is behind it"
            hint = nearest(port, node.ports, "its ports")
            self._error(self._node_place(node.name), message, hint or "add it to `out_ports`")
        for port in sorted(set(node.ports) - set(used)):
            place = self._document.key_place(("nodes", node.name, "out_ports", port))
            self._warn(place, f"no rule of {node.name!r} uses the port {port!r}")

    def _check_loops(self) -> None:
        """Warn of exporters that send to this gateway. A warning, since a processor may let each
        event around once; nobody can tell that from the file.
        """
        listening = list(self._listening())
        for node in self._graph.of_kind("exporter"):
            for address in addresses_in(node.config.model_dump(mode="json")):
                for name, (_, listener) in listening:
                    if reaches(address, listener):
                        message = f"{node.name!r} sends to {name!r} of this same file"
                        hint = "events would come back for ever; name another address"
                        self._warn(self._node_place(node.name), message, hint)

    def own_telemetry(self) -> None:
        """What we tell of ourselves goes elsewhere, to somebody who takes it."""
        settings, node = self._graph.settings.telemetry, self._graph.telemetry
        if settings is None or node is None:
            return
        place = self._document.key_place(("telemetry",))
        takes = node.component.takes(node.config)
        for index, name in enumerate(settings.signals):
            signal = signal_named(name)
            if signal is not None and not takes.includes(signal):
                at: TreePath = ("telemetry", "signals", index)
                where = self._document.value_place(at) if at in self._document.values else place
                message = f"telemetry sends {name}, and its `preset` does not take them"
                self._error(where, message, "leave them out of `signals`, or use another preset")
        for address in addresses_in(node.config.model_dump(mode="json")):
            for listener, (_, listening) in self._listening():
                if reaches(address, listening):
                    message = f"telemetry is sent to {listener!r} of this same file"
                    hint = "it would tell of itself for ever; name another address"
                    self._error(place, message, hint)

    # -------------------------------------------------------------------------- resources

    def _listening(self) -> Iterator[tuple[str, tuple[Location, Address]]]:
        admin = self._graph.settings.admin.listen
        if admin is not None:
            place = self._document.value_place(("admin", "listen"))
            yield "admin", (place, parse_address(admin))
        for node in self._graph.of_kind("receiver"):
            for key, listen in listeners_of(node.config).items():
                place = self._setting_place(node, key)
                yield node.name, (place, parse_address(listen))
        for at, _, address in flight_addresses(self._graph):
            yield "flight", (self._document.value_place(at), address)

    def addresses(self) -> None:
        """Two listeners do not share an address, and workers can share theirs.

        Found here and not by the kernel: with `SO_REUSEPORT`, which several workers need, two
        receivers on one port would start, and each get some of the other's connections.
        """
        seen: list[tuple[str, Address]] = []
        for name, (place, address) in self._listening():
            if (
                address.port == 0
                and name not in ("admin", "flight")
                and self._graph.settings.workers > 1
            ):
                message = "workers share a port, and port 0 is another one for each of them"
                self._error(place, message, "name a port")
            for other, taken in seen:
                if clash(address, taken):
                    self._error(place, f"{other!r} listens there already", "use another port")
            seen.append((name, address))

    def directories(self) -> None:
        """Every directory has one owner."""
        seen: list[tuple[str, Path]] = [("dead_letters", dead_letters_directory(self._graph))]
        for node in self._graph.nodes.values():
            key, directory = "directory", None
            if isinstance(node.config, quiver_node.Config):
                key, directory = "path", quiver_directory(self._graph, node.name, node.config)
            elif isinstance(path := getattr(node.config, key, None), str):
                directory = _place(self._graph.base_dir, path)
            if directory is None:
                continue
            place = self._setting_place(node, key)
            for other, taken in seen:
                # Inside counts as well: retention measures a directory with everything below it.
                if _overlap(directory.resolve(), taken.resolve()):
                    message = f"its directory is also that of {other!r}, or one is inside the other"
                    self._error(place, message, "give each a directory of its own")
            seen.append((node.name, directory))


def _received(node: Node) -> Iterator[tuple[str, Signal]]:
    """Yield what a receiver accepts, with words that say so."""
    for one in node.component.produces(node.config):
        signal = signal_named(one) if isinstance(one, str) else one
        if signal is not None:
            yield f"{node.name!r} receives", signal


def _place(base_dir: Path, path: str) -> Path:
    """Return a directory, or a path of its own kind for a bucket."""
    if not is_bucket(path):
        return base_dir / path
    scheme, _, rest = path.partition("://")
    return Path("/", f"{scheme.lower()}:", *rest.strip("/").split("/"))


def _overlap(one: Path, other: Path) -> bool:
    return one == other or one in other.parents or other in one.parents


def _exclude_each_other(chains: tuple[ProcessorSteps, ...]) -> bool:
    """Whether an event takes at most one of these ways: they part at the ports of a router."""
    return all(
        _part_at_a_router(one, other) for i, one in enumerate(chains) for other in chains[i + 1 :]
    )


def _part_at_a_router(one: ProcessorSteps, other: ProcessorSteps) -> bool:
    """Two chains part at the first step in which they differ. If that is the same node by two
    ports, a router has decided, and an event takes one of them; if it is two nodes, both may
    let it through.
    """
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            return mine.node is theirs.node
    return False
