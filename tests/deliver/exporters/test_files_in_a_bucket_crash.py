"""The files exporter and a bucket, when either fails or the process dies: each event once.

What is played is that of test_files_crash.py. The journal is on a disk, the files are in a bucket
which outlives the process, and to which requests may still be under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import random
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.deliver.exporters.fake_bucket import BucketTrouble, FakeBucket
from tests.deliver.exporters.sending import context
from tests.deliver.exporters.test_files_crash import (
    ALL,
    BASE,
    BATCHES,
    KILLS,
    REQUESTS,
    fresh_disk,
    insist,
    make_room,
)
from tests.patience import PATIENCE_S

from holdfast.deliver.exporter import Exporter, FailureClass
from holdfast.deliver.exporters import files
from holdfast.deliver.exporters.file_places import CHECK_KEY, FilesPoint
from holdfast.seam import Seam
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.simulated import SimulatedDisk
from holdfast.signals.event import Event

STEPS = [
    *("files.journal.create", "files.journal.write", "files.journal.sync"),
    *("files.journal.sync_dir", "files.journal.unlink"),
    *("files.publish.create", "files.publish.write", "files.publish.unlink"),
    *("files.publish.sync_scratch", "files.make_dir", "files.make_dir.sync"),
]
TROUBLES = list(BucketTrouble)
DEADLY = [one for one in TROUBLES if one.name.startswith("KILL")]
FORMATS = ["ndjson", "parquet", "tables", "hours"]


def exporter(disk: FaultyDisk | SimulatedDisk, bucket: FakeBucket, file_format: str) -> Exporter:
    given: dict[str, Any] = {"directory": "s3://bucket/prefix", "max_file_events": 7}
    given["format"] = "parquet" if file_format in ("tables", "parquet") else "ndjson"
    if file_format == "tables":
        given["tables"] = ["spans"]
    if file_format == "hours":
        given["partition_by"] = "hour"
    seam = Seam(disk=disk, open_bucket=bucket.open)
    return files.make(files.Config.model_validate(given), context(BASE, seam))


def batches_of(file_format: str) -> list[list[Event]]:
    return REQUESTS if file_format == "tables" else BATCHES


def play(
    disk: FaultyDisk | SimulatedDisk,
    bucket: FakeBucket,
    file_format: str,
    batches: list[list[Event]],
) -> int:
    """Send batches until the process dies; return how many were answered as delivered."""
    answered = 0

    async def run() -> None:
        nonlocal answered
        made = exporter(disk, bucket, file_format)
        await made.start()
        for batch in batches:
            if (await made.send(batch)).failed:
                return
            answered += 1
        await made.close()

    with contextlib.suppress(RuntimeError):  # what a thread makes of a process that is dead
        asyncio.run(run())
    return answered


def numbers_in(bucket: FakeBucket) -> list[int]:
    found: list[int] = []
    items: dict[str, list[int]] = {"a": [], "b": []}
    keys = [key for key in bucket.objects if key != CHECK_KEY]
    for key in sorted(keys, key=lambda key: key.rpartition("/")[2]):
        content = bucket.objects[key]
        if key.startswith("spans/"):
            table = pq.read_table(io.BytesIO(content)).select(["service_name", "_seq"])
            for row in table.to_pylist():
                items[row["service_name"]].append(row["_seq"])
        elif key.endswith(".parquet"):
            found += pq.read_table(io.BytesIO(content))["seq"].to_pylist()
        else:
            found += [json.loads(line)["n"] for line in content.splitlines()]
    assert items["a"] == items["b"]
    return found + items["a"]


@pytest.mark.parametrize("file_format", FORMATS)
def test_every_step_is_reached(file_format: str) -> None:
    disk, bucket = fresh_disk(), FakeBucket()
    faulty = FaultyDisk(disk, [], disk.die)
    assert play(faulty, bucket, file_format, batches_of(file_format)) == len(BATCHES)
    assert set(STEPS) == {step for step in faulty.calls() if step.startswith("files.")}
    assert numbers_in(bucket) == ALL
    # Nothing is left here, and each object was sent once.
    assert [e.name for e in disk.list(BASE / "data" / files.STAGING)] != []
    assert len(bucket.puts) == len(bucket.objects)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("kind", KILLS)
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_of_the_disk(step: str, kind: FaultKind) -> None:
    struck = 0
    for nth in (1, 3):
        disk, bucket = fresh_disk(), FakeBucket()
        faulty = FaultyDisk(disk, [Fault(step, kind, nth)], disk.die)
        answered = play(faulty, bucket, "tables", REQUESTS)
        if faulty.calls().get(step, 0) >= nth:
            struck += 1
            all_is_there_once(disk, bucket, answered, "tables")
    assert struck


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("trouble", DEADLY)
def test_a_crash_around_any_request(trouble: BucketTrouble, file_format: str) -> None:
    for nth in range(1, 5):
        disk, bucket = fresh_disk(), FakeBucket()
        bucket.troubles, bucket.die = {nth: trouble}, disk.die
        answered = play(disk, bucket, file_format, batches_of(file_format))
        assert len(bucket.puts) == nth
        all_is_there_once(disk, bucket, answered, file_format)


def all_is_there_once(
    disk: SimulatedDisk, bucket: FakeBucket, answered: int, file_format: str
) -> None:
    """Check what the next process makes of what the dead one left, after a kill or a power cut."""
    batches = batches_of(file_format)
    for after in (disk.kill(), disk.power_loss(), disk.power_loss(random.Random(answered))):
        survivor, kept = after.snapshot(), bucket.copy()
        play(survivor, kept, file_format, [])
        assert set(numbers_in(kept)) >= {e.position.seq for b in batches[:answered] for e in b}
        for again_from in {answered, max(0, answered - 1)}:
            resumed, kept = after.snapshot(), bucket.copy()
            rest = batches[again_from:]
            assert play(resumed, kept, file_format, rest) == len(rest)
            kept.land_late()
            assert sorted(numbers_in(kept)) == ALL, again_from


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("trouble", [one for one in TROUBLES if one not in DEADLY])
def test_a_bucket_that_fails_and_recovers(
    trouble: BucketTrouble, file_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PUBLISH_RETRY_S", 0.01)
    for nth in range(1, 6):
        disk, bucket = fresh_disk(), FakeBucket()
        bucket.troubles = dict.fromkeys((nth, nth + 1), trouble)
        kinds = {FailureClass.TRANSIENT, FailureClass.AUTH}
        asyncio.run(
            insist(
                exporter(disk, bucket, file_format), batches=batches_of(file_format), kinds=kinds
            )
        )
        bucket.troubles.clear()
        play(disk, bucket, file_format, [])  # if it failed at the end, the next start completes
        assert numbers_in(bucket) == ALL, nth
        bucket.land_late()
        assert numbers_in(bucket) == ALL, nth


def test_a_bucket_that_is_away_holds_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than one journal is taken: everything behind it stays in the quiver."""
    monkeypatch.setattr(files, "PUBLISH_RETRY_S", 0.01)
    disk, bucket = fresh_disk(), FakeBucket()

    async def run() -> list[bool]:
        made = exporter(disk, bucket, "ndjson")
        await made.start()
        bucket.troubles = dict.fromkeys(range(2, 1000), BucketTrouble.REFUSE)
        taken = [not (await made.send(batch)).failed for batch in BATCHES]
        await made.close()
        return taken

    assert asyncio.run(run()) == [True, True, True, False, False, False, False]
    bucket.troubles.clear()
    assert play(disk, bucket, "ndjson", BATCHES[3:]) == 4
    assert numbers_in(bucket) == ALL


