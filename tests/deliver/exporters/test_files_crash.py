"""The files exporter when the process or the power goes at any step: each event once, in order.

What is played: seven batches into small files. At one step of one call the process dies. The next
one begins with the first batch that was not answered, and, because an acknowledgement may be lost
in a power cut, also with one before it. In the end the files hold every event once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Iterator, Set
from pathlib import Path, PurePath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.deliver.exporters.sending import context, event
from tests.deliver.exporters.test_file_tables import TEN_NS, spans
from tests.deliver.exporters.test_files import numbered

from holdfast.deliver.exporter import Answer, Exporter, FailureClass
from holdfast.deliver.exporters import file_staging, files
from holdfast.deliver.exporters.file_journal import (
    FileJournal,
    JournalIdentity,
    frame_of,
    identity_of,
    name_of,
    read_journal,
)
from holdfast.errors import HoldfastError
from holdfast.seam import Seam
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.simulated import SimulatedDisk
from holdfast.seam.simulated_files import BLOCK_BYTES
from holdfast.signals.event import Event

BASE = Path("/srv")
OUT = BASE / "out"
BATCHES = [numbered(n, n + 2) for n in range(1, 22, 3)]
# The same as requests, with two items each that go to two folders.
REQUESTS = [
    [spans(one.position.seq, ("a", TEN_NS), ("b", TEN_NS)) for one in batch] for batch in BATCHES
]
ALL = list(range(1, 22))

STEPS = [
    *("files.journal.create", "files.journal.write", "files.journal.sync"),
    *("files.journal.sync_dir", "files.journal.unlink"),
    *("files.publish.create", "files.publish.write", "files.publish.sync"),
    *("files.publish.rename", "files.publish.sync_dir", "files.publish.sync_scratch"),
    *("files.make_dir", "files.make_dir.sync"),
]
KILLS = [FaultKind.KILL_BEFORE, FaultKind.KILL_MIDWAY, FaultKind.KILL_AFTER]


def exporter(disk: FaultyDisk | SimulatedDisk, file_format: str, **config: Any) -> Exporter:
    given = {"directory": "out", "format": file_format, "max_file_events": 7} | config
    if file_format == "tables":
        given |= {"format": "parquet", "tables": ["spans"]}
    return files.make(files.Config.model_validate(given), context(BASE, Seam(disk=disk)))


def play(disk: FaultyDisk | SimulatedDisk, file_format: str, batches: list[list[Event]]) -> int:
    """Send batches until the process dies; return how many were answered as delivered."""
    answered = 0

    async def run() -> None:
        nonlocal answered
        made = exporter(disk, file_format)
        await made.start()
        for batch in batches:
            if (await made.send(batch)).failed:
                return
            answered += 1
        await made.close()

    # What a thread makes of a process that is dead.
    with contextlib.suppress(RuntimeError):
        asyncio.run(run())
    return answered


def files_in(disk: SimulatedDisk, folder: PurePath = OUT) -> Iterator[PurePath]:
    if not disk.exists(folder):
        return
    for entry in disk.list(folder):
        if entry.is_dir and entry.name != files.STAGING:
            yield from files_in(disk, folder / entry.name)
        elif not entry.is_dir:
            yield folder / entry.name


def numbers_in(disk: SimulatedDisk) -> list[int]:
    found = []
    items: dict[str, list[int]] = {"a": [], "b": []}
    for path in sorted(files_in(disk), key=lambda path: path.name):
        content = disk.read(path)
        if "spans" in path.parts:
            rows = pq.read_table(pa.BufferReader(content)).select(["service_name", "_seq"])
            for row in rows.to_pylist():
                items[row["service_name"]].append(row["_seq"])
        elif path.suffix == ".parquet":
            found += pq.read_table(pa.BufferReader(content))["seq"].to_pylist()
        else:
            found += [json.loads(line)["n"] for line in content.splitlines()]
    assert items["a"] == items["b"]
    return found + items["a"]


def batches_of(file_format: str) -> list[list[Event]]:
    return REQUESTS if file_format == "tables" else BATCHES


def fresh_disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_dir(BASE, "test")
    disk.sync_dir(BASE.parent, "test")
    return disk


@pytest.mark.parametrize("file_format", ["ndjson", "parquet", "tables"])
def test_every_step_is_reached(file_format: str) -> None:
    disk = fresh_disk()
    faulty = FaultyDisk(disk, [], disk.die)
    assert play(faulty, file_format, batches_of(file_format)) == len(BATCHES)
    assert set(STEPS) == {step for step in faulty.calls() if step.startswith("files.")}
    assert numbers_in(disk) == ALL


@pytest.mark.thinned(4)
@pytest.mark.parametrize("kind", KILLS)
@pytest.mark.parametrize(
    ("step", "file_format"),
    [
        *((step, "ndjson") for step in STEPS),
        # Only what writes the file itself is different for Parquet.
        *(
            (step, "parquet")
            for step in STEPS
            if step in ("files.publish.write", "files.publish.sync")
        ),
    ],
)
def test_a_crash_anywhere(step: str, kind: FaultKind, file_format: str) -> None:
    crash(step, kind, file_format, (1, 3))


@pytest.mark.thinned(8)
@pytest.mark.parametrize("kind", KILLS)
@pytest.mark.parametrize(
    "step", [step for step in STEPS if step.startswith(("files.publish", "files.make_dir"))]
)
def test_a_crash_while_tables_are_written(step: str, kind: FaultKind) -> None:
    """Several files are under way at once, and some have appeared."""
    crash(step, kind, "tables", (2,))


def crash(step: str, kind: FaultKind, file_format: str, nths: tuple[int, ...]) -> None:
    struck, batches = 0, batches_of(file_format)
    for nth in nths:
        disk = fresh_disk()
        faulty = FaultyDisk(disk, [Fault(step, kind, nth)], disk.die)
        answered = play(faulty, file_format, batches)
        if faulty.calls().get(step, 0) < nth:
            continue
        struck += 1
        for after in (disk.kill(), disk.power_loss(), disk.power_loss(random.Random(nth))):
            # All that was answered is there, once the next process has begun.
            survivor = after.snapshot()
            play(survivor, file_format, [])
            assert set(numbers_in(survivor)) >= {
                e.position.seq for b in batches[:answered] for e in b
            }
            for again_from in {answered, max(0, answered - 1)}:
                resumed = after.snapshot()
                rest = batches[again_from:]
                assert play(resumed, file_format, rest) == len(rest)
                assert numbers_in(resumed) == ALL, f"nth {nth}, again from {again_from}"
    assert struck


@pytest.mark.thinned(4)
@pytest.mark.parametrize("kind", [FaultKind.ENOSPC, FaultKind.EIO, FaultKind.SHORT_WRITE])
@pytest.mark.parametrize("step", [step for step in STEPS if step != "files.journal.unlink"])
def test_a_disk_that_fails_and_recovers(
    step: str, kind: FaultKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PUBLISH_RETRY_S", 0.01)
    if kind is FaultKind.SHORT_WRITE and not step.endswith(".write"):
        kind = FaultKind.EIO
    for nth in (1, 2, 4):
        disk = fresh_disk()
        faulty = FaultyDisk(disk, [Fault(step, kind, nth)], disk.die)
        asyncio.run(insist(exporter(faulty, "ndjson")))
        play(disk, "ndjson", [])  # if it failed at the end, the next start completes
        assert numbers_in(disk) == ALL, f"nth {nth}"


@pytest.mark.thinned(6)
@pytest.mark.parametrize("kind", [FaultKind.ENOSPC, FaultKind.EIO])
@pytest.mark.parametrize("step", [step for step in STEPS if step.startswith("files.publish")])
def test_a_disk_that_fails_while_tables_are_written(
    step: str, kind: FaultKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of the files are there, others are not; all of them are written again."""
    monkeypatch.setattr(files, "PUBLISH_RETRY_S", 0.01)
    disk = fresh_disk()
    faulty = FaultyDisk(disk, [Fault(step, kind, 2)], disk.die)
    asyncio.run(insist(exporter(faulty, "tables"), batches=REQUESTS))
    play(disk, "tables", [])  # if it failed at the end, the next start completes
    assert numbers_in(disk) == ALL


