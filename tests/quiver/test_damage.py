"""Damaged WAL files, case by case: what is kept, what is lost, and that the loss has a name."""

from __future__ import annotations

import errno
import random
from pathlib import PurePath

import pytest
from tests.quiver.machine import (
    NO_SEAL,
    QUARANTINE,
    ROOT,
    WAL,
    Machine,
    contents,
    payloads,
    quiet,
    take_apart,
)
from tests.quiver.reading import wal_content

from holdfast.errors import CannotOpen
from holdfast.quiver import AckLevel, Quiver
from holdfast.quiver.base.frame import (
    HEADER_BYTES,
    NO_WATERMARK,
    NOTHING,
    Frame,
    FrameKind,
    Totals,
    encode,
    frame_bytes,
)
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.log.quarantine import Quarantine
from holdfast.quiver.log.replay import Replay
from holdfast.quiver.log.wal import HEADER_BYTES as WAL_HEADER_BYTES
from holdfast.quiver.log.wal import WalHeader, decode_header
from holdfast.quiver.segments.manifest import VERSION, Summary
from holdfast.quiver.segments.segment import Catalog, Segment
from holdfast.seam.disk import Handle
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.simulated import SimulatedCrash, SimulatedDisk


def append_numbers(quiver: Quiver, first: int, last: int) -> None:
    for n in range(first, last + 1):
        assert quiver.append_raw(b"%d" % n).seq == n


def append_together(quiver: Quiver, *events: bytes) -> list[int]:
    """Append one bundle for each event, in one transaction; return the seqs."""
    with quiver.transaction() as transaction:
        for event in events:
            transaction.append_raw(event)
    assert transaction.receipt is not None
    return list(range(transaction.receipt.seq, transaction.receipt.seq + len(events)))


def crashed_with(machine: Machine, last: int) -> PurePath:
    """Leave a WAL file with the bundles 0 to `last`, each in a group of its own."""
    append_numbers(machine.start(), 0, last)
    machine.kill()
    return machine.wal_paths()[-1]


def start_of(machine: Machine, path: PurePath, seq: int, kind: FrameKind = FrameKind.RAW) -> int:
    """Return where the frame of a bundle (or its COMMIT) begins."""
    wal = take_apart(machine.disk.read(path))
    frames = zip(wal.starts, wal.items, strict=True)
    return next(
        start
        for start, item in frames
        if isinstance(item, Frame) and (item.seq, item.kind) == (seq, kind)
    )


def lost(quiver: Quiver) -> list[tuple[int | None, int | None, int | None]]:
    return [(d.first_seq, d.last_seq, d.bundles) for d in quiver.recovery.damages]


# One frame.


def test_a_bit_flipped_in_mid_file_keeps_every_later_entry(machine: Machine) -> None:
    path = crashed_with(machine, 9)
    start = start_of(machine, path, 4)
    machine.flip(path, 8 * (start + HEADER_BYTES))
    quiver = machine.start()
    assert sorted(payloads(quiver)) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    (damage,) = quiver.recovery.damages
    assert damage.reason == "the body does not match its checksum"
    assert (damage.source, damage.offset) == (path.name, start)
    assert (damage.first_seq, damage.last_seq, damage.bundles, damage.events) == (4, 4, 1, 1)


def test_a_frame_whose_header_is_damaged_is_named_by_its_neighbours(machine: Machine) -> None:
    path = crashed_with(machine, 9)
    machine.flip(path, 8 * (start_of(machine, path, 4) + 20))
    quiver = machine.start()
    assert sorted(payloads(quiver)) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert lost(quiver) == [(4, 4, 1)]
    assert quiver.recovery.damages[0].reason == "the header does not match its checksum"


def test_a_damaged_sector_over_two_frames_names_both(machine: Machine) -> None:
    """The end of one body and the header of the next: neither hides the other."""
    path = crashed_with(machine, 9)
    border = start_of(machine, path, 5)
    machine.scribble(path, border - 16, border + 16)
    quiver = machine.start()
    assert sorted(payloads(quiver)) == [0, 1, 2, 3, 6, 7, 8, 9]
    assert lost(quiver) == [(4, 4, 1), (5, 5, 1)]


