"""Appends from afar: what is stored is what was sent, once, or nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight
from tests.remote.serving import Served, numbers, serving

from holdfast.errors import BadInput, BundleTooLarge, NotAccepted, OwnerGone, StaleEpoch
from holdfast.quiver import AckLevel, Bundle, Quiver
from holdfast.remote import RemoteQuiver
from holdfast.remote.wire import encode, from_flight


def bundle(quiver: Quiver, seq: int) -> Bundle:
    found = quiver.bundle(seq)
    assert found is not None
    return found


def test_rows_arrive_as_one_bundle(served: Served, remote: RemoteQuiver) -> None:
    receipt = remote.append(numbers(1, 2, 3))
    assert (receipt.seq, receipt.bundles, receipt.events) == (0, 1, 3)
    assert receipt.quiver_id == served.quiver.quiver_id == remote.quiver_id
    assert receipt.level is AckLevel.FSYNCED
    assert bundle(served.quiver, 0).slots == {"events": numbers(1, 2, 3)}
    table = pa.table({"n": pa.chunked_array([[1], [2]])})
    assert remote.append({"other": table}, level=AckLevel.WRITTEN).level is AckLevel.WRITTEN
    remote.append(numbers(4))  # is synced, and so is what was written before
    assert bundle(served.quiver, 1).slots["other"].column("n").to_pylist() == [1, 2]


def test_several_slots_arrive_as_one_bundle(served: Served, remote: RemoteQuiver) -> None:
    colours = pa.chunked_array(
        [pa.array(["red"]).dictionary_encode(), pa.array(["blue"]).dictionary_encode()]
    )
    receipt = remote.append({"a": numbers(1), "b": pa.table({"colour": colours})})
    assert (receipt.bundles, receipt.events) == (1, 3)
    slots = bundle(served.quiver, 0).slots
    assert slots["a"] == numbers(1)
    assert slots["b"].column("colour").to_pylist() == ["red", "blue"]


def test_dictionaries_of_several_chunks_arrive(served: Served, remote: RemoteQuiver) -> None:
    colours = pa.chunked_array(
        [pa.array(["red"]).dictionary_encode(), pa.array(["blue"]).dictionary_encode()]
    )
    remote.append(pa.table({"colour": colours}))
    found = bundle(served.quiver, 0).slots["events"].column("colour")
    assert found.to_pylist() == ["red", "blue"]


def test_raw_events_arrive_byte_by_byte(served: Served, remote: RemoteQuiver) -> None:
    receipt = remote.append_raw(
        [b"\x00\xff", b""], slot="raw", headers=[{"tenant": "ä"}, None], producer="p", epoch=3
    )
    found = bundle(served.quiver, receipt.seq)
    assert found.payloads == [b"\x00\xff", b""]
    given, none = found.slots["raw"].column("headers").to_pylist()
    assert (json.loads(given), none) == ({"tenant": "ä"}, None)
    assert (found.producer, found.epoch) == ("p", 3)
    remote.append_raw(b"one")
    assert bundle(served.quiver, 1).payloads == [b"one"]


def test_many_bundles_arrive_all_or_none(served: Served, remote: RemoteQuiver) -> None:
    batches = [numbers(1), numbers(2, 3)]
    receipt = remote.append_all(batches, slot="out", producer="query", epoch=7)
    assert (receipt.seq, receipt.bundles, receipt.events) == (0, 2, 3)
    again = remote.append_all(batches, slot="out", producer="query", epoch=7)
    assert (again.seq, again.duplicate) == (0, True)
    assert served.quiver.statistics().accepted_bundles == 2
    with pytest.raises(BadInput, match="no bundles"):
        remote.append_all([])


def test_an_epoch_makes_an_append_repeatable(served: Served, remote: RemoteQuiver) -> None:
    first = remote.append(numbers(1), producer="etl", epoch=2, watermark_ns=5)
    again = remote.append(numbers(1), producer="etl", epoch=2, watermark_ns=5)
    assert (again.seq, again.duplicate) == (first.seq, True)
    with pytest.raises(StaleEpoch, match="epoch 1 after epoch 2"):
        remote.append(numbers(1), producer="etl", epoch=1)
    assert remote.heartbeat("etl", 9).events == 0
    assert remote.statement().producer_watermarks == {"etl": 9}


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"kind": "rows", "batches": 2}, "ended after 1 record batches of 2"),
        ({"kind": "rows", "batches": 0}, "ended after 1 record batches of 0"),
        ({"kind": "rows"}, "'batches' is missing"),
        ({"kind": "other", "batches": 1}, "'kind' is missing or wrong"),
        ({"kind": "raw", "batches": 1}, "no column 'payload'"),
        ({"kind": "slots", "batches": 1}, "no column 'slot'"),
        ({"kind": "rows", "batches": 1, "level": "LATER"}, "'level' is missing or wrong"),
        ({"kind": "rows", "batches": 1, "epoch": 1}, "an epoch without a producer"),
        ({"kind": "rows", "batches": 1, "slot": "a/b"}, "not a slot name"),
        ({"kind": "rows", "batches": 1, "quiver": "none"}, "no quiver 'none' is served"),
    ],
)
def test_what_is_not_a_whole_append_stores_nothing(
    served: Served, given: dict[str, Any], wrong: str
) -> None:
    error = put(served, {"quiver": "main", **given}, numbers(1))
    assert isinstance(error, BadInput)
    assert wrong in error.message
    assert served.quiver.statistics().accepted_bundles == 0


@pytest.mark.parametrize(
    ("kind", "columns", "wrong"),
    [
        ("raw", {"payload": [b"x", None]}, "a payload is null"),
        ("raw", {"payload": [b"x"], "headers": ["{"]}, "headers are not JSON"),
        ("slots", {"slot": ["a", "a"], "stream": [b"", b""]}, "named twice"),
        ("slots", {"slot": ["a"], "stream": [b"no stream"]}, "not an Arrow IPC stream"),
        ("slots", {"slot": ["a"], "stream": [None]}, "or a null"),
    ],
)
def test_strange_rows_store_nothing(
    served: Served, kind: str, columns: dict[str, list[Any]], wrong: str
) -> None:
    types = {"payload": pa.binary(), "stream": pa.binary()}
    batch = pa.record_batch(
        {name: pa.array(values, types.get(name, pa.string())) for name, values in columns.items()}
    )
    error = put(served, {"quiver": "main", "kind": kind, "batches": 1}, batch)
    assert isinstance(error, BadInput)
    assert wrong in error.message
    assert served.quiver.statistics().accepted_bundles == 0


def put(served: Served, command: dict[str, Any], batch: pa.RecordBatch) -> BaseException:
    """Put one batch by a plain Flight client; return what it is told."""
    descriptor = flight.FlightDescriptor.for_command(encode(command))
    with flight.connect(served.server.location) as client:
        writer, reader = client.do_put(descriptor, batch.schema)
        try:
            writer.write_batch(batch)
            writer.done_writing()
            reader.read()
            writer.close()
        except flight.FlightError as error:
            return from_flight(error)
    raise AssertionError("it was taken")


def test_a_put_beyond_its_bound_is_refused_on_either_side(tmp_path: Path) -> None:
    with serving(tmp_path, max_message=100_000) as served:
        large = numbers(*range(20_000))
        with pytest.raises(BundleTooLarge, match="larger than 50000 bytes"):
            served.connect(max_message=50_000).append(large)
        with pytest.raises(BundleTooLarge, match="more than 100000 bytes"):
            served.connect().append(large)
        assert served.quiver.statistics().accepted_bundles == 0


def test_an_append_that_gets_no_answer_may_be_stored(served: Served, remote: RemoteQuiver) -> None:
    served.server.stop()
    with pytest.raises(NotAccepted) as refused:
        remote.append(numbers(1))
    assert refused.value.stored == "maybe"
    assert isinstance(refused.value.__cause__, OwnerGone)


def test_not_as_many_headers_as_events_is_refused_before_it_is_sent(remote: RemoteQuiver) -> None:
    with pytest.raises(BadInput, match="headers"):
        remote.append_raw([b"a", b"b"], headers=[None])
