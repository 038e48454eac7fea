"""Damage at any place of a WAL file costs what was hit, and nothing is ever read wrongly."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import PurePath
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.quiver.machine import WAL, Machine, contents, disk_with, quiet, take_apart
from tests.quiver.reading import wal_content

from holdfast.quiver import AckLevel
from holdfast.quiver.base.frame import Frame, FrameKind
from holdfast.quiver.base.held_bundle import HeldBundle
from holdfast.quiver.log.replay import Replay
from holdfast.quiver.log.wal import HEADER_BYTES, decode_header
from holdfast.quiver.segments.segment import Catalog

# `HOLDFAST_THOROUGH=1` tries fifty times as many examples.
pytestmark = pytest.mark.timeout(1800)


class Sample(NamedTuple):
    """A data directory whose process was killed, and what its one WAL file holds."""

    files: dict[PurePath, bytes]
    path: PurePath
    expected: dict[int, tuple[object, ...]]
    # The seqs that stand and fall together, by seq.
    units: dict[int, frozenset[int]]

    @property
    def content(self) -> bytes:
        return self.files[self.path]


def as_values(held: HeldBundle) -> tuple[object, ...]:
    return (*held[:-1], bytes(held.content()))


def replayed(content: bytes) -> Replay:
    view = memoryview(content)
    replay = Replay(Catalog())
    replay.walk_all([wal_content(WAL / "0000000000000001.wal", view)])
    return replay


def values_of(replay: Replay) -> dict[int, tuple[object, ...]]:
    return {seq: as_values(held) for seq, held in replay.bundles.items()}


@cache
def sample() -> Sample:
    """Return frames of every kind: single ones, transactions, producers, heartbeats, payloads."""
    units: list[list[int]] = []
    with Machine() as machine:
        quiver = machine.start()
        units += [[quiver.append_raw(b"x" * size).seq] for size in (0, 1, 7, 8, 9, 64, 500)]
        units.append([quiver.append(pa.record_batch({"n": [1, 2, 3]})).seq])
        units.append([quiver.append_raw(b"from a producer", producer="p", epoch=3).seq])
        units.append([quiver.heartbeat("p", 17).seq])
        for bundles in (2, 3):
            with quiver.transaction(producer="t", epoch=bundles) as transaction:
                for n in range(bundles):
                    transaction.append_raw([b"staged", b"%d" % n], headers=[None, {"n": str(n)}])
            assert transaction.receipt is not None
            first = transaction.receipt.seq
            units.append(list(range(first, first + bundles)))
        units += [[quiver.append_raw(b"after").seq] for _ in range(3)]
        with quiver.transaction() as transaction:
            transaction.append_raw(b"last")
            transaction.append_raw(b"group")
        assert transaction.receipt is not None
        units.append([transaction.receipt.seq, transaction.receipt.seq + 1])
        machine.kill()
        files = contents(machine.disk)
        (path,) = machine.wal_paths()
    expected = values_of(replayed(files[path]))
    assert sorted(expected) == [seq for unit in units for seq in unit]
    return Sample(files, path, expected, {seq: frozenset(unit) for unit in units for seq in unit})


def frames_with_starts() -> list[tuple[int, Frame]]:
    wal = take_apart(sample().content)
    return list(zip(wal.starts, wal.frames, strict=True))


def synced_through() -> int:
    return max(frame.synced_through for _, frame in frames_with_starts())


def seqs_at(start: int, end: int) -> set[int]:
    """Return the bundles that may be lost when these bytes are."""
    lost: set[int] = set()
    for frame_start, frame in frames_with_starts():
        if frame_start < end and start < frame.end and frame.kind != FrameKind.CLOSE:
            # Beyond the last known sync a transaction that is not whole was never acknowledged.
            is_torn = frame_start >= synced_through()
            is_mark = frame.kind == FrameKind.COMMIT
            unit = sample().units[frame.seq]
            lost |= unit if is_torn else set() if is_mark else {frame.seq}
    return lost


def assert_only_lost(replay: Replay, may_be_lost: set[int]) -> None:
    found, expected = values_of(replay), sample().expected
    missing = set(expected) - set(found)
    assert missing <= may_be_lost
    assert found == {seq: values for seq, values in expected.items() if seq not in missing}
    named: set[int] = set()
    for _, damage in replay.real_damages():
        assert damage.first_seq is not None
        assert damage.last_seq is not None
        named |= set(range(damage.first_seq, damage.last_seq + 1))
    last_sync = synced_through()
    starts = {frame.seq: start for start, frame in frames_with_starts()}
    synced_missing = {seq for seq in missing if starts[seq] < last_sync}
    assert synced_missing <= named <= missing
    assert sum(damage.bundles or 0 for _, damage in replay.real_damages()) == len(named)
    assert not missing - named or replay.torn_bytes or replay.dropped_transactions


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_flip_in_every_byte_of_a_wal_file_loses_no_other_bundle_than_the_one_hit(
    every: int,
) -> None:
    randomness = random.Random(5)
    for place in range(HEADER_BYTES, len(sample().content), every):
        content = bytearray(sample().content)
        content[place] ^= 1 << randomness.randrange(8)
        assert_only_lost(replayed(bytes(content)), seqs_at(place, place + 1))


def test_a_flip_in_every_byte_of_the_header_costs_nothing() -> None:
    header = decode_header(memoryview(sample().content))
    randomness = random.Random(6)
    for place in range(HEADER_BYTES):
        content = bytearray(sample().content[:HEADER_BYTES])
        content[place] ^= 1 << randomness.randrange(8)
        assert decode_header(memoryview(bytes(content))) == header


@given(bit=st.integers(0, 8 * (1 << 14)))
def test_a_quiver_with_any_single_flipped_bit_in_its_wal_opens_and_serves_the_rest(
    bit: int,
) -> None:
    bit %= 8 * len(sample().content)
    with Machine(disk_with(sample().files)) as machine:
        machine.flip(sample().path, bit)
        quiver = machine.start()
        found = {seq for seq in sample().expected if quiver.bundle(seq) is not None}
        missing = set(sample().expected) - found
        assert missing <= seqs_at(bit // 8, bit // 8 + 1)
        if missing and bit // 8 < synced_through():
            (damage,) = quiver.recovery.damages
            assert (damage.first_seq, damage.last_seq) == (min(missing), max(missing))
            assert quiver.statistics().quarantined_bytes > 0


@given(
    start=st.integers(HEADER_BYTES, 1 << 14),
    length=st.integers(1, 1500),
    scribble=st.sampled_from([bytes, lambda n: b"\xff" * n, random.Random(9).randbytes]),
)
def test_a_damaged_stretch_of_a_wal_file_costs_the_bundles_in_it_and_names_them(
    start: int, length: int, scribble: Callable[[int], bytes]
) -> None:
    content = bytearray(sample().content)
    # The last frame tells how far the file had been synced; without it all is a torn tail.
    last_start, _ = frames_with_starts()[-1]
    start = min(start, last_start - 1)
    end = min(start + length, last_start)
    content[start:end] = scribble(end - start)
    assert_only_lost(replayed(bytes(content)), seqs_at(start, end))


@given(st.integers(0, 1 << 14))
def test_a_wal_file_cut_at_any_point_gives_exactly_its_sound_prefix(size_bytes: int) -> None:
    size_bytes = HEADER_BYTES + size_bytes % (len(sample().content) - HEADER_BYTES + 1)
    replay = replayed(sample().content[:size_bytes])
    whole = {frame.seq for _, frame in frames_with_starts() if frame.end <= size_bytes}
    commits = [frame for _, frame in frames_with_starts() if frame.kind == FrameKind.COMMIT]
    for commit in commits:
        if commit.end > size_bytes:
            whole -= sample().units[commit.seq]
    assert set(values_of(replay)) == whole
    assert values_of(replay).items() <= sample().expected.items()
    assert replay.real_damages() == []


@given(cuts=st.lists(st.integers(0, 1 << 14), min_size=1, max_size=3))
def test_cut_open_append_again_and_again_loses_nothing_sound(cuts: list[int]) -> None:
    """Every start begins a file of its own, so a torn tail never gets anything behind it."""
    with Machine(disk_with(sample().files)) as machine:
        newest, kept = sample().path, dict(sample().expected)
        for number, cut in enumerate(cuts):
            content = machine.disk.read(newest)
            size_bytes = HEADER_BYTES + cut % (len(content) - HEADER_BYTES + 1)
            machine.cut(newest, size_bytes)
            present = set(values_of(replayed(content[:size_bytes])))
            others = set(kept) - set(values_of(replayed(content)))
            quiver = machine.start(quiet(AckLevel.FSYNCED))
            found = {seq for seq in kept if quiver.bundle(seq)}
            # More is found if the cut was in the copies that the file begins with.
            assert present | others <= found
            kept = {seq: kept[seq] for seq in found}
            for n in range(3):
                kept[quiver.append_raw(b"%d-%d" % (number, n)).seq] = ()
            machine.kill()
            newest = machine.wal_paths()[-1]
        quiver = machine.start()
        assert all(quiver.bundle(seq) for seq in kept)
        assert quiver.recovery.damages == []
