"""Dictionaries of many bundles become one per file, wider, or plain; the rows stay the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from tests.quiver.batches import own_rows, plain_rows, quiet_segments, seal
from tests.quiver.machine import Machine

from holdfast.quiver import Quiver
from holdfast.quiver.base.arrow import has_dictionary, plain_type, unify
from holdfast.quiver.base.config import MB
from holdfast.quiver.segments.segment import Segment

# Puts an array at some depth, so that every case is tried at all of them.
Nest = Callable[[pa.Array], pa.Array]


def flat(array: pa.Array) -> pa.Array:
    return array


def in_struct(array: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([array, pa.array(range(len(array)))], ["word", "number"])


def in_struct_with_nulls(array: pa.Array) -> pa.Array:
    mask = pa.array([place % 3 == 2 for place in range(len(array))])
    return pa.StructArray.from_arrays([array], ["word"], mask=mask)


def in_list(array: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(range(len(array) + 1), pa.int32()), array)


def in_large_list(array: pa.Array) -> pa.Array:
    return pa.LargeListArray.from_arrays(pa.array(range(len(array) + 1), pa.int64()), array)


def in_fixed_size_list(array: pa.Array) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(array, 1)


def in_map(array: pa.Array) -> pa.Array:
    keys = pa.array([f"k{place}" for place in range(len(array))])
    return pa.MapArray.from_arrays(pa.array(range(len(array) + 1), pa.int32()), keys, array)


def in_list_of_structs(array: pa.Array) -> pa.Array:
    return in_list(in_struct(array))


def in_runs(array: pa.Array) -> pa.Array:
    ends = pa.array(range(1, len(array) + 1), pa.int32())
    return pa.RunEndEncodedArray.from_arrays(ends, array)


def in_union(array: pa.Array) -> pa.Array:
    return pa.UnionArray.from_sparse(pa.array([0] * len(array), pa.int8()), [array])


NESTS: list[Nest] = [
    flat,
    in_struct,
    in_struct_with_nulls,
    in_list,
    in_large_list,
    in_fixed_size_list,
    in_map,
    in_list_of_structs,
    in_runs,
    in_union,
]
# Where dictionaries can be widened and decoded; elsewhere the bundles are kept as they came.
OPEN_NESTS = [*NESTS[:5], in_list_of_structs]

every_depth = pytest.mark.parametrize("nest", NESTS, ids=lambda nest: nest.__name__)
every_open_depth = pytest.mark.parametrize("nest", OPEN_NESTS, ids=lambda nest: nest.__name__)


def encoded(
    values: Sequence[Any],
    index_type: pa.DataType | None = None,
    value_type: pa.DataType | None = None,
) -> pa.Array:
    """Return values as a dictionary array; None becomes a null key."""
    distinct = sorted({value for value in values if value is not None})
    keys = [None if value is None else distinct.index(value) for value in values]
    return pa.DictionaryArray.from_arrays(
        pa.array(keys, index_type or pa.uint8()), pa.array(distinct, value_type or pa.string())
    )


def numbered(first: int, count: int, index_type: pa.DataType) -> pa.Array:
    """Return a dictionary array of so many different words."""
    return pa.DictionaryArray.from_arrays(
        pa.array(range(count), index_type), pa.array([f"w{n}" for n in range(first, first + count)])
    )


def sealed(quiver: Quiver, arrays: Sequence[pa.Array]) -> Segment:
    """Append each array as a bundle, seal all, and check that each bundle is what it was."""
    batches = [pa.record_batch({"c": array}) for array in arrays]
    seqs = [quiver.append(batch).seq for batch in batches]
    segment = seal(quiver)
    for seq, batch in zip(seqs, batches, strict=True):
        assert own_rows(quiver, seq) == plain_rows(batch)
    wanted = [row for batch in batches for row in plain_rows(batch)]
    assert plain_rows(quiver.scan(["c"]).read_all()) == wanted
    assert quiver.statistics().sealer.failures == 0
    return segment


def stored_type(segment: Segment) -> pa.DataType:
    """Return the type of the column in the segment's one Arrow file."""
    (file,) = segment.files
    assert file.summary.kind == "arrow"
    return file.schema.field("c").type


@pytest.fixture
def quiver(machine: Machine) -> Quiver:
    return machine.start()


