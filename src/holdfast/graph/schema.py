"""The JSON Schema of a graph file, with the settings of every component, for editors."""

from __future__ import annotations

from typing import Any

from holdfast.graph.model import GraphFile
from holdfast.graph.registry import Component, Registry

DIALECT = "https://json-schema.org/draft/2020-12/schema"
# Any scalar may be written as a reference, which is text until it is replaced.
_REFERENCE = {"type": "string", "pattern": r"\$\{(env|file):[^{}]*\}"}


def graph_schema(registry: Registry) -> dict[str, Any]:
    """Return the schema; components that are not installed are described by their name alone."""
    schema = GraphFile.model_json_schema(ref_template="#/$defs/{model}")
    definitions: dict[str, Any] = schema["$defs"]
    node, handler = definitions["NodeSettings"], definitions["HandlerSettings"]
    node["allOf"] = [_case(one, definitions, by_kind=True) for one in registry]
    exporters = [one for one in registry if one.kind == "exporter"]
    handler["allOf"] = [_case(one, definitions, by_kind=False) for one in exporters]
    return {"$schema": DIALECT, "title": "Holdfast graph", **_with_references(schema)}


def _case(component: Component, definitions: dict[str, Any], *, by_kind: bool) -> dict[str, Any]:
    """Return: if a node is of this type, then its `config` is this."""
    names = [component.type, *component.aliases]
    wanted: dict[str, Any] = {"properties": {"type": {"enum": names}}, "required": ["type"]}
    if by_kind:
        by_urn = {"properties": {"plugin_urn": {"enum": names}}, "required": ["plugin_urn"]}
        kind = {"properties": {"kind": {"const": component.kind}}}
        wanted = {"allOf": [kind, {"anyOf": [wanted, by_urn]}]}
    name = f"{component.kind}_{component.type}"
    if name not in definitions:
        definitions[name] = _config_schema(component, definitions, name)
    return {"if": wanted, "then": {"properties": {"config": {"$ref": f"#/$defs/{name}"}}}}


def _config_schema(component: Component, definitions: dict[str, Any], name: str) -> dict[str, Any]:
    try:
        model = component.config_model
    except ImportError:
        return {"type": "object", "description": "Not installed here."}
    # Two components may have models of one name: each keeps its own, under its own prefix.
    schema = model.model_json_schema(ref_template=f"#/$defs/{name}.{{model}}")
    for inner, definition in schema.pop("$defs", {}).items():
        definitions[f"{name}.{inner}"] = definition
    schema["title"] = f"{component.kind} {component.type}"
    # `config:` with nothing behind it.
    return {"anyOf": [schema, {"type": "null"}]}


def _with_references(schema: Any) -> Any:
    """Let every number and boolean, and every text with a form, be written as a reference too."""
    if isinstance(schema, list):
        return [_with_references(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {
        key: value if key in ("default", "enum", "const") else _with_references(value)
        for key, value in schema.items()
    }
    is_scalar = inner.get("type") in ("integer", "number", "boolean") or (
        inner.get("type") == "string" and {"pattern", "enum", "const", "format"} & inner.keys()
    )
    if not is_scalar:
        return inner
    said = {key: inner.pop(key) for key in ("title", "description", "default") if key in inner}
    return {**said, "anyOf": [inner, _REFERENCE]}
