"""Data directories and stores of older versions: opened, read whole, gone on with, found sound."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from holdfast.dead_letters.queue import DeadLetterQueue
from holdfast.quiver import Cores, Outcome, Quiver, QuiverConfig
from holdfast.quiver.tools.fsck import fsck
from holdfast.seam import Seam
from holdfast.store.filesets import Commits, FileSetWriter
from holdfast.store.fsck.check import LocalEngine, check
from holdfast.store.fsck.scrub import scrub
from holdfast.store.gc.collector import Collector
from holdfast.store.store import Store

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("v*"))
QUIVERS = ("clean", "gaps", "crashed")


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def unpacked(version: str, shape: str, folder: Path) -> dict[str, Any]:
    """Unpack a place; return what was put into it."""
    with tarfile.open(HERE / version / f"{shape}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    found = json.loads((HERE / version / "expected.json").read_text())[shape]
    assert isinstance(found, dict)
    return found


def check_quiver(quiver: Quiver, expected: dict[str, Any]) -> None:
    """Everything is read, waits for whom it waited for, and is accounted for."""
    assert quiver.recovery.damages == []
    for seq, text in expected["payloads"].items():
        bundle = quiver.bundle(int(seq))
        assert bundle is not None
        assert [bytes(payload).decode() for payload in bundle.payloads] == [text]
    assert set(quiver.subscribers()) == set(expected["waiting"])
    for name, seqs in expected["waiting"].items():
        assert quiver.waiting(name) == seqs
        account = quiver.balance(name)
        assert account.holds, account


def go_on(quiver: Quiver) -> None:
    """Append and drain: for every subscriber, all that waits for it."""
    receipt = quiver.append_raw(b'{"event": "new"}')
    for name in quiver.subscribers():
        assert quiver.waiting(name)[-1] == receipt.seq
        quiver.resolve(name, quiver.waiting(name), Outcome.ACKED)
        assert quiver.waiting(name) == []
        assert quiver.balance(name).holds


@pytest.mark.parametrize("shape", QUIVERS)
def test_a_quiver_goes_on(version: str, shape: str, tmp_path: Path) -> None:
    expected = unpacked(version, shape, tmp_path)["data"]
    assert fsck(Seam(), tmp_path / "data").ok
    for _ in range(2):
        with Quiver.open(tmp_path / "data", QuiverConfig()) as quiver:
            check_quiver(quiver, expected)
    with Quiver.open(tmp_path / "data", QuiverConfig()) as quiver:
        go_on(quiver)
    assert fsck(Seam(), tmp_path / "data").ok


def test_several_cores_go_on(version: str, tmp_path: Path) -> None:
    expected = unpacked(version, "cores", tmp_path)
    with Cores.open(tmp_path / "data", len(expected), QuiverConfig()) as cores:
        for core, name in enumerate(sorted(expected)):
            check_quiver(cores[core], expected[name])
            go_on(cores[core])
    for name in expected:
        assert fsck(Seam(), tmp_path / name).ok


def test_dead_letters_are_there(version: str, tmp_path: Path) -> None:
    expected = unpacked(version, "dead_letters", tmp_path)
    with DeadLetterQueue.open(tmp_path / "data") as office:
        for quiver in (office.rejected, office.undelivered_quiver):
            name = str(Path(str(quiver.directory)).relative_to(tmp_path))
            check_quiver(quiver, expected[name])
            bundles = [quiver.bundle(seq) for seq in expected[name]["waiting"]["keeper"]]
            texts = [bytes(p).decode() for bundle in bundles if bundle for p in bundle.payloads]
            assert texts == expected[name]["texts"]
            go_on(quiver)
    for name in expected:
        assert fsck(Seam(), tmp_path / name).ok


@pytest.mark.parametrize("shape", ["store", "store_killed"])
def test_a_store_goes_on(version: str, shape: str, tmp_path: Path) -> None:
    expected = unpacked(version, shape, tmp_path)["store"]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with Store.open(str(tmp_path / "store")) as store:
        commits = Commits(store)
        assert {row.name for row in store.references.commits()} == set(expected)
        for name, files in expected.items():
            with commits.open(name) as opened:
                found = {
                    info.path: blake3(opened.read(info.path)).hexdigest() for info in opened.files()
                }
            assert found == files
        report = check(store, LocalEngine(store, scratch))
        assert report.ok
        assert report.sizes_unknown == report.chunks > 0 or version != "v1"
        assert scrub(store).ok
        assert check(store, LocalEngine(store, scratch)).sizes_unknown == 0
        with store.references.open_job("goes on") as job:
            with FileSetWriter(store, job) as writer:
                writer.put("new", b"new" * 1000)
                layer = writer.close()
            commits.create(job, "new", [layer])
        Collector(store.references, store.objects).collect()
        assert check(store, LocalEngine(store, scratch)).ok
        with commits.open("new") as opened:
            assert opened.read("new") == b"new" * 1000
