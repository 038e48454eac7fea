"""The settings of a model as a table: every key with its type, its default, and what it is.

From this the page docs/reference/config.md and `holdfast components NAME` are made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from holdfast.settings.units import written_duration, written_size

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
    title = model.model_config.get("title") or model.__name__
    return title if title in whole["$defs"] else next(reversed(whole["$defs"]))


class _Table:
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
    """Tell sizes and durations by the patterns that their text has."""
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
