"""What can be set: the JSON Schema of a graph file, for editors, and tables of keys, for people.

The page docs/reference/config.md and `holdfast components NAME` are made from these tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from holdfast.graph.model import GraphFile
from holdfast.graph.registry import Component, Registry
from holdfast.units import written_duration, written_size

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
    for otlp in [one for one in exporters if one.type == "otlp"]:
        case = _case(otlp, definitions, by_kind=False)["then"]["properties"]
        definitions["TelemetrySettings"]["properties"] |= case
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
    """Let every number and boolean, and every text with a form, be written as a reference too.

    Editors check the file as it is written, before anything is replaced; without this every
    `${env:PORT}` would be marked as a mistake. Plain text needs nothing: a reference is text.
    """
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


REQUIRED = "required"
_SIZE, _DURATION = "size", "duration"
_WORDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "null": "null",
}


class Setting(NamedTuple):
    """One key; parts of parts have dots, members of lists `[]`, of mappings `<name>`."""

    key: str
    type: str
    default: str
    text: str


def settings_of(model: type[BaseModel]) -> list[Setting]:
    """Return every setting of a model, and of the models inside it."""
    _, whole = models_json_schema([(model, "validation")])
    definitions = whole["$defs"]
    return list(_Table(definitions).rows(definitions[_root(whole, model)], ""))


def _root(whole: dict[str, Any], model: type[BaseModel]) -> str:
    """Return the name of the model itself among the definitions."""
    title = model.model_config.get("title") or model.__name__
    return title if title in whole["$defs"] else next(reversed(whole["$defs"]))


class _Table:
    """The rows of a model, by its JSON Schema.

    From the schema and not from the model: it has the aliases, the constraints and the texts of all
    parts already resolved, and it is what editors see, so that page and editor cannot differ.
    """

    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions

    def rows(self, schema: dict[str, Any], prefix: str) -> Iterator[Setting]:
        required = schema.get("required", ())
        for name, field in schema.get("properties", {}).items():
            key = f"{prefix}{name}"
            text = field.get("description") or self._resolved(field).get("description", "")
            text = " ".join(text.split())
            yield Setting(key, self._type(field), self._default(field, name in required), text)
            for mark, inner in self._inside(field):
                yield from self.rows(inner, f"{key}{mark}.")

    def _resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        reference = schema.get("$ref")
        if reference is None:
            return schema
        found: dict[str, Any] = self._definitions[reference.rpartition("/")[2]]
        return found

    def _inside(self, schema: dict[str, Any], mark: str = "") -> Iterator[tuple[str, Any]]:
        """Yield the models inside a field, and how a key in them is reached."""
        schema = self._resolved(schema)
        if "properties" in schema:
            yield mark, schema
        for inner in [*schema.get("anyOf", ()), *schema.get("oneOf", ())]:
            yield from self._inside(inner, mark)
        if isinstance(schema.get("items"), dict):
            yield from self._inside(schema["items"], f"{mark}[]")
        if isinstance(schema.get("additionalProperties"), dict):
            yield from self._inside(schema["additionalProperties"], f"{mark}.<name>")

    def _type(self, schema: dict[str, Any]) -> str:
        schema = self._resolved(schema)
        if "enum" in schema or "const" in schema:
            return " or ".join(str(one) for one in schema.get("enum", [schema.get("const")]))
        members = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
        if members:
            if special := _unit(members):
                return special
            return " or ".join(dict.fromkeys(self._type(one) for one in members))
        if schema.get("type") == "array":
            return f"list of {self._type(schema['items'])}" if "items" in schema else "list"
        if schema.get("type") == "object":
            values = schema.get("additionalProperties")
            return f"mapping to {self._type(values)}" if isinstance(values, dict) else "mapping"
        if schema.get("format") == "password":
            return "secret"
        return _WORDS.get(schema.get("type", ""), "anything")

    def _default(self, schema: dict[str, Any], is_required: bool) -> str:
        if is_required:
            return REQUIRED
        default = schema.get("default")
        if isinstance(default, dict) and any(True for _ in self._inside(schema)):
            return ""  # its parts say theirs
        if default is None:
            return "" if "default" not in schema else "null"
        kind = self._type(schema)
        if kind.startswith(_SIZE) and isinstance(default, int):
            return str(written_size(default))
        if kind.startswith(_DURATION) and isinstance(default, int | float):
            return str(written_duration(default))
        return default if isinstance(default, str) else json.dumps(default)


def _unit(members: list[dict[str, Any]]) -> str | None:
    """Tell sizes and durations by the patterns that their text has.

    A schema has no type for sizes and durations: both are a number or text of a certain form. The
    form is the only thing that tells them apart, so it must stay in the patterns of
    `settings.units`.
    """
    patterns = " ".join(one.get("pattern", "") for one in members)
    null = " or null" if any(one.get("type") == "null" for one in members) else ""
    if "KMGT" in patterns:
        return _SIZE + null
    if "ms" in patterns:
        return _DURATION + null
    inner = [one for one in members if "anyOf" in one]
    if inner and (found := _unit(inner[0]["anyOf"])) is not None:
        return found + null
    return None