@pytest.fixture
def roomy(machine: Machine) -> Quiver:
    """A quiver whose segments hold more than 65,536 rows."""
    return machine.start(quiet_segments(target_size_bytes=16 * MB))


# -------------------------------------------------------------------------- values


@every_depth
def test_different_values_in_each_batch(quiver: Quiver, nest: Nest) -> None:
    sealed(quiver, [nest(encoded(words)) for words in (["a", "b"], ["c", "a"], ["d"])])


@every_depth
def test_null_keys(quiver: Quiver, nest: Nest) -> None:
    sealed(quiver, [nest(encoded(words)) for words in (["a", None], [None], [None, "b", "a"])])


@every_depth
def test_nulls_among_the_values(quiver: Quiver, nest: Nest) -> None:
    values = pa.array(["a", None])
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 1], pa.uint8()), values)
    sealed(quiver, [nest(array), nest(encoded(["z"]))])


@every_depth
def test_offsets_accumulate_over_three_batches(quiver: Quiver, nest: Nest) -> None:
    sealed(quiver, [nest(numbered(first, 5, pa.uint8())) for first in (0, 5, 10)])


@every_depth
@pytest.mark.parametrize("index_type", [pa.int8(), pa.int16(), pa.int32(), pa.int64()], ids=str)
def test_signed_keys(quiver: Quiver, nest: Nest, index_type: pa.DataType) -> None:
    sealed(quiver, [nest(encoded(["b", "a", None], index_type)), nest(encoded(["c"], index_type))])


@pytest.mark.thinned(3)
@every_depth
@pytest.mark.parametrize(
    ("value_type", "one", "two"),
    [
        (pa.int32(), [1, -2], [3, 1]),
        (pa.binary(2), [b"ab", b"cd"], [b"cd", b"ef"]),
        (pa.binary(), [b"", b"\0\xff"], [b"x"]),
        (pa.large_string(), ["a"], ["b"]),
        (pa.string_view(), ["a"], ["longer than twelve bytes"]),
        (pa.float64(), [0.5, -0.0], [float("inf"), 0.0]),
        (pa.float64(), [0.0], [-0.0, float("nan")]),
        (pa.float16(), [-65504.0, float("nan")], [1.5, -0.0]),
        (pa.bool_(), [True], [False]),
        (pa.timestamp("ns", "UTC"), [1, 2], [3]),
    ],
    ids=lambda value: str(value) if isinstance(value, pa.DataType) else "",
)
def test_values_of_other_types(
    quiver: Quiver, nest: Nest, value_type: pa.DataType, one: Any, two: Any
) -> None:
    arrays = [whole_dictionary(values, value_type) for values in (one, two)]
    sealed(quiver, [nest(array) for array in arrays])


@every_depth
def test_values_that_are_lists_or_structs(quiver: Quiver, nest: Nest) -> None:
    arrays = [whole_dictionary([[value], []], pa.list_(pa.int8())) for value in (1, 2)]
    sealed(quiver, [nest(array) for array in arrays])


def whole_dictionary(values: Sequence[Any], value_type: pa.DataType) -> pa.Array:
    """Return every value once, and a null key."""
    indices = pa.array([*range(len(values)), None], pa.int16())
    return pa.DictionaryArray.from_arrays(indices, pa.array(values, value_type))


# -------------------------------------------------------------------------- widths


@every_depth
@pytest.mark.parametrize("index_type", [pa.uint8(), pa.int8()], ids=str)
def test_more_values_than_8_bits_can_count(
    quiver: Quiver, nest: Nest, index_type: pa.DataType
) -> None:
    sealed(quiver, [nest(numbered(first, 100, index_type)) for first in (0, 100, 200)])


@every_open_depth
def test_more_than_256_values_widen_the_keys_from_8_to_16_bits(quiver: Quiver, nest: Nest) -> None:
    arrays = [nest(numbered(first, 200, pa.uint8())) for first in (0, 200)]
    assert stored_type(sealed(quiver, arrays)) == nest(numbered(0, 1, pa.uint16())).type


def test_255_values_keep_their_8_bits(quiver: Quiver) -> None:
    arrays = [numbered(0, 128, pa.uint8()), numbered(128, 127, pa.uint8())]
    assert stored_type(sealed(quiver, arrays)) == pa.dictionary(pa.uint8(), pa.string())


