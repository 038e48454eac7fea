"""YAML as plain data with places: what scalars mean, and where everything stands."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.graph import document as module
from holdfast.graph.document import Document, Substitution, parse_document, read_document, resolve


def read(text: str | bytes, folder: Path | None = None, **environment: str) -> Document:
    content = text if isinstance(text, bytes) else text.encode()
    substitution = Substitution(environment, folder or Path())
    return parse_document(content, Document("file.yaml"), substitution)


def told(text: str | bytes) -> list[str]:
    return [f"{f.line}:{f.column} {f.message}" for f in read(text).findings]


# ------------------------------------------------------------------------ what it says


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-12", -12),
        ("0x1F", 31),
        ("0o17", 15),
        ("0777", 777),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("on", "on"),
        ("yes", "yes"),
        ("12:30", "12:30"),
        ("2026-11-15", "2026-11-15"),
        ("1_000", "1_000"),
        ("0b1", "0b1"),
        ("9" * 400, "9" * 400),
    ],
)
def test_plain_scalars_mean_what_yaml_1_2_says(text: str, value: object) -> None:
    assert read(f"a: {text}").value == {"a": value}


def test_nan_is_a_number() -> None:
    assert math.isnan(resolve(".nan"))


def test_quotes_and_the_tag_str_make_text() -> None:
    assert read("""{a: "1", b: '2', c: !!str 3, d: ! 4}""").value == {
        "a": "1",
        "b": "2",
        "c": "3",
        "d": "4",
    }


def test_keys_are_text() -> None:
    assert read("1: a\ntrue: b\nnull: c").value == {"1": "a", "true": "b", "null": "c"}


def test_an_alias_means_what_its_anchor_holds() -> None:
    found = read("a: &x {b: [1]}\nc: *x")
    assert found.value == {"a": {"b": [1]}, "c": {"b": [1]}}
    assert found.values["c", "b", 0] == (1, 12)


def test_places_count_from_one_and_reach_every_key_and_value() -> None:
    found = read("a: 1\nb:\n  - x\n  - {c: 2}\n")
    assert found.keys[("b",)] == (2, 1)
    assert found.values["b", 1, "c"] == (4, 9)
    assert found.keys["b", 1, "c"] == (4, 6)
    assert found.values[()] == (1, 1)
    assert found.value_place(("b", 7, "nowhere")) == (3, 3)
    assert found.key_place(("b", 0)) == (3, 5)


def test_a_byte_order_mark_is_passed_over() -> None:
    assert read(b"\xef\xbb\xbfa: 1").value == {"a": 1}


# ---------------------------------------------------------------------- what is wrong

NO_TOKEN = "cannot start any token while scanning for the next token"


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("", "1:1 the file is empty"),
        ("# only a comment\n", "1:1 the file is empty"),
        ("a: 1\na: 2", "2:1 duplicate key 'a'"),
        ("x: {a: 1, a: 2}", "1:11 duplicate key 'a'"),
        ("a: 1\n---\nb: 2", "2:1 a second document begins"),
        ("a: *x", "1:4 there is no anchor 'x'"),
        ("a: &x [*x]", "1:8 there is no anchor 'x'"),
        ("a: !!int 5", "1:4 the tag 'tag:yaml.org,2002:int' is not supported"),
        ("a: !secret {}", "1:4 the tag '!secret' is not supported"),
        ("<<: {a: 1}", "1:1 merge keys are not supported"),
        ("? [a]\n: 1", "1:3 a key is text, not a list or a mapping"),
        ("a: b: c", "1:5 not YAML: mapping values are not allowed here"),
        ("a:\n\t- b", f"2:1 not YAML: found character '\\t' that {NO_TOKEN}"),
        ("a: 'b", "1:6 not YAML: found unexpected end of stream while scanning a quoted scalar"),
        ("a: \x01", "1:4 the character U+0001 is not allowed"),
        ("é: 1\nb: \x02", "2:4 the character U+0002 is not allowed"),
        (b"a: 1\nb: \xff", "2:4 the file is not UTF-8"),
        ("[" * 60, "1:52 nested more than 50 deep"),
    ],
)
def test_what_is_wrong_is_found_where_it_stands(text: str | bytes, finding: str) -> None:
    assert told(text) == [finding]


def test_a_few_aliases_cannot_become_many_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NODES_MAX", 1000)
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert told("\n".join(rows)) == ["1:37 more than 1000 values"]


def test_a_file_that_is_too_large_or_missing_is_told(tmp_path: Path) -> None:
    assert told(b"a" * (module.FILE_BYTES_MAX + 1)) == [
        f"1:1 the file is over {module.FILE_BYTES_MAX} bytes"
    ]
    missing = read_document(tmp_path / "missing", Substitution({}, tmp_path))
    assert [one.message for one in missing.findings] == [
        "the file cannot be read: No such file or directory"
    ]


@given(st.text() | st.text(alphabet="[]{}:,-&*!|>'\"%@`# \n\tab0$<?~") | st.binary())
def test_whatever_is_in_the_file_nothing_raises(text: str | bytes) -> None:
    content = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    found = parse_document(content, Document("x"), Substitution({}, Path()))
    lines = content.count(b"\n") + 2
    assert all(1 <= one.line <= lines and one.column >= 1 for one in found.findings)


_PRINTABLE = st.text(
    st.characters(min_codepoint=32, max_codepoint=0xD7FF, exclude_categories=["Cc"])
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | _PRINTABLE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_PRINTABLE, inner, max_size=3),
    max_leaves=8,
)


def _escaped(value: object) -> object:
    """Values are substituted, so a plain `${` is escaped there; keys are taken as they are."""
    if isinstance(value, str):
        return value.replace("${", "$${")
    if isinstance(value, list):
        return [_escaped(one) for one in value]
    if isinstance(value, dict):
        return {key: _escaped(one) for key, one in value.items()}
    return value


@given(_JSON)
@example({"${": "${"})
def test_json_is_read_as_it_was(value: object) -> None:
    found = read(json.dumps({"root": _escaped(value)}, ensure_ascii=False))
    assert found.findings == []
    assert found.value == {"root": value}
