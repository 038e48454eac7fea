"""Spark reads what is sound beside a damaged slot, and is told which rows lack something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.dataflow.driver import Driver
from tests.dataflow.quivers import CONFIG, CONFIG_NAME, batch
from tests.dataflow.test_batch_reader import reader, rows

from holdfast.dataflow.source.options import parse_options
from holdfast.dataflow.source.quiver_location import connect
from holdfast.errors import BadConfig
from holdfast.quiver import Outcome, Quiver
from holdfast.remote import FlightSettings, QuiverServer


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Three segments of a bundle each; of the second the slot `notes` is damaged."""
    path = tmp_path / "quiver"
    with Quiver.open(path, CONFIG) as quiver:
        for number in range(3):
            notes = pa.record_batch({"parent": [0, 1], "note": ["a", "b"]})
            events = batch((float(row), "k", 10 * number + row) for row in range(2))
            quiver.append({"events": events, "notes": notes})
            quiver.flush()
    file = sorted((path / "segments").glob("*/*-notes.arrow"))[1]
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    return path


def flags(table: pa.Table) -> list[tuple[int, Any]]:
    columns = (table.column(name).to_pylist() for name in ("number", "_damaged_slots"))
    return list(zip(*columns, strict=True))


FLAGGED = [(0, None), (1, None), (10, ["notes"]), (11, ["notes"]), (20, None), (21, None)]


@pytest.mark.parametrize("columns", [{}, {"columns": "number"}], ids=["all", "some"])
def test_a_batch_flags_the_rows_whose_bundle_lacks_a_slot(
    damaged: Path, columns: dict[str, str]
) -> None:
    options = {"path": str(damaged), "quiver_config": CONFIG_NAME, "partial": "true", **columns}
    assert flags(rows(reader(options))) == FLAGGED
    assert [row["_seq"] for row in rows(reader({**options, "slot": "notes", "columns": "_seq"}))
            .to_pylist()] == [0, 0, 2, 2]  # fmt: skip


def test_a_server_flags_them_too(damaged: Path) -> None:
    with Quiver.open(damaged, CONFIG) as quiver:
        server = QuiverServer({"main": quiver}, FlightSettings(listen="127.0.0.1:0"))
        server.start()
        connect.cache_clear()
        try:
            where = {"quiver": f"{server.location}/main", "local_reads": "false"}
            assert flags(rows(reader({**where, "partial": "true"}))) == FLAGGED
        finally:
            server.stop()


def test_a_stream_flags_them_and_the_ledger_has_the_bundle_as_damaged(
    damaged: Path, tmp_path: Path
) -> None:
    options = {"on_data_loss": "count", "partial": "true"}
    driver = Driver(str(damaged), tmp_path / "checkpoint", **options)
    found = driver.next()
    driver.stop()
    assert found is not None
    assert flags(found) == FLAGGED
    with Quiver.open(damaged, CONFIG) as quiver:
        outcomes = quiver.balance("stats").outcomes
        assert (outcomes[Outcome.ACKED].events, outcomes[Outcome.DAMAGED].events) == (8, 4)


def test_a_stream_that_must_not_lose_rows_does_not_leave_any_out() -> None:
    with pytest.raises(BadConfig, match="partial leaves damaged rows out"):
        parse_options({"path": "q", "subscriber": "s", "partial": "true"})
