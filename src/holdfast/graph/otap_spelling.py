"""Files of OTAP dataflow: what its names mean beyond the names of ours, written out.

    urn:otap:processor:persistence   `round_robin` behind it: every destination gets everything
    processor:durable_buffer         its settings are not in sections
    exporter:otlp_http               the exporter `otlp` with `protocol: http`

All else in such files is another name of a component (`registry.py`) or of a key, and the models
know it. These three depend on the name by which a component is called, which nothing knows that
comes later. So they are written into the tree before it is checked, and `print-config` shows the
result.

**Why `round_robin` is not what it says there.** The proposal's file has it behind its persistence
component, in front of two exporters, and its text says of the same file that each of them is a
subscriber with a cursor of its own, and that data goes when both have acknowledged it. Read to the
letter, each backend would get half of everything. Under our own names it means what it says:
exporters that take turns.
"""

from __future__ import annotations

from typing import Any

from holdfast.graph.document import Document, TreePath
from holdfast.graph.registry import DURABLE_BUFFER, OTAP_PERSISTENCE, OTLP_HTTP

# Where the settings of a durable buffer are here.
_SECTIONS = {
    "retention_size_cap": ("retention", "size_cap"),
    "size_cap_policy": ("retention", "size_cap_policy"),
    "max_age": ("retention", "max_age"),
    "max_segment_open_duration": ("segment", "max_open_duration"),
}


def write_out_otap(document: Document) -> None:
    """Write out what the nodes of a document say by their names; wrong ones are left as found."""
    value = document.value
    nodes = value.get("nodes") if isinstance(value, dict) else None
    for name, node in nodes.items() if isinstance(nodes, dict) else ():
        if not isinstance(node, dict):
            continue
        kind, named = node.get("kind"), node.get("type") or node.get("plugin_urn")
        if kind == "processor" and named == OTAP_PERSISTENCE:
            _send_all_to_each(document, node, ("nodes", name))
        elif kind == "processor" and named in DURABLE_BUFFER:
            _put_in_sections(document, node, ("nodes", name))
        elif kind == "exporter" and named in OTLP_HTTP and _has_config(node):
            node["config"].setdefault("protocol", "http")


def _has_config(node: dict[str, Any]) -> bool:
    return isinstance(node.get("config"), dict)


def _send_all_to_each(document: Document, node: dict[str, Any], at: TreePath) -> None:
    ports = node.get("out_ports")
    for name, port in ports.items() if isinstance(ports, dict) else ():
        if not isinstance(port, dict) or port.get("dispatch_strategy") != "round_robin":
            continue
        port["dispatch_strategy"] = "broadcast"
        behind = port.get("destinations")
        if isinstance(behind, list) and len(behind) > 1:
            place = document.value_place((*at, "out_ports", name, "dispatch_strategy"))
            message = f"round_robin behind {OTAP_PERSISTENCE} is read as broadcast: each of "
            message += f"{', '.join(map(str, behind))} gets everything"
            hint = "write `broadcast`; exporters behind a node of `type: quiver` can take turns"
            document.find(place, message, hint, is_warning=True)


def _put_in_sections(document: Document, node: dict[str, Any], at: TreePath) -> None:
    if not _has_config(node):
        return
    config = node["config"]
    for key, (section, new) in _SECTIONS.items():
        inner = config.get(section, {})
        if key not in config or not isinstance(inner, dict) or new in inner:
            continue
        config[section] = {**inner, new: config.pop(key)}
        # What is found wrong with it is told where it stands.
        place = document.value_place((*at, "config", key))
        document.values.setdefault((*at, "config", section), place)
        document.values[*at, "config", section, new] = place
        document.keys[*at, "config", section, new] = document.key_place((*at, "config", key))
