"""Redacting: no secret gets through, whatever stands around it, and nothing else changes."""

from __future__ import annotations

import string
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.processors.passing import (
    DOCUMENTS,
    KEYS,
    SCALARS,
    TEXTS,
    event_of,
    made,
    members,
    whole_event,
)

from holdfast.processors import redact
from holdfast.processors.redact import without_assignments, without_credentials
from holdfast.signals.openlineage.validation import ValidationSettings, Validator

MARKER = "REDACTED"
# What no document holds by chance, and no marker contains.
SECRETS = st.text(string.ascii_lowercase + string.digits, min_size=8, max_size=20).map(
    "zq9".__add__
)
STRICT = Validator(ValidationSettings(level="strict"))


def redacted(document: Any, **config: Any) -> Any:
    passed = made(redact, **config).process(event_of(document))
    assert passed is not None
    assert orjson.loads(passed.payload) == passed.document
    return passed.document


def text(content: str, **config: Any) -> str:
    found: str = redacted({"text": content}, **config)["text"]
    return found


# ----------------------------------------------------------------------- anywhere


@given(document=DOCUMENTS, secret=SECRETS, data=st.data())
def test_what_a_pattern_finds_is_nowhere_in_the_output(
    document: Any, secret: str, data: st.DataObject
) -> None:
    """In a text, in a key, in a nested list: the bytes that go out do not hold it."""
    hidden = {
        data.draw(TEXTS) + secret + data.draw(TEXTS): document,
        "list": [secret, {"a": secret}],
    }
    places = [place for place in members(hidden) if isinstance(place[2], str)]
    for container, step, value in places:
        if data.draw(st.booleans()):
            container[step] = value + secret
    patterns = [{"regex": "zq9[a-z0-9]{8,}"}]
    passed = made(redact, patterns=patterns).process(event_of(hidden))
    assert passed is not None
    assert secret.encode() not in passed.payload
    assert len(list(members(passed.document))) == len(list(members(hidden))), "nothing is left out"


NAMES = ["password", "db_password", "Secret", "AUTH_TOKEN", "x-api-key", "aws_secret_access_key"]


@given(name=st.sampled_from(NAMES), secret=SECRETS, around=DOCUMENTS, data=st.data())
def test_a_value_under_a_name_of_a_secret_goes(
    name: str, secret: str, around: Any, data: st.DataObject
) -> None:
    form: Any = data.draw(
        st.sampled_from(
            [
                {name: secret},
                {name: [secret, secret]},
                {"name": name, "value": secret},
                {"value": secret, "key": name, "more": [1]},
                {"environmentVariables": [{"name": name, "value": secret}]},
                {"a": f"{name}={secret}"},
                {"a": f"x {name} = '{secret}' y"},
                {"a": f'"{name}": "{secret}"'},
                {"a": orjson.dumps({name: secret}).decode()},
                {"a": orjson.dumps(orjson.dumps({name: secret}).decode()).decode()},
                {"a": f"url: https://h/p?x=1&{name}={secret}&y=2"},
                {"a": f"--{name} {secret} -x"},
                {"a": f"alter user u {name} '{secret}'"},
                {"a": f"{name} => '{secret}"},
                {"a": f"{name}: {secret}"},
                {"a": f"a=b;{name}={secret};c=d"},
                {f"{name}={secret}": 1},
            ]
        )
    )
    passed = made(redact).process(event_of({"facets": [around, form]}))
    assert passed is not None
    assert secret.encode() not in passed.payload


@given(document=DOCUMENTS.filter(lambda d: isinstance(d, dict)))
def test_redacting_twice_changes_nothing_more(document: dict[str, Any]) -> None:
    once = redacted({**document, "a": "password=x 'y' token: \"z"})
    event = event_of(once)
    assert made(redact).process(event) is event


@given(document=st.dictionaries(KEYS, SCALARS, max_size=4), words=st.lists(TEXTS, max_size=3))
def test_what_comes_out_is_what_went_in_but_for_texts(
    document: dict[str, Any], words: list[str]
) -> None:
    whole = {**document, "deep": [words, {"words": words}]}
    found = redacted(whole, patterns=[{"regex": "[aeiou]+"}])
    before, after = list(members(whole)), list(members(found))
    assert [type(value) for _, _, value in before] == [type(value) for _, _, value in after]
    assert [v for _, _, v in before if not isinstance(v, str | dict | list)] == [
        v for _, _, v in after if not isinstance(v, str | dict | list)
    ]


