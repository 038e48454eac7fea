"""Prove a copy of the user's own configuration, on the disk that it names.

What decides whether an event survives is the receiver, the buffer and the disk: these are taken as
the file has them, with another data directory beside the file's own and ports of their own. What
the file sends to is left alone: two local backends take the place of all destinations, and the
processors, which may filter, and the pipelines are left out. So nothing that runs is touched, and
what is accepted has to arrive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml

from holdfast.errors import BadConfig
from holdfast.extras import need
from holdfast.graph.loader import load
from holdfast.graph.model import Graph, Node
from holdfast.prove.gateway import LINEAGE_ENDS, GatewayEnds, GatewayProver, GraphPlaces
from holdfast.prove.runner import ProofOptions, ProofRunner

# Of a receiver: what says how it works, and not where it listens and whom it lets in.
RECEIVER_KEYS = ("limits", "connections", "admission")


def disk_of(config: Path) -> Path:
    """Return the nearest folder that exists on the way to the file's data directory."""
    folder = load(config).graph.data_dir.absolute()
    return next(one for one in (folder.parent, *folder.parents) if one.is_dir())


def prove_config(options: ProofOptions, config: Path) -> dict[str, Any]:
    """Kill a gateway with this file's receiver and buffer, and its backends, under load."""
    loaded = load(config)
    nodes = loaded.document.value.get("nodes", {})
    receiver = _receiver(loaded.graph, config)
    buffer = next((_config(nodes, n.name) for n in loaded.graph.nodes.values() if n.is_quiver), {})
    ends = _with_settings(_ends(receiver), _config(nodes, receiver.name), buffer)
    runner, prover = ProofRunner(options), GatewayProver(options, ends)
    verdict = runner.run(prover, options.kills, options.seconds)
    findings = {**asdict(verdict), "receiver": receiver.name, "disk": str(options.data_dir)}
    return runner.report(config.name, verdict.ok, findings)


def _receiver(graph: Graph, config: Path) -> Node:
    for node in graph.of_kind("receiver"):
        if node.component.type in ("openlineage", "otlp"):
            return node
    raise BadConfig(
        "there is no receiver of OpenLineage or OTLP in it",
        hint="prove another file, or `holdfast prove gateway`",
        path=str(config),
    )


def _ends(receiver: Node) -> GatewayEnds:
    if receiver.component.type == "openlineage":
        return LINEAGE_ENDS
    need("otel")
    from holdfast.prove.otel import TELEMETRY_ENDS

    return TELEMETRY_ENDS


def _config(nodes: Mapping[str, Any], name: str) -> dict[str, Any]:
    node = nodes.get(name)
    return dict(node.get("config") or {}) if isinstance(node, dict) else {}


def _with_settings(
    ends: GatewayEnds, receiver: Mapping[str, Any], buffer: Mapping[str, Any]
) -> GatewayEnds:
    """Return the ends of a proof around the file's own buffer."""
    kept = {key: receiver[key] for key in RECEIVER_KEYS if key in receiver}
    own = {key: value for key, value in buffer.items() if key != "path"}

    def graph(places: GraphPlaces) -> str:
        tree = yaml.safe_load(ends.graph(places))
        nodes = tree["nodes"]
        nodes["receiver"]["config"] = {**kept, **nodes["receiver"]["config"]}
        timeout = nodes["buffer"]["config"]["append"]
        nodes["buffer"]["config"] = {"append": timeout, **own}
        text: str = yaml.safe_dump(tree, sort_keys=False)
        return text

    return replace(ends, graph=graph)