@pytest.mark.parametrize("step", [step for step in STEPS if step != "files.journal.unlink"])
def test_a_disk_that_stays_full_until_something_is_unlinked(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was taken is kept, the rest is refused as often as it comes; then all is published."""
    monkeypatch.setattr(files, "PUBLISH_RETRY_S", 0.01)
    for nth in (1, 3):
        disk = fresh_disk()
        disk.put(BASE / "another", bytes(1 << 20))
        faulty = FaultyDisk(disk, [Fault(step, FaultKind.STAYS_FULL, nth)], disk.die)
        asyncio.run(insist(exporter(faulty, "ndjson"), disk))
        play(disk, "ndjson", [])  # if it was full at the end, the next start completes
        assert numbers_in(disk) == ALL, f"nth {nth}"
        assert disk.capacity_bytes is not None or faulty.calls().get(step, 0) < nth


@pytest.mark.parametrize("kind", KILLS)
@pytest.mark.parametrize(
    "step", ["files.publish.rename", "files.publish.sync_scratch", "files.journal.create"]
)
def test_a_crash_after_a_failed_append(step: str, kind: FaultKind) -> None:
    """The batch may be whole in the journal; the files were made without it, and it comes again."""
    for nth in (1, 2, 3):
        disk = fresh_disk()
        faults = [Fault("files.journal.sync", FaultKind.EIO, 3), Fault(step, kind, nth)]
        faulty = FaultyDisk(disk, faults, disk.die)
        answered = 0

        async def run(faulty: FaultyDisk = faulty) -> None:
            nonlocal answered
            made = exporter(faulty, "tables")
            await made.start()
            for batch in REQUESTS:
                while (await made.send(batch)).failed:
                    pass
                answered += 1
            await made.close()

        with contextlib.suppress(RuntimeError):
            asyncio.run(run())
        after = disk.kill()
        rest = REQUESTS[answered:]
        assert play(after, "tables", rest) == len(rest)
        assert sorted(numbers_in(after)) == ALL, nth


def test_a_failed_sync_is_not_trusted() -> None:
    disk = fresh_disk()
    fault = Fault("files.journal.sync", FaultKind.FAILED_SYNC, nth=3)
    asyncio.run(insist(exporter(FaultyDisk(disk, [fault], disk.die), "ndjson")))
    assert numbers_in(disk.power_loss()) == ALL


async def insist(
    made: Exporter,
    full: SimulatedDisk | None = None,
    batches: list[list[Event]] = BATCHES,
    kinds: Set[FailureClass] = frozenset({FailureClass.TRANSIENT}),
) -> None:
    """Send every batch until it is taken, as the delivery loop does; in time, room is made."""
    with contextlib.ExitStack() as room:
        if full is not None:
            room.callback(make_room, full)
        try:
            await made.start()
        except HoldfastError:  # the delivery loop starts it again
            room.close()
            await made.start()
        await send_all(made, room, batches, kinds)
        await made.close()


def make_room(disk: SimulatedDisk) -> None:
    disk.unlink(BASE / "another", "test")


async def send_all(
    made: Exporter,
    room: contextlib.ExitStack,
    batches: list[list[Event]],
    kinds: Set[FailureClass],
) -> None:
    for batch in batches:
        for attempt in range(20):
            answer = await made.send(batch)
            if not answer.failed:
                break
            assert {f.kind for f in answer.failed.values()} <= kinds
            if attempt == 5:
                room.close()
            await asyncio.sleep(0.001)
        else:
            pytest.fail("never taken")


def test_a_full_disk_refuses_and_the_journal_does_not_grow() -> None:
    disk = fresh_disk()
    disk.fill()
    assert disk.capacity_bytes is not None
    disk.capacity_bytes += 10 * BLOCK_BYTES

    async def run() -> list[Answer]:
        made = exporter(disk, "ndjson")
        await made.start()
        return [await made.send(numbered(n, n + 2)) for n in range(1, 200, 3)]

    answers = asyncio.run(run())
    taken = [n for n, answer in enumerate(answers) if not answer.failed]
    refused = [answer for answer in answers if answer.failed]
    assert taken
    assert refused
    assert {f.code for answer in refused for f in answer.failed.values()} == {"ENOSPC"}
    assert "the disk is full" in refused[0].failed[0].reason
    after = disk.kill()
    after.capacity_bytes = None
    play(after, "ndjson", [])
    assert set(numbers_in(after)) >= {3 * n + k for n in taken for k in (1, 2, 3)}


def test_what_another_quiver_left_is_published_at_the_start() -> None:
    disk = fresh_disk()
    faulty = FaultyDisk(disk, [Fault("files.journal.sync", FaultKind.KILL_BEFORE, 3)], disk.die)
    assert play(faulty, "ndjson", BATCHES) == 1
    after = disk.kill()
    other = [event(99, b'{"n":99}', quiver_id="another", ingestion_ns=2_000_000_000 * 10**9)]
    assert play(after, "ndjson", [other]) == 1
    assert {1, 2, 3, 99} <= set(numbers_in(after))


def test_a_damaged_journal_gives_what_is_sound(caplog: pytest.LogCaptureFixture) -> None:
    disk = fresh_disk()
    faulty = FaultyDisk(disk, [Fault("files.journal.sync", FaultKind.KILL_AFTER, 4)], disk.die)
    answered = play(faulty, "ndjson", [batch[:1] for batch in BATCHES])
    assert answered == 2
    after = disk.kill()
    (folder,) = after.list(OUT / files.STAGING)
    staging = OUT / files.STAGING / folder.name
    (journal,) = [e.name for e in after.list(staging) if e.name.startswith("journal-")]
    offset = after.read(staging / journal).index(b'{"n":4}')
    after.overwrite(staging / journal, offset, b"!")
    copy, content = staging / f"{journal}.damaged", after.read(staging / journal)
    killed = 0
    for step in ("create", "write", "sync", "rename", "unlink"):
        for kind in KILLS:
            dying = after.snapshot()
            if step == "unlink":  # of a copy that was cut off
                dying.put(copy.with_name(f"{copy.name}.part"), content[:5])
            faulty = FaultyDisk(dying, [Fault(f"files.aside.{step}", kind, 1)], dying.die)
            play(faulty, "ndjson", [])
            for found in (dying.kill(), dying.power_loss()):
                play(found, "ndjson", [])
                assert numbers_in(found) == [1, 7], (step, kind)
                assert found.read(copy) == content, (step, kind)
                killed += 1
    assert killed == 2 * 5 * len(KILLS)
    assert "is damaged" in caplog.text


# The journal alone.


@given(st.lists(st.binary(max_size=60)), st.data())
def test_a_journal_cut_anywhere_gives_its_first_events(
    payloads: list[bytes], data: st.DataObject
) -> None:
    disk = fresh_disk()
    batch = [event(n, payload) for n, payload in enumerate(payloads)]
    journal = FileJournal(disk, BASE / name_of(1), [JournalIdentity("q", 7, 0)])
    ends = [journal.sound_bytes]
    for one in batch:
        journal.append([frame_of(one)])
        ends.append(journal.sound_bytes)
    cut = data.draw(st.integers(0, journal.sound_bytes))
    contents = read_journal(disk, journal.path, cut)
    if cut < ends[0]:
        assert contents is None
        return
    assert contents is not None
    whole = sum(end <= cut for end in ends) - 1
    assert [(r.identity, bytes(r.payload)) for r in contents.records] == [
        (identity_of(one), one.payload) for one in batch[:whole]
    ]
    assert contents.remembered == [JournalIdentity("q", 7, 0)]
    assert not contents.damaged


@given(st.data())
def test_a_flipped_byte_costs_one_event(data: st.DataObject) -> None:
    disk = fresh_disk()
    # Payloads that look like frames must not lead astray.
    batch = [event(n, b"HFJ1" * data.draw(st.integers(0, 9))) for n in range(4)]
    journal = FileJournal(disk, BASE / name_of(1), [])
    start = journal.sound_bytes
    for one in batch:
        journal.append([frame_of(one)])
    end = journal.sound_bytes
    journal.append([frame_of(event(9))])
    place = data.draw(st.integers(start, end - 1))
    old = disk.read(journal.path)[place]
    disk.overwrite(journal.path, place, bytes([old ^ data.draw(st.integers(1, 255))]))
    contents = read_journal(disk, journal.path)
    assert contents is not None
    assert contents.damaged
    found = [record.identity for record in contents.records]
    wanted = [identity_of(one) for one in [*batch, event(9)]]
    assert len(found) >= 4  # none, if it hit the beginning of a batch
    assert [identity for identity in wanted if identity in found] == found


def test_of_the_last_batch_nothing_behind_a_gap_counts() -> None:
    disk = fresh_disk()
    journal = FileJournal(disk, BASE / name_of(1), [])
    journal.append([frame_of(one) for one in numbered(1, 3)])
    journal.append([frame_of(one) for one in numbered(4, 7)])
    place = disk.read(journal.path).index(b'{"n":6}')
    disk.overwrite(journal.path, place, b"!")
    contents = read_journal(disk, journal.path)
    assert contents is not None
    assert [record.identity.seq for record in contents.records] == [1, 2, 3, 4, 5]
    assert contents.damaged


def test_a_journal_remembers_so_much_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_staging, "REMEMBERED_MAX", 5)
    disk = fresh_disk()
    contents = None

    async def run() -> None:
        nonlocal contents
        made = exporter(disk, "ndjson")
        await made.start()
        for batch in BATCHES:
            await made.send(batch)
            (folder,) = disk.list(OUT / files.STAGING)
            staging = OUT / files.STAGING / folder.name
            for entry in disk.list(staging):
                if entry.name.startswith("journal-"):
                    contents = read_journal(disk, staging / entry.name)
                    assert contents is None or len(contents.remembered) <= 5
        await made.close()

    asyncio.run(run())
    assert contents is not None
    assert [identity.seq for identity in contents.newest_identities(5)] == [17, 18, 19, 20, 21]
