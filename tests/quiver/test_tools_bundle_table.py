"""A damaged bundle table costs producers, and nothing else."""

from __future__ import annotations

import errno
import logging
from pathlib import PurePath

import pyarrow as pa
import pytest
from tests.quiver.batches import numbers, quiet_segments, seal
from tests.quiver.machine import SEGMENTS, Machine, payloads

from holdfast.errors import Damaged, StorageFailed
from holdfast.quiver import Outcome, Quiver
from holdfast.quiver.segments import build
from holdfast.quiver.segments.manifest import decode
from holdfast.quiver.segments.segment import Segment
from holdfast.seam.disk import remove_tree
from holdfast.seam.faulty import FaultyDisk


def segment_path(machine: Machine) -> PurePath:
    (folder,) = machine.disk.list(SEGMENTS)
    return SEGMENTS / folder.name


def damage_table(machine: Machine) -> None:
    machine.scribble(segment_path(machine) / "bundles.arrow", 40, 90)


def described(segment: Segment) -> list[dict[str, object]]:
    """Return the bundle table without what a rebuilt one cannot know."""
    unknown = ("producer", "epoch", "watermark_ns", "payload_bytes", "ingestion_ns")
    rows = segment.bundle_table.to_pylist()
    return [{key: row[key] for key in row if key not in unknown} for row in rows]


def fill(quiver: Quiver) -> None:
    """Append bundles of every kind, with gaps where control bundles are."""
    quiver.append_raw([b"a", b"b"], producer="p", epoch=1)
    quiver.heartbeat("p", 5)
    quiver.append(numbers(1, 2, 3))
    quiver.append({"events": numbers(4), "other": pa.record_batch({"s": ["x", "y"]})})
    quiver.heartbeat("q", 6)
    quiver.append_raw(b"c", slot="raw")


