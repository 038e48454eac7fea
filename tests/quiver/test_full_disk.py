"""A disk that is full, and stays so until something is unlinked.

It was a dead end: no ack could be written, so nothing was ever freed, and no start was possible.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import pytest
from tests.patience import APPEND_S, PATIENCE_S, until
from tests.quiver.machine import ROOT, SEGMENTS, Machine, payloads, quiet
from tests.readers.setting import StillMachine
from tests.support.clock import SteppingClock
from tests.support.disk import AllocatingDisk, GatedDisk

from holdfast.errors import DiskFull, NotAccepted, Overloaded, StorageFailed
from holdfast.quiver import AckLevel, Quiver, QuiverConfig, RetentionConfig, SegmentConfig
from holdfast.quiver.base.config import KB, MB
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.log import reserve
from holdfast.quiver.read.lease import LeasedBundle
from holdfast.seam.disk import Handle
from holdfast.seam.faulty import FaultyDisk
from holdfast.seam.simulated import SimulatedDisk

if TYPE_CHECKING:
    from typing_extensions import Buffer

RESERVE = ROOT / "reserve"
BUNDLE_BYTES = 50_000
# A WAL file's and a ledger file's beginning, and some lines: without a reserve this must be free.
NO_RESERVE_BYTES = 96 * KB
LINES = 2_000


def config(timeout_s: float = APPEND_S, **retention: object) -> QuiverConfig:
    """Return one whose appends do not wait long, and whose keeper looks often."""
    kept = RetentionConfig(tick_s=0.01, **retention)  # type: ignore[arg-type]
    return replace(quiet(timeout_s=timeout_s, file_size_bytes=MB), retention=kept)


@pytest.fixture(params=["no space", "quota", "allocated"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    kind = AllocatingDisk if request.param == "allocated" else SimulatedDisk
    disk = kind(capacity_bytes=12 * MB)
    if request.param == "quota":
        disk.full_errno = errno.EDQUOT
    if request.param == "allocated":  # all of the reserve, and all of it is written soon
        monkeypatch.setattr(reserve, "ALLOCATED_BYTES_MIN", 0)
        monkeypatch.setattr(reserve, "WRITE_OUT_S", 0.0)
    with Machine(disk) as machine:
        yield machine


def fill(quiver: Quiver) -> list[int]:
    """Append until that is refused for want of room, and is refused again; return all seqs."""
    number = refused = 0
    while refused < 2:
        try:
            quiver.append_raw(b"%06d" % number + bytes(BUNDLE_BYTES))
        except DiskFull:
            refused += 1
        except Overloaded:  # a busy machine did not answer in time: it may be stored
            pass
        number += 1
    return list(payloads(quiver))


def drain(quiver: Quiver, name: str = "s", at_most: int = 1 << 30) -> list[int]:
    """Acknowledge what waits, each bundle alone."""
    acked: list[int] = []
    with quiver.lease(name) as lease:
        while len(acked) < at_most and (delivery := lease.poll(timeout_s=APPEND_S / 8)) is not None:
            delivery.ack()
            acked.append(delivery.bundle.seq)
    return acked


def append_when_there_is_room(quiver: Quiver) -> int:
    """Append something; what was freed may still be on its way."""
    for _ in range(200):
        with contextlib.suppress(NotAccepted):
            return quiver.append_raw(b"there is room").seq
    raise AssertionError("there is no room")


def test_a_full_disk_is_left_by_delivering_what_is_on_it(machine: Machine) -> None:
    quiver = machine.start(config())
    quiver.register("s")
    stored = fill(quiver)
    assert len(stored) > 60
    machine.disk.fill()  # by somebody else, to the last block
    assert drain(quiver) == stored
    assert append_when_there_is_room(quiver) > stored[-1]


def test_a_start_on_a_full_disk_opens_drains_and_frees(machine: Machine) -> None:
    quiver = machine.start(config())
    quiver.register("s")
    stored = fill(quiver)
    machine.disk.fill()  # by somebody else, to the last block
    machine.kill()
    for _ in range(3):  # to open it costs nothing that is not given back
        machine.start(config())
        machine.kill()
    quiver = machine.start(config())
    first = drain(quiver, at_most=len(stored) // 3)
    machine.kill()
    quiver = machine.start(config())
    assert first + drain(quiver) == stored
    assert append_when_there_is_room(quiver) > stored[-1]
    quiver.flush()
    machine.stop()
    assert machine.start(config()).recovery.clean_shutdown


# The reserve.


def reserve_files(machine: Machine) -> dict[str, int]:
    return {entry.name: entry.size_bytes for entry in machine.disk.list(RESERVE)}


def test_the_reserve_is_written_and_synced_and_grows_with_what_must_be_sealed() -> None:
    with Machine() as machine:
        quiver = machine.start(config())
        assert reserve_files(machine).keys() == {"headers-1"}
        quiver.append_raw(b"x")
        small = reserve_files(machine)
        assert sum(small.values()) < 512 * KB, "a tiny quiver needs little"
        for _ in range(15):
            quiver.append_raw(bytes(BUNDLE_BYTES))
        grown = reserve_files(machine)
        assert sum(grown.values()) > sum(small.values())
        quiver.flush()
        machine.cut_power()
        assert reserve_files(machine) == grown
        content = machine.disk.read(RESERVE / "segment-1")
        assert len(zlib.compress(content)) > len(content), "nothing that a disk could leave out"
        machine.start(config()).append_raw(bytes(BUNDLE_BYTES))
        assert reserve_files(machine) == grown, "what is there is enough"


class CountingDisk(FaultyDisk):
    """Counts the bytes that are written to the reserve."""

    def __init__(self, inner: SimulatedDisk) -> None:
        super().__init__(inner, (), inner.die)
        self.written_bytes = 0

    def write(self, handle: Handle, buffers: Sequence[Buffer], at: str) -> int:
        written = super().write(handle, buffers, at)
        if at == QuiverPoint.RESERVE_WRITE:
            self.written_bytes += written
        return written

    def rewrite(self, path: PurePath, content: Buffer, at: str, offset_bytes: int = 0) -> None:
        super().rewrite(path, content, at, offset_bytes)
        self.written_bytes += memoryview(content).nbytes


@pytest.fixture
def allocating(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A machine whose disk gives blocks before they are written, also few."""
    monkeypatch.setattr(reserve, "ALLOCATED_BYTES_MIN", 256 * KB)
    monkeypatch.setattr(reserve, "WRITE_OUT_BYTES", MB)
    monkeypatch.setattr(reserve, "WRITE_OUT_S", 0.0)
    with Machine(AllocatingDisk()) as machine:
        yield machine


