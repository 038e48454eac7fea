"""The OpenAPI document: sound, complete, and true of what is served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.receive.harness import PATH, Running, running

from holdfast.receive.openapi import openapi_document
from holdfast.receive.openlineage import Config
from holdfast.receive.responses import STATUS_OF, Reason

# Beyond these are opinions: whether a body that fits the document must be accepted, for instance.
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "unsupported_method",
    "allow_header_conformance",
]


def document(**options: Any) -> dict[str, Any]:
    return openapi_document(Config().all_paths, **{"asks_token": False, **options})


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_all_references_lead_somewhere() -> None:
    whole = document()
    assert list(references(whole))
    for reference in references(whole):
        node: Any = whole
        for step in reference.removeprefix("#/").split("/"):
            node = node[step]


def test_every_schema_is_one() -> None:
    whole = document()
    for schema in whole["components"]["schemas"].values():
        jsonschema_rs.meta.validate(
            {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
        )


def test_every_path_is_in_it() -> None:
    paths = document()["paths"]
    for path in Config().all_paths:
        assert {path, f"{path}/batch", f"{path}/validate"} <= set(paths)
    names = [operation["operationId"] for item in paths.values() for operation in item.values()]
    assert len(names) == len(set(names))


def test_every_answer_is_in_it() -> None:
    whole = document()
    described = {int(status) for status in whole["components"]["responses"]}
    assert described == set(STATUS_OF.values())
    for path, item in whole["paths"].items():
        if path == "/openapi.json":
            continue
        statuses = {int(status) for status in item["post"]["responses"]}
        assert statuses == {200, *STATUS_OF.values()} - {404, 405}
    reasons = whole["components"]["schemas"]["Refused"]["properties"]["reason"]["enum"]
    assert set(reasons) == set(STATUS_OF) == set(Reason) - {Reason.DISCONNECTED}


def test_no_answer_is_one_that_breaks_clients() -> None:
    statuses = set(STATUS_OF.values())
    assert not statuses & {204, 429}
    assert not [status for status in statuses if 300 <= status < 400]
    assert [status for status in statuses if status >= 500] == [503]


def test_tokens_are_described_if_asked_for() -> None:
    assert "security" not in document()
    whole = document(asks_token=True)
    assert whole["security"] == [{"bearer": []}]
    assert whole["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder: Path = tmp_path_factory.mktemp("schemathesis")
    with running(folder, Config(listen="127.0.0.1:0", aliases=())) as server:
        yield server


def explore(server: Running, path: str, max_examples: int, whole: Any = None) -> int:
    """Send what schemathesis makes of the document, sound and unsound; return how much that was."""
    # Loaded here: it takes longer than all tests of this file that do not need it.
    import schemathesis
    from schemathesis import checks

    every = [getattr(checks, name) for name in CHECKS]
    schema = schemathesis.openapi.from_dict(whole or openapi_document([PATH], asks_token=False))
    operation = schema[path]["GET" if path == "/openapi.json" else "POST"]
    cases: st.SearchStrategy[Any] = operation.as_strategy() | operation.as_strategy(
        generation_mode=schemathesis.GenerationMode.NEGATIVE
    )
    tried = 0

    @settings(
        max_examples=max_examples,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(case=cases)
    def one(case: Any) -> None:
        nonlocal tried
        tried += 1
        case.call_and_validate(base_url=server.url, checks=every)

    one()
    return tried


PATHS = [PATH, f"{PATH}/batch", f"{PATH}/validate", "/openapi.json"]


@pytest.mark.parametrize("path", PATHS)
def test_schemathesis_finds_nothing(server: Running, path: str) -> None:
    assert explore(server, path, 12) > 0
    statistics = server.receiver.statistics()
    assert statistics.in_flight_requests == 0


@pytest.mark.parametrize("status", ["200", "400"])
def test_schemathesis_would_find_an_answer_that_is_not_described(
    server: Running, status: str
) -> None:
    path = PATH if status == "400" else f"{PATH}/validate"
    whole = openapi_document([PATH], asks_token=False)
    del whole["paths"][path]["post"]["responses"][status]
    from schemathesis.core.failures import FailureGroup

    with pytest.raises(FailureGroup) as found:
        explore(server, path, 50, whole)
    assert [failure.title for failure in found.value.exceptions] == ["Undocumented status code"]


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS[:3])
def test_schemathesis_finds_nothing_in_a_long_search(server: Running, path: str) -> None:
    assert explore(server, path, 500) > 100
    assert server.receiver.statistics().in_flight_requests == 0


def test_the_document_is_what_is_served(server: Running) -> None:
    with server.connect() as client:
        client.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    served = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert served == json.loads(json.dumps(openapi_document([PATH], asks_token=False)))
