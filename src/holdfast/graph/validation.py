"""From what pydantic finds wrong to findings with a line, a column and the nearest valid key.

Pydantic names the place of an error by a path (`nodes`, `marquez`, `config`, `timeout`); the
document knows where that path stands in the file. Values never appear in a message unless a
setting's own check puts them there: they may be secret.
"""

from __future__ import annotations

import copy
import difflib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from holdfast.graph.document import Document, Location, TreePath
from holdfast.settings import FileSettings, Settings

Model = TypeVar("Model", bound=Settings)
# Each takes every error away that there is; what they leave can have others, but not for long.
_ROUNDS_MAX = 20


def validated(model: type[Model], value: object, document: Document, at: TreePath) -> Model | None:
    """Return the settings that stand at a path; None, and findings in the document, if wrong."""
    _warn_of_old_keys(model, value, document, at)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        told = set()
        for details in error.errors(include_url=False, include_input=False, include_context=False):
            found = _finding(model, details, document, at)
            if found not in told:  # members of a union fail one by one, often in the same way
                told.add(found)
                document.find(*found)
        return None


def rest_of(
    model: type[Model], value: object, indivisible: Callable[[TreePath], TreePath]
) -> Model | None:
    """Return what is left of a value without its errors, so that the rest can be checked, too.

    An error takes with it what `indivisible` says of its path. Without a rest there is None. This
    is what makes one pass possible: a mistyped number in one node does not hide that another node
    leads nowhere. What is removed was reported before; the rest is never run.
    """
    rest = copy.deepcopy(value)
    for _ in range(_ROUNDS_MAX):
        try:
            return model.model_validate(rest)
        except ValidationError as error:
            for details in error.errors(include_url=False, include_input=False):
                missing = details["type"] == "missing"
                path = indivisible(details["loc"][:-1] if missing else details["loc"])
                if not path or not _remove(rest, path):
                    return None
    return None


def _remove(tree: Any, path: TreePath) -> bool:
    """Remove what is at a path, or at the nearest one above it; parts that lead nowhere are names
    of a union's members."""
    parents: list[tuple[Any, str | int]] = []
    for part in path:
        if isinstance(tree, dict) and part in tree:
            parents.append((tree, part))
            tree = tree[part]
        elif isinstance(tree, list):
            break  # a list without one of its items would mean something else
    if not parents:
        # What was removed already, with an error before.
        return len(path) > 1
    parent, key = parents[-1]
    del parent[key]
    return True


def nearest(name: str, known: Iterable[str], what: str) -> str:
    """Return a hint: the known name that was probably meant, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"{what}: {', '.join(names)}" if names else ""


def _finding(
    model: type[BaseModel], details: ErrorDetails, document: Document, at: TreePath
) -> tuple[Location, str, str]:
    """Return place, message and hint of an error of pydantic, in the words of the file."""
    kind, loc = details["type"], details["loc"]
    path = _path_of(document, at, loc)
    name = ".".join(str(part) for part in path[len(at) :])
    if kind == "extra_forbidden":
        key = str(loc[-1])
        hint = nearest(key, _keys_at(model, loc[:-1]), "known keys")
        return document.key_place(path), f"there is no key {key!r} here", hint
    if kind == "missing":
        hint = "add it"
        if (*at, *loc) == ("nodes",) and "pipelines" in document.value:
            hint = "add it; `holdfast dataflow validate` checks a file that has pipelines alone"
        return document.key_place(path), f"the key {str(loc[-1])!r} is missing", hint
    message = details["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    message = message[:1].lower() + message[1:] if message.startswith("Input ") else message
    is_key = bool(loc) and loc[-1] == "[key]"
    place = document.key_place(path) if is_key else document.value_place(path)
    return place, f"{name}: {message}" if name else message, ""


def _path_of(document: Document, at: TreePath, loc: Sequence[str | int]) -> TreePath:
    """Return the path of the file that pydantic means: without the names of union members."""
    path = at
    for part in loc:
        path = document.below(path, part) or path
    return path


# --------------------------------------------------------------------- old keys


def _warn_of_old_keys(shape: Any, value: object, document: Document, at: TreePath) -> None:
    """Warn of keys of versions before: once of each key, where it is first."""
    for model, key, path in _old_keys_in(shape, value, at):
        if key in document.old_keys:
            continue
        document.old_keys.add(key)
        if key in model.removed_keys:
            message = f"`{key}` has no effect any more, and is an error in the next version"
            hint = model.removed_keys[key]
        else:
            new = model.old_keys()[key]
            message = f"`{key}` is now `{new.key}`, and is an error in the next version"
            hint = "write its value with a unit" if new.factor != 1.0 else ""
        document.find(document.key_place(path), message, hint, is_warning=True)


def _old_keys_in(
    shape: Any, value: object, at: TreePath
) -> Iterator[tuple[type[FileSettings], str, TreePath]]:
    if isinstance(value, list):
        parts: list[tuple[str | int, object]] = list(enumerate(value))
    elif isinstance(value, dict):
        parts = list(value.items())
    else:
        return
    for model in _members(shape):
        if isinstance(model, type) and issubclass(model, FileSettings):
            old = {**model.old_keys(), **model.removed_keys}
            yield from ((model, str(key), (*at, key)) for key, _ in parts if key in old)
    for key, inner in parts:
        for below in _step(shape, key):
            if below is not shape:
                yield from _old_keys_in(below, inner, (*at, key))


# ------------------------------------------------------------------- known keys


def _keys_at(model: type[BaseModel], loc: Sequence[str | int]) -> set[str]:
    """Return the keys that are known where an error is, for the one that was probably meant.

    Walked along the types, since pydantic does not say which model an unknown key was given to. A
    union leads several ways at once; the keys of all its members are candidates.
    """
    shapes: list[Any] = [model]
    for part in loc:
        shapes = [inner for shape in shapes for inner in _step(shape, part)]
    models = [shape for outer in shapes for shape in _members(outer) if _is_model(shape)]
    return {str(key) for one in models for key in _fields(one)}


def _fields(model: type[BaseModel]) -> dict[str | int, FieldInfo]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _is_model(shape: Any) -> bool:
    return isinstance(shape, type) and issubclass(shape, BaseModel)


def _members(shape: Any) -> list[Any]:
    """Return what a type may be: the members of a union, without its annotations."""
    origin = get_origin(shape)
    if origin is Annotated:
        return _members(get_args(shape)[0])
    if origin in (Union, types.UnionType):
        return [inner for member in get_args(shape) for inner in _members(member)]
    return [shape]


def _step(shape: Any, part: str | int) -> list[Any]:
    """Return the types one step further down a path."""
    found = []
    for member in _members(shape):
        origin = get_origin(member)
        fields = _fields(member) if _is_model(member) else {}
        if part in fields:
            found.append(fields[part].annotation)
        elif isinstance(origin, type) and issubclass(origin, Mapping):
            found.append(get_args(member)[1])
        elif isinstance(origin, type) and issubclass(origin, Sequence) and isinstance(part, int):
            found.append(get_args(member)[0])
    # What is no key is the name of a union's member: it leads to where we are.
    return found or [shape]