def test_65535_values_keep_their_16_bits(roomy: Quiver) -> None:
    arrays = [numbered(0, 32_768, pa.uint16()), numbered(32_768, 32_767, pa.uint16())]
    assert stored_type(sealed(roomy, arrays)) == pa.dictionary(pa.uint16(), pa.string())


@pytest.mark.parametrize(
    "nest",
    [flat, *(pytest.param(nest, marks=pytest.mark.slow) for nest in (in_struct, in_list))],
    ids=lambda nest: nest.__name__,
)
def test_more_than_65536_values_fall_back_to_the_plain_type(roomy: Quiver, nest: Nest) -> None:
    arrays = [nest(numbered(first, 40_000, pa.uint16())) for first in (0, 40_000)]
    assert stored_type(sealed(roomy, arrays)) == nest(pa.array(["w"])).type


def test_half_floats_are_stored_plain_because_arrow_would_change_them(quiver: Quiver) -> None:
    arrays = [whole_dictionary([value], pa.float16()) for value in (-65504.0, 1.5)]
    assert stored_type(sealed(quiver, arrays)) == pa.float16()


def test_a_table_of_half_float_dictionaries_is_appended_as_it_is(quiver: Quiver) -> None:
    chunks = [whole_dictionary([value], pa.float16()) for value in (-65504.0, 1.5)]
    table = pa.table({"c": pa.chunked_array(chunks)})
    assert own_rows(quiver, quiver.append(table).seq) == plain_rows(table)


def test_a_table_whose_chunks_have_more_values_than_its_keys_can_count_is_widened(
    quiver: Quiver,
) -> None:
    chunks = [numbered(first, 200, pa.uint8()) for first in (0, 200)]
    table = pa.table({"c": pa.chunked_array(chunks)})
    assert own_rows(quiver, quiver.append(table).seq) == plain_rows(table)


@every_open_depth
def test_a_slice_of_a_table_is_widened_too(quiver: Quiver, nest: Nest) -> None:
    chunks = [nest(numbered(first, 200, pa.uint8())) for first in (0, 200)]
    table = pa.table({"c": pa.chunked_array(chunks)}).slice(10, 350)
    seq = quiver.append(table).seq
    assert own_rows(quiver, seq) == plain_rows(table)


def test_the_order_flag_survives_the_widening(quiver: Quiver) -> None:
    arrays = [
        pa.DictionaryArray.from_arrays(array.indices, array.dictionary, ordered=True)
        for array in (numbered(first, 200, pa.uint8()) for first in (0, 200))
    ]
    segment = sealed(quiver, arrays)
    assert stored_type(segment) == pa.dictionary(pa.uint16(), pa.string(), ordered=True)


def test_only_the_column_that_overflows_changes_its_type(quiver: Quiver) -> None:
    for first in (0, 200):
        many, few = numbered(first, 200, pa.uint8()), encoded(["x", "y"] * 100)
        quiver.append(pa.record_batch({"many": many, "few": few}))
    (file,) = seal(quiver).files
    assert file.schema.field("many").type == pa.dictionary(pa.uint16(), pa.string())
    assert file.schema.field("few").type == pa.dictionary(pa.uint8(), pa.string())


def test_field_and_schema_metadata_survive_the_widening(quiver: Quiver) -> None:
    seqs = []
    for first in (0, 200):
        array = numbered(first, 200, pa.uint8())
        field = pa.field("c", array.type, metadata={"encoding": "delta"})
        schema = pa.schema([field], metadata={"origin": "here"})
        seqs.append(quiver.append(pa.RecordBatch.from_arrays([array], schema=schema)).seq)
    seal(quiver)
    for seq in seqs:
        bundle = quiver.bundle(seq)
        assert bundle is not None
        stored = bundle.slots["events"].schema
        assert stored.metadata == {b"origin": b"here"}
        assert stored.field("c").metadata == {b"encoding": b"delta"}


# -------------------------------------------------------------- what cannot be made one