def unhurried() -> QuiverConfig:
    """Return one of large segments, whose keeper does nothing by itself."""
    segment = SegmentConfig(target_size_bytes=64 * MB, max_open_duration_s=3600.0)
    return replace(quiet(), segment=segment, retention=RetentionConfig(tick_s=3600.0))


def test_large_growth_takes_its_blocks_at_once_and_the_keeper_writes_them(
    allocating: Machine,
) -> None:
    """An append waited until as much again as is buffered was written, which halved a burst."""
    machine, counting = allocating, CountingDisk(allocating.disk)
    quiver = machine.start(unhurried(), through=lambda _: counting)
    for _ in range(4):
        quiver.append_raw(bytes(600 * KB))
    grown = reserve_files(machine)
    assert sum(grown.values()) > 2700 * KB
    assert counting.written_bytes < 512 * KB, "only what is small is written while appends wait"
    machine.cut_power()
    assert reserve_files(machine) == grown, "the blocks are ours although nothing is written"
    counting = CountingDisk(machine.disk)
    quiver = machine.start(unhurried(), through=lambda _: counting)
    zeros = [size for name, size in grown.items() if not any(content(machine, name))]
    assert max(zeros) > MB
    written_bytes = 0
    while counting.written_bytes < sum(zeros):
        quiver._engine.retention.tick()
        assert 0 < counting.written_bytes - written_bytes <= MB, "a piece at a time"
        written_bytes = counting.written_bytes
    written = b"".join(content(machine, name) for name in grown)
    assert len(zlib.compress(written, 1)) > len(written), "nothing that a disk could leave out"
    quiver._engine.retention.tick()
    quiver.append_raw(b"x")
    assert reserve_files(machine) == grown
    assert counting.written_bytes == sum(zeros), "what is written stays"


def content(machine: Machine, name: str) -> bytes:
    return machine.disk.read(RESERVE / name)