@pytest.mark.parametrize("part_bytes", [1, 40, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 9])
def test_a_file_cut_inside_length_header_or_payload_keeps_what_is_before(
    machine: Machine, part_bytes: int
) -> None:
    path = crashed_with(machine, 3)
    machine.cut(path, start_of(machine, path, 3) + part_bytes)
    quiver = machine.start()
    assert sorted(payloads(quiver)) == [0, 1, 2]
    assert quiver.recovery.torn_bytes == part_bytes
    assert quiver.recovery.damages == []


def test_garbage_behind_the_last_entry_is_dropped_and_later_appends_are_read(
    machine: Machine,
) -> None:
    path = crashed_with(machine, 3)
    machine.disk.put(path, machine.disk.read(path) + random.Random(1).randbytes(777))
    quiver = machine.start()
    assert quiver.recovery.torn_bytes == 777
    assert quiver.recovery.damages == []
    later = quiver.append_raw(b"later").seq
    machine.kill()
    assert payloads(machine.start()) == {n: [b"%d" % n] for n in range(4)} | {later: [b"later"]}


def test_a_torn_tail_then_an_append_then_a_second_recovery_keeps_both(machine: Machine) -> None:
    path = crashed_with(machine, 3)
    machine.cut(path, start_of(machine, path, 3) + 10)
    later = machine.start().append_raw(b"later").seq
    for _ in range(3):
        machine.kill()
        quiver = machine.start()
        assert sorted(payloads(quiver)) == [0, 1, 2, later]
        assert quiver.recovery.damages == []


def test_a_bundle_whose_payload_is_not_what_its_kind_says_is_set_aside(machine: Machine) -> None:
    """Sound by its checksum, and still nothing a segment can be made of: a bug wrote it."""
    path = crashed_with(machine, 2)
    content = machine.disk.read(path)
    header = decode_header(memoryview(content))
    for seq, kind in ((3, FrameKind.RAW), (4, FrameKind.ARROW)):
        body = b"\xff" * 24
        head, _ = encode(
            header.salt, len(content), kind, seq, 0, len(content), NO_WATERMARK, body, Totals(3, 3)
        )
        content += head + body
    machine.disk.put(path, content)
    quiver = machine.start()
    assert lost(quiver) == [(3, 3, 1), (4, 4, 1)]
    quiver.flush()
    assert sorted(payloads(quiver)) == [0, 1, 2]


def test_an_error_while_reading_a_wal_file_is_told_and_not_taken_for_its_end(
    machine: Machine,
) -> None:
    crashed_with(machine, 3)
    before = contents(machine.disk)

    class UnreadableDisk(FaultyDisk):
        def open_read(self, path: PurePath) -> Handle:
            if path.suffix == ".wal":
                raise OSError(errno.EMFILE, "too many open files", str(path))
            return super().open_read(path)

    with pytest.raises(CannotOpen, match="too many open files"):
        machine.start(through=lambda disk: UnreadableDisk(disk, (), disk.die))
    assert contents(machine.disk) == before
    assert sorted(payloads(machine.start())) == [0, 1, 2, 3]


# The end of a file that is not the newest.


def leave_rotated_file(machine: Machine) -> PurePath:
    """Leave a full WAL file with unsealed bundles, and a newer one behind it."""
    quiver = machine.start()
    for _ in range(3):
        quiver.append_raw(bytes(20_000))
    machine.kill()
    first, second = machine.wal_paths()
    assert machine.wal(1).header.previous_number == machine.wal(0).header.number
    assert machine.wal(1).header.previous_synced == len(machine.disk.read(first))
    assert second > first
    return first


@pytest.mark.parametrize("into_frame_bytes", [0, 40, 1000])
def test_a_left_file_cut_short_is_damage_and_not_a_torn_tail(
    machine: Machine, into_frame_bytes: int
) -> None:
    """The next file's header says how far it had been synced; also if the cut is between frames."""
    path = leave_rotated_file(machine)
    machine.cut(path, start_of(machine, path, 1) + into_frame_bytes)
    quiver = machine.start()
    assert sorted(payloads(quiver)) == [0, 2]
    assert lost(quiver) == [(1, 1, 1)]
    assert quiver.recovery.torn_bytes == 0