def test_an_event_full_of_secrets_stays_valid() -> None:
    document = whole_event()
    for container, step, value in list(members(document)):
        if step in ("uri", "url", "_producer", "producer") and isinstance(value, str):
            container[step] = "https://user:pa55word@example.org/x?token=abc"
        elif step in ("query", "stackTrace", "value", "description") and isinstance(value, str):
            container[step] = "connect with password='pa55word' to postgres://u:pa55word@h/db"
    found = redacted(document)
    assert b"pa55word" not in orjson.dumps(found)
    assert STRICT.check(found).ok


# -------------------------------------------------------------------------- forms


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("postgres://me:pw@host:5432/db", "postgres://REDACTED@host:5432/db"),
        ("postgres://:pw@host", "postgres://REDACTED@host"),
        ("postgres://me:p@w:x@host/db", "postgres://REDACTED@host/db"),
        ("jdbc:mysql://root:root@db/x?a=b", "jdbc:mysql://REDACTED@db/x?a=b"),
        ("jdbc:oracle:thin:scott/tiger@db:1521:x", "jdbc:oracle:thin:REDACTED@db:1521:x"),
        ("https://ghp_abc@github.com/x.git", "https://REDACTED@github.com/x.git"),
        ("Authorization: Bearer abc.def", "Authorization: REDACTED"),
        ("curl -H 'X: bearer abcdefgh'", "curl -H 'X: bearer REDACTED'"),
        ("id AKIAIOSFODNN7EXAMPLE.", "id REDACTED."),
        ("-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY----- x", "REDACTED x"),
        ("-----BEGIN PRIVATE KEY-----\nMII", "REDACTED"),
        ("CREATE USER u IDENTIFIED BY 'it''s'; x", "CREATE USER u IDENTIFIED BY 'REDACTED'; x"),
        (r"set password = 'a\'b' where", "set password = 'REDACTED' where"),
        ("password='never closed", "password='REDACTED'"),
        ("x?token=a&b=c", "x?token=REDACTED&b=c"),
        ("a = password = b", "a = password = REDACTED"),
        ("url:password=x", "url:password=REDACTED"),
        ('{"a":{"password":"x y"}}', '{"a":{"password":"REDACTED"}}'),
    ],
)
def test_secrets_inside_of_texts(before: str, after: str) -> None:
    assert text(before) == after


@pytest.mark.parametrize(
    "harmless",
    [
        "abfss://container@account.dfs.core.windows.net/path",
        "https://example.org:8080/a?mail=me@example.org",
        "git@github.com:x/y.git",
        "select token from t where x = 1",
        "the password is",
        "password",
        "a passwordless login",
        "basic auth",
        "",
    ],
)
def test_what_is_no_secret_stays(harmless: str) -> None:
    assert text(harmless) == harmless


def test_a_column_called_password_keeps_its_lineage() -> None:
    document = {
        "columnLineage": {
            "fields": {"password": {"inputFields": [{"name": "n", "field": "password"}]}}
        },
        "schema": {"fields": [{"name": "password", "type": "string"}]},
        "password_required": True,
        "token": None,
    }
    assert redacted(document) == document


def test_numbers_under_a_name_of_a_secret_go_and_dates_elsewhere_stay() -> None:
    assert redacted({"db_password": 1234, "n": 1234}) == {"db_password": MARKER, "n": 1234}


def test_each_way_can_be_turned_off() -> None:
    everything = "postgres://u:p@h password=x"
    assert text(everything, credentials=False) == "postgres://u:p@h password=REDACTED"
    assert text(everything, assignments=False) == "postgres://REDACTED@h password=x"
    assert text(everything, names=[]) == "postgres://REDACTED@h password=x"
    assert redacted({"password": "x"}, names=["pin"]) == {"password": "x"}
    assert redacted({"PIN": "x"}, names=["pin"]) == {"PIN": MARKER}


# ------------------------------------------------------------- patterns and paths


def test_patterns_may_keep_a_part_of_what_they_find() -> None:
    pattern = {"regex": r"card (\d{4})\d{8}(\d{4})", "replacement": r"card \1…\2"}
    assert text("card 1234567812345678!", patterns=[pattern]) == "card 1234…5678!"