def test_a_file_that_is_being_written_is_given_up_afterwards(allocating: Machine) -> None:
    """One that is open keeps its blocks, although it has no name any more."""
    gated = GatedDisk(allocating.disk, "nothing yet")
    quiver = allocating.start(unhurried(), through=lambda _: gated)
    quiver.append_raw(bytes(600 * KB))
    held, segment = quiver._engine.reserve, reserve.ReserveShare.SEGMENT
    gated.at = QuiverPoint.RESERVE_WRITE
    writing = threading.Thread(target=held.write_out)
    writing.start()
    assert gated.reached.wait(PATIENCE_S)
    giving = threading.Thread(target=held.give_up, args=(segment,))
    giving.start()
    quiver.append_raw(b"appends wait for neither")
    assert not held.is_short(segment)
    gated.gate.set()
    for thread in (writing, giving):
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert held.is_short(segment)
    held.write_out()  # what is gone is not missed


def test_delivered_data_goes_before_anything_is_refused(machine: Machine) -> None:
    quiver = machine.start(config(steady_state_headroom_bytes=1 << 40))
    quiver.register("s")
    for _ in range(400):  # several times what the disk holds
        quiver.append_raw(bytes(BUNDLE_BYTES))
        drain_now(quiver)
    assert quiver.statistics().segments > 1, "it was kept as long as there was room"


def drain_now(quiver: Quiver) -> None:
    with quiver.lease("s") as lease:
        while (delivery := lease.poll(timeout_s=0)) is not None:
            delivery.ack()


def test_the_ledger_stays_within_the_reserve_while_the_disk_is_full(machine: Machine) -> None:
    """Each ack is a line: many times more than fit, before the first segment can go."""
    quiver = machine.start(config(timeout_s=60.0))
    quiver.register("s")
    for number in range(LINES):
        quiver.append_raw(b"%d" % number, level=AckLevel.WRITTEN)
    quiver.append_raw(b"all are synced with this one")
    machine.disk.fill()
    assert len(drain(quiver)) == LINES + 1
    machine.kill()
    quiver = machine.start(config())
    assert drain(quiver) == []


def test_a_directory_without_a_reserve_on_a_full_disk_opens_drains_and_frees() -> None:
    """As the version before left it, or somebody who removed the reserve."""
    with Machine(SimulatedDisk(capacity_bytes=12 * MB)) as machine:
        quiver = machine.start(config())
        quiver.register("s")
        stored = fill(quiver)
        machine.kill()
        for name in reserve_files(machine):
            machine.disk.unlink(RESERVE / name, "test")
        machine.disk.fill()
        assert machine.disk.capacity_bytes is not None
        machine.disk.capacity_bytes += NO_RESERVE_BYTES
        quiver = machine.start(config())
        assert drain(quiver) == stored
        assert append_when_there_is_room(quiver) > stored[-1]
        assert sum(reserve_files(machine).values()) > 0


# What the owner is told.


def leave_free(machine: Machine, size_bytes: int) -> None:
    machine.disk.fill()
    assert machine.disk.capacity_bytes is not None
    machine.disk.capacity_bytes += size_bytes


def test_what_was_refused_last_is_told_until_an_append_of_that_size_fits() -> None:
    """Large events were refused, and the probe of 64 kB said that all was well."""
    with Machine(SimulatedDisk(capacity_bytes=12 * MB)) as machine:
        quiver = machine.start(config())
        quiver.append_raw(b"small")
        leave_free(machine, MB + 200 * KB)
        assert quiver.refusal(64 * KB) is None
        with pytest.raises(DiskFull):
            quiver.append_raw(bytes(220 * KB))
        quiver.append_raw(bytes(KB))  # which says nothing of larger ones
        assert isinstance(quiver.refusal(64 * KB), DiskFull)
        leave_free(machine, 4 * MB)
        until(lambda: quiver.refusal(64 * KB) is None)
        leave_free(machine, MB + 200 * KB)
        assert quiver.refusal(64 * KB) is None, "it is forgotten: an append of that size did fit"


class Scarce:
    """Has room for so many bytes; whoever waits for more has waited long enough."""

    def __init__(self, quiver: Quiver, clock: SteppingClock, size_bytes: int) -> None:
        self._room = quiver._writer.room
        self._counters = quiver._writer.counters
        self._clock = clock
        self._size_bytes = size_bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._room, name)

    def refusal(self, size_bytes: int) -> DiskFull | None:
        free_bytes = self._size_bytes - self._counters.payload_bytes
        return DiskFull("no room", hint="") if size_bytes > free_bytes else None

    def wait_freed(self, timeout_s: float) -> None:
        self._clock.pass_time(PATIENCE_S)


