"""A Python function of a pipeline: named as `module:name` in a file, or given as it is."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from holdfast.errors import BadConfig

_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_PATTERN = f"^{_REFERENCE.pattern}$"


def _function(value: object) -> object:
    if callable(value) or (isinstance(value, str) and _REFERENCE.fullmatch(value)):
        return value
    raise ValueError("name a function as module:name")


def function_name(function: str | Callable[..., Any]) -> str:
    """Return how people call a function."""
    if isinstance(function, str):
        return function
    return getattr(function, "__qualname__", type(function).__qualname__)


def load_function(function: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return the function; raises `BadConfig` if there is none of that name."""
    if callable(function):
        return function
    module, _, name = function.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever the user's module does when it is imported
        raise BadConfig(
            f"there is no function {function!r}: {type(error).__name__}: {error}",
            hint="write module:name; the module must be importable where the pipeline runs",
        ) from error
    if not callable(found):
        raise BadConfig(f"{function!r} is not a function", hint="name something that can be called")
    loaded: Callable[..., Any] = found
    return loaded


UserFunction = Annotated[
    Any,
    BeforeValidator(_function),
    PlainSerializer(function_name, return_type=str),
    WithJsonSchema({"type": "string", "pattern": _PATTERN}),
]
