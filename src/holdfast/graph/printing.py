"""A graph as a file again (every default filled in, every secret hidden), as text, and as a chart.

What is printed can be loaded, and means the same; a secret that was written as `${env:…}` or
`${file:…}` is printed so, any other as asterisks.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import ValidationError

from holdfast.graph.document import FLOAT, OTHER_INT, TreePath, escaped
from holdfast.graph.loader import Loaded
from holdfast.graph.model import Graph, Node
from holdfast.graph.paths import IMPLICIT_QUIVER, readers, takes_turns, writers
from holdfast.settings import Secret, Settings
from holdfast.settings.units import IN_UNITS

MASK = str(Secret("hidden"))
_LINE_ENDS = re.compile("[\r\x85\u2028\u2029]")
_PASSWORD_IN_URL = re.compile(r"(?<=://)([^/@\s:]*):[^/@\s]+(?=@)")
# Such as `?api_key=…`: a backend may want it there.
_SECRET_IN_QUERY = re.compile(
    r"([?&][^=&#\s]*(?:auth|credential|key|passw|secret|session|sig|token)[^=&#\s]*=)[^&#\s]+",
    re.IGNORECASE,
)


def printed(loaded: Loaded) -> dict[str, Any]:
    """Return the whole file as plain data."""
    graph = loaded.graph
    tree = graph.settings.model_dump(mode="json", by_alias=True, context={IN_UNITS: True})
    for name, node in graph.nodes.items():
        tree["nodes"][name] = _printed_node(node, tree["nodes"][name])
    for name, node in graph.handlers.items():
        tree["dead_letters"]["handlers"][name] |= _settings_of(node)
    if graph.telemetry is not None:
        tree["telemetry"] |= _settings_of(graph.telemetry)
    shown: dict[str, Any] = _shown(tree, (), loaded.document.references)
    return shown


def as_yaml(tree: dict[str, Any]) -> str:
    """Return plain data as a file."""
    text: str = yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return text


def _printed_node(node: Node, written: dict[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {"kind": node.kind, "type": node.component.type}
    shown |= {key: written[key] for key in ("to", "out_ports") if written[key]}
    return shown | _settings_of(node)


def _settings_of(node: Node) -> dict[str, Any]:
    shown = {"config": _filled_in(node.config)}
    if node.delivery is not None:
        shown["delivery"] = node.delivery.model_dump(
            mode="json", by_alias=True, context={IN_UNITS: True}
        )
    return shown


def _filled_in(config: Settings) -> dict[str, Any]:
    """Return settings with their defaults, but for those that may not be written beside others.

    Which defaults may be written beside each other is known to the validators of a component alone
    (one of two keys, never both). So each is tried, and kept if the whole still validates.
    """
    kept = {key: getattr(config, key) for key in config.model_fields_set}
    for key in type(config).model_fields:
        with_default = {**kept, key: getattr(config, key)}
        with contextlib.suppress(ValidationError):
            type(config).model_validate(with_default)
            kept = with_default
    fields = type(config).model_fields
    shown: dict[str, Any] = config.model_dump(mode="json", by_alias=True, context={IN_UNITS: True})
    keys = {fields[name].alias or name for name in kept}
    return {key: value for key, value in shown.items() if key in keys}


def _shown(value: Any, at: TreePath, references: dict[TreePath, str]) -> Any:
    """Return a value as it may be seen by anybody.

    Two nets: what a model calls a secret is masked whatever it holds, and addresses are searched
    for passwords and keys in models that call them plain text.
    """
    if isinstance(value, dict):
        return {key: _shown(inner, (*at, key), references) for key, inner in value.items()}
    if isinstance(value, list):
        return [_shown(inner, (*at, index), references) for index, inner in enumerate(value)]
    if value == MASK:
        return references.get(at, MASK)
    return escaped(_without_secrets(value)) if isinstance(value, str) else value


def _without_secrets(text: str) -> str:
    """Return a text in which addresses tell no password and no key."""
    if "://" not in text:
        return text
    return _SECRET_IN_QUERY.sub(rf"\1{MASK}", _PASSWORD_IN_URL.sub(rf"\1:{MASK}", text))


class _Dumper(yaml.SafeDumper):
    """Writes what `document.resolve` reads back as it was.

    PyYAML writes for YAML 1.1 readers. Here text that YAML 1.2 would take for a number has to be
    quoted, and text that only YAML 1.1 would misread (`on`, `12:30`) is quoted as well, for other
    tools.
    """

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # Line ends other than "\n" survive within double quotes only, as escapes.
    style = '"' if _LINE_ENDS.search(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _represent_number(dumper: yaml.SafeDumper, number: float) -> yaml.ScalarNode:
    if math.isnan(number) or math.isinf(number):
        return dumper.represent_float(number)
    return dumper.represent_scalar("tag:yaml.org,2002:float", repr(number))


_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(float, _represent_number)
# Beside what YAML 1.1 takes for a number: text that looks like one is put into quotes.
for kind, form, first in (("float", FLOAT, "-+.0123456789"), ("int", OTHER_INT, "0")):
    whole = re.compile(rf"(?:{form.pattern})\Z")
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", whole, list(first))


_SHAPES = {
    "receiver": ("([", "])"),
    "processor": ("[", "]"),
    "exporter": ("[/", "/]"),
    "pipeline": ("{{", "}}"),
}


def arrows(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """Yield every connection: from, to, and what there is to say about it.

    A quiver that the file does not mention is drawn all the same: it is where the disk is used.
    """
    hidden = IMPLICIT_QUIVER if _is_quiver_hidden(graph) else None
    for node in graph.nodes.values():
        if hidden is not None and node.kind == "receiver":
            yield node.name, hidden, ""
    for node in _sources(graph):
        for port_name, port in node.ports.items():
            label = port_name if len(node.ports) > 1 else ""
            if takes_turns(port):
                label = f"{label} in turns".strip()
            for target in port.destinations:
                yield hidden if hidden and node.kind == "receiver" else node.name, target, label
    for quiver, pipeline in sorted({(one.quiver, one.pipeline) for one in readers(graph)}):
        yield quiver, pipeline_label(pipeline), ""
    for pipeline, quiver in sorted({(name, quiver) for name, _, quiver in writers(graph)}):
        yield pipeline_label(pipeline), quiver, ""


def pipeline_label(name: str) -> str:
    """Return how a pipeline is called in a drawing: a node may have its name."""
    return f"pipeline {name}"


def _sources(graph: Graph) -> list[Node]:
    """Return the nodes whose connections are drawn; receivers before a hidden quiver share one."""
    receivers = graph.of_kind("receiver")
    others = [node for node in graph.nodes.values() if node.kind != "receiver"]
    return [*(receivers[:1] if _is_quiver_hidden(graph) else receivers), *others]


def _is_quiver_hidden(graph: Graph) -> bool:
    """Whether there is a quiver that the file does not mention."""
    return not graph.quivers and not graph.keeps_nothing


def as_text(graph: Graph) -> str:
    """Return one line per connection, and one per node without any."""
    lines = [
        f"{source} -> {target}" + (f"  ({label})" if label else "")
        for source, target, label in arrows(graph)
    ]
    connected = {name for source, target, _ in arrows(graph) for name in (source, target)}
    names = [*graph.nodes, *map(pipeline_label, graph.settings.pipelines)]
    lines += [name for name in names if name not in connected]
    return "\n".join(lines) + "\n"


def as_mermaid(graph: Graph) -> str:
    """Return a flowchart that GitHub and many editors draw."""
    drawn: dict[str, tuple[str, str]] = {
        name: (node.kind, node.component.type) for name, node in graph.nodes.items()
    }
    if _is_quiver_hidden(graph):
        drawn[IMPLICIT_QUIVER] = ("processor", "quiver")
    for name in graph.settings.pipelines:
        drawn[pipeline_label(name)] = ("pipeline", "Spark")
    # Mermaid has words of its own, such as `end`: nodes are numbered, and named by their label.
    ids = {name: f"n{number}" for number, name in enumerate(drawn)}
    lines = ["flowchart LR"]
    for name, (kind, component) in drawn.items():
        left, right = ("[(", ")]") if component == "quiver" else _SHAPES[kind]
        lines.append(f'    {ids[name]}{left}"{name}<br/><small>{component}</small>"{right}')
    for source, target, label in arrows(graph):
        arrow = f"-- {label} -->" if label else "-->"
        lines.append(f"    {ids[source]} {arrow} {ids[target]}")
    return "\n".join(lines) + "\n"
