"""Garbage in any file: the quiver opens, serves the rest, and names what is gone."""

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
from tests.quiver.machine import NO_SEAL, ROOT, SEGMENTS, WAL, Machine, contents, disk_with

from holdfast.errors import Damaged
from holdfast.quiver import Bundle, Quiver
from holdfast.quiver.base.names import parse_segment_dir

# `HOLDFAST_THOROUGH=1` tries fifty times as many examples.
pytestmark = pytest.mark.timeout(1800)


class Sample(NamedTuple):
    """A data directory after a crash, and where every bundle in it is."""

    files: dict[PurePath, bytes]
    bundles: dict[int, Bundle]
    # The WAL file or the segment that holds it.
    homes: dict[int, PurePath]


def append_some(quiver: Quiver) -> None:
    for n in range(3):
        quiver.append_raw([b"raw-%d" % n, b"second"], headers=[{"n": str(n)}, None])
    quiver.append({"left": pa.record_batch({"n": [1]}), "right": pa.record_batch({"s": ["x"]})})
    quiver.append(pa.record_batch({"d": pa.array(["a", "b", "a"]).dictionary_encode()}))
    with quiver.transaction(producer="t") as transaction:
        transaction.append_raw(b"one")
        transaction.append_raw(b"two")
    quiver.heartbeat("p", 5)


@cache
def sample() -> Sample:
    """Return two segments, two full WAL files and a newest one that is not empty."""
    with Machine() as machine:
        quiver = machine.start()
        for _ in range(2):
            append_some(quiver)
            quiver.flush()
        machine.kill()
        quiver = machine.start(faults=[NO_SEAL])
        for _ in range(3):
            append_some(quiver)
            quiver.append_raw(bytes(50_000))
        quiver.append_raw(b"last")
        last_seq = quiver.statistics().next_seq - 1
        bundles = {
            seq: b
            for seq in range(last_seq + 1)
            if (b := quiver.bundle(seq)) and b.slots is not None
        }
        homes = {
            frame.seq: path
            for place, path in enumerate(machine.wal_paths())
            for frame in machine.wal(place).frames
        }
        for segment in quiver.segments():
            for seq in range(segment.summary.first_seq, segment.summary.last_seq + 1):
                homes[seq] = segment.path
        machine.kill()
        files = contents(machine.disk)
    assert set(homes) == set(bundles)
    return Sample(files, bundles, homes)


def paths() -> list[PurePath]:
    return sorted(sample().files)


def home_of(path: PurePath) -> PurePath:
    """Return the WAL file or the segment that a file is, or is part of."""
    return path.parent if path.parent.parent == SEGMENTS else path


def look(quiver: Quiver, seq: int) -> Bundle | Damaged | None:
    try:
        bundle = quiver.bundle(seq)
        assert bundle is None or bundle.slots is not None  # read it: content is loaded lazily
        return bundle
    except Damaged as damaged:
        return damaged


def names_of(quiver: Quiver) -> tuple[set[str], set[int]]:
    """Return the files and the seqs that the report names."""
    files = {damage.source for damage in quiver.recovery.damages}
    seqs: set[int] = set()
    for damage in quiver.recovery.damages:
        if damage.first_seq is not None and damage.last_seq is not None:
            seqs |= set(range(damage.first_seq, damage.last_seq + 1))
    return files, seqs


def assert_rest_is_served(machine: Machine, hit: PurePath, *, may_be_torn: bool) -> None:
    """Open, and find every bundle that is not at home in `hit`, and a name for every other."""
    quiver = machine.start(faults=[NO_SEAL])
    files, seqs = names_of(quiver)
    for seq, bundle in sample().bundles.items():
        found = look(quiver, seq)
        if sample().homes[seq] != hit:
            assert found == bundle
        elif isinstance(found, Damaged):
            assert found.path is not None
            assert PurePath(found.path).is_relative_to(hit)
        elif found is None:
            assert hit.name in files or seq in seqs or may_be_torn
        else:
            # A damaged bundle table is made anew from the rows, which do not know the producer.
            assert found.slots == bundle.slots
    next_seq = quiver.append_raw(b"goes on").seq
    assert next_seq not in sample().bundles or quiver.recovery.new_identity
    # And again, now that everything was set aside.
    machine.kill()
    quiver = machine.start(faults=[NO_SEAL])
    assert all(
        look(quiver, seq) == bundle
        for seq, bundle in sample().bundles.items()
        if sample().homes[seq] != hit
    )
    assert quiver.bundle(next_seq) is not None


