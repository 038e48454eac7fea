"""The store of the demo, without its gateway and without Spark."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.demo.results import COUNTS, Keeping, Kept, can_keep, how_to_read
from holdfast.store.filesets import Commits, FileSetWriter
from holdfast.store.store import Store


def test_exactly_the_bytes_of_the_deleted_commit_are_reclaimed(tmp_path: Path) -> None:
    assert can_keep()
    (tmp_path / "client.journal").write_bytes(b"A event\n" * 20_000)
    (tmp_path / "gateway.log").write_bytes(b"up\n")
    keeping = Keeping(tmp_path)
    keeping.create()
    rows = io.BytesIO()
    pq.write_table(pa.table({"events": [3, 4]}), rows)
    with Store.open(str(tmp_path / "store")) as store:
        with store.references.open_job("killed") as job, FileSetWriter(store, job) as writer:
            writer.put("left", b"by a driver that was killed")
            writer.close()
        with store.references.open_job("test") as job, FileSetWriter(store, job) as writer:
            writer.put("part.parquet", rows.getvalue())
            Commits(store).create(job, f"{COUNTS}/000000000001", [writer.close()])
    kept = keeping.finish()
    assert kept.ok
    assert (kept.commits, kept.counted) == (1, 7)
    assert kept.added_bytes > 160_000
    with Store.open(str(tmp_path / "store")) as store:
        assert [one.name for one in Commits(store).list()] == [f"{COUNTS}/000000000001"]
    assert "FOLDER/store" in how_to_read("FOLDER", kept)
    assert not replace(kept, reclaimed_bytes=kept.reclaimed_bytes - 1).ok


def test_nothing_added_is_no_proof() -> None:
    assert not Kept(0, "", 0, 0, 0, 0, 0).ok
