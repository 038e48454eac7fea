"""What is wrong with the exporters `nodes` of a file, at the lines that have to change.

They are exporters by their place only. They take whole segments as they are on disk, so nothing can
come between, and what waits for a data node lies in the quiver itself, within its `size_cap`.
"""

from __future__ import annotations

from holdfast.graph import quiver_node
from holdfast.graph.addresses import flight_addresses, reaches
from holdfast.graph.document import Document, TreePath
from holdfast.graph.model import Graph, Node
from holdfast.graph.paths import QuiverPlan, reached, readers, takes_turns
from holdfast.handoff import settings
from holdfast.handoff.membership import SUBSCRIBER_PREFIX
from holdfast.receive.listening import parse_address
from holdfast.units import size_text


def check_to_nodes(graph: Graph, document: Document) -> None:
    """Write down what is wrong with them and around them, whatever else is wrong."""
    for name, handler in graph.handlers.items():
        if handler.sends_parts:
            place = document.value_place(("dead_letters", "handlers", name, "type"))
            message = "data nodes take segments of a quiver, not rejected events"
            document.find(place, message, "use another exporter")
    for node in graph.nodes.values():
        _check_before(graph, node, document)
        if node.sends_parts:
            _check_settings(graph, node, document)


def _check_before(graph: Graph, node: Node, document: Document) -> None:
    """Nothing comes before them but the quiver, or receivers where it is hidden.

    A processor changes events, and a segment is sent as it is: what one filters or redacts would
    reach the data nodes all the same. It is an error, because nobody would notice.
    """
    named = [name for name in node.destinations if name in graph.nodes]
    behind = [name for name in named if graph.nodes[name].sends_parts]
    place = document.key_place(("nodes", node.name))
    if behind and node.kind == "processor" and not node.is_quiver:
        message = f"the processor {node.name!r} comes before {behind[0]!r}, whose data nodes get "
        message += "segments as they are on disk"
        document.find(place, message, f"let the quiver lead to {behind[0]!r} itself")
    for port_name, port in node.ports.items():
        if takes_turns(port) and set(port.destinations) & set(behind):
            at: TreePath = ("nodes", node.name, "out_ports", port_name, "dispatch_strategy")
            hint = "use broadcast; `replicas` of its config shares parts out among data nodes"
            document.find(document.value_place(at), "data nodes take no turns", hint)
    if node.is_quiver or (node.kind == "receiver" and not graph.quivers):
        found = sorted(one.name for one in reached(graph, node) if one.sends_parts)
        if len(found) > 1:
            message = f"{node.name!r} leads to data nodes by {' and '.join(map(repr, found))}"
            document.find(place, message, "name all data nodes in one exporter")


def _check_settings(graph: Graph, node: Node, document: Document) -> None:
    """Check the settings of one exporter against each other, and against the gateway's own.

    Two names for one address would be two owners of one disk. The gateway's own Flight server takes
    no parts: all of them would wait for it.
    """
    config = node.config
    assert isinstance(config, settings.Config), f"BUG: {node}"
    at: TreePath = ("nodes", node.name)
    if node.delivery is not None:
        message = "data nodes are sent segments: `delivery` says nothing of that"
        hint = "set `max_size`, `max_age` and `on_full` in its config"
        document.find(document.key_place((*at, "delivery")), message, hint)
    is_all = config.nodes_file is None and config.nodes_dns is None
    if config.replicas is not None and len(config.nodes) < config.replicas and is_all:
        message = f"replicas is {config.replicas}, and there are {len(config.nodes)} data nodes"
        place = document.value_place((*at, "config", "replicas"))
        document.find(place, message, "each of them gets everything", is_warning=True)
    known: dict[str, str] = {}
    own = {str(address): address for _, _, address in flight_addresses(graph)}
    for name, text in config.nodes.items():
        place = document.value_place((*at, "config", "nodes", name))
        if known.setdefault(text, name) != name:
            message = f"{name!r} has the address of {known[text]!r}"
            document.find(place, message, "a data node has one name")
        for listening in own.values():
            if reaches(parse_address(text), listening):
                message = f"{name!r} is the Flight server of this same gateway"
                document.find(place, message, "name the address of a `holdfast node`")


def check_beside_others(graph: Graph, quiver: QuiverPlan, document: Document) -> None:
    """No other reader of the quiver has a name that is kept for data nodes."""
    if quiver.to_nodes is None:
        return
    found: list[tuple[str, TreePath]] = [
        (one.name, ("nodes", one.exporters[0].name)) for one in quiver.destinations
    ]
    found += [
        (one.subscriber, ("pipelines", one.pipeline))
        for one in readers(graph)
        if one.quiver == quiver.name
    ]
    for name, at in found:
        if name.startswith(SUBSCRIBER_PREFIX):
            message = f"{name!r} is how the quiver calls a data node"
            document.find(document.key_place(at), message, "choose another name")


def check_limits(graph: Graph, quiver: QuiverPlan, document: Document) -> None:
    """What may wait for data nodes fits into the quiver, and is at least a segment.

    A limit above what the quiver holds is never reached: the quiver refuses events first, and the
    policy that the limit was written for never applies.
    """
    node = quiver.to_nodes
    config = None if node is None else node.config
    if node is None or not isinstance(config, settings.Config) or config.max_size is None:
        return
    place = document.value_place(("nodes", node.name, "config", "max_size"))
    target_bytes, workers = quiver.config.segment.target_size, graph.settings.workers
    if config.max_size // workers < target_bytes:
        each = "" if workers == 1 else f", divided by {workers} workers,"
        message = f"max_size{each} is less than a segment ({size_text(target_bytes)})"
        document.find(place, message, "raise it, or lower `segment.target_size` of the quiver")
    room_bytes = _room_bytes(quiver.config)
    # A part waits for `replicas` nodes and lies there once: so much if all of them are away.
    nodes = max(1, len(config.nodes))
    wanted_bytes = config.max_size * nodes // min(config.replicas or nodes, nodes)
    if wanted_bytes > room_bytes:
        message = f"{size_text(wanted_bytes)} may wait for data nodes (max_size), and the quiver "
        message += f"has room for {size_text(room_bytes)} (size_cap without its reserve)"
        hint = (
            "lower `max_size`, or raise `retention.size_cap` of the quiver: it would refuse first"
        )
        document.find(place, message, hint)


def _room_bytes(config: quiver_node.Config) -> int:
    """Return what a quiver can hold: without what it keeps free for itself."""
    cap_bytes = config.retention.size_cap
    return cap_bytes - min(2 * config.segment.target_size, cap_bytes // 4)
