"""SQL over an archive, alone and together with the quiver that fills it: each event once."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from tests.patience import until
from tests.query.test_sql import CONFIG, rows, sql, told
from tests.signals.otlp.telemetry import request
from tests.signals.test_item_tables import CONFIG as TELEMETRY

from holdfast.errors import CannotOpen, Damaged
from holdfast.query import open_tables
from holdfast.query.kept import KeptTables
from holdfast.query.sql import answer
from holdfast.quiver import ArchiveConfig, Quiver, QuiverConfig, SegmentConfig
from holdfast.signals.otlp.kinds import OtlpKind

COUNT = "select count(*) n, count(distinct number) numbers from events"


def archiving(config: QuiverConfig, archive: Path) -> QuiverConfig:
    kept = SegmentConfig(max_open_duration_s=3600.0, archive=ArchiveConfig(str(archive)))
    return QuiverConfig(segment=kept, extractors=config.extractors, tables=config.tables)


def until_archived(quiver: Quiver) -> None:
    def is_done() -> bool:
        told = quiver.statistics().archive
        return told is not None and not told.waiting_segments

    until(is_done, "archived")


def test_what_was_removed_here_is_asked_in_the_archive(tmp_path: Path) -> None:
    path, archive = tmp_path / "quiver", tmp_path / "archive"
    address = f"file://{archive}"
    archive.mkdir()
    with pytest.raises(CannotOpen, match="there is no archived segment here"):
        raise sql(address, COUNT).exception or AssertionError
    with Quiver.open(path, archiving(CONFIG, archive)) as quiver:
        quiver.append(rows(0, 10))
        assert told(path, COUNT, "--archive", archive) == [{"n": 10, "numbers": 10}]
        lease = quiver.lease("reader")
        for first in (10, 20):
            quiver.append(rows(first, 10))
            quiver.flush()
        for _ in range(2):
            delivery = lease.poll()
            assert delivery is not None
            delivery.ack()
        until_archived(quiver)
        until(lambda: len(quiver.segments()) == 1, "removed")
        quiver.append(rows(30, 10))
        assert told(path, COUNT)[0]["n"] < 40
        assert told(address, COUNT) == [{"n": 30, "numbers": 30}]
        assert told(path, COUNT, "--archive", archive) == [{"n": 40, "numbers": 40}]
    (damaged, *_) = sorted(archive.glob("*/segments/*/000-events.arrow"))
    damaged.write_bytes(bytes(damaged.stat().st_size))
    assert isinstance(sql(address, COUNT + " where number >= 0").exception, Damaged)


def test_what_is_sealed_again_after_a_kill_is_read_once(tmp_path: Path) -> None:
    """As tables, kept or not: they are made of some bundles of a segment, and not of the others."""
    path, archive, left = tmp_path / "quiver", tmp_path / "archive", tmp_path / "left"
    chance = random.Random(3)
    bodies = [request(OtlpKind.TRACES, chance, items=5) for _ in range(4)]
    config = archiving(TELEMETRY, archive)
    with Quiver.open(path, config) as quiver:
        append(quiver, bodies[:2])
        shutil.copytree(path, left, ignore=shutil.ignore_patterns("*.sock"))
        quiver.flush()
        until_archived(quiver)
        expected = quiver.scan(table="spans").read_all().num_rows
    # What a kill leaves: the log has still what was sealed, archived and removed.
    assert spans(open_rows([left], [archive])) == (expected, expected)
    with Quiver.open(left, config) as quiver:
        append(quiver, bodies[2:])
        quiver.flush()
        until_archived(quiver)
        expected = quiver.scan(table="spans").read_all().num_rows
    assert len(list(archive.glob("*/segments/*/manifest"))) == 2
    for directories in ([], [left]):
        for keep in (None, KeptTables(tmp_path / "kept")):
            assert spans(open_rows(directories, [archive], keep)) == (expected, expected)


def append(quiver: Quiver, bodies: Sequence[bytes]) -> None:
    for body in bodies:
        quiver.append_raw([body], slot=OtlpKind.TRACES.slot)


def open_rows(
    directories: Sequence[Path], archives: Sequence[Path], keep: KeptTables | None = None
) -> pa.Table:
    tables = open_tables(*directories, archives=[str(one) for one in archives], keep=keep)
    with answer(tables, "select _seq, _row, _item from spans") as reader:
        return reader.read_all()


def spans(found: pa.Table) -> tuple[int, int]:
    """Return how many rows there are, and how many that differ."""
    return found.num_rows, len({tuple(row.values()) for row in found.to_pylist()})