def test_two_keys_that_become_equal_both_stay() -> None:
    found = redacted({"k1": 1, "k2": 2, MARKER: 3}, patterns=[{"regex": "k[12]"}])
    assert sorted(found.values()) == [1, 2, 3]
    assert list(found.values()) == [1, 2, 3]


def test_very_many_keys_that_become_equal_do_not_take_for_ever() -> None:
    document = {f"k{number}": number for number in range(50_000)}
    found = redacted({"facets": document}, patterns=[{"regex": "k[0-9]+"}])
    assert list(found["facets"].values()) == list(range(50_000))


def test_keys_are_remembered_and_only_so_many() -> None:
    processor = made(redact, patterns=[{"regex": "k[0-9]+"}])
    for _ in range(2):
        passed = processor.process(event_of({"k1": 1, "clean": 2}))
        assert passed is not None
        assert passed.document == {MARKER: 1, "clean": 2}
    for first in range(0, 10_000, 500):
        processor.process(event_of({f"x{number}": 1 for number in range(first, first + 500)}))
    assert len(processor._clean_keys) <= redact.REMEMBERED_MAX


def test_paths_take_whole_values() -> None:
    document = {
        "job": {"facets": {"sql": {"query": "select 1"}}},
        "inputs": [{"uri": {"a": 1}}, {"uri": "x"}, {}],
        "odd/key": {"~": "y"},
        "list": ["a", "b"],
    }
    paths = [
        "/job/facets/sql/query",
        "/inputs/*/uri",
        "/odd~1key/~0",
        "/list/1",
        "/not/there",
        "/list/7",
    ]
    assert redacted(document, paths=paths) == {
        "job": {"facets": {"sql": {"query": MARKER}}},
        "inputs": [{"uri": MARKER}, {"uri": MARKER}, {}],
        "odd/key": {"~": MARKER},
        "list": ["a", MARKER],
    }


def test_a_path_is_followed_also_where_a_key_on_it_is_redacted() -> None:
    found = redacted({"k1": {"s": "secret"}}, patterns=[{"regex": "k1"}], paths=["/k1/s"])
    assert found == {MARKER: {"s": MARKER}}


def test_a_path_that_is_redacted_already_changes_nothing() -> None:
    event = event_of({"a": MARKER})
    assert made(redact, paths=["/a"]).process(event) is event


def test_the_marker_is_yours() -> None:
    assert text("password=x", marker="---") == "password=---"


# ------------------------------------------------------------------ running away


@pytest.mark.parametrize(
    "hard",
    [
        "a" * 300_000,
        "a.-" * 100_000,
        "password " * 40_000,
        "password=" * 40_000,
        "password='" * 40_000,
        "password" + " " * 300_000,
        "a" + "'" * 300_000,
        "://:" * 80_000,
        "://" + ":" * 300_000,
        "https://" * 40_000,
        "jdbc:oracle:a:" * 20_000,
        "bearer " * 40_000,
        "-----BEGIN PRIVATE KEY-----" * 10_000,
        "-----BEGIN " + "A " * 100_000,
        "identified by " * 20_000,
        "identified by '" + "'" * 300_000,
        "\\" * 300_000 + "password=" + "\\" * 100_000,
        "--password\n" * 30_000,
    ],
    ids=lambda hard: hard[:16],
)
def test_no_text_makes_it_run_away(hard: str) -> None:
    # Ten seconds per thousand characters would be the square: the time limit of the suite tells.
    without_credentials(hard, hard.casefold(), MARKER)
    without_assignments(hard, lambda name: "password" in name, MARKER)


def test_no_pattern_makes_it_run_away() -> None:
    patterns = [{"regex": "(a+)+$"}, {"regex": "(a|aa)+b"}]
    event = event_of({"text": "a" * 100_000 + "!"})
    assert made(redact, patterns=patterns).process(event) is event


@pytest.mark.parametrize(
    "config",
    [
        {"patterns": [{"regex": "(a"}]},
        {"patterns": [{"regex": "(?<=a)b"}]},
        {"patterns": [{"regex": r"(a)\1"}]},
        {"patterns": [{"regex": ".*"}]},
        {"patterns": [{"regex": "a", "replacement": r"\1"}]},
        {"paths": ["job"]},
        {"paths": ["/"]},
        {"names": ["a b"]},
        {"names": [""]},
        {"marker": "[redacted]"},
        {"marker": ""},
        {"secrets": []},
    ],
)
def test_a_configuration_that_cannot_work_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        redact.Config.model_validate(config)