def test_a_left_file_cut_back_to_its_header_names_all_it_held(machine: Machine) -> None:
    path = leave_rotated_file(machine)
    machine.cut(path, WAL_HEADER_BYTES)
    quiver = machine.start()
    assert sorted(payloads(quiver)) == [2]
    assert lost(quiver) == [(0, 1, 2)]


def test_damage_at_the_end_of_a_left_file_is_told_from_a_torn_tail(machine: Machine) -> None:
    path = leave_rotated_file(machine)
    machine.scribble(path, start_of(machine, path, 1), start_of(machine, path, 1) + 8)
    quiver = machine.start()
    assert sorted(payloads(quiver)) == [0, 2]
    assert lost(quiver) == [(1, 1, 1)]


def test_damage_in_the_last_group_of_a_closed_quiver_is_told_from_a_torn_tail(
    machine: Machine,
) -> None:
    """The mark of a clean end says how far the file had been synced."""
    quiver = machine.start(faults=[NO_SEAL])
    append_numbers(quiver, 0, 3)
    machine.stop()
    path = machine.wal_paths()[-1]
    machine.flip(path, 8 * (start_of(machine, path, 3) + HEADER_BYTES))
    quiver = machine.start()
    assert quiver.recovery.clean_shutdown
    assert sorted(payloads(quiver)) == [0, 1, 2]
    assert lost(quiver) == [(3, 3, 1)]


def test_a_damaged_mark_of_a_clean_end_costs_numbers_and_nothing_else(machine: Machine) -> None:
    append_numbers(machine.start(), 0, 3)
    machine.stop()
    path = machine.wal_paths()[-1]
    machine.flip(path, 8 * (len(machine.disk.read(path)) - 30))
    quiver = machine.start()
    assert not quiver.recovery.clean_shutdown
    assert quiver.recovery.damages == []
    assert sorted(payloads(quiver)) == [0, 1, 2, 3]
    assert quiver.append_raw(b"x").seq > 3


# Transactions.


def test_a_damaged_commit_of_an_acknowledged_transaction_costs_nothing(machine: Machine) -> None:
    quiver = machine.start()
    seqs = append_together(quiver, b"a", b"b")
    quiver.append_raw(b"c")
    machine.kill()
    path = machine.wal_paths()[-1]
    machine.flip(path, 8 * start_of(machine, path, seqs[-1], FrameKind.COMMIT))
    quiver = machine.start()
    assert [events[0] for events in payloads(quiver).values()] == [b"a", b"b", b"c"]
    assert quiver.recovery.damages == []
    assert quiver.recovery.dropped_transactions == 0


def test_a_transaction_with_a_damaged_bundle_keeps_the_others_and_names_it(
    machine: Machine,
) -> None:
    quiver = machine.start()
    seqs = append_together(quiver, b"a", b"b", b"c")
    quiver.append_raw(b"d")
    machine.kill()
    path = machine.wal_paths()[-1]
    machine.flip(path, 8 * (start_of(machine, path, seqs[1]) + HEADER_BYTES))
    quiver = machine.start()
    assert [events[0] for events in payloads(quiver).values()] == [b"a", b"c", b"d"]
    assert lost(quiver) == [(seqs[1], seqs[1], 1)]


def crash_in_transaction(machine: Machine, before: int) -> PurePath:
    """Leave `before` bundles and a transaction whose COMMIT was never written."""
    quiver = machine.start()
    append_numbers(quiver, 0, before - 1)
    append_together(quiver, b"half", b"a transaction")
    machine.kill()
    path = machine.wal_paths()[-1]
    machine.cut(path, start_of(machine, path, before + 1, FrameKind.COMMIT))
    return path