Change = Callable[[bytes, random.Random], bytes]


def overwrite_part(content: bytes, randomness: random.Random) -> bytes:
    start = randomness.randrange(len(content) + 1)
    garbage = randomness.randbytes(randomness.choice([1, 8, 512, 4096]))
    return content[:start] + garbage[: len(content) - start] + content[start + len(garbage) :]


def replace_all(content: bytes, randomness: random.Random) -> bytes:
    return randomness.randbytes(len(content))


def zero_all(content: bytes, randomness: random.Random) -> bytes:
    return bytes(len(content))


def replace_shorter(content: bytes, randomness: random.Random) -> bytes:
    return randomness.randbytes(randomness.randrange(0, 9000))


def append_garbage(content: bytes, randomness: random.Random) -> bytes:
    return content + randomness.randbytes(randomness.randrange(1, 9000))


def cut(content: bytes, randomness: random.Random) -> bytes:
    return content[: randomness.randrange(len(content) + 1)]


@given(
    place=st.integers(0, 1000),
    seed=st.integers(0, 2**32),
    change=st.sampled_from(
        [overwrite_part, replace_all, zero_all, replace_shorter, append_garbage]
    ),
)
def test_garbage_in_any_file_costs_what_was_in_it_and_has_a_name(
    place: int, seed: int, change: Change
) -> None:
    path = paths()[place % len(paths())]
    files = dict(sample().files)
    files[path] = change(files[path], random.Random(seed))
    newest = path == max(p for p in files if p.parent == WAL)
    with Machine(disk_with(files)) as machine:
        assert_rest_is_served(machine, home_of(path), may_be_torn=newest)


@given(place=st.integers(0, 1000), seed=st.integers(0, 2**32))
def test_any_file_cut_short_costs_what_was_in_it_and_has_a_name(place: int, seed: int) -> None:
    path = paths()[place % len(paths())]
    files = dict(sample().files)
    files[path] = cut(files[path], random.Random(seed))
    # What a cut took from the newest file leaves no trace.
    newest = path == max(p for p in files if p.parent == WAL)
    with Machine(disk_with(files)) as machine:
        assert_rest_is_served(machine, home_of(path), may_be_torn=newest)


@given(place=st.integers(0, 1000))
def test_any_file_deleted_costs_what_was_in_it(place: int) -> None:
    path = paths()[place % len(paths())]
    files = {p: content for p, content in sample().files.items() if p != path}
    with Machine(disk_with(files)) as machine:
        assert_rest_is_served(machine, home_of(path), may_be_torn=path.parent == WAL)


@given(
    places=st.lists(st.integers(0, 1000), min_size=2, max_size=4),
    seed=st.integers(0, 2**32),
)
def test_garbage_in_several_files_at_once_never_blocks_a_start(
    places: list[int], seed: int
) -> None:
    randomness = random.Random(seed)
    files = dict(sample().files)
    hit = {home_of(paths()[place % len(paths())]) for place in places}
    for place in places:
        path = paths()[place % len(paths())]
        change = randomness.choice([overwrite_part, replace_all, replace_shorter, cut])
        files[path] = change(files[path], randomness)
    with Machine(disk_with(files)) as machine:
        quiver = machine.start()
        identity_is_safe = not {ROOT / "FORMAT"} & hit
        for seq, bundle in sample().bundles.items():
            if identity_is_safe and sample().homes[seq] not in hit:
                assert quiver.bundle(seq) == bundle
        quiver.append_raw(b"goes on")
        quiver.flush()
        machine.stop()
        machine.start()


def test_a_segment_whose_manifest_is_gone_is_named_with_its_seqs_and_counts() -> None:
    path = next(p for p in paths() if p.name == "manifest")
    files = {p: content for p, content in sample().files.items() if p != path}
    with Machine(disk_with(files)) as machine:
        quiver = machine.start()
        name = parse_segment_dir(path.parent.name)
        assert name is not None
        (damage,) = quiver.recovery.damages
        assert (damage.first_seq, damage.last_seq) == (name.first_seq, name.last_seq)
        assert (damage.bundles, damage.events) == (name.bundles, name.events)
