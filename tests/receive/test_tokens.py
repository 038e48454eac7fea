"""Tokens: who sends, for which namespaces, how fast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from holdfast.errors import BadConfig
from holdfast.receive.admission import ANYBODY, TokenClient, Tokens, TokenSettings, read_token_file
from holdfast.receive.openlineage_endpoints import forbidden
from holdfast.receive.responses import Refused
from holdfast.seam import Seam
from holdfast.settings import Secret
from holdfast.signals.openlineage.names import Names, names_of


def job_in(namespace: str, **more: Any) -> Names:
    """Return the names of an event."""
    document = {"job": {"namespace": namespace, "name": "j"}, **more}
    return names_of(orjson.dumps(document), document)


def token(name: str, secret: str, *namespaces: str) -> TokenSettings:
    return TokenSettings(name=name, token=Secret(secret), namespaces=namespaces or ("*",))


def test_without_tokens_anybody_may_send() -> None:
    assert Tokens([], Seam()).client(b"") is ANYBODY
    assert Tokens([], Seam()).client(b"Bearer whatever") is ANYBODY
    assert forbidden(ANYBODY, job_in("any")) is None


@pytest.mark.parametrize("scheme", [b"Bearer ", b"bearer ", b"BEARER  "])
def test_a_token_names_its_producer(scheme: bytes) -> None:
    tokens = Tokens([token("airflow", "s3cret"), token("spark", "other")], Seam())
    assert tokens.client(scheme + b"s3cret").name == "airflow"
    assert tokens.client(scheme + b"other").event_headers == {"client": "spark"}


@pytest.mark.parametrize(
    "header",
    [b"", b"Bearer", b"Bearer ", b"Bearer s3cre", b"Bearer s3cret2", b"Basic s3cret", b"s3cret",
     b"Bearer S3CRET", b"Bearer \xff\x00", b"Bearer " + b"x" * 60_000],
)  # fmt: skip
def test_a_wrong_token_is_refused(header: bytes) -> None:
    with pytest.raises(Refused) as refused:
        Tokens([token("airflow", "s3cret")], Seam()).client(header)
    answer = refused.value.answer
    assert answer.status == 401
    assert dict(answer.headers)[b"www-authenticate"].startswith(b"Bearer")
    assert b"s3c" not in answer.body


def test_no_token_is_kept_in_the_clear() -> None:
    tokens = Tokens([token("airflow", "s3cret")], Seam())
    assert "s3cret" not in repr(vars(tokens))
    assert "s3cret" not in repr(token("airflow", "s3cret"))


def test_two_producers_do_not_share_a_token() -> None:
    with pytest.raises(BadConfig, match="'spark'"):
        Tokens([token("airflow", "same"), token("spark", "same")], Seam())


@pytest.mark.parametrize(
    ("patterns", "namespaces", "refused"),
    [
        (("*",), {"any", ""}, False),
        (("airflow",), {"airflow"}, False),
        (("airflow",), {"airflow2"}, True),
        (("airflow",), {"Airflow"}, True),
        (("airflow",), set[str](), False),
        (("air*", "s3://lake-?/*"), {"airflow", "s3://lake-1/raw"}, False),
        (("air*", "s3://lake-?/*"), {"airflow", "s3://pond/raw"}, True),
        (("a.c",), {"abc"}, True),
        (("team\n*",), {"team\nx"}, True),
    ],
)
def test_namespaces_are_matched(
    patterns: tuple[str, ...], namespaces: set[str], refused: bool
) -> None:
    client = Tokens([token("t", "x", *patterns)], Seam()).client(b"Bearer x")
    inputs = [{"namespace": name, "name": "d"} for name in namespaces]
    document = {"inputs": inputs}
    names = names_of(orjson.dumps(document), document)
    assert (forbidden(client, names) is not None) is refused


def test_a_token_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("# producers\n\nairflow abc#1\nspark  xyz  spark* s3://*\n")
    first, second = read_token_file(path)
    assert (first.name, first.token.get_secret_value(), first.namespaces) == (
        "airflow",
        "abc#1",
        ("*",),
    )
    assert (second.name, second.namespaces) == ("spark", ("spark*", "s3://*"))


def test_a_bad_token_file_says_where(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    with pytest.raises(BadConfig, match="cannot be read"):
        read_token_file(path)
    for line in ("s3cret", "n" * 65 + " s3cret"):
        path.write_text(f"airflow abc\n{line}\n")
        with pytest.raises(BadConfig, match="line 2") as error:
            read_token_file(path)
        assert "s3cret" not in str(error.value)
        assert error.value.__cause__ is None
    path.write_text("# airflow abc\n\n")
    with pytest.raises(BadConfig, match="names nobody"):
        read_token_file(path)
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(BadConfig, match="cannot be read"):
        read_token_file(path)


# ------------------------------------------------------------------- ways around

FACETS: dict[str, dict[str, Any]] = {
    "parent": {"run": {"facets": {"parent": {"job": {"namespace": "prod", "name": "j"}}}}},
    "root": {"run": {"facets": {"parent": {"root": {"job": {"namespace": "prod"}}}}}},
    "symlinks": {
        "outputs": [
            {"namespace": "own", "facets": {"symlinks": {"identifiers": [{"namespace": "prod"}]}}}
        ]
    },
    "columnLineage": {
        "dataset": {
            "namespace": "own",
            "facets": {
                "columnLineage": {"fields": {"a": {"inputFields": [{"namespace": "prod"}]}}}
            },
        }
    },
    "jobDependencies": {
        "run": {"facets": {"jobDependencies": {"upstream": [{"job": {"namespace": "prod"}}]}}}
    },
    "lineage": {
        "inputs": [{"namespace": "own", "facets": {"lineage": {"x": [{"namespace": "prod"}]}}}]
    },
}


@pytest.mark.parametrize("name", FACETS)
def test_no_facet_names_a_namespace_that_is_not_the_producers(name: str) -> None:
    event = job_in("own", **FACETS[name])
    (restricted,) = clients(token("a", "a", "own"))
    assert forbidden(restricted, event) == "this producer may not refer to one of its namespaces"
    (allowed,) = clients(token("a", "a", "own").model_copy(update={"references": ("pr*",)}))
    assert forbidden(allowed, event) is None
    assert forbidden(allowed, job_in("prod")) is not None, "referring is not speaking for it"


def test_what_a_custom_facet_calls_a_namespace_is_its_own_matter() -> None:
    event = job_in("own", run={"facets": {"kubernetes": {"namespace": "default"}}})
    (client,) = clients(token("a", "a", "own"))
    assert forbidden(client, event) is None


@pytest.mark.parametrize(
    "raw",
    [
        b'{"job":{"namespace":"prod"},"job":{"namespace":"own"}}',
        b'{"job":{"namespace":"prod","namespace":"own"}}',
        b'{"job":{"namespace":"prod"},"\\u006aob":{"namespace":"own"}}',
        # An escaped comma makes up for the one that is missing when it is written again.
        b'{"job":{"namespace":"prod"},"job":{"namespace":"own","name":"a\\u002cb"}}',
        # Many others before it.
        b'{"job":{"namespace":"prod"},"job":{"namespace":"own"},"x":[%s]}'
        % b",".join([b"9" * 30] * 100),
    ],
)
def test_of_two_equal_keys_none_gets_past_a_restricted_token(raw: bytes) -> None:
    names = names_of(raw, orjson.loads(raw))
    (client,) = clients(token("a", "a", "own"))
    assert forbidden(client, names) is not None
    assert forbidden(ANYBODY, names) is None


@pytest.mark.parametrize("namespace", ["own-\nprod", "own-\x00", "own-\r", "own-\u2028x"])
def test_no_pattern_matches_control_characters(namespace: str) -> None:
    (client,) = clients(token("a", "a", "own-*", "own-[!x]*"))
    assert forbidden(client, job_in(namespace)) is not None
    assert forbidden(client, job_in("own-1")) is None


def clients(*settings: TokenSettings) -> list[TokenClient]:
    tokens = Tokens(settings, Seam())
    return [tokens.client(b"Bearer " + one.token.get_secret_value().encode()) for one in settings]