@pytest.mark.parametrize("damaged", [0, 1, 4])
def test_a_torn_transaction_stays_out_also_when_an_earlier_frame_is_damaged(
    machine: Machine, damaged: int
) -> None:
    path = crash_in_transaction(machine, 5)
    machine.flip(path, 8 * (start_of(machine, path, damaged) + HEADER_BYTES))
    expected = sorted({0, 1, 2, 3, 4} - {damaged})
    quiver = machine.start(faults=[NO_SEAL])
    assert sorted(payloads(quiver)) == expected
    assert quiver.recovery.dropped_transactions == 1
    # The file is still there at the next start, and then something stands behind it.
    quiver.append_raw(b"later")
    machine.kill()
    quiver = machine.start()
    assert sorted(payloads(quiver))[:-1] == expected
    assert lost(quiver) == [(damaged, damaged, 1)]


def test_a_torn_transaction_stays_out_when_a_frame_of_an_older_file_is_damaged(
    machine: Machine,
) -> None:
    older = leave_rotated_file(machine)
    quiver = machine.start()
    append_together(quiver, b"half", b"a transaction")
    machine.kill()
    path = machine.wal_paths()[-1]
    last = max(frame.seq for frame in machine.wal().frames)
    machine.cut(path, start_of(machine, path, last, FrameKind.COMMIT))
    machine.flip(older, 8 * (start_of(machine, older, 0) + HEADER_BYTES))
    quiver = machine.start()
    assert sorted(payloads(quiver)) == [1, 2]
    assert quiver.recovery.dropped_transactions == 1


def test_a_whole_transaction_behind_a_torn_one_does_not_bring_that_back(machine: Machine) -> None:
    """A power cut may tear a hole anywhere in what was not synced, not only at the end."""
    quiver = machine.start(quiet(AckLevel.WRITTEN))
    torn = append_together(quiver, b"a", b"b", b"c")
    whole = append_together(quiver, b"d", b"e")
    machine.kill()
    path = machine.wal_paths()[-1]
    machine.flip(path, 8 * start_of(machine, path, torn[0]))
    machine.flip(path, 8 * start_of(machine, path, torn[-1], FrameKind.COMMIT))
    quiver = machine.start()
    assert sorted(payloads(quiver)) == whole
    assert quiver.recovery.damages == []


# Bundles that also exist elsewhere.


def test_damage_that_segments_make_good_is_not_reported(machine: Machine) -> None:
    """A WAL file that came back after its bundles were sealed, damaged or not, costs nothing."""
    quiver = machine.start()
    append_numbers(quiver, 0, 4)
    wal = machine.wal_paths()[-1]
    content = machine.disk.read(wal)
    quiver.flush()
    quiver.append_raw(b"5")
    machine.kill()
    machine.disk.put(wal, content)
    machine.scribble(wal, WAL_HEADER_BYTES, len(content) - 40)
    quiver = machine.start()
    assert payloads(quiver) == {n: [b"%d" % n] for n in range(6)}
    assert quiver.recovery.damages == []
    assert not machine.disk.exists(QUARANTINE)


def sealed(first_seq: int, last_seq: int) -> Segment:
    summary = Summary(
        version=VERSION,
        quiver_id="",
        segment_seq=1,
        first_seq=first_seq,
        last_seq=last_seq,
        bundles=last_seq - first_seq + 1,
        events=0,
        payload_bytes=0,
        size_bytes=0,
        min_ingestion_ns=0,
        max_ingestion_ns=0,
        clamped_min_event_us=None,
        clamped_max_event_us=None,
        files=(),
        bundle_table_checksum="",
        producers={},
    )
    return Segment(SimulatedDisk(), PurePath("segment"), summary)


def test_a_damaged_first_frame_does_not_count_through_all_numbers_ever_sealed(
    machine: Machine,
) -> None:
    """With a quadrillion sealed bundles this test would not end."""
    path = crashed_with(machine, 3)
    salt, last = decode_header(memoryview(machine.disk.read(path))).salt, 10**15
    header = WalHeader(
        "00000000-0000-4000-8000-000000000000", 1, salt, last + 99, 0, 0, NOTHING, NOTHING, 0
    )
    content = header.encode()
    for seq in (last + 1, last + 2, last + 3):
        before = Totals(seq - last - 1, 0)
        frame, padding = encode(
            salt, len(content), FrameKind.CONTROL, seq, 0, len(content), NO_WATERMARK, b"", before
        )
        content += frame + padding
    content = content.replace(content[WAL_HEADER_BYTES : WAL_HEADER_BYTES + 8], bytes(8), 1)
    catalog = Catalog()
    catalog.add(sealed(0, last))
    replay = Replay(catalog)
    view = memoryview(content)
    replay.walk_all([wal_content(WAL / "1", view)])
    assert [(d.first_seq, d.last_seq) for _, d in replay.real_damages()] == [(last + 1, last + 1)]


