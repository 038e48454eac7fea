"""References in a configuration: variables, files, defaults, escapes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.graph import document
from holdfast.graph.document import BadReference, Substitution, escaped, whole_reference


def apply(text: str, folder: Path | None = None, **environment: str) -> str:
    return Substitution(environment, folder or Path()).apply(text)


def test_variables_are_replaced() -> None:
    assert apply("${env:A}-${env:B}", A="x", B="${env:A}") == "x-${env:A}"


def test_a_default_stands_for_an_unset_variable_only() -> None:
    assert apply("${env:A:-x y:-z}") == "x y:-z"
    assert apply("${env:A:-x}", A="") == ""
    assert apply("${env:A:-}") == ""


def test_files_are_read_from_the_folder_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"s3cret\r\n")
    (tmp_path / "two").write_text("a\n\n")
    assert apply("Bearer ${file:token}", tmp_path) == "Bearer s3cret"
    assert apply("${file:two}", tmp_path) == "a\n"
    assert apply(f"${{file:{tmp_path}/token}}") == "s3cret"


def test_other_text_is_left_alone() -> None:
    for text in ("$", "${", "${HOME}", "$HOME", "{}", "${other:x}", "a$b", "$$"):
        assert apply(text) == text


def test_two_dollars_are_one() -> None:
    assert apply("$${env:A}", A="x") == "${env:A}"
    assert apply("$${HOME} ${env:A}", A="x") == "${HOME} x"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("${env:A}", "the environment has no variable A"),
        ("${env:}", "'' is not the name of a variable"),
        ("${env:A-B}", "'A-B' is not the name of a variable"),
        ("${env:A", "the reference ${env:… has no end"),
        ("${env:${env:A}}", "the reference ${env:… has no end"),
        ("${file:missing}", "the file 'missing' cannot be read: No such file or directory"),
        ("${file:}", "the file '' cannot be read: FileNotFoundError"),
        ("${file:.}", "the file '.' cannot be read: Is a directory"),
        ("${file:binary}", "the file 'binary' cannot be read: UnicodeDecodeError"),
        ("${file:a\0b}", "the file 'a\\x00b' cannot be read: ValueError"),
    ],
)
def test_what_cannot_be_replaced_is_told(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(BadReference) as caught:
        apply(text, tmp_path)
    assert caught.value.message == message
    assert caught.value.hint


def test_the_default_is_not_told_with_the_error() -> None:
    with pytest.raises(BadReference) as caught:
        apply("${env:A-B:-hunter2}")
    assert "hunter2" not in caught.value.message + caught.value.hint


def test_a_file_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "REFERENCED_BYTES_MAX", 4)
    (tmp_path / "large").write_text("12345")
    with pytest.raises(BadReference, match="over 4 bytes"):
        apply("${file:large}", tmp_path)


@given(st.text(alphabet="${}envf:Aabc "))
def test_what_is_escaped_comes_back_as_it_was(text: str) -> None:
    assert apply(escaped(text), A="x") == text


def test_only_a_reference_alone_and_without_a_default_is_one() -> None:
    assert whole_reference("${env:A}")
    assert whole_reference("${file:a b}")
    assert not whole_reference("${env:A:-x}")
    assert not whole_reference("x${env:A}")
    assert not whole_reference("$${env:A}")
    assert not whole_reference("${env:A")
