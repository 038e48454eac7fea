"""A batch over an archive, alone and together with the quiver that fills it: each event once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from pyspark.sql.datasource import EqualTo, InputPartition
from pyspark.sql.types import StructType
from tests.dataflow.quivers import CONFIG, CONFIG_NAME, at, batch
from tests.dataflow.test_batch_reader import numbers, reader, segments
from tests.patience import until

from holdfast.dataflow.source.options import parse_options
from holdfast.dataflow.source.partitions import SourcePartition
from holdfast.dataflow.source.stored import BatchReader
from holdfast.dataflow.source.stream import StreamReader
from holdfast.errors import BadConfig, CannotOpen, UnknownPosition, WrongQuiver
from holdfast.prove.store import BUCKET, running_s3
from holdfast.quiver import ArchiveConfig, Quiver, SegmentConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REMOVED, KEPT = 3, 2
EVERYTHING = list(range(10 * (REMOVED + KEPT)))


def fill_both(path: Path, archive: str | ArchiveConfig, *, first: int = 0) -> str:
    """Seal five segments of ten events; the first three are archived and gone, the others both."""
    kept = ArchiveConfig(archive) if isinstance(archive, str) else archive
    config = replace(CONFIG, segment=SegmentConfig(max_open_duration_s=3600.0, archive=kept))
    with Quiver.open(path, config) as quiver:
        lease = quiver.lease("reader")
        for i in range(REMOVED + KEPT):
            rows = range(first + 10 * i, first + 10 * i + 10)
            quiver.append(batch((float(number), f"k{i}", number) for number in rows))
            quiver.flush()
        for _ in range(REMOVED):
            delivery = lease.poll()
            assert delivery is not None
            delivery.ack()
        until(
            lambda: _waiting(quiver) == 0 and len(quiver.segments()) == KEPT,
            "archived and removed",
            lambda: str(quiver.statistics().archive),
        )
        return quiver.quiver_id


def _waiting(quiver: Quiver) -> int | None:
    archive = quiver.statistics().archive
    return None if archive is None else archive.waiting_segments


class Filled(NamedTuple):
    """A quiver, and options that name its archive."""

    path: Path
    archive: dict[str, str]

    def options(self, *, both: bool = False, **given: Any) -> dict[str, str]:
        """Return options for the archive, or for both."""
        return {**self.archive, **options(None, self.path if both else None, **given)}


@pytest.fixture(scope="module", params=["folder", "bucket"])
def filled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Filled]:
    """A quiver and its archive."""
    folder = tmp_path_factory.mktemp("archived")
    if request.param == "folder":
        fill_both(folder / "quiver", str(folder / "archive"))
        yield Filled(folder / "quiver", {"archive": str(folder / "archive")})
        return
    with running_s3(folder / "s3.log") as variables:
        address, endpoint = f"s3://{BUCKET}/segments", variables.pop("AWS_ENDPOINT_URL")
        secrets = {name.removeprefix("AWS_").lower(): value for name, value in variables.items()}
        fill_both(folder / "quiver", ArchiveConfig(address, endpoint, True, secrets))
        yield Filled(
            folder / "quiver",
            {
                "archive": address,
                "archive_endpoint": endpoint,
                "archive_secrets": ",".join(f"{name}={value}" for name, value in secrets.items()),
            },
        )


def options(archive: str | None, path: Path | None = None, **given: Any) -> dict[str, str]:
    places = {} if path is None else {"path": str(path), "quiver_config": CONFIG_NAME}
    if archive is not None:
        places["archive"] = archive
    return {**places, **{name: str(value) for name, value in given.items()}}


def test_an_archive_is_read_alone_and_with_what_is_here(filled: Filled) -> None:
    assert numbers(reader({"path": str(filled.path)})) == EVERYTHING[10 * REMOVED :]
    assert numbers(reader(filled.options())) == EVERYTHING
    made = reader(filled.options(both=True))
    assert sorted(numbers(made)) == EVERYTHING
    pieces = [
        piece
        for part in made.partitions()
        if isinstance(part, SourcePartition)
        for piece in part.pieces
    ]
    assert [bool(piece.place.archive) for piece in pieces] == [True] * REMOVED + [False] * KEPT


def test_times_numbers_and_conditions_leave_segments_out(filled: Filled) -> None:
    timed = reader(filled.options(since=at(15).isoformat(), until=at(20).isoformat()))
    assert (segments(timed), numbers(timed)) == (1, list(range(15, 20)))
    numbered = reader(filled.options(since_seq=1, until_seq=3))
    assert (segments(numbered), numbers(numbered)) == (2, list(range(10, 30)))
    assert segments(reader(filled.options(pushdown="true"), EqualTo(("_seq",), 2))) == 1
    assert numbers(reader(filled.options(columns="number"))) == EVERYTHING


def test_what_goes_from_one_place_after_the_plan_is_read_in_the_other(tmp_path: Path) -> None:
    path, archive = tmp_path / "quiver", tmp_path / "archive"
    fill_both(path, str(archive))
    made = reader(options(str(archive), path, partition_bytes=1))
    parts = made.partitions()
    assert len(parts) == REMOVED + KEPT

    def read(one: InputPartition) -> list[int]:
        return [n for rows in made.read(one) for n in rows.column("number").to_pylist()]

    away = archive.rename(tmp_path / "away")
    assert [n for one in parts[REMOVED:] for n in read(one)] == EVERYTHING[10 * REMOVED :]
    with pytest.raises(UnknownPosition, match="no longer in the archive"):
        read(parts[0])
    away.rename(archive)
    shutil.rmtree(path / "segments")
    assert [n for one in parts for n in read(one)] == EVERYTHING


def test_an_archive_of_several_quivers_has_the_numbers_of_each(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    one = fill_both(tmp_path / "one", str(archive))
    fill_both(tmp_path / "two", str(archive), first=len(EVERYTHING))
    assert sorted(numbers(reader(options(str(archive))))) == list(range(2 * len(EVERYTHING)))
    with pytest.raises(BadConfig, match=r"numbers of its own, and .* has 2"):
        numbers(reader(options(str(archive), since_seq=0)))
    assert numbers(reader(options(str(archive / one), since_seq=0))) == EVERYTHING


def test_segments_of_a_copy_that_went_on_are_refused(tmp_path: Path) -> None:
    path, archive, copy = tmp_path / "quiver", tmp_path / "archive", tmp_path / "copy"
    with Quiver.open(path, CONFIG) as quiver:
        quiver.append(batch([(0.0, "k", 0)]))
    shutil.copytree(path, copy)
    kept = replace(CONFIG, segment=SegmentConfig(archive=ArchiveConfig(str(archive))))
    for folder, events, config in ((path, 1, kept), (copy, 2, CONFIG)):
        with Quiver.open(folder, config) as quiver:
            for _ in range(events):
                quiver.append(batch([(0.0, "k", 0)]))
            quiver.flush()
            until(lambda: not _waiting(quiver), "archived", lambda: "")
    with pytest.raises(WrongQuiver, match=r"other bundles than .* under the same numbers"):
        numbers(reader(options(str(archive), copy)))


def test_what_an_archive_cannot_do_says_what_to_do(tmp_path: Path) -> None:
    parsed = parse_options({"archive": str(tmp_path), "subscriber": "reader"})
    with pytest.raises(BadConfig, match="no subscribers") as told:
        StreamReader(parsed, StructType())
    assert "spark.read" in (told.value.hint or "")
    with pytest.raises(BadConfig, match="'http://a' is not the address of an archive"):
        parse_options({"archive": "http://a"})
    with pytest.raises(BadConfig, match="archive_secrets is not a list") as told:
        parse_options({"archive": "s3://a", "archive_secrets": "region=a,hidden"})
    assert "hidden" not in str(told.value)
    with pytest.raises(CannotOpen, match="there is no archived segment here"):
        BatchReader(parsed, StructType()).partitions()


def test_spark_reads_an_archive(spark: SparkSession, filled: Filled) -> None:
    for given in (filled.options(), filled.options(both=True)):
        found = spark.read.format("holdfast").options(**given).load().select("number")
        assert sorted(found.toArrow()["number"].to_pylist()) == EVERYTHING