# Payloads that contain frames.


def forged_frames(machine: Machine, path: PurePath) -> list[bytes]:
    """Return bytes that look like frames: of this file, of another, and made up."""
    content = machine.disk.read(path)
    own = content[start_of(machine, path, 1) : start_of(machine, path, 3)]
    salt = decode_header(memoryview(content)).salt
    body = b"forged!!"
    made_up = [
        b"".join((*encode(guess, 0, FrameKind.RAW, 1, 0, 0, NO_WATERMARK, body, NOTHING), body))
        for guess in (0, salt ^ 1)
    ]
    with Machine() as other:
        append_numbers(other.start(), 0, 5)
        foreign = other.disk.read(other.wal_paths()[0])[WAL_HEADER_BYTES:]
    return [own, foreign, *made_up]


@pytest.mark.parametrize("container_is_damaged", [False, True])
def test_a_payload_that_contains_frames_is_never_taken_for_them(
    machine: Machine, container_is_damaged: bool
) -> None:
    quiver = machine.start()
    append_numbers(quiver, 0, 4)
    path = machine.wal_paths()[-1]
    forged = forged_frames(machine, path)
    # The head of a raw payload has 20 bytes: shifted so that the frames stand where frames may.
    for shift in range(8):
        quiver.append_raw(b"-" * shift + b"".join(forged))
    quiver.append_raw(b"after")
    machine.kill()
    expected = payloads_by_seq(forged)
    if container_is_damaged:
        for seq in range(5, 13):
            machine.flip(path, 8 * start_of(machine, path, seq))
            del expected[seq]
    quiver = machine.start()
    assert payloads(quiver) == expected
    assert [seq for d in lost(quiver) for seq in range(d[0] or 0, (d[1] or 0) + 1)] == (
        list(range(5, 13)) if container_is_damaged else []
    )


def payloads_by_seq(forged: list[bytes]) -> dict[int, list[bytes]]:
    plain = {n: [b"%d" % n] for n in range(5)}
    return plain | {5 + n: [b"-" * n + b"".join(forged)] for n in range(8)} | {13: [b"after"]}


def test_a_frame_copied_over_another_of_its_file_is_not_taken_twice(machine: Machine) -> None:
    path = crashed_with(machine, 5)
    content = machine.disk.read(path)
    size_bytes = frame_bytes(len(machine.wal().frames[1].payload))
    first, second = start_of(machine, path, 1), start_of(machine, path, 3)
    machine.disk.overwrite(path, second, content[first : first + size_bytes])
    quiver = machine.start()
    assert payloads(quiver) == {n: [b"%d" % n] for n in (0, 1, 2, 4, 5)}
    assert lost(quiver) == [(3, 3, 1)]


# Quarantine.


def quarantined(machine: Machine) -> dict[str, bytes]:
    return {path.name: content for path, content in contents(machine.disk, QUARANTINE).items()}


def test_damaged_bytes_are_kept_in_quarantine_with_a_note_however_often_they_are_found(
    machine: Machine,
) -> None:
    path = crashed_with(machine, 5)
    start = start_of(machine, path, 2)
    machine.flip(path, 8 * (start + HEADER_BYTES))
    damaged = machine.disk.read(path)[start : start_of(machine, path, 3)]
    for _ in range(3):
        quiver = machine.start(faults=[NO_SEAL])
        assert lost(quiver) == [(2, 2, 1)]
        assert quiver.statistics().quarantined_bytes == machine.disk.used_bytes(QUARANTINE)
        machine.kill()
    assert sorted(quarantined(machine)) == [f"{path.name}@{start}.1", f"{path.name}@{start}.1.json"]
    assert quarantined(machine)[f"{path.name}@{start}.1"] == damaged