@pytest.mark.parametrize("trouble", [BucketTrouble.DENY, BucketTrouble.REFUSE])
def test_nothing_is_taken_before_the_bucket_was_seen_to_be_writable(
    trouble: BucketTrouble, caplog: pytest.LogCaptureFixture
) -> None:
    disk, bucket = fresh_disk(), FakeBucket()
    bucket.troubles = dict.fromkeys((1, 2), trouble)

    async def run() -> list[Any]:
        made = exporter(disk, bucket, "ndjson")
        await made.start()
        answers = [await made.send(BATCHES[0]), await made.send(BATCHES[0])]
        await made.close()
        return answers

    first, second = asyncio.run(run())
    wanted = FailureClass.AUTH if trouble is BucketTrouble.DENY else FailureClass.TRANSIENT
    assert {failure.kind for failure in first.failed.values()} == {wanted}
    assert len(first.failed) == 3
    assert not second.failed
    assert numbers_in(bucket) == [1, 2, 3]
    assert "nothing can be written" in caplog.text


@pytest.mark.parametrize("kind", [FaultKind.FAILED_SYNC, FaultKind.EIO])
@pytest.mark.parametrize("trouble", DEADLY)
def test_what_was_refused_is_in_no_file_of_the_next_start(
    kind: FaultKind, trouble: BucketTrouble
) -> None:
    """A batch whose sync failed may be whole in the journal: it counts only when it comes again."""
    for nth in range(2, 6):
        disk, bucket = fresh_disk(), FakeBucket()
        faulty = FaultyDisk(disk, [Fault("files.journal.sync", kind, 3)], disk.die)
        bucket.troubles, bucket.die = {nth: trouble}, disk.die
        answered = 0

        async def run(faulty: FaultyDisk = faulty, bucket: FakeBucket = bucket) -> None:
            nonlocal answered
            made = exporter(faulty, bucket, "tables")
            await made.start()
            for batch in REQUESTS:
                while (await made.send(batch)).failed:
                    pass
                answered += 1
            await made.close()

        with contextlib.suppress(RuntimeError):
            asyncio.run(run())
        all_is_there_once(disk, bucket, answered, "tables")


def test_a_full_disk_refuses_and_the_bucket_gets_the_rest_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(files, "PUBLISH_RETRY_S", 0.01)
    for step in ("files.journal.write", "files.publish.write"):
        disk, bucket = fresh_disk(), FakeBucket()
        disk.put(BASE / "another", bytes(1 << 20))
        faulty = FaultyDisk(disk, [Fault(step, FaultKind.STAYS_FULL, 2)], disk.die)
        asyncio.run(insist(exporter(faulty, bucket, "ndjson"), disk))
        with contextlib.suppress(OSError):
            make_room(disk)
        play(disk, bucket, "ndjson", [])
        assert numbers_in(bucket) == ALL


def test_an_upload_that_outlives_its_send_is_no_second_time() -> None:
    """What was being sent arrives; the loop, which heard nothing, sends it again."""
    disk, bucket = fresh_disk(), FakeBucket()

    async def run() -> set[str]:
        made = exporter(disk, bucket, "ndjson")
        await made.start()
        for batch in BATCHES[:3]:
            assert not (await made.send(batch)).failed
        bucket.go_on.clear()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await made.send(BATCHES[3])
        busy = await asyncio.gather(*(made.send(BATCHES[3]) for _ in range(3)))
        bucket.go_on.set()
        for batch in BATCHES[3:]:
            for _ in range(int(100 * PATIENCE_S)):
                if not (await made.send(batch)).failed:
                    break
                await asyncio.sleep(0.01)
        await made.close()
        return {failure.code for answer in busy for failure in answer.failed.values()}

    assert asyncio.run(run()) == {"busy"}
    assert numbers_in(bucket) == ALL


def test_points_have_names_of_their_own() -> None:
    assert all(point.description for point in FilesPoint)
