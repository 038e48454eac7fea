"""Users' own facet schemas: used where they extend a base, refused when broken, never fetched."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.signals.events import FACET, event_with

from holdfast.errors import BadConfig
from holdfast.signals.openlineage.validation import Level, ValidationSettings, Validator

CORE = "https://openlineage.io/spec/2-0-2/OpenLineage.json"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema(
    key: str,
    base: str = "RunFacet",
    fields: dict[str, Any] | None = None,
    *,
    core: str = f"{CORE}#/$defs/",
    definitions: str = "$defs",
    **rest: Any,
) -> dict[str, Any]:
    """Return a facet schema as the specification's own files are written."""
    fields = {"cost": {"type": "number"}} if fields is None else fields
    own = {"type": "object", "properties": fields, "required": list(fields)}
    return {
        "$schema": DIALECT,
        "$id": f"https://example.com/{key}.json",
        definitions: {"Mine": {"allOf": [{"$ref": f"{core}{base}"}, own], "type": "object"}},
        "properties": {key: {"$ref": f"#/{definitions}/Mine"}},
        **rest,
    }


def write(folder: Path, *schemas: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for content in schemas:
        place = folder / f"{len(list(folder.iterdir())):02}.json"
        place.write_text(json.dumps(content))


def validator(folder: Path, level: Level = "standard", **settings: Any) -> Validator:
    return Validator(
        ValidationSettings(level=level, facet_dirs=[folder.name], **settings), folder.parent
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "facets"


@pytest.mark.parametrize(
    ("base", "slot"),
    [
        ("RunFacet", "run"),
        ("JobFacet", "job"),
        ("DatasetFacet", "dataset"),
        ("InputDatasetFacet", "input"),
        ("OutputDatasetFacet", "output"),
    ],
)
def test_a_facet_is_checked_where_its_base_belongs(folder: Path, base: str, slot: str) -> None:
    write(folder, schema("mine", base))
    own = validator(folder)
    assert own.notices == ()
    assert own.check(event_with(slot, {"mine": {**FACET, "cost": 1}})).ok
    verdict = own.check(event_with(slot, {"mine": {**FACET, "cost": "much"}}))
    (problem,) = verdict.errors
    assert (problem.pointer.rsplit("/", 2)[-2:], problem.facet) == (
        ["mine", "cost"],
        f"{slot}.mine",
    )
    missing_base = own.check(event_with(slot, {"mine": {"cost": 1}}))
    assert {problem.rule for problem in missing_base.errors} == {"required"}
    other = "run" if slot != "run" else "job"
    assert own.check(event_with(other, {"mine": {**FACET, "cost": "much"}})).ok


def test_at_core_only_the_base_is_checked(folder: Path) -> None:
    write(folder, schema("mine"))
    broken = event_with("run", {"mine": FACET})
    assert validator(folder, "core").check(broken).ok
    assert not validator(folder, "core", facets={"mine": "reject"}).check(broken).ok
    assert validator(folder, facets={"run.mine": "warn"}).check(broken).ok


@pytest.mark.parametrize(
    "variation",
    [
        {"core": "https://openlineage.io/spec/1-0-2/OpenLineage.json#/definitions/"},
        {"core": "../OpenLineage.json#/$defs/"},
        {"definitions": "definitions"},
        {"definitions": "definitions", "$schema": "http://json-schema.org/draft-07/schema#"},
    ],
)
def test_old_versions_and_drafts_are_understood(folder: Path, variation: dict[str, Any]) -> None:
    write(folder, schema("mine", **variation))
    own = validator(folder)
    assert own.notices == ()
    assert own.check(event_with("run", {"mine": {**FACET, "cost": 1}})).ok
    assert not own.check(event_with("run", {"mine": {**FACET, "cost": "1"}})).ok
    assert not own.check(event_with("run", {"mine": {"cost": 1}})).ok


def test_a_file_without_an_id_is_used(folder: Path) -> None:
    content = schema("mine")
    del content["$id"], content["$schema"]
    write(folder, content)
    assert not validator(folder).check(event_with("run", {"mine": FACET})).ok


@pytest.mark.parametrize("address", [None, "mine.json"])
def test_files_of_one_name_without_full_addresses_are_two(
    folder: Path, address: str | None
) -> None:
    for key in ("mine", "yours"):
        content = {**schema(key), "$id": address}
        if address is None:
            del content["$id"]
        write(folder / key, content)
    own = validator(folder)
    assert own.notices == ()
    for key in ("mine", "yours"):
        assert own.check(event_with("run", {key: {**FACET, "cost": 1}})).ok
        assert not own.check(event_with("run", {key: FACET})).ok


def test_files_may_refer_to_each_other(folder: Path) -> None:
    shared = {
        "$schema": DIALECT,
        "$id": "https://example.com/shared.json",
        "$defs": {"Money": {"type": "object", "required": ["amount"]}},
    }
    write(folder, schema("mine", fields={"cost": {"$ref": "shared.json#/$defs/Money"}}))
    write(folder / "deeper", shared)
    own = validator(folder)
    assert [notice.rpartition(": ")[2] for notice in own.notices] == [
        "names no facet under `properties`; it is used by reference"
    ]
    (problem,) = own.check(event_with("run", {"mine": {**FACET, "cost": {}}})).errors
    assert problem.pointer == "/run/facets/mine/cost"


def test_a_facet_may_belong_in_two_places(folder: Path) -> None:
    content = schema("mine")
    content["$defs"]["Other"] = {"allOf": [{"$ref": f"{CORE}#/$defs/JobFacet"}]}
    content["properties"]["mine"] = {"anyOf": [{"$ref": "#/$defs/Mine"}, {"$ref": "#/$defs/Other"}]}
    write(folder, content)
    own = validator(folder)
    for slot in ("run", "job"):
        assert not own.check(event_with(slot, {"mine": {}})).ok
        assert own.check(event_with(slot, {"mine": FACET})).ok


def test_built_in_keys_win_and_duplicates_are_told(folder: Path) -> None:
    # As one of the files of a real integration does, this one claims a key of the standard.
    taken = schema("nominalTime")
    first, second = schema("mine"), {**schema("mine"), "$id": "https://example.com/again.json"}
    second["$defs"]["Mine"]["allOf"][1]["required"] = ["other"]
    third = schema("mine", "JobFacet")
    write(folder, taken, first, second, third)
    own = validator(folder)
    assert [notice.partition(": ")[2].partition(" is")[0] for notice in own.notices] == [
        "has the same $id as " + str(folder / "01.json") + ", and",
        "run.nominalTime",
        "run.mine",
    ]
    assert all(str(folder) in notice for notice in own.notices)
    nominal = {**FACET, "nominalStartTime": "2026-01-31T12:00:00Z"}
    assert own.check(event_with("run", {"nominalTime": nominal})).ok
    assert own.check(event_with("run", {"mine": {**FACET, "cost": 1}})).ok


def test_a_definition_without_a_base_is_told(folder: Path) -> None:
    content = schema("mine")
    content["$defs"]["Mine"] = {"type": "object"}
    write(folder, content)
    own = validator(folder)
    assert own.notices == (f"{folder / '00.json'}: `mine` extends no base facet, and is not used",)
    assert own.check(event_with("run", {"mine": FACET})).ok


def test_references_that_go_in_circles_end(folder: Path) -> None:
    content = schema("mine")
    content["$defs"]["Mine"] = {"allOf": [{"$ref": "#/$defs/Again"}] * 9}
    content["$defs"]["Again"] = {"anyOf": [{"$ref": "#/$defs/Mine"}] * 9 + [{"$ref": "#"}]}
    write(folder, content)
    assert "extends no base facet" in validator(folder).notices[0]


def test_the_core_file_itself_may_lie_there(folder: Path) -> None:
    write(folder, {"$schema": DIALECT, "$id": CORE, "$defs": {"RunFacet": {"type": "string"}}})
    write(folder / "facets", schema("mine"))
    own = validator(folder)
    assert own.notices == ()
    assert own.check(event_with("run", {"mine": {**FACET, "cost": 1}})).ok


def test_formats_and_other_rules_of_users_hold(folder: Path) -> None:
    fields = {
        "home": {"type": "string", "format": "uri"},
        "mail": {"type": "string", "format": "email"},
        "size": {"type": "integer", "maximum": 9},
        "short": {"type": "string", "maxLength": 3},
    }
    write(folder, schema("mine", fields=fields, core=f"{CORE}#/$defs/"))
    facet = {**FACET, "home": "x", "mail": "x", "size": 10, "short": "secret"}
    verdict = validator(folder).check(event_with("run", {"mine": facet}))
    assert {problem.rule for problem in verdict.errors} == {"maximum", "maxLength"}
    assert {problem.pointer[-4:] for problem in verdict.warnings} == {"home", "mail"}
    assert "secret" not in repr(verdict)
    strict = validator(folder, "strict").check(event_with("run", {"mine": facet}))
    assert len(strict.errors) == 4


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is no JSON"),
        ("[]", "must be an object"),
        (json.dumps({"type": "strin"}), "is no JSON Schema"),
        (
            json.dumps(schema("mine", core="https://example.com/gone.json#/$defs/")),
            "cannot be used",
        ),
        (json.dumps(schema("mine", "NoSuchFacet")), "cannot be used"),
        (json.dumps({"$schema": "https://example.com/own-dialect"}), "dialect"),
        (json.dumps({"properties": {"x": {"pattern": "("}}}), "facet schema"),
    ],
)
def test_a_broken_file_is_an_error_with_its_path(folder: Path, content: str, words: str) -> None:
    write(folder, schema("fine"))
    (folder / "broken.json").write_text(content)
    with pytest.raises(BadConfig, match=words) as caught:
        validator(folder)
    assert caught.value.path == str(folder / "broken.json")
    assert caught.value.exit_code == 78


def test_a_missing_folder_is_an_error_with_its_path(folder: Path) -> None:
    with pytest.raises(BadConfig, match="not there") as caught:
        validator(folder)
    assert caught.value.path == str(folder)


def test_nothing_is_fetched(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        write(folder, schema("mine", core=f"{address}/OpenLineage.json#/$defs/"))
        own = validator(folder)  # a core file of any address is ours
        facet = {**FACET, "_schemaURL": f"{address}/x.json", "cost": 1}
        assert own.check(event_with("run", {"mine": facet, "sqlish": facet})).ok
        for wrong in (
            schema("more", core=f"{address}/Elsewhere.json#/$defs/"),
            {**schema("more"), "$schema": f"{address}/dialect.json"},
        ):
            write(folder / "wrong", wrong)
            with pytest.raises(BadConfig):
                validator(folder)
            (folder / "wrong" / "00.json").unlink()
        with pytest.raises(BlockingIOError):
            server.accept()