@pytest.mark.parametrize(
    "nest", [in_map, in_runs, in_union, in_fixed_size_list], ids=lambda nest: nest.__name__
)
def test_nested_dictionaries_that_cannot_be_unified_are_sealed_as_they_came(
    machine: Machine, nest: Nest
) -> None:
    quiver = machine.start()
    arrays = [nest(numbered(first, 100, pa.int8())) for first in (0, 100)]
    segment = sealed(quiver, arrays)
    assert [file.kind for file in segment.summary.files] == ["opaque"]
    machine.stop()
    quiver = machine.start()
    rows = [row for array in arrays for row in plain_rows(pa.record_batch({"c": array}))]
    assert plain_rows(quiver.scan(["c"]).read_all()) == rows


class Coloured(pa.ExtensionType):  # type: ignore[misc]
    """An extension type that is stored as a dictionary."""

    def __init__(self) -> None:
        super().__init__(pa.dictionary(pa.int8(), pa.string()), "holdfast.test.coloured")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> Coloured:
        return cls()


@pytest.fixture
def coloured() -> Iterator[Coloured]:
    kind = Coloured()
    pa.register_extension_type(kind)
    yield kind
    pa.unregister_extension_type(kind.extension_name)


@pytest.mark.parametrize("count", [3, 100])
def test_a_dictionary_inside_an_extension_type(
    quiver: Quiver, coloured: Coloured, count: int
) -> None:
    arrays = [
        pa.ExtensionArray.from_storage(coloured, numbered(first, count, pa.int8()))
        for first in (0, count)
    ]
    sealed(quiver, arrays)


def test_a_dictionary_inside_an_extension_type_is_known_to_be_there(coloured: Coloured) -> None:
    assert has_dictionary(coloured)
    assert has_dictionary(pa.list_(coloured))
    assert not has_dictionary(pa.uuid())


def test_what_cannot_be_made_plain_says_so() -> None:
    words = pa.dictionary(pa.int8(), pa.string())
    assert plain_type(pa.struct([("a", pa.list_(words))])) == pa.struct(
        [("a", pa.list_(pa.string()))]
    )
    with pytest.raises(pa.ArrowNotImplementedError, match="cannot take the dictionary out"):
        plain_type(pa.map_(pa.string(), words))


def test_unifying_ends_even_if_no_type_can_be_relaxed() -> None:
    batches = [pa.record_batch({"c": in_map(numbered(n, 100, pa.int8()))}) for n in (0, 100)]
    with pytest.raises(pa.ArrowException):
        unify(pa.Table.from_batches(batches))


# --------------------------------------------------------------------------- in life


def ids(chance: random.Random, size_bytes: int, rows: int) -> pa.Array:
    values = [chance.randbytes(size_bytes) for _ in range(rows)]
    return encoded(values, pa.uint8(), pa.binary(size_bytes))


def test_logs_with_unique_trace_and_span_ids_are_sealed_without_a_failure(
    machine: Machine,
) -> None:
    """Upstream lost data here: ids of their own in every batch, encoded as dictionaries."""
    chance = random.Random(5)
    quiver = machine.start()
    seqs = {}
    for _ in range(12):
        rows = 150
        batch = pa.record_batch(
            {
                "trace_id": ids(chance, 16, rows),
                "span_id": ids(chance, 8, rows),
                "resource": in_struct(encoded([f"host-{chance.randrange(400)}"] * rows)),
                "service": encoded([chance.choice("abc") for _ in range(rows)]),
            }
        )
        seqs[quiver.append(batch).seq] = plain_rows(batch)
    segment = seal(quiver)
    assert [file.kind for file in segment.summary.files] == ["arrow"]
    machine.stop()
    quiver = machine.start()
    statistics = quiver.statistics()
    assert statistics.sealer.failures == 0
    assert statistics.segment_events == 12 * 150
    assert {seq: own_rows(quiver, seq) for seq in seqs} == seqs


def test_a_dictionary_bundle_cut_over_several_record_batches_is_read_whole(roomy: Quiver) -> None:
    before = pa.record_batch({"c": numbered(0, 100, pa.uint8()), "f": [b"x" * 10_000] * 100})
    middle = pa.record_batch({"c": numbered(50, 200, pa.uint8()), "f": [b"y" * 10_000] * 200})
    seqs = [roomy.append(batch).seq for batch in (before, middle, before)]
    (file,) = seal(roomy).summary.files
    assert len(file.batches) >= 3
    for seq, batch in zip(seqs, (before, middle, before), strict=True):
        assert own_rows(roomy, seq) == plain_rows(batch)
