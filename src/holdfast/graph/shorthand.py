"""Data nodes in one line: keys at the top of a graph file that stand for longer settings.

    data_node_list               an exporter `data_nodes` of type `nodes`, behind the quiver
    handoff_max_size_mb          its `max_size`: what may wait for one data node
    handoff_store_max_size_mb    `retention.size_cap` of the quiver, which holds what waits
    handoff_root_path            `path` of the quiver

They are flags of `holdfast up`, too, which come before the file's keys. All of them are written out
before the file is checked: what follows, and `print-config`, knows the long form alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.graph.document import Document
from holdfast.graph.registry import NODES, QUIVER, Component

EXPORTER = "data_nodes"
HIDDEN_QUIVER = "quiver"
MAX_SIZE, STORE_SIZE = "handoff_max_size_mb", "handoff_store_max_size_mb"
NODE_LIST, ROOT_PATH = "data_node_list", "handoff_root_path"
KEYS = (NODE_LIST, MAX_SIZE, STORE_SIZE, ROOT_PATH)


def write_out(document: Document, flags: Mapping[str, Any]) -> None:
    """Write the keys of a document out, and flags instead of them; wrong ones are left as found."""
    value = document.value
    if not isinstance(value, dict):
        return
    value.update(flags)
    given = {key: value[key] for key in KEYS if value.get(key) is not None}
    if given and isinstance(value.get("nodes"), dict):
        _LongForm(document, value["nodes"], given).write()


class _LongForm:
    """Writes the long form into the tree of a file that nobody has checked yet.

    Anything in it may have any type, so everything is looked at before it is used, and left alone
    where it is not what it should be: the checks that follow say what is wrong, at its line. Only
    what they cannot see any more afterwards is reported here.
    """

    def __init__(self, document: Document, nodes: dict[str, Any], given: dict[str, Any]) -> None:
        self._document = document
        self._nodes = nodes
        self._given = given

    def write(self) -> None:
        quiver = self._quiver()
        if quiver is None:
            return
        config = _inside(quiver, "config")
        if ROOT_PATH in self._given:
            config["path"] = self._given[ROOT_PATH]
        if _is_number(self._given.get(STORE_SIZE)):
            _inside(config, "retention")["size_cap"] = f"{self._given[STORE_SIZE]}MB"
        exporter = self._exporter(quiver)
        if exporter is not None and _is_number(self._given.get(MAX_SIZE)):
            _inside(exporter, "config")["max_size"] = f"{self._given[MAX_SIZE]}MB"

    def _exporter(self, quiver: dict[str, Any]) -> dict[str, Any] | None:
        """Return the exporter to data nodes: the one of the file, or a new one."""
        found = [name for name, node in self._nodes.items() if _is(node, NODES)]
        if NODE_LIST not in self._given:
            if MAX_SIZE in self._given and len(found) != 1:
                self._find(MAX_SIZE, "there is not one exporter of type nodes", "set `max_size`")
                return None
            return self._nodes[found[0]] if found else None
        taken = found or [name for name in self._nodes if name == EXPORTER]
        if taken:
            message = f"the exporter {taken[0]!r} is there already"
            self._find(NODE_LIST, message, "name all data nodes in its `nodes`")
            return None
        exporter = {"kind": "exporter", "type": NODES.type, "config": {}}
        exporter["config"] = {"nodes": self._given[NODE_LIST]}
        self._nodes[EXPORTER] = exporter
        # It stands nowhere in the file: what is found wrong with it is said at the short key.
        self._document.keys["nodes", EXPORTER] = self._document.key_place((NODE_LIST,))
        self._document.values["nodes", EXPORTER] = self._document.value_place((NODE_LIST,))
        if isinstance(quiver.get("out_ports"), dict) and quiver["out_ports"]:
            quiver["out_ports"][EXPORTER] = {"destinations": [EXPORTER]}
        else:
            quiver["to"] = [*_names(quiver.get("to")), EXPORTER]
        return exporter

    def _quiver(self) -> dict[str, Any] | None:
        """Return the one quiver; the hidden one is written out between receivers and the rest."""
        found = [node for node in self._nodes.values() if _is(node, QUIVER)]
        if len(found) == 1 and isinstance(found[0], dict):
            return found[0]
        key = next(iter(self._given))
        if found:
            hint = "write an exporter of type nodes behind the one that is meant"
            self._find(key, f"there are {len(found)} quivers", hint)
            return None
        receivers = [
            node
            for node in self._nodes.values()
            if isinstance(node, dict) and node.get("kind") == "receiver"
        ]
        if HIDDEN_QUIVER in self._nodes or any(node.get("out_ports") for node in receivers):
            self._find(key, "the quiver is not in the file", "add a node of type quiver")
            return None
        # That all of them lead to the same is checked where the file is, of what is left.
        behind = [name for node in receivers[:1] for name in _names(node.get("to"))]
        for node in receivers:
            if _names(node.get("to")) == behind:
                node["to"] = [HIDDEN_QUIVER]
        quiver = {"kind": "processor", "type": QUIVER.type, "to": behind, "config": {}}
        self._nodes[HIDDEN_QUIVER] = quiver
        return quiver

    def _find(self, key: str, message: str, hint: str) -> None:
        self._document.find(self._document.key_place((key,)), f"{key}: {message}", hint)


def _is(node: object, component: Component) -> bool:
    if not isinstance(node, dict) or node.get("kind") != component.kind:
        return False
    return (node.get("type") or node.get("plugin_urn")) in (component.type, *component.aliases)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _inside(node: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the mapping behind a key, which is made if there is none."""
    if not isinstance(node.get(key), dict):
        node[key] = {}
    found: dict[str, Any] = node[key]
    return found


def _names(value: object) -> list[Any]:
    return [value] if isinstance(value, str) else list(value) if isinstance(value, list) else []