def test_of_a_group_that_does_not_fit_the_first_ones_are_taken(still: StillMachine) -> None:
    """The disk had room for four of eight, and all of them were refused."""
    gated = GatedDisk(still.disk, QuiverPoint.WAL_SYNC)
    quiver = still.start(quiet(), through=lambda _: gated)
    outcomes: dict[int, object] = {}

    def append(place: int) -> None:
        try:
            outcomes[place] = quiver.append_raw(bytes(50 * KB)).seq
        except DiskFull as refused:
            outcomes[place] = refused

    def waits(count: int) -> bool:
        return quiver._writer.inbox.pending_bytes >= count * 50 * KB

    threads = [threading.Thread(target=append, args=(place,)) for place in range(9)]
    threads[0].start()  # while it is synced, the others become one group
    assert gated.reached.wait(PATIENCE_S)
    for count, thread in enumerate(threads[1:], 2):
        thread.start()
        until(partial(waits, count))
    quiver._writer.room = Scarce(quiver, still.clock, 280 * KB)
    gated.gate.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(outcomes) == 9
    assert [place for place in range(9) if isinstance(outcomes[place], int)] == [0, 1, 2, 3, 4]


def test_a_write_that_a_quota_refuses_is_told_until_the_disk_takes_as_much() -> None:
    """A quota is not announced, and the reserve was whole: nothing said that appends failed."""
    with Machine(SimulatedDisk(capacity_bytes=12 * MB)) as machine:
        machine.disk.full_errno = errno.EDQUOT
        quiver = machine.start(config())
        quiver.append_raw(b"small")
        leave_free(machine, 0)
        with pytest.raises(DiskFull):
            quiver.append_raw(bytes(50 * KB))
        assert isinstance(quiver.refusal(KB), DiskFull)
        leave_free(machine, 4 * MB)
        until(lambda: quiver.refusal(KB) is None)


def test_the_reserve_is_made_whole_again_although_nobody_appends() -> None:
    with Machine(SimulatedDisk(capacity_bytes=12 * MB)) as machine:
        quiver = machine.start(config())
        quiver.append_raw(b"small")
        whole = reserve_files(machine)
        leave_free(machine, 0)
        for number in range(100):  # at the end in the blocks of the reserve
            quiver.register(f"s{number}")
        assert reserve_files(machine).keys() != whole.keys()
        leave_free(machine, 4 * MB)
        until(lambda: reserve_files(machine).keys() == whole.keys())


# A directory of a version that kept no reserve, on a disk with a block or two.


@pytest.fixture(params=[1, 3], ids=["first life", "third life"])
def old_machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """A machine whose disk was filled in this life, without a reserve."""
    with Machine(SimulatedDisk(capacity_bytes=12 * MB)) as machine:
        for _ in range(request.param - 1):
            machine.start(config())
            machine.kill()
        quiver = machine.start(config())
        quiver.register("s")
        fill(quiver)
        drain(quiver, at_most=3)
        machine.kill()
        for name in reserve_files(machine):
            machine.disk.unlink(RESERVE / name, "test")
        yield machine


@pytest.mark.parametrize("free_bytes", [4 * KB, 6 * KB])
def test_without_a_reserve_a_block_is_enough_to_ack(old_machine: Machine, free_bytes: int) -> None:
    """A new ledger file does not fit: it goes on in that of the last life."""
    leave_free(old_machine, free_bytes)
    for _ in range(2):
        old_machine.start(config())
        old_machine.kill()
    first = drain(old_machine.start(config()), at_most=5)
    old_machine.kill()
    quiver = old_machine.start(config())
    assert quiver.recovery.damages == []
    assert drain(quiver, at_most=5) == list(range(first[-1] + 1, first[-1] + 6))
    assert quiver.balance("s").holds


def drained_and_written_again(disk: SimulatedDisk, free_bytes: int) -> None:
    """Deliver all that waits, with so much room, and store something in what that freed."""
    with Machine(disk) as machine:
        leave_free(machine, free_bytes)
        quiver = machine.start(config())
        waiting = quiver.balance("s").pending.bundles
        assert len(drain(quiver)) == waiting > 0, f"{free_bytes} bytes were free"
        append_when_there_is_room(quiver)
        assert quiver.recovery.damages == []
        assert quiver.balance("s").holds
        machine.kill()
        assert len(drain(machine.start(config()))) == 1


