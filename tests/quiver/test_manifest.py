"""The manifest survives any damage to one of its copies; without it the segment is set aside."""

from __future__ import annotations

import json
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.quiver.batches import column_of, numbers, seal
from tests.quiver.machine import QUARANTINE, SEGMENTS, Machine
from xxhash import xxh3_64_hexdigest

from holdfast.quiver.segments import manifest
from holdfast.quiver.segments.manifest import ManifestFault, NewerManifest, Summary


@cache
def sample() -> Summary:
    with Machine() as machine:
        quiver = machine.start()
        quiver.append({"a": numbers(1), "b": numbers(2)}, producer="pröducer", epoch=3)
        quiver.append_raw([b"x", b"y"], slot="c", watermark_ns=5, producer="q")
        quiver.heartbeat("r", -7)
        return seal(quiver).summary


def encoded() -> bytes:
    return manifest.encode(sample())


def half() -> int:
    return len(encoded()) // 2


def test_a_summary_comes_back_as_it_was() -> None:
    assert manifest.decode(encoded()) == sample()


def test_the_summary_counts_what_the_segment_holds() -> None:
    summary = sample()
    assert (summary.bundles, summary.events) == (3, 4)
    assert summary.slots == ("a", "b", "c")
    assert (summary.producers["pröducer"].epoch, summary.producers["pröducer"].seq) == (3, 0)
    assert summary.producers["q"].watermark_ns == 5
    assert summary.producers["r"].watermark_ns == -7


def test_the_signal_of_a_slot_is_named_only_where_its_extractor_says_so() -> None:
    assert b'"signal"' not in encoded()
    first, *others = sample().files
    named = sample()._replace(files=(first._replace(signal="traces"), *others))
    assert manifest.decode(manifest.encode(named)) == named
    assert manifest.encode(named).count(b'"signal":"traces"') == manifest.COPIES


def test_what_most_segments_have_in_common_is_in_memory_once() -> None:
    one, two = manifest.decode(encoded()), manifest.decode(encoded())
    assert one.quiver_id is two.quiver_id
    for name in ("name", "slot", "kind", "schema_fingerprint", "schema"):
        shared = [getattr(file, name) for summary in (one, two) for file in summary.files]
        assert len(set(map(id, shared))) == len(set(shared)) < len(shared), name


def test_a_person_can_read_it() -> None:
    first, *_ = encoded().decode().splitlines()
    assert json.loads(first)["producers"]["pröducer"]["epoch"] == 3


@given(copy=st.integers(0, 1), data=st.data())
def test_any_damage_to_one_copy_costs_nothing(copy: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, half() - 1))
    size = data.draw(st.integers(1, half() - start))
    garbage = data.draw(st.binary(min_size=size, max_size=size) | st.just(bytes(size)))
    content = bytearray(encoded())
    content[copy * half() + start : copy * half() + start + size] = garbage
    assert manifest.decode(bytes(content)) == sample()


@given(size_bytes=st.integers(0, 2**14))
def test_a_manifest_cut_short_is_read_as_long_as_its_first_copy_is_whole(size_bytes: int) -> None:
    cut = encoded()[:size_bytes]
    whole_bytes = len(encoded()[: half()].rstrip(b"\n"))
    if len(cut) >= whole_bytes:
        assert manifest.decode(cut) == sample()
    else:
        with pytest.raises(ManifestFault):
            manifest.decode(cut)


@given(garbage=st.binary(max_size=200))
def test_bytes_behind_the_copies_cost_nothing(garbage: bytes) -> None:
    assert manifest.decode(encoded() + garbage) == sample()


@given(one=st.integers(0, 2**14), two=st.integers(0, 2**14))
def test_damage_to_both_copies_is_never_read_as_another_summary(one: int, two: int) -> None:
    content = bytearray(encoded())
    content[one % half()] ^= 1
    content[half() + two % half()] ^= 1
    try:
        found = manifest.decode(bytes(content))
    except ManifestFault:
        return
    assert found == sample()


