"""What cannot be stored is refused at append, with a hint, and nothing is written."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.quiver.batches import column_of, numbers
from tests.quiver.machine import Machine, quiet

from holdfast.errors import BadInput, BundleTooLarge, QuiverClosed
from holdfast.quiver import AppendConfig, Quiver, QuiverConfig
from holdfast.quiver.base.bundle import ROWS_MAX


@pytest.fixture
def quiver(machine: Machine) -> Iterator[Quiver]:
    """A quiver that in the end still accepts, and holds nothing but what was accepted then."""
    with machine.start() as quiver:
        before = quiver.statistics()
        yield quiver
        after = quiver.statistics()
        assert after.next_seq == before.next_seq
        assert after.wal_bytes == before.wal_bytes
        assert after.pending_bytes == 0
        quiver.append(numbers(1))
        assert column_of(quiver) == [1]


def refused(append: Callable[[], object], about: str) -> None:
    """Check that an append is refused, that the error speaks of `about`, and that it has a hint."""
    with pytest.raises(BadInput) as caught:
        append()
    assert about in str(caught.value)
    assert len(caught.value.hint) > 10


# ------------------------------------------------------------------------ bundles


def test_a_batch_without_rows_is_refused(quiver: Quiver) -> None:
    refused(lambda: quiver.append(numbers()), "no rows")


def test_a_table_without_rows_is_refused_whatever_its_types(quiver: Quiver) -> None:
    union = pa.union([pa.field("a", pa.int8())], "dense")
    runs = pa.run_end_encoded(pa.int32(), pa.dictionary(pa.int8(), pa.string()))
    table = pa.table([pa.chunked_array([], union), pa.chunked_array([], runs)], ["u", "r"])
    refused(lambda: quiver.append(table), "no rows")


def test_a_bundle_without_slots_is_refused(quiver: Quiver) -> None:
    refused(lambda: quiver.append({}), "1 to 64 slots")


def test_a_bundle_with_65_slots_is_refused(quiver: Quiver) -> None:
    refused(lambda: quiver.append({f"s{n}": numbers(n) for n in range(65)}), "not 65")


@pytest.mark.parametrize(
    "name", ["", "a/b", "../x", ".hidden", "-x", "a b", "ä", "x" * 65, "a\n", "a\0", 7, None]
)
def test_a_bad_slot_name_is_refused(quiver: Quiver, name: Any) -> None:
    refused(lambda: quiver.append({name: numbers(1)}), "slot name")
    refused(lambda: quiver.append_raw(b"x", slot=name), "slot name")


@pytest.mark.parametrize(
    "column", ["_seq", "_row", "_ingestion_time", "_event_time", "_event_time_flag"]
)
def test_a_reserved_column_is_refused(quiver: Quiver, column: str) -> None:
    refused(lambda: quiver.append(numbers(1, column=column)), column)


def test_two_columns_of_one_name_are_refused(quiver: Quiver) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    refused(lambda: quiver.append(batch), "two columns of one name")


@pytest.mark.parametrize("data", [[{"a": 1}], "text", b"bytes", 7, None, pa.array([1])])
def test_what_is_not_arrow_is_refused(quiver: Quiver, data: Any) -> None:
    refused(lambda: quiver.append(data), type(data).__name__)


def test_a_slot_that_is_not_arrow_is_refused_with_the_good_slots_beside_it(quiver: Quiver) -> None:
    data: Any = {"good": numbers(1), "bad": [1]}
    refused(lambda: quiver.append(data), "not list")


def dictionary_of_dictionaries() -> pa.Array:
    inner = pa.array(["a", "b"]).dictionary_encode()
    return pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), inner)


def dictionary_of_extensions() -> pa.Array:
    inner = pa.array([b"0123456789abcdef"], pa.uuid())
    return pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int8()), inner)


def list_in_64_lists() -> pa.Array:
    kind = pa.int8()
    for _ in range(64):
        kind = pa.list_(kind)
    return pa.nulls(2, kind)


@pytest.mark.parametrize(
    "make", [dictionary_of_dictionaries, dictionary_of_extensions, list_in_64_lists]
)
def test_a_type_arrow_cannot_write_or_cannot_read_back_is_refused(
    quiver: Quiver, make: Callable[[], pa.Array]
) -> None:
    array = make()
    nested = pa.StructArray.from_arrays([array], ["x"])
    refused(lambda: quiver.append(pa.record_batch({"a": array})), "Arrow cannot store")
    refused(lambda: quiver.append(pa.record_batch({"a": nested})), "Arrow cannot store")


def test_a_type_of_which_arrow_cannot_make_an_empty_array_needs_rows(quiver: Quiver) -> None:
    lists = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array([[1]]))
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int16()), lists)
    batch = pa.record_batch({"a": runs})
    refused(lambda: quiver.append({"a": batch.slice(0, 0), "b": numbers(1)}), "Arrow cannot store")


def tampered(array: pa.Array, found: bytes, replaced: bytes) -> pa.RecordBatch:
    """Return a batch as it comes out of an IPC stream in which somebody changed bytes."""
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"a": array})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    stream = sink.getvalue().to_pybytes()
    assert stream.count(found) == 1
    return pa.ipc.open_stream(stream.replace(found, replaced)).read_next_batch()


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def test_an_array_that_points_outside_its_buffers_is_refused(quiver: Quiver) -> None:
    batch = tampered(pa.array(["abc", "defg"]), words(0, 3, 7), words(0, 3, 1_000_000))
    refused(lambda: quiver.append(batch), "Arrow cannot store")


@pytest.mark.parametrize("index", [1_000_000_000, 2, -1])
def test_a_dictionary_index_that_points_nowhere_is_refused(quiver: Quiver, index: int) -> None:
    array = pa.DictionaryArray.from_arrays(pa.array([1, 0, 1], pa.int32()), pa.array(["x", "y"]))
    batch = tampered(array, words(1, 0, 1), words(1, 0, index))
    refused(lambda: quiver.append(batch), "Arrow cannot store")


def test_text_that_is_not_utf8_is_refused(quiver: Quiver) -> None:
    batch = tampered(pa.array(["abcdefg"]), b"abcdefg", b"abc\xffefg")
    refused(lambda: quiver.append(batch), "UTF8")


def test_a_column_of_endless_nulls_is_refused_because_rows_take_memory(quiver: Quiver) -> None:
    endless = pa.record_batch({"a": pa.nulls(ROWS_MAX)})
    with pytest.raises(BundleTooLarge, match="rows"):
        quiver.append({"a": endless, "b": numbers(1)})
    with pytest.raises(BundleTooLarge, match="rows"):
        quiver.append({f"s{n}": pa.record_batch({"a": pa.nulls(2**31 - 1)}) for n in range(3)})


def test_a_bundle_over_the_limit_is_refused_and_one_at_the_limit_is_not(machine: Machine) -> None:
    config = QuiverConfig(append=AppendConfig(max_bundle_bytes=1000), segment=quiet().segment)
    with machine.start(config) as quiver:
        overhead = 6 + len("events") + 8
        quiver.append_raw(b"x" * (1000 - overhead))
        with pytest.raises(BundleTooLarge, match=r"1001 bytes.*1000.*max_bundle_bytes"):
            quiver.append_raw(b"x" * (1001 - overhead))
        with pytest.raises(BundleTooLarge, match="split it"):
            quiver.append(numbers(*range(200)))
        assert quiver.statistics().writer.bundles == 1


def test_without_its_own_limit_a_bundle_may_be_as_large_as_a_segment(quiver: Quiver) -> None:
    with pytest.raises(BundleTooLarge, match="1048576"):
        quiver.append_raw(bytes(1024 * 1024))


# --------------------------------------------------------------------- raw events


@pytest.mark.parametrize(
    "payloads",
    [
        "text",
        ["text"],
        [b"x", None],
        [b"x", 7],
        7,
        bytearray(b"x"),
        memoryview(b"x"),
        [memoryview(b"12345678").cast("Q")],
    ],
)
def test_a_payload_that_is_not_bytes_is_refused(quiver: Quiver, payloads: Any) -> None:
    refused(lambda: quiver.append_raw(payloads), "not bytes")


def test_no_payloads_are_refused(quiver: Quiver) -> None:
    refused(lambda: quiver.append_raw([]), "no events")


@pytest.mark.parametrize("headers", [[], [None], [{}, {}, {}]])
def test_another_number_of_headers_than_payloads_is_refused(
    quiver: Quiver, headers: list[dict[str, str] | None]
) -> None:
    refused(lambda: quiver.append_raw([b"a", b"b"], headers=headers), f"{len(headers)} headers")


@pytest.mark.parametrize(
    ("header", "about"),
    [
        ("text", "str"),
        (["a"], "list"),
        ({"a": object()}, "JSON"),
        ({"a": b"bytes"}, "JSON"),
        ({"a": float("nan")}, "JSON"),
        ({(1, 2): "a"}, "JSON"),
    ],
)
def test_a_header_that_is_no_mapping_or_no_json_is_refused(
    quiver: Quiver, header: Any, about: str
) -> None:
    refused(lambda: quiver.append_raw(b"a", headers=[header]), about)


def test_headers_given_as_one_mapping_are_refused(quiver: Quiver) -> None:
    headers: Any = {"a": "b"}
    refused(lambda: quiver.append_raw(b"x", headers=headers), "header")


# ---------------------------------------------------- producers, watermarks, levels


def test_an_epoch_without_a_producer_is_refused(quiver: Quiver) -> None:
    refused(lambda: quiver.append(numbers(1), epoch=1), "without a producer")
    refused(lambda: quiver.transaction(epoch=1), "without a producer")


@pytest.mark.parametrize("epoch", [0, -1, 2**63, 1.5, "1"])
def test_an_epoch_that_is_no_positive_number_is_refused(quiver: Quiver, epoch: Any) -> None:
    refused(lambda: quiver.append(numbers(1), producer="p", epoch=epoch), "epoch")


@pytest.mark.parametrize("producer", ["", "x" * 1025, "ä" * 513, "\ud800", b"bytes", 7])
@pytest.mark.parametrize("epoch", [None, 1])
def test_a_bad_producer_name_is_refused_with_and_without_an_epoch(
    quiver: Quiver, producer: Any, epoch: int | None
) -> None:
    refused(lambda: quiver.append(numbers(1), producer=producer, epoch=epoch), "producer")


@pytest.mark.parametrize("watermark_ns", [2**63, -(2**63), 1.5, "now"])
def test_a_watermark_that_is_no_64_bit_number_is_refused(quiver: Quiver, watermark_ns: Any) -> None:
    refused(lambda: quiver.append(numbers(1), watermark_ns=watermark_ns), "watermark")
    refused(lambda: quiver.heartbeat("p", watermark_ns), "watermark")


@pytest.mark.parametrize("level", [0, 5, "fsynced"])
def test_a_level_that_is_none_is_refused(quiver: Quiver, level: Any) -> None:
    refused(lambda: quiver.append(numbers(1), level=level), "level")


def test_bad_input_from_one_thread_does_not_touch_the_appends_of_others(machine: Machine) -> None:
    with machine.start() as quiver:
        done = threading.Event()

        def bad() -> None:
            while not done.is_set():
                with pytest.raises(BadInput):
                    quiver.append(numbers())

        thread = threading.Thread(target=bad)
        thread.start()
        for value in range(50):
            quiver.append(numbers(value))
        done.set()
        thread.join()
        assert column_of(quiver) == list(range(50))


def test_an_append_to_a_closed_quiver_is_refused_with_a_hint(machine: Machine) -> None:
    quiver = machine.start()
    machine.stop()
    with pytest.raises(QuiverClosed, match="open it again") as caught:
        quiver.append(numbers(1))
    assert caught.value.stored == "no"


@pytest.mark.parametrize("name", [5, None, b"archive", "", "-x", "a" * 65])
def test_what_is_no_subscribers_name_is_refused(quiver: Quiver, name: Any) -> None:
    """A number was a TypeError of the regular expression."""
    refused(lambda: quiver.register(name), "is not a subscriber's name")
    refused(lambda: quiver.lease(name), "is not a subscriber's name")


@pytest.mark.parametrize("path", ["", None, 5])
def test_a_directory_without_a_name_is_refused(path: Any) -> None:
    """An empty name made a store in the working directory."""
    refused(lambda: Quiver.open(path), "is no directory")


def test_a_configuration_that_is_none_is_refused(tmp_path: Path) -> None:
    config: Any = {"segment": {}}
    refused(lambda: Quiver.open(tmp_path, config), "config is a dict")


def test_readers_of_a_closed_quiver_are_told_that_it_is_closed(machine: Machine) -> None:
    """They were told to free space on the disk."""
    quiver = machine.start()
    quiver.register("known")
    quiver.close()
    calls: list[Callable[[], object]] = [
        lambda: quiver.lease("known"),
        lambda: quiver.cursor("known"),
        lambda: quiver.register("new"),
    ]
    for call in calls:
        with pytest.raises(QuiverClosed):
            call()