def test_without_a_reserve_and_without_a_block_everything_is_delivered_and_freed(
    old_machine: Machine,
) -> None:
    """It got stuck when the last block of the ledger was full, before a segment could go."""
    for free_bytes in (0, 8 * KB):
        drained_and_written_again(old_machine.disk.snapshot(), free_bytes)


@pytest.mark.slow
def test_an_ack_that_finds_no_block_at_all_is_a_typed_error_and_costs_nothing(
    old_machine: Machine,
) -> None:
    """Without a reserve an ack can come before the keeper has freed what the last ones resolved.

    Here another program takes every block that is freed, so that the keeper never gets there.
    """
    leave_free(old_machine, 6 * KB)
    quiver = old_machine.start(config())
    waiting = quiver.balance("s").pending.bundles
    acked: set[int] = set()
    with quiver.lease("s") as lease:

        def ack_until_refused() -> tuple[LeasedBundle, StorageFailed]:
            while True:
                delivery = lease.poll(timeout_s=PATIENCE_S)
                assert delivery is not None, "everything was acknowledged"
                old_machine.disk.fill()
                try:
                    delivery.ack()
                except StorageFailed as error:
                    return delivery, error
                acked.add(delivery.seq)

        delivery, refusal = ack_until_refused()
        assert "the ledger could not be written" in str(refusal)
        assert refusal.hint
        assert len(acked) < waiting
        leave_free(old_machine, MB)
        assert delivery.ack()  # the same call again is all that it takes
        acked.add(delivery.seq)
    acked |= set(drain(quiver))
    assert len(acked) == waiting
    assert quiver.balance("s").holds
    assert quiver.recovery.damages == []


@pytest.mark.parametrize(
    "blocks", [[0, 1, 4, 16], pytest.param(range(17), marks=pytest.mark.slow)], ids=["few", "all"]
)
def test_without_a_reserve_any_room_is_enough(old_machine: Machine, blocks: Sequence[int]) -> None:
    for block in blocks:
        drained_and_written_again(old_machine.disk.snapshot(), block * 4 * KB)


def test_without_a_reserve_acks_leave_the_room_that_a_removal_takes(old_machine: Machine) -> None:
    """They were faster than the keeper, and took the ledger's last block from it."""
    leave_free(old_machine, 8 * KB)
    quiver = old_machine.start(config())
    quiver._engine.keeper.close()
    waiting = quiver.balance("s").pending.bundles
    assert len(drain(quiver)) == waiting
    assert len(quiver.segments()) <= 1
    assert quiver.balance("s").holds


def test_without_a_reserve_the_ledger_gets_by_with_the_room_of_a_file() -> None:
    """Each ack is a line: many blocks of them, before the first segment can go."""
    with Machine(SimulatedDisk(capacity_bytes=12 * MB)) as machine:
        quiver = machine.start(config(timeout_s=PATIENCE_S))
        quiver.register("s")
        for number in range(LINES):
            quiver.append_raw(b"%d" % number, level=AckLevel.WRITTEN)
        quiver.flush()
        machine.kill()
        stored = fill(machine.start(config()))
        machine.kill()
        for name in reserve_files(machine):
            machine.disk.unlink(RESERVE / name, "test")
        leave_free(machine, 0)
        quiver = machine.start(config())
        assert drain(quiver) == stored
        append_when_there_is_room(quiver)


def test_a_second_copy_of_a_summary_is_given_up_only_for_a_full_disk_without_a_reserve(
    old_machine: Machine,
) -> None:
    def sizes() -> list[int]:
        folders = [SEGMENTS / entry.name for entry in old_machine.disk.list(SEGMENTS)]
        return [old_machine.disk.file_bytes(folder / "manifest") for folder in folders]

    whole = sizes()
    snapshot = old_machine.disk.snapshot()
    leave_free(old_machine, 2 * MB)
    old_machine.start(config())
    assert sizes() == whole
    old_machine.kill()
    old_machine.disk = snapshot
    leave_free(old_machine, 0)
    quiver = old_machine.start(config())
    assert sum(sizes()) < sum(whole)
    assert len(sizes()) == len(whole)
    old_machine.kill()
    assert old_machine.start(config()).recovery.damages == []
    assert quiver.recovery.damages == []