@pytest.mark.parametrize("max_files", [64, 2])
def test_the_rebuilt_table_says_what_the_stored_one_said(machine: Machine, max_files: int) -> None:
    """With two files at most, the rarer schemas are stored as opaque rows."""
    quiver = machine.start(quiet_segments(max_files=max_files))
    fill(quiver)
    before = seal(quiver)
    expected, contents = described(before), [bundle.slots for bundle in before.bundles()]
    machine.stop()
    damage_table(machine)
    after = machine.start().segments()[0]
    assert described(after) == expected
    assert [bundle.slots for bundle in after.bundles()] == contents
    assert after.table_is_rebuilt
    ages = [row["ingestion_ns"] for row in after.bundle_table.to_pylist()]
    assert ages == [row["ingestion_ns"] // 1000 * 1000 for row in before.bundle_table.to_pylist()]


def test_a_table_that_is_gone_is_rebuilt_too(machine: Machine) -> None:
    fill(machine.start())
    machine.stop()
    machine.disk.unlink(segment_path(machine) / "bundles.arrow", "test")
    assert [b.events for b in machine.start().segments()[0].bundles()] == [2, 0, 3, 3, 0, 1]


def test_control_bundles_keep_their_count_where_numbers_were_skipped(machine: Machine) -> None:
    quiver = machine.start()
    quiver.append_raw(b"a")
    quiver.heartbeat("p", 1)
    machine.kill()
    quiver = machine.start()
    quiver.append_raw(b"b")
    quiver.heartbeat("p", 2)
    expected = seal(quiver).summary
    assert expected.last_seq > 65_536
    machine.stop()
    damage_table(machine)
    rows = machine.start().segments()[0].bundle_table.to_pylist()
    assert len(rows) == expected.bundles == 4
    assert [row["kind"] for row in rows].count(3) == 2
    assert (rows[0]["seq"], rows[-1]["seq"]) == (expected.first_seq, expected.last_seq)


def test_the_damage_is_logged_and_counted(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    fill(machine.start())
    machine.stop()
    damage_table(machine)
    quiver = machine.start()
    with caplog.at_level(logging.WARNING, "holdfast.quiver"):
        assert payloads(quiver, slot="raw") == {5: [b"c"]}
        assert quiver.statistics().rebuilt_tables == 0
        assert quiver.bundle(0) is not None
    assert "rebuilt from the rows" in caplog.text
    assert quiver.statistics().rebuilt_tables == 1


def test_readers_get_everything_and_their_account_holds(machine: Machine) -> None:
    quiver = machine.start()
    quiver.register("archive")
    fill(quiver)
    machine.stop()
    damage_table(machine)
    quiver = machine.start()
    with quiver.lease("archive") as deliveries:
        for _ in range(6):
            delivery = deliveries.poll()
            assert delivery is not None
            assert delivery.ack()
        assert deliveries.poll() is None
    account = quiver.balance("archive")
    assert account.holds
    assert account.pending == (0, 0)


# The table and a record batch are damaged at once.

ROWS = (10, 3, 17, 1, 1, 28, 9, 11, 20, 5, 8, 7)
# Cut between bundles: 0 to 2, 3 to 5, 6 and 7, 8 and 9, 10 and 11.
BATCHES = [30, 30, 20, 25, 15]


def large(number: int) -> list[bytes]:
    return [b"%03d-%03d" % (number, row) + bytes(40_000) for row in range(ROWS[number])]


@pytest.fixture
def many_batches(machine: Machine) -> Machine:
    """A machine with one segment of 12 bundles in five record batches, its table damaged."""
    quiver = machine.start(quiet_segments(target_size_bytes=16 << 20))
    quiver.register("archive")
    for number in range(len(ROWS)):
        quiver.append_raw(large(number))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "BLOCK_BYTES", 30 * 40_100)
        assert [batch.rows for batch in seal(quiver).summary.files[0].batches] == BATCHES
    machine.stop()
    damage_table(machine)
    return machine


def damage_batch(machine: Machine, index: int) -> None:
    manifest = decode(machine.disk.read(segment_path(machine) / "manifest"))
    start = manifest.files[0].batches[index].offset + 2000
    machine.scribble(segment_path(machine) / "000-events.arrow", start, start + 10)


@pytest.mark.parametrize(
    ("index", "sound"),
    [
        (0, {3, 4, 5, 6, 7, 8, 9, 10, 11}),
        # Bundle 2 ends with the batch before; nobody can tell that it does.
        (1, {0, 1, 6, 7, 8, 9, 10, 11}),
        (2, {0, 1, 2, 3, 4, 8, 9, 10, 11}),
        (3, {0, 1, 2, 3, 4, 5, 6, 10, 11}),
        (4, {0, 1, 2, 3, 4, 5, 6, 7, 8}),
    ],
)
def test_with_a_damaged_batch_no_bundle_comes_back_short(
    many_batches: Machine, index: int, sound: set[int]
) -> None:
    damage_batch(many_batches, index)
    segment = many_batches.start().segments()[0]
    found = {}
    for bundle in segment.bundles():
        try:
            found[bundle.seq] = bundle.payloads
        except Damaged:
            continue
    assert found == {number: large(number) for number in sound}
    assert segment.bundle_table.num_rows == len(ROWS)
    assert sum(segment.bundle_table.column("events").to_pylist()) == sum(ROWS)


def test_with_a_damaged_batch_readers_go_on_and_the_account_holds(many_batches: Machine) -> None:
    damage_batch(many_batches, 1)
    quiver = many_batches.start()
    got = []
    with quiver.lease("archive") as deliveries:
        while (delivery := deliveries.poll()) is not None:
            got.append(delivery.seq)
            delivery.ack()
    assert got == [0, 1, 6, 7, 8, 9, 10, 11]
    account = quiver.balance("archive")
    assert account.outcomes[Outcome.DAMAGED] == (4, ROWS[2] + ROWS[3] + ROWS[4] + ROWS[5])
    assert account.holds


def test_where_nothing_is_sound_every_bundle_is_counted_as_damaged(many_batches: Machine) -> None:
    many_batches.cut(segment_path(many_batches) / "000-events.arrow", 100)
    quiver = many_batches.start()
    with quiver.lease("archive") as deliveries:
        assert deliveries.poll() is None
    account = quiver.balance("archive")
    assert account.outcomes[Outcome.DAMAGED] == (len(ROWS), sum(ROWS))
    assert account.holds


# What is no damage.


class FewHandles(FaultyDisk):
    """A disk on a machine that has no more file descriptors."""

    exhausted = False

    def read(self, path: PurePath) -> bytes:
        self._refuse(path)
        return super().read(path)

    def read_range(self, path: PurePath, offset_bytes: int, size_bytes: int) -> bytes:
        self._refuse(path)
        return super().read_range(path, offset_bytes, size_bytes)

    def _refuse(self, path: PurePath) -> None:
        if self.exhausted and path.suffix == ".arrow":
            raise OSError(errno.EMFILE, "too many open files")


def test_a_machine_without_file_descriptors_costs_nobody_his_data(machine: Machine) -> None:
    disk = FewHandles(machine.disk, (), machine.disk.die)
    quiver = machine.start(through=lambda _: disk)
    quiver.register("archive")
    fill(quiver)
    quiver.flush()
    disk.exhausted = True
    with quiver.lease("archive") as deliveries:
        with pytest.raises(StorageFailed, match="cannot be read now"):
            deliveries.poll()
        disk.exhausted = False
        for _ in range(6):
            delivery = deliveries.poll()
            assert delivery is not None
            assert delivery.ack()
    assert quiver.balance("archive").outcomes[Outcome.ACKED] == (6, 9)


def test_a_segment_that_was_removed_is_not_rebuilt(machine: Machine) -> None:
    quiver = machine.start()
    fill(quiver)
    segment = seal(quiver)
    quiver.close()
    remove_tree(machine.disk, segment.path, "test")
    with pytest.raises(Damaged):
        segment.bundle_table  # noqa: B018
