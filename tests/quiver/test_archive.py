"""Segments go into an archive before they go from here, and can be read there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import PurePath
from typing import Literal, NamedTuple

import pytest
from tests.deliver.exporters.fake_bucket import BucketTrouble, FakeBucket
from tests.patience import APPEND_S, until
from tests.quiver.machine import ROOT
from tests.readers.setting import append, calm, check_books, drain, keep, sealed
from tests.support.disk import GatedDisk

from holdfast.errors import (
    BadInput,
    CannotOpen,
    Damaged,
    NotAllowed,
    Overloaded,
    StoreUnavailable,
    WrongQuiver,
)
from holdfast.quiver import Cores, Quiver, QuiverConfig, RetentionConfig, SegmentConfig
from holdfast.quiver.base.config import KB, MB, UPLOADS_MAX, ArchiveConfig
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.keep.archiver import ArchiveStatistics
from holdfast.quiver.read.archive import Archive
from holdfast.quiver.segments.archive import folder_of
from holdfast.seam import Seam
from holdfast.seam.bucket_disk import FETCH_BYTES, FETCHES_KEPT, READ_TRIES, BucketDisk
from holdfast.seam.simulated import SimulatedCrash, SimulatedDisk

URL = "s3://bucket/segments"
AWAY = StoreUnavailable("the bucket is away", hint="wait")
ARCHIVE = ArchiveConfig(URL, retry_min_s=0.001, retry_max_s=0.01)
LARGE_BYTES = 400 * KB


def config(
    archive: ArchiveConfig = ARCHIVE,
    retention: RetentionConfig | None = None,
    timeout_s: float = 60.0,
) -> QuiverConfig:
    base = calm(retention, timeout_s=timeout_s)
    return replace(base, segment=replace(base.segment, archive=archive))


class Place(NamedTuple):
    """A disk and a bucket that outlive the quivers on them."""

    disk: SimulatedDisk
    bucket: FakeBucket
    begin: Callable[..., Quiver]

    @property
    def seam(self) -> Seam:
        return Seam(self.disk, open_bucket=self.bucket.open)

    def read(self, quiver_id: str | None = None) -> list[int]:
        archive = Archive.open(URL, quiver_id=quiver_id, seam=self.seam)
        return [seq for batch in archive.scan() for seq in batch.column("_seq").to_pylist()]


@pytest.fixture
def place() -> Iterator[Place]:
    opened: list[Quiver] = []
    disk, bucket = SimulatedDisk(), FakeBucket()

    def begin(how: QuiverConfig | None = None, root: PurePath = ROOT) -> Quiver:
        quiver = Quiver.open(root, how or config(), seam=Seam(disk, open_bucket=bucket.open))
        opened.append(quiver)
        return quiver

    yield Place(disk, bucket, begin)
    bucket.go_on.set()
    for quiver in opened:
        quiver.close()


def told(quiver: Quiver) -> ArchiveStatistics:
    archive = quiver.statistics().archive
    assert archive is not None
    return archive


def until_archived(quiver: Quiver) -> None:
    until(lambda: not told(quiver).waiting_segments, "archived", lambda: str(told(quiver)))


def until_failed(quiver: Quiver, times: int = 1) -> None:
    until(lambda: told(quiver).failures >= times, "failed", lambda: str(told(quiver)))


# -------------------------------------------------------------------- the order


def test_a_segment_is_in_the_archive_soon_after_it_is_sealed(place: Place) -> None:
    quiver = place.begin()
    quiver.register("reader")
    seqs = sealed(quiver, 3, bundles=2)
    until_archived(quiver)
    assert len(quiver.segments()) == 3
    assert place.read() == seqs
    assert (told(quiver).archived_segments, told(quiver).uploaded_segments) == (3, 3)
    assert told(quiver).uploaded_bytes == sum(s.summary.size_bytes for s in quiver.segments())


def test_the_manifest_is_put_last(place: Place) -> None:
    quiver = place.begin(config(replace(ARCHIVE, uploads=1)))
    sealed(quiver, 2)
    until_archived(quiver)
    put = [key.rpartition("/")[2] for key in place.bucket.puts]
    assert put == ["000-events.arrow", "bundles.arrow", "manifest"] * 2
    assert place.bucket.puts[2] == f"{folder_of(quiver.segments()[0].summary)}/manifest"


def test_what_everyone_has_goes_from_here_once_it_is_there(place: Place) -> None:
    quiver = place.begin()
    place.bucket.away = AWAY
    lease = quiver.lease("reader")
    seqs = sealed(quiver, 2)
    assert list(drain(lease)) == seqs
    until_failed(quiver)
    keep(quiver)
    assert len(quiver.segments()) == told(quiver).waiting_segments == 2
    place.bucket.away = None
    # The archiver tells, and the keeper removes them without being asked.
    until(lambda: not quiver.segments())
    assert place.read() == seqs
    assert quiver.statistics().retention.evictions == {"processed": 2}
    assert told(quiver).removed_unarchived == 0
    check_books(quiver)


def test_what_is_too_old_goes_only_once_it_is_there(place: Place) -> None:
    quiver = place.begin(config(retention=RetentionConfig(max_age_s=1e-9, clock_grace_s=0)))
    place.bucket.away = AWAY
    quiver.register("reader")
    seqs = sealed(quiver, 2)
    until_failed(quiver)
    keep(quiver)
    assert len(quiver.segments()) == 2
    place.bucket.away = None
    until(lambda: not quiver.segments())
    assert place.read() == seqs
    check_books(quiver)


def test_an_upload_holds_up_neither_appends_nor_retention_nor_a_close(place: Place) -> None:
    quiver = place.begin()
    place.bucket.go_on.clear()
    lease = quiver.lease("reader")
    sealed(quiver, 1)
    until(lambda: place.bucket.puts)
    seqs = sealed(quiver, 3)
    assert list(drain(lease))[-1] == seqs[-1]
    keep(quiver)
    assert quiver.refusal() is None
    place.bucket.go_on.set()
    until(lambda: not quiver.segments())


def test_no_more_uploads_run_at_once_than_are_allowed(place: Place) -> None:
    quiver = place.begin(config(replace(ARCHIVE, uploads=3)))
    place.bucket.go_on.clear()
    sealed(quiver, 8)
    until(lambda: len(place.bucket.puts) == 3)
    place.bucket.go_on.set()
    until_archived(quiver)
    assert told(quiver).uploaded_segments == 8


# ------------------------------------------------------------------ the size cap


def full(on_full: Literal["block", "remove"]) -> QuiverConfig:
    archive = replace(ARCHIVE, on_full=on_full)
    retention = RetentionConfig(size_cap_bytes=4 * MB)
    return config(archive, retention, timeout_s=APPEND_S)


def fill(quiver: Quiver, appends: int) -> list[int]:
    lease, seqs = quiver.lease("reader"), []
    for _ in range(appends):
        seqs += sealed(quiver, 1, size_bytes=LARGE_BYTES)
        assert list(drain(lease)) == seqs[-1:]
    return seqs


def test_at_the_cap_what_is_not_there_stays_and_appends_wait(place: Place) -> None:
    quiver = place.begin(full("block"))
    place.bucket.away = AWAY
    with pytest.raises(Overloaded, match="the archive, which does not have it yet") as refused:
        fill(quiver, 20)
    assert "(segment.archive: the bucket is away" in refused.value.message
    held = len(quiver.segments())
    assert told(quiver).removed_unarchived == 0
    place.bucket.away = None
    # Nobody has to do anything.
    until(lambda: quiver.refusal(LARGE_BYTES) is None)
    until_archived(quiver)
    assert len(place.read()) == held
    fill(quiver, 20)


def test_at_the_cap_it_goes_all_the_same_where_that_is_asked_for(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    quiver = place.begin(full("remove"))
    place.bucket.away = AWAY
    fill(quiver, 20)
    removed = told(quiver).removed_unarchived
    assert removed == 20 - len(quiver.segments()) > 0
    assert caplog.text.count("is not in the archive") == removed
    assert "the bucket is away" in caplog.text
    check_books(quiver)


def test_below_the_cap_nothing_goes_that_is_not_there_whatever_is_asked_for(place: Place) -> None:
    quiver = place.begin(config(replace(ARCHIVE, on_full="remove")))
    place.bucket.away = AWAY
    assert list(drain(quiver.lease("reader"))) == []
    fill(quiver, 2)
    keep(quiver)
    assert len(quiver.segments()) == 2


# --------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    "trouble",
    [BucketTrouble.REFUSE, BucketTrouble.DENY, BucketTrouble.LOSE_ANSWER, BucketTrouble.LAND_LATE],
)
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_put_that_failed_is_made_again(place: Place, trouble: BucketTrouble, nth: int) -> None:
    place.bucket.troubles = {nth: trouble}
    quiver = place.begin(config(replace(ARCHIVE, uploads=1)))
    seqs = sealed(quiver, 2)
    until_archived(quiver)
    place.bucket.land_late()
    assert place.read() == seqs
    assert (told(quiver).failures, told(quiver).last_error) == (1, None)


def test_while_the_bucket_is_away_it_is_asked_less_and_less_often(place: Place) -> None:
    quiver = place.begin(config(ArchiveConfig(URL, uploads=2, retry_min_s=3600, retry_max_s=3600)))
    place.bucket.away = NotAllowed("the key is wrong", hint="")
    sealed(quiver, 4)
    until_failed(quiver)
    sealed(quiver, 4)
    # Each of the two may have been under way; then all wait, also what is new.
    assert told(quiver).failures <= 2
    assert "the key is wrong" in str(told(quiver).last_error)


def test_a_pause_doubles_up_to_its_longest(place: Place) -> None:
    quiver = place.begin(config(ArchiveConfig(URL, retry_min_s=1, retry_max_s=8)))
    archiver = quiver._engine.archiver
    assert archiver is not None
    pause, waits_s = archiver._pause, []
    now_s = quiver._engine.clock.monotonic_s()
    for _ in range(6):
        pause = archiver._longer(pause._replace(until_s=0.0))
        waits_s.append(pause.until_s - now_s)
    for wait_s, longest_s in zip(waits_s, (1, 2, 4, 8, 8, 8), strict=True):
        assert longest_s / 2 <= wait_s <= longest_s + 1


def test_a_segment_that_cannot_be_read_here_holds_up_no_other(place: Place) -> None:
    place.bucket.away = AWAY
    quiver = place.begin(config(replace(ARCHIVE, uploads=1)))
    seqs = sealed(quiver, 3)
    oldest = quiver.segments()[0].path / "000-events.arrow"
    place.disk.spoil(oldest, 0, 4096)
    place.bucket.away = None
    until(lambda: told(quiver).waiting_segments == 1)
    until(lambda: "000-events" in str(told(quiver).last_error) or "error" in str(told(quiver)))
    assert place.read() == seqs[1:]
    assert list(drain(quiver.lease("reader")))[-1] == seqs[-1]
    keep(quiver)
    assert [one.path for one in quiver.segments()] == [oldest.parent]


def test_another_segment_of_the_same_name_is_never_replaced(place: Place) -> None:
    """As two machines have it that go on with one copy of a data directory."""
    first = place.begin()
    first.close()
    copy = place.disk.snapshot()
    one = place.begin()
    sealed(one, 1, size_bytes=10)
    until_archived(one)
    before = dict(place.bucket.objects)
    seam = Seam(copy, open_bucket=place.bucket.open)
    with Quiver.open(ROOT, config(), seam=seam) as other:
        sealed(other, 1, size_bytes=11)
        until_failed(other)
        assert "another segment of this name" in str(told(other).last_error)
    assert place.bucket.objects == before


def test_what_was_lost_from_the_archive_is_put_there_again_while_it_is_here(place: Place) -> None:
    quiver = place.begin()
    quiver.register("reader")
    seqs = sealed(quiver, 2)
    until_archived(quiver)
    quiver.close()
    lost = next(key for key in place.bucket.objects if key.endswith("bundles.arrow"))
    del place.bucket.objects[lost]
    place.bucket.puts.clear()
    quiver = place.begin()
    until_archived(quiver)
    assert (place.read(), told(quiver).uploaded_segments) == (seqs, 1)
    assert lost in place.bucket.puts


def test_a_restart_puts_nothing_again(place: Place) -> None:
    quiver = place.begin()
    quiver.register("reader")
    sealed(quiver, 3)
    until_archived(quiver)
    quiver.close()
    place.bucket.puts.clear()
    quiver = place.begin()
    until_archived(quiver)
    assert place.bucket.puts == []
    assert (told(quiver).archived_segments, told(quiver).uploaded_segments) == (3, 0)


# --------------------------------------------------------------------- reading


def test_segments_without_a_manifest_are_not_there(place: Place) -> None:
    place.bucket.troubles = {6: BucketTrouble.REFUSE}
    how = ArchiveConfig(URL, uploads=1, retry_min_s=3600, retry_max_s=3600)
    quiver = place.begin(config(how))
    seqs = sealed(quiver, 2)
    until_failed(quiver)
    assert len(place.bucket.objects) == 5
    assert place.read() == seqs[:1]


def test_several_quivers_share_an_archive(place: Place) -> None:
    one, two = place.begin(), place.begin(root=PurePath("/other"))
    seqs = sealed(one, 2), sealed(two, 1)
    for quiver in (one, two):
        until_archived(quiver)
    assert sorted(place.read()) == sorted(seqs[0] + seqs[1])
    assert place.read(quiver_id=two.quiver_id) == seqs[1]
    archive = Archive.open(URL, seam=place.seam)
    assert set(archive.quiver_ids) == {one.quiver_id, two.quiver_id}


def test_the_rows_are_those_that_the_quiver_showed(place: Place) -> None:
    quiver = place.begin()
    sealed(quiver, 3, bundles=5)
    until_archived(quiver)
    archive = Archive.open(URL, seam=place.seam)
    assert archive.scan().read_all() == quiver.scan().read_all()
    columns = ["_seq", "payload"]
    assert archive.scan(columns).read_all() == quiver.scan(columns).read_all()
    with pytest.raises(BadInput):
        archive.scan([])


def test_a_damaged_block_in_the_archive_is_found(place: Place) -> None:
    quiver = place.begin()
    sealed(quiver, 2)
    until_archived(quiver)
    key = next(key for key in place.bucket.objects if key.endswith("000-events.arrow"))
    whole = bytearray(place.bucket.objects[key])
    first = quiver.segments()[0].summary.files[0].batches[0]
    whole[first.offset + first.length // 2] ^= 1
    place.bucket.objects[key] = bytes(whole)
    archive = Archive.open(URL, seam=place.seam)
    with pytest.raises(Damaged):
        archive.scan().read_all()
    assert archive.scan(on_damage="skip").read_all().num_rows == 1


def test_a_damaged_manifest_takes_its_segment_and_no_other(place: Place) -> None:
    quiver = place.begin()
    seqs = sealed(quiver, 3)
    until_archived(quiver)
    key = sorted(key for key in place.bucket.objects if key.endswith("/manifest"))[1]
    place.bucket.objects[key] = place.bucket.objects[key][:20]
    with pytest.raises(Damaged, match="manifest in the archive") as refused:
        Archive.open(URL, seam=place.seam)
    assert refused.value.path is not None
    assert refused.value.path.endswith(key.removesuffix("/manifest"))
    archive = Archive.open(URL, seam=place.seam, on_damage="skip")
    assert archive.scan().read_all()["_seq"].to_pylist() == [seqs[0], seqs[2]]


def test_an_empty_address_is_an_error(place: Place) -> None:
    with pytest.raises(CannotOpen, match="no archived segment"):
        place.read()


def test_reading_tries_again_a_bounded_number_of_times(place: Place) -> None:
    bucket = place.bucket
    paused_s: list[float] = []
    bucket.objects["folder/object"] = b"content"
    disk = BucketDisk(bucket, "folder", paused_s.append)
    bucket.failing_gets = READ_TRIES - 1
    assert disk.read(PurePath("folder/object")) == b"content"
    assert paused_s == [0.2, 0.4, 0.8]
    bucket.failing_gets = READ_TRIES
    with pytest.raises(StoreUnavailable):
        BucketDisk(bucket, "folder", paused_s.append).read(PurePath("folder/object"))


def test_reading_fetches_large_parts_and_keeps_few(place: Place) -> None:
    bucket, path = place.bucket, PurePath("object")
    whole = bytes(range(256)) * (6 * FETCH_BYTES // 256)
    bucket.objects["object"] = whole
    disk = BucketDisk(bucket)
    for offset in range(0, len(whole), FETCH_BYTES // 4):
        assert disk.read_range(path, offset, 100) == whole[offset : offset + 100]
    assert len(bucket.gets) == 6
    assert len(disk._fetched) == FETCHES_KEPT
    across = disk.read_range(path, FETCH_BYTES - 10, FETCH_BYTES)
    assert across == whole[FETCH_BYTES - 10 : 2 * FETCH_BYTES - 10]
    assert disk.read_range(path, len(whole) - 5, 100) == whole[-5:]


# --------------------------------------------------------------------- settings


@pytest.mark.parametrize("url", ["", "s3://", "ftp://x/y", "file://host/x", "s3://key:secret@b/x"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(BadInput):
        ArchiveConfig(url)


@pytest.mark.parametrize("uploads", [0, UPLOADS_MAX + 1])
def test_uploads_are_bounded(uploads: int) -> None:
    with pytest.raises(BadInput, match="uploads"):
        ArchiveConfig(URL, uploads=uploads)


@pytest.mark.parametrize("name", ["request_timeout_s", "retry_min_s", "retry_max_s"])
def test_waits_are_bounded(name: str) -> None:
    with pytest.raises(BadInput, match=name.removesuffix("_s")):
        ArchiveConfig(URL, **{name: 0.0})  # type: ignore[arg-type]


def test_secrets_are_not_shown() -> None:
    shown = repr(SegmentConfig(archive=replace(ARCHIVE, options={"secret_access_key": "hidden"})))
    assert "hidden" not in shown


# ------------------------------------------------------------------ cut differently


def test_bundles_that_a_killed_quiver_seals_again_are_read_once(place: Place) -> None:
    """Their segment was removed before their log was: they come again, with later ones."""
    disk = SimulatedDisk()
    held = GatedDisk(disk, QuiverPoint.TRUNCATE_UNLINK)
    quiver = Quiver.open(ROOT, config(), seam=Seam(held, open_bucket=place.bucket.open))
    lease = quiver.lease("reader")
    seqs = sealed(quiver, 1, bundles=2)
    assert list(drain(lease)) == seqs
    until(lambda: not quiver.segments())
    left = disk.kill()
    held.gate.set()
    with contextlib.suppress(SimulatedCrash):
        quiver.close()
    seam = Seam(left, open_bucket=place.bucket.open)
    with Quiver.open(ROOT, config(), seam=seam) as again:
        seqs += append(again, 2)
        again.flush()
        until_archived(again)
    archive = Archive.open(URL, seam=place.seam)
    ranges = [(one.summary.first_seq, one.summary.bundles) for one in archive.segments()]
    assert ranges == [(0, 2), (0, 4)]
    assert place.read() == seqs


def test_a_copy_that_went_on_by_itself_is_refused(place: Place) -> None:
    disk = SimulatedDisk()
    quiver = Quiver.open(ROOT, config(), seam=Seam(disk, open_bucket=place.bucket.open))
    append(quiver, 1)
    copies = [disk.snapshot() for _ in range(2)]
    quiver.close()
    for number, one in enumerate(copies):
        with Quiver.open(ROOT, config(), seam=Seam(one, open_bucket=place.bucket.open)) as opened:
            sealed(opened, 1, bundles=1 + number)
            until_archived(opened)
    with pytest.raises(WrongQuiver, match=r"has other bundles than .*, under the same numbers"):
        place.read()


# ------------------------------------------------------------- what goes as a whole


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_core_too_many_goes_only_once_all_of_it_is_there(place: Place, is_sealed: bool) -> None:
    """Also what everyone has, and what was not sealed when the number of cores was lowered."""
    place.bucket.away = AWAY
    with Cores.open("/root", 2, config(), seam=place.seam) as cores:
        for core in cores:
            core.register("reader")
        seqs = append(cores[1], 3)
        if is_sealed:
            cores[1].flush()
        quiver_id, left = cores[1].quiver_id, place.disk.snapshot()
    seam = Seam(left, open_bucket=place.bucket.open)
    with Cores.open("/root", 1, config(), seam=seam) as cores:
        assert list(drain(cores.adopted[1].lease("reader"))) == seqs
        cores.sweep()
        assert set(cores.adopted) == {1}
        place.bucket.away = None

        def is_gone() -> bool:
            cores.sweep()
            return not cores.adopted

        until(is_gone)
    assert place.read(quiver_id=quiver_id) == seqs
