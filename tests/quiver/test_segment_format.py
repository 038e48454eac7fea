"""What a sealed segment says of its rows: in its manifest, its bundle table and its Arrow files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from tests.quiver.batches import extracting, numbers, plain_rows, quiet_segments, seal
from tests.quiver.machine import START_NS, Machine, contents, quiet

from holdfast.errors import BadInput
from holdfast.quiver import ColumnExtractor, ProducerConfig, Quiver
from holdfast.quiver.base.bundle import ROWS_MAX
from holdfast.quiver.segments.segment import Segment

NOW_US = START_NS // 1000
YEAR_2099_US = 4_071_006_245_000_000
USER_METADATA = {b"by": b"someone", b"not text": b"\xff\x00"}
WITH_METADATA = numbers(1, 2).replace_schema_metadata(USER_METADATA)


def test_the_summary_has_clamped_times_and_its_batches_have_those_of_the_rows(
    machine: Machine,
) -> None:
    times = pa.array([-1, NOW_US, YEAR_2099_US], pa.timestamp("us", "UTC"))
    config = extracting(ColumnExtractor("at"))
    with machine.start(config) as quiver:
        quiver.append(pa.record_batch({"at": times}))
        summary = seal(quiver).summary
    assert summary.clamped_min_event_us == 0
    assert summary.clamped_max_event_us == NOW_US + int(config.max_skew_s * 1e6)
    (batch,) = summary.files[0].batches
    assert (batch.min_event_us, batch.max_event_us) == (-1, YEAR_2099_US)


def test_the_manifest_lists_the_newest_producers_first_and_no_more_than_are_remembered(
    machine: Machine,
) -> None:
    config = replace(quiet(), producers=ProducerConfig(max_count=3))
    with machine.start(config) as quiver:
        for name, jump_s in [("a", 0), ("b", 60), ("c", 0), ("d", -30), ("e", -60)]:
            machine.clock.jump(jump_s)
            quiver.append(numbers(1), producer=name, epoch=1)
        assert list(seal(quiver).summary.producers) == ["c", "b", "d"]


def test_a_start_that_remembers_fewer_producers_forgets_the_oldest_of_a_manifest(
    machine: Machine,
) -> None:
    with machine.start() as quiver:
        for name in "abc":
            machine.clock.jump(1)
            quiver.append(numbers(1), producer=name, epoch=1)
        seal(quiver)
    with machine.start(replace(quiet(), producers=ProducerConfig(max_count=2))) as quiver:
        answers = [quiver.append(numbers(1), producer=name, epoch=1) for name in "bca"]
    assert [answer.duplicate for answer in answers] == [True, True, False]


def inner_types(kind: pa.DataType) -> Iterator[pa.DataType]:
    yield kind
    for place in range(kind.num_fields):
        yield from inner_types(kind.field(place).type)


def test_no_column_that_the_quiver_adds_is_unsigned_because_spark_has_no_such_types(
    machine: Machine,
) -> None:
    with machine.start(quiet_segments(max_files=3)) as quiver:
        quiver.append_raw([b"a", b"b"])
        for column in "xyz":
            quiver.append(numbers(1, column=column))
        segment = seal(quiver)
        files = [path for path in contents(machine.disk, segment.path) if path.suffix == ".arrow"]
        schemas = [pa.ipc.open_file(machine.disk.read(path)).schema for path in files]
        scanned = quiver.scan().schema
    assert {file.kind for file in segment.summary.files} == {"raw", "arrow", "opaque"}
    assert len(schemas) == 4
    types = {kind for s in (*schemas, scanned) for f in s for kind in inner_types(f.type)}
    assert {pa.int64(), pa.int32(), pa.int8()} <= types
    assert not [kind for kind in types if pa.types.is_unsigned_integer(kind)]


def test_the_rows_of_the_largest_bundle_can_be_numbered_in_32_bits_with_a_sign() -> None:
    assert pa.scalar(ROWS_MAX - 1, pa.int32()).as_py() == ROWS_MAX - 1


def fingerprint(segment: Segment) -> str:
    (file,) = segment.summary.files
    return file.schema_fingerprint


def test_the_fingerprint_is_that_of_the_own_columns_and_of_nothing_else(machine: Machine) -> None:
    times = pa.array([NOW_US], pa.timestamp("us", "UTC"))
    plain = pa.record_batch({"at": times, "n": [1]})
    seen = set()
    for config in (quiet(), extracting(ColumnExtractor("at"))):
        with machine.start(config) as quiver:
            for metadata in (None, {"by": "someone"}):
                quiver.append(plain.replace_schema_metadata(metadata))
                seen.add(fingerprint(seal(quiver)))
    assert len(seen) == 1


def test_the_fingerprint_differs_with_name_type_nullability_and_order(machine: Machine) -> None:
    a, b = pa.field("a", pa.int64()), pa.field("b", pa.int64())
    schemas = [
        [a, b],
        [b, a],
        [a],
        [a, b.with_name("c")],
        [a, b.with_type(pa.int32())],
        [a, b.with_nullable(False)],
        [a, b.with_type(pa.list_(pa.field("item", pa.int64(), nullable=False)))],
        [a, b.with_type(pa.list_(pa.int64()))],
        [pa.field('a","int64",true],["b', pa.int64())],
    ]
    with machine.start() as quiver:
        prints = []
        for fields in schemas:
            columns = [
                pa.array([1]).cast(f.type)
                if f.type in (pa.int64(), pa.int32())
                else pa.nulls(1, f.type)
                for f in fields
            ]
            quiver.append(pa.record_batch(columns, schema=pa.schema(fields)))
            prints.append(fingerprint(seal(quiver)))
    assert len(set(prints)) == len(schemas)


def test_a_data_file_says_by_itself_what_its_manifest_says_of_it(machine: Machine) -> None:
    with machine.start(quiet_segments(max_files=3)) as quiver:
        quiver.append_raw([b"a", b"b"], slot="lineage")
        quiver.append({"spans": WITH_METADATA})
        for column in "xyz":
            quiver.append(numbers(1, column=column))
        segment = seal(quiver)
    assert {file.kind for file in segment.summary.files} == {"raw", "arrow", "opaque"}
    for file in segment.summary.files:
        schema = pa.ipc.open_file(machine.disk.read(segment.path / file.name)).schema
        own = {} if file.slot != "spans" else USER_METADATA
        assert schema.metadata == own | {
            b"holdfast.slot": file.slot.encode(),
            b"holdfast.kind": file.kind.encode(),
            b"holdfast.own_columns": str(file.own_columns).encode(),
        }


def metadata_of_slots(quiver: Quiver) -> list[Any]:
    """Return the schema metadata that readers get, of bundle 0 and of a scan, with and without."""
    found: list[Any] = []
    for slot in ("with", "without"):
        bundle = quiver.bundle(0)
        assert bundle is not None
        found += [bundle.slots[slot].schema.metadata]
        reader = quiver.scan(slot=slot)
        found += [reader.schema.metadata, *(batch.schema.metadata for batch in reader)]
    return found


@pytest.mark.parametrize("max_files", [2, 64])
def test_readers_get_the_schema_metadata_that_was_appended_and_no_other(
    machine: Machine, max_files: int
) -> None:
    config = quiet_segments(max_files=max_files)
    expected = [USER_METADATA] * 3 + [None] * 3
    with machine.start(config) as quiver:
        quiver.append({"with": WITH_METADATA, "without": numbers(1), "third": numbers(1)})
        assert metadata_of_slots(quiver) == expected
        kinds = {file.kind for file in seal(quiver).summary.files}
        assert kinds == ({"arrow", "opaque"} if max_files == 2 else {"arrow"})
        assert metadata_of_slots(quiver) == expected
    with machine.start(config) as quiver:
        assert metadata_of_slots(quiver) == expected


def test_a_scan_has_no_schema_metadata_where_its_rows_came_with_different_ones(
    machine: Machine,
) -> None:
    with machine.start() as quiver:
        quiver.append(WITH_METADATA)
        seal(quiver)
        quiver.append(numbers(3))
        reader = quiver.scan(["n"])
        assert reader.schema.metadata is None
        assert [batch.schema.metadata for batch in reader] == [None, None]


def test_schema_metadata_with_a_key_of_ours_is_refused(machine: Machine) -> None:
    with machine.start() as quiver:
        for batch in (numbers(1), pa.record_batch({"d": pa.array(["x"]).dictionary_encode()})):
            marked = batch.replace_schema_metadata({"holdfast.slot": "elsewhere"})
            with pytest.raises(BadInput, match=r"holdfast\.slot"):
                quiver.append(marked)


def positions(quiver: Quiver, slots: str) -> dict[str, list[tuple[int, int, int]]]:
    """Return seq, row and value of all events by slot."""
    wanted = ["_seq", "_row", "n"]
    return {slot: plain_rows(quiver.scan(wanted, slot=slot).read_all()) for slot in slots}


@pytest.mark.parametrize("max_files", [2, 3, 64])
def test_a_position_names_one_event_of_a_bundle_of_several_slots_and_stays_the_same(
    machine: Machine, max_files: int
) -> None:
    config = quiet_segments(max_files=max_files)
    with machine.start(config) as quiver:
        quiver.append({"a": numbers(0, 1, 2), "b": numbers(3), "c": numbers(), "d": numbers(4, 5)})
        quiver.append({"d": numbers(0), "c": numbers(1), "a": numbers(2, 3)})
        live = positions(quiver, "abcd")
        seal(quiver)
        sealed = positions(quiver, "abcd")
    with machine.start(config) as quiver:
        reopened = positions(quiver, "abcd")
    # Every value is the number of its event in its bundle.
    assert live == sealed == reopened
    found = sorted(position for rows in live.values() for position in rows)
    assert found == [(0, n, n) for n in range(6)] + [(1, n, n) for n in range(4)]


@pytest.mark.parametrize("max_files", [2, 64])
def test_raw_events_have_their_positions_also_in_an_opaque_file(
    machine: Machine, max_files: int
) -> None:
    with machine.start(quiet_segments(max_files=max_files)) as quiver:
        for slot in "ab":
            quiver.append_raw([b"0", b"1", b"2"], slot=slot)
        for _ in range(3):
            quiver.append({"c": numbers(1)})
        seal(quiver)
        found = [
            position
            for slot in "ab"
            for position in plain_rows(
                quiver.scan(["_seq", "_row", "payload"], slot=slot).read_all()
            )
        ]
    assert found == [(seq, row, str(row).encode()) for seq in (0, 1) for row in range(3)]


@pytest.mark.parametrize("max_files", [2, 3, 64])
def test_the_slots_of_a_bundle_are_read_in_the_order_in_which_they_were_appended(
    machine: Machine, max_files: int
) -> None:
    orders = ["dcba", "abcd", "bd", "cda"]
    config = quiet_segments(max_files=max_files)
    with machine.start(config) as quiver:
        for order in orders:
            quiver.append({slot: numbers(*range(slot != "c")) for slot in order})
        live = [bundle_slots(quiver, seq) for seq in range(4)]
        seal(quiver)
        sealed = [bundle_slots(quiver, seq) for seq in range(4)]
    with machine.start(config) as quiver:
        assert live == sealed == [bundle_slots(quiver, seq) for seq in range(4)] == orders


def bundle_slots(quiver: Quiver, seq: int) -> str:
    bundle = quiver.bundle(seq)
    assert bundle is not None
    return "".join(bundle.slots)
