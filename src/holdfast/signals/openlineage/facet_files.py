"""Users' own facet schemas: JSON Schema files in folders, in the layout of the specification.

A file names its facets' keys under the root's `properties`, and defines them under `$defs` (or
`definitions`). The base that a definition extends (`RunFacet`, `JobFacet`, …) says where it
belongs. References to the specification's own core file are answered from our table; nothing is
ever fetched.

What is broken is an error when the gateway starts, not when an event comes. What is merely of no
use (no key, no base, a key that is taken) is a notice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urljoin

import jsonschema_rs
import orjson

from holdfast.errors import BadConfig
from holdfast.signals.openlineage.facts import FACETS, Plain, Slot
from holdfast.signals.openlineage.problem import pointer_to
from holdfast.signals.openlineage.schema import DIALECT, base_facet, object_schema

# The specification's core file, in any version, and the base facets it defines.
_CORE_FILE = re.compile(r"(?:^|/)OpenLineage\.json$")
_BASES = {
    "RunFacet": Slot.RUN,
    "JobFacet": Slot.JOB,
    "DatasetFacet": Slot.DATASET,
    "InputDatasetFacet": Slot.INPUT,
    "OutputDatasetFacet": Slot.OUTPUT,
}
_DEFINITIONS = ("$defs", "definitions")

# In what a file may be written. A dialect that is not built in would have to be fetched.
_DIALECTS = {
    "http://json-schema.org/draft-04/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-07/schema",
    "https://json-schema.org/draft/2019-09/schema",
    DIALECT,
}


@dataclass
class FacetFiles:
    """What was found in the folders."""

    # For the registry: address and content of every file, and of the core files they refer to.
    resources: dict[str, Any] = field(default_factory=dict)
    # Where the schema of a facet is.
    references: dict[tuple[Slot, str], str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)

    def registry(self) -> jsonschema_rs.Registry:
        """Return everything a reference may name."""
        return _registry(self.resources)


def read_facet_files(folders: Sequence[Path]) -> FacetFiles:
    """Read all folders; raises `BadConfig` for a file that is no sound schema."""
    found = FacetFiles()
    paths: dict[str, Path] = {}
    for path in _schema_paths(folders):
        content = _read(path)
        # A file without an address of its own has that of its place; nobody ever reads it there.
        uri = urljoin(path.absolute().as_uri(), content.get("$id", "")).partition("#")[0]
        if _CORE_FILE.search(uri):
            continue  # its content is in our table
        if uri in found.resources:
            found.notices.append(f"{path}: has the same $id as {paths[uri]}, and is not used")
            continue
        found.resources[uri] = content
        paths[uri] = path
    # All files are known before the first is tried: they may refer to each other in any order.
    for uri in paths:
        _add_core_files(found, uri)
    for uri, path in paths.items():
        _try_out(found, uri, path)
        _add_facets(found, uri, path)
    return found


def _registry(resources: dict[str, Any]) -> jsonschema_rs.Registry:
    return jsonschema_rs.Registry(list(resources.items()), retriever=_fetch_nothing)


def _fetch_nothing(uri: str) -> NoReturn:
    """A gateway that started only while some website answers would not be one. And a file must not
    make it call addresses that its author chose.
    """
    raise LookupError(f"{uri} is in none of facet_dirs, and nothing is fetched")


def _schema_paths(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in folders:
        if not folder.is_dir():
            hint = "Name a folder with JSON Schema files, or take it out of facet_dirs."
            raise BadConfig("a folder of facet schemas is not there", hint=hint, path=str(folder))
        yield from sorted(folder.rglob("*.json"))


def _read(path: Path) -> dict[str, Any]:
    try:
        content = orjson.loads(path.read_bytes())
    except OSError as error:
        raise _broken(path, f"cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise _broken(path, f"is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise _broken(path, "is no JSON Schema: it must be an object")
    content = {"$schema": DIALECT, **content}
    if str(content["$schema"]).rstrip("#") not in _DIALECTS:
        raise _broken(path, "is written in a dialect of JSON Schema that is not built in")
    try:
        jsonschema_rs.meta.validate(content)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise _broken(path, f"is no JSON Schema: {_first_line(error)}") from error
    return content


def _broken(path: Path, what: str) -> BadConfig:
    hint = "Mend the file, or take its folder out of facet_dirs."
    return BadConfig(f"a facet schema {what}", hint=hint, path=str(path))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _add_core_files(found: FacetFiles, uri: str) -> None:
    """Answer references to the core file, under the very address that was referred to: each version
    of it has another one, and all mean the same bases.
    """
    for target in _targets(found, uri):
        if _CORE_FILE.search(target):
            found.resources.setdefault(target, core_file())


def _try_out(found: FacetFiles, uri: str, path: Path) -> None:
    """Compile a file with what it refers to and nothing else, so that its error is its own."""
    needed: dict[str, Any] = {}
    waiting = [uri]
    while waiting:
        target = waiting.pop()
        if target in found.resources and target not in needed:
            needed[target] = found.resources[target]
            waiting += _targets(found, target)
    try:
        jsonschema_rs.validator_for(
            {"$schema": DIALECT, "$ref": uri}, registry=_registry(needed), offline=True
        )
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise _broken(path, f"cannot be used: {_first_line(error)}") from error


def _targets(found: FacetFiles, uri: str) -> list[str]:
    """Return the addresses of the files that a file refers to."""
    references = _references_in(found.resources[uri])
    return [_absolute(uri, reference).partition("#")[0] for reference in references]


def core_file() -> dict[str, Any]:
    """Return what facet files refer to in the specification's core file, by both names it had."""
    bases = {name: base_facet(slot) for name, slot in _BASES.items()}
    bases["BaseFacet"] = base_facet(Slot.RUN)
    name = {"namespace*": Plain.STRING, "name*": Plain.STRING}
    things = {
        "Run": object_schema({"runId*": Plain.UUID}),
        **{each: object_schema({**name}) for each in ("Job", "Dataset")},
    }
    definitions = {**bases, **things}
    return {"$schema": DIALECT, **dict.fromkeys(_DEFINITIONS, definitions)}