@pytest.mark.parametrize(
    "at",
    [
        QuiverPoint.QUARANTINE_MAKE_DIR,
        QuiverPoint.QUARANTINE_CREATE,
        QuiverPoint.QUARANTINE_WRITE,
        QuiverPoint.QUARANTINE_SYNC,
        QuiverPoint.QUARANTINE_SYNC_DIR,
    ],
)
def test_a_wal_file_whose_damage_could_not_be_copied_stays_until_it_can(
    machine: Machine, at: QuiverPoint
) -> None:
    path = crashed_with(machine, 5)
    machine.flip(path, 8 * (start_of(machine, path, 2) + HEADER_BYTES))
    quiver = machine.start(faults=[Fault(at, FaultKind.ENOSPC, times=9)])
    assert sorted(payloads(quiver)) == [0, 1, 3, 4, 5]
    assert lost(quiver) == [(2, 2, 1)]
    machine.stop()
    assert machine.disk.exists(path), "the only copy of the damaged bytes"
    quiver = machine.start()
    assert lost(quiver) == [(2, 2, 1)]
    assert sorted(payloads(quiver)) == [0, 1, 3, 4, 5]
    machine.stop()
    assert not machine.disk.exists(path)
    assert len(quarantined(machine)) >= 2


@pytest.mark.parametrize("kind", [FaultKind.KILL_BEFORE, FaultKind.KILL_MIDWAY])
@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("at", [QuiverPoint.QUARANTINE_CREATE, QuiverPoint.QUARANTINE_WRITE])
def test_a_crash_while_copying_damage_loses_no_byte_of_it(
    machine: Machine, at: QuiverPoint, nth: int, kind: FaultKind
) -> None:
    path = crashed_with(machine, 5)
    start = start_of(machine, path, 2)
    machine.flip(path, 8 * (start + HEADER_BYTES))
    damaged = machine.disk.read(path)[start : start_of(machine, path, 3)]
    with pytest.raises(SimulatedCrash):
        machine.start(faults=[Fault(at, kind, nth)])
    machine.cut_power(random.Random(3))
    machine.start()
    machine.stop()
    assert damaged in quarantined(machine).values()


def test_the_note_in_quarantine_says_what_was_lost(machine: Machine) -> None:
    path = crashed_with(machine, 5)
    machine.flip(path, 8 * (start_of(machine, path, 2) + HEADER_BYTES))
    quiver = machine.start()
    assert Quarantine(machine.disk, ROOT).damages() == quiver.recovery.damages


# Files without a header.


@pytest.mark.parametrize("size_bytes", [0, 100, WAL_HEADER_BYTES - 1])
def test_a_left_file_cut_into_its_header_is_counted_and_not_taken_for_one_being_created(
    machine: Machine, size_bytes: int
) -> None:
    path = leave_rotated_file(machine)
    accepted = 3
    machine.cut(path, size_bytes)
    quiver = machine.start()
    assert sorted(payloads(quiver)) == [2]
    assert lost(quiver) == [(None, None, 2)]
    assert quiver.recovery.damages[0].events == 2
    assert quiver.statistics().accepted_bundles == accepted
    assert machine.disk.exists(QUARANTINE / f"{path.name}.1")


def test_a_left_file_whose_header_is_damaged_is_set_aside_with_what_it_held(
    machine: Machine,
) -> None:
    path = leave_rotated_file(machine)
    content = machine.disk.read(path)
    machine.scribble(path, 0, WAL_HEADER_BYTES)
    quiver = machine.start()
    assert lost(quiver) == [(None, None, 2)]
    assert (
        machine.disk.read(QUARANTINE / f"{path.name}.1")[WAL_HEADER_BYTES:]
        == (content[WAL_HEADER_BYTES:])
    )


def test_one_damaged_copy_of_a_header_costs_nothing(machine: Machine) -> None:
    path = crashed_with(machine, 3)
    for start in (0, 4096):
        machine.scribble(path, start, start + 4096)
        quiver = machine.start(faults=[NO_SEAL])
        assert sorted(payloads(quiver)) == [0, 1, 2, 3]
        assert quiver.recovery.damages == []
        machine.kill()
        machine.scribble(path, start, start + 4096)
