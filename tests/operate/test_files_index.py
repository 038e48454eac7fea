"""`holdfast files index show`: what an index consists of, as a user sees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.store.filesets.memory import CHUNKING

from holdfast.operate.cli import cli
from holdfast.store.chunks.settings import StoreSettings
from holdfast.store.filesets import Commits, FileSetWriter
from holdfast.store.gc.settings import GcSettings
from holdfast.store.store import Store

PATHS = [f"folder-{n % 7}/file-{n:04}" for n in range(400)]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store of small chunks with a commit of two layers, whose first index has several levels."""
    gc = GcSettings(synchronous="off", reserve_bytes=0)
    settings = StoreSettings(chunking=CHUNKING, gc=gc)
    with Store.create(str(tmp_path / "store"), settings=settings) as store:
        commits = Commits(store)
        with store.references.open_job("test") as job:
            layers = []
            with FileSetWriter(store, job) as writer:
                for path in PATHS:
                    writer.put(path, path.encode())
                layers.append(writer.close())
            with FileSetWriter(store, job) as writer:
                writer.append(PATHS[9], b"more", tag=7)
                writer.delete(PATHS[10])
                layers.append(writer.close())
            commits.create(job, "one", layers)
    return tmp_path / "store"


def show(place: Path, *words: str) -> Any:
    asked = ["files", "index", "show", "one", *words, "--store", str(place)]
    return CliRunner().invoke(cli, asked, catch_exceptions=False, standalone_mode=False)


def shown(place: Path, *words: str) -> Any:
    return json.loads(show(place, *words, "--json").stdout)


def test_all_chunks_are_shown_each_before_those_in_it(place: Path) -> None:
    told = shown(place, "--limit", "10000")
    assert not told["more"]
    older = [chunk for chunk in told["chunks"] if chunk["layer_seq"] == 1]
    root = older[0]
    assert root["level"] >= 2
    assert (root["first_path"], root["last_path"]) == (min(PATHS), max(PATHS))
    assert root["files"] == len(PATHS)
    assert root["content_bytes"] == sum(map(len, PATHS))
    for level in range(1, root["level"] + 1):
        chunks = [chunk for chunk in older if chunk["level"] == level]
        below = [chunk for chunk in older if chunk["level"] == level - 1]
        held = sum(chunk["entries"] for chunk in chunks)
        assert held == (len(below) if level > 1 else len(PATHS))
        assert {chunk["kind"] for chunk in chunks} == {"r" if level > 1 else "i"}
        firsts = [chunk["first_path"] for chunk in chunks]
        assert firsts == sorted(firsts)
        assert all(0 < chunk["size_bytes"] <= CHUNKING.max_bytes for chunk in chunks)


def test_a_path_is_followed_down_and_what_layers_say_of_it_is_told(place: Path) -> None:
    told = shown(place, PATHS[9])
    older = [chunk for chunk in told["chunks"] if chunk["layer_seq"] == 1]
    assert [chunk["level"] for chunk in older] == list(range(older[0]["level"], 0, -1))
    assert [(one["layer_seq"], one["operation"]) for one in told["entries"]] == [
        (1, "OVERWRITE"),
        (2, "APPEND"),
    ]
    assert told["entries"][1]["tags"] == [{"tag": "#7", "size_bytes": 4, "does": "appends"}]
    deleted = shown(place, PATHS[10])
    assert deleted["entries"][-1]["operation"] == "DELETE"
    text = show(place, PATHS[9]).stdout
    assert f"what layers say of {PATHS[9]}" in text
    assert "appends '#7'" in text


def test_what_is_shown_is_bounded(place: Path) -> None:
    told = shown(place, "--limit", "3")
    assert (len(told["chunks"]), told["more"]) == (3, True)
    assert "and more than these 3" in show(place, "--limit", "3").stdout
    top = shown(place, "--level", "2")
    assert {chunk["kind"] for chunk in top["chunks"]} == {"r"}
    assert show(place, "zzz").stdout == "there are none\n"


def test_an_index_that_cannot_be_read_is_shown_as_far_as_it_can_be(place: Path) -> None:
    root = shown(place)["chunks"][0]
    (lost,) = place.rglob(f"{root['hash']}.*")
    lost.unlink()
    told = shown(place, PATHS[9])
    assert (told["chunks"][0]["entries"], told["chunks"][1]["layer_seq"]) == (None, 2)
    assert told["chunks"][0]["fault"]
    assert told["entries"][0]["fault"]
    result = show(place, PATHS[9])
    assert "layer 1: " in result.stderr
    assert "cannot be read" in result.stdout