def _references_in(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        for value in schema.values():
            yield from _references_in(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references_in(value)


def _absolute(uri: str, reference: str) -> str:
    return uri + reference if reference.startswith("#") else urljoin(uri, reference)


def _add_facets(found: FacetFiles, uri: str, path: Path) -> None:
    keys = found.resources[uri].get("properties")
    if not isinstance(keys, dict) or not keys:
        found.notices.append(f"{path}: names no facet under `properties`; it is used by reference")
        return
    for key, schema in keys.items():
        slots = _slots_of(found, uri, schema, set())
        if not slots:
            found.notices.append(f"{path}: `{key}` extends no base facet, and is not used")
        for slot in sorted(slots):
            if (slot, key) in FACETS:
                found.notices.append(f"{path}: {slot}.{key} is a standard facet; ours is used")
            elif (slot, key) in found.references:
                found.notices.append(f"{path}: {slot}.{key} is defined before; that one is used")
            else:
                found.references[slot, key] = f"{uri}#{pointer_to(('properties', key))}"


def _slots_of(found: FacetFiles, uri: str, schema: object, followed: set[str]) -> set[Slot]:
    """Return the slots whose base a schema extends, through references and combinations."""
    if not isinstance(schema, dict):
        return set()
    slots = set()
    reference = schema.get("$ref")
    address = _absolute(uri, reference) if isinstance(reference, str) else uri
    if address != uri and address not in followed:
        followed.add(address)
        target, _, pointer = address.partition("#")
        base = _BASES.get(pointer.rpartition("/")[2])
        if base is not None and _CORE_FILE.search(target):
            slots.add(base)
        else:
            referred = _look_up(found.resources.get(target), pointer)
            slots |= _slots_of(found, target, referred, followed)
    for combination in ("allOf", "anyOf", "oneOf"):
        for part in schema.get(combination, ()):
            slots |= _slots_of(found, uri, part, followed)
    return slots


def _look_up(content: object, pointer: str) -> object:
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        content = content.get(name) if isinstance(content, dict) else None
    return content