def test_a_large_manifest_is_read_whole_and_its_second_copy_counts() -> None:
    summary = sample()
    (file, *others) = summary.files
    large = summary._replace(files=(file._replace(batches=file.batches * 1000), *others))
    data = bytearray(manifest.encode(large))
    assert len(data) > 2 * manifest._USUAL_BYTES
    data[0] ^= 1
    with Machine() as machine:
        machine.disk.make_dir(SEGMENTS.parent, "test")
        machine.disk.make_dir(SEGMENTS, "test")
        machine.disk.put(SEGMENTS / "manifest", bytes(data))
        assert manifest.read(machine.disk, SEGMENTS) == large
        assert manifest.content(machine.disk, SEGMENTS / "manifest", 70_000) == data[:70_000]


def test_a_newer_version_is_told_from_damage() -> None:
    with pytest.raises(NewerManifest, match="version 3"):
        manifest.decode(manifest.encode(sample()._replace(version=3)))


def test_a_checksum_alone_makes_no_manifest() -> None:
    for content in (b"", b"\n", b"\n" * 5000, xxh3_64_hexdigest(b"").encode() + b"\n"):
        with pytest.raises(ManifestFault):
            manifest.decode(content)


# -------------------------------------------------------------------- in a quiver


def three_segments(machine: Machine) -> list[str]:
    quiver = machine.start()
    for value in range(3):
        quiver.append(numbers(value, value))
        quiver.flush()
    machine.stop()
    return [entry.name for entry in machine.disk.list(SEGMENTS)]


def test_a_manifest_with_one_damaged_copy_opens_without_a_word(machine: Machine) -> None:
    names = three_segments(machine)
    for copy, name in enumerate(names[:2]):
        path = SEGMENTS / name / "manifest"
        size = len(machine.disk.read(path)) // 2
        machine.scribble(path, copy * size, (copy + 1) * size)
    quiver = machine.start()
    assert quiver.recovery.damages == []
    assert column_of(quiver) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("how", ["damaged", "empty", "missing"])
def test_without_a_manifest_the_segment_is_set_aside_with_exact_loss(
    machine: Machine, how: str
) -> None:
    name = three_segments(machine)[1]
    path = SEGMENTS / name / "manifest"
    if how == "damaged":
        machine.scribble(path, 0, len(machine.disk.read(path)))
    elif how == "empty":
        machine.cut(path, 0)
    else:
        machine.disk.unlink(path, "test")
    quiver = machine.start()
    (damage,) = quiver.recovery.damages
    assert (damage.first_seq, damage.last_seq) == (1, 1)
    assert (damage.bundles, damage.events) == (1, 2)
    assert "manifest" in damage.reason
    assert column_of(quiver) == [0, 0, 2, 2]
    assert quiver.bundle(1) is None
    assert name not in [entry.name for entry in machine.disk.list(SEGMENTS)]


def test_a_segment_in_quarantine_is_counted_and_its_numbers_are_not_used_again(
    machine: Machine,
) -> None:
    """Upstream left it in place, outside of any budget (2c.8)."""
    names = three_segments(machine)
    content = machine.disk.read(SEGMENTS / names[2] / "000-events.arrow")
    machine.disk.unlink(SEGMENTS / names[2] / "manifest", "test")
    quiver = machine.start()
    assert quiver.statistics().quarantined_bytes >= len(content)
    assert quiver.append(numbers(9)).seq > 2
    assert seal(quiver).summary.segment_seq > 3
    machine.stop()
    quiver = machine.start()
    assert quiver.recovery.damages == []
    assert quiver.statistics().quarantined_bytes >= len(content)
    assert column_of(quiver) == [0, 0, 1, 1, 9]
    kept = [entry.name for entry in machine.disk.list(QUARANTINE) if entry.is_dir]
    assert machine.disk.read(QUARANTINE / kept[0] / "000-events.arrow") == content


def test_a_segment_of_another_quiver_is_set_aside(machine: Machine) -> None:
    names = three_segments(machine)
    path = SEGMENTS / names[0] / "manifest"
    summary = manifest.decode(machine.disk.read(path))
    foreign = summary._replace(quiver_id="00000000-0000-4000-8000-000000000000")
    machine.disk.put(path, manifest.encode(foreign))
    quiver = machine.start()
    assert [damage.first_seq for damage in quiver.recovery.damages] == [0]
    assert column_of(quiver) == [1, 1, 2, 2]
