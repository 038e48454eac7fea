"""Stores that older versions wrote are read as they were written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from scripts.make_golden import CONFIG, build, files_of, plain
from tests.quiver.machine import take_apart

from holdfast.errors import StaleEpoch
from holdfast.quiver import Bundle, Quiver
from holdfast.quiver.base.frame import STAGED, FrameKind

GOLDEN = Path(__file__).parent / "golden"
STORES = sorted(GOLDEN.glob("v*"))


@pytest.fixture(params=STORES, ids=lambda store: store.name)
def store(request: pytest.FixtureRequest) -> Path:
    assert isinstance(request.param, Path)
    return request.param


@pytest.fixture
def data(store: Path, tmp_path: Path) -> Path:
    """A copy, because opening a store changes it."""
    return Path(shutil.copytree(store / "data", tmp_path / "data"))


@pytest.fixture
def expected(store: Path) -> dict[str, Any]:
    found = json.loads((store / "expected.json").read_text())
    assert isinstance(found, dict)
    return found


def as_expected(bundle: Bundle | None) -> dict[str, Any]:
    assert bundle is not None
    return {
        "seq": bundle.seq,
        "ingestion_ns": bundle.ingestion_ns,
        "watermark_ns": bundle.watermark_ns,
        "producer": bundle.producer,
        "epoch": bundle.epoch,
        "kind": bundle.kind.name,
        "slots": {name: plain(batch.to_pylist()) for name, batch in bundle.slots.items()},
    }


def content(quiver: Quiver, expected: dict[str, Any]) -> list[dict[str, Any]]:
    return [as_expected(quiver.bundle(bundle["seq"])) for bundle in expected["bundles"]]


def test_there_is_a_golden_store() -> None:
    assert [store.name for store in STORES][:1] == ["v1"]


def test_a_golden_store_holds_exactly_what_was_appended(
    data: Path, expected: dict[str, Any]
) -> None:
    with Quiver.open(data, CONFIG, expected_id=expected["quiver_id"]) as quiver:
        assert quiver.recovery.damages == []
        assert quiver.recovery.segments == 2
        assert quiver.statistics().accepted_bundles == len(expected["bundles"])
        assert content(quiver, expected) == expected["bundles"]
    with Quiver.open(data, CONFIG) as quiver:
        assert quiver.recovery.clean_shutdown
        assert quiver.statistics().open_bundles == 0, "all was sealed"
        assert content(quiver, expected) == expected["bundles"]


def test_a_golden_store_is_scanned_row_by_row(data: Path, expected: dict[str, Any]) -> None:
    slots = {name for bundle in expected["bundles"] for name in bundle["slots"]}
    assert slots == {"events", "spans", "attrs", "drift", "other"}
    with Quiver.open(data, CONFIG) as quiver:
        for slot in sorted(slots):
            rows = quiver.scan(slot=slot).read_all().to_pylist()
            appended = [
                (bundle["seq"], row)
                for bundle in expected["bundles"]
                for row in bundle["slots"].get(slot, [])
            ]
            assert [row["_seq"] for row in rows] == [seq for seq, _ in appended]
            for row, (_, own) in zip(rows, appended, strict=True):
                assert plain({name: row[name] for name in own}) == own


def test_a_golden_store_keeps_event_times(data: Path) -> None:
    with Quiver.open(data, CONFIG) as quiver:
        rows = quiver.scan(["_event_time", "start", "_event_time_flag"], slot="spans").read_all()
    assert rows.num_rows == 5
    assert rows.column("_event_time").equals(rows.column("start"))
    assert set(rows.column("_event_time_flag").to_pylist()) == {0}


def test_a_golden_store_remembers_its_producers_and_goes_on_numbering(
    data: Path, expected: dict[str, Any]
) -> None:
    with Quiver.open(data, CONFIG) as quiver:
        seqs = {(b["producer"], b["epoch"]): b["seq"] for b in reversed(expected["bundles"])}
        for producer, epoch in (("edge-1", 4), ("edge-2", 3), ("edge-3", 9)):
            again = quiver.append_raw(b"again", producer=producer, epoch=epoch)
            assert (again.seq, again.duplicate) == (seqs[producer, epoch], True)
        with pytest.raises(StaleEpoch):
            quiver.append_raw(b"stale", producer="edge-1", epoch=3)
        assert quiver.append_raw(b"new").seq > expected["bundles"][-1]["seq"]


def test_the_files_of_a_golden_segment_are_plain_arrow(data: Path) -> None:
    files = sorted(data.glob("segments/*/*.arrow"))
    assert len(files) > 5
    for path in files:
        with pa.OSFile(str(path)) as file:
            assert pa.ipc.open_file(file).read_all().num_rows > 0


def test_a_golden_wal_has_frames_of_every_kind(data: Path) -> None:
    frames = [
        frame
        for path in sorted(data.glob("wal/*.wal"))
        for frame in take_apart(path.read_bytes()).frames
    ]
    assert {frame.kind for frame in frames} == set(FrameKind)
    assert {frame.flags for frame in frames} == {0, STAGED}


def test_making_a_golden_store_gives_the_same_bytes_every_time() -> None:
    (one, wanted), (two, again) = build(), build()
    assert dict(files_of(one)) == dict(files_of(two))
    assert wanted == again
