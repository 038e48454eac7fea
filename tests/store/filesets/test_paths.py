"""Paths that would leave their folder, or mean something else elsewhere, are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadInput
from holdfast.store.filesets import paths
from holdfast.store.filesets.paths import Collisions


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("", "it is empty"),
        ("/", "it is empty"),
        ("/etc/passwd", "absolute"),
        ("..", "leads out"),
        ("../x", "leads out"),
        ("a/../b", "leads out"),
        ("a/..", "leads out"),
        ("a/../", "leads out"),
        (".", "'.' as a part"),
        ("./a", "'.' as a part"),
        ("a//b", "empty part"),
        ("a//", "empty part"),
        ("a\0b", "NUL"),
        ("a\udcff", "not UTF-8"),
        ("a" * 4097, "longer than 4096"),
        ("ü" * 2049, "longer than 4096"),
    ],
)
def test_hostile_paths_are_refused(path: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        paths.check_path(path)


@pytest.mark.parametrize(
    "path",
    [
        "a",
        "a/",
        "a/b",
        "...",
        "a/...",
        "..a",
        "a..",
        ".hidden",
        "*?[x]",
        "a b",
        "ü/日本",
        "a" * 4096,
    ],
)
def test_ordinary_and_odd_paths_are_not(path: str) -> None:
    assert paths.check_path(path) == path


def test_a_file_is_no_folder() -> None:
    with pytest.raises(BadInput, match="folder's"):
        paths.check_file("a/")
    assert paths.check_folder("a") == paths.check_folder("a/") == "a/"
    assert paths.check_folder("") == paths.check_folder("/") == ""


@given(st.text(), st.text())
def test_strings_sort_as_their_bytes(one: str, other: str) -> None:
    if not any("\ud800" <= character <= "\udfff" for character in one + other):
        assert (one < other) == (one.encode() < other.encode())


@pytest.mark.parametrize(
    ("path", "target", "out"),
    [
        ("a", "b", False),
        ("a", "../b", True),
        ("d/a", "../b", False),
        ("d/a", "../../b", True),
        ("d/a", "x/../../b", False),
        ("d/a", "/etc/passwd", True),
        ("d/a", "", True),
        ("a", "x\0y", True),
        ("d/e/a", "./../../x", False),
        ("a", "..", True),
        # Out and in again: what the outer folder is called is not ours to know.
        ("d/a", "../../d/b", True),
    ],
)
def test_links_that_lead_out_are_known(path: str, target: str, out: bool) -> None:
    assert paths.leads_out(path, target) is out


def test_folders_above() -> None:
    assert list(paths.folders_above("a/b/c")) == ["a/", "a/b/"]
    assert list(paths.folders_above("a/b/")) == ["a/"]
    assert list(paths.folders_above("a")) == []


@given(st.lists(st.text("ab-/0", min_size=1, max_size=6)))
def test_collisions_are_found_wherever_they_are(given_paths: list[str]) -> None:
    sound = sorted({path for path in given_paths if not path.startswith("/") and "//" not in path})
    collide = any(
        not file.endswith("/") and other.startswith(file + "/") for file in sound for other in sound
    )
    try:
        collisions = Collisions()
        for path in sound:
            collisions.check(path)
    except BadInput:
        assert collide
    else:
        assert not collide
