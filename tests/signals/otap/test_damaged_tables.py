"""What is left of a batch with a damaged table can be sent: marked, and without orphans."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from tests.signals.otap.tables import attributes, traces

from holdfast.quiver import Bundle, Quiver
from holdfast.signals.event import DAMAGED_HEADER, ArrowData, Event, headers_sent_on
from holdfast.signals.otap.stream_decoder import StreamDecoder
from holdfast.signals.otap.stream_encoder import StreamEncoder
from holdfast.signals.otap_units import HEADERS_SLOT, headers_table
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.registry import signal_of
from holdfast.signals.signal import Signal


def batch_with_events() -> dict[str, pa.RecordBatch]:
    chance = random.Random(3)
    tables = traces(chance, 4, 3)
    parents = range(tables["otap_span_events"].num_rows)
    tables["otap_span_event_attrs"] = attributes(chance, list(parents), pa.uint32(), 3, None)
    return {**tables, HEADERS_SLOT: headers_table({"x-tenant": "a", DAMAGED_HEADER: "forged"})}


def damaged(path: Path, slot: str) -> tuple[Signal, Bundle]:
    """Return a stored bundle that has lost a slot, and its signal."""
    with Quiver.open(path) as quiver:
        quiver.append(batch_with_events())
        quiver.flush()
        (segment,) = quiver.segments()
        (file,) = (file for file in segment.summary.files if file.slot == slot)
        stored = Path(segment.path / file.name)
        content = bytearray(stored.read_bytes())
        content[file.batches[0].offset + file.batches[0].length // 2] ^= 1
        stored.write_bytes(content)
        bundle = quiver.bundle(0)
        assert bundle is not None
        names = [*bundle.sound_slots, *bundle.damaged_slots]
        return signal_of(bundle.kind, names), bundle


@pytest.mark.parametrize(
    ("slot", "gone"),
    [
        ("otap_span_attrs", {"otap_span_attrs"}),
        ("otap_span_events", {"otap_span_events", "otap_span_event_attrs"}),
    ],
)
def test_the_rest_is_a_batch_that_others_take_with_a_mark(
    tmp_path: Path, slot: str, gone: set[str]
) -> None:
    signal, bundle = damaged(tmp_path / "quiver", slot)
    assert signal.can_do_without(bundle.damaged_slots)
    (unit,) = signal.units(bundle, "q", 0)
    assert isinstance(unit, ArrowData)
    whole = batch_with_events()
    assert set(unit.slots) == set(whole) - gone
    assert unit.rows == bundle.events == sum(table.num_rows for table in whole.values())
    # What a sender says under this name is not believed.
    assert headers_sent_on(unit) == {"x-tenant": "a", DAMAGED_HEADER: slot}
    tables = {name: table for name, table in unit.slots.items() if name != HEADERS_SLOT}
    sent = StreamEncoder().encode(1, tables, headers_sent_on(unit))
    got = StreamDecoder(OtlpKind.TRACES).decode(sent)
    assert got.headers[DAMAGED_HEADER] == slot
    assert set(got.tables) == set(tables)
    # The same as a request: the mark is in it, too, for those who see no headers.
    assert signal.conversion is not None
    event = signal.conversion.convert(unit)
    assert isinstance(event, Event)
    assert headers_sent_on(event)[DAMAGED_HEADER] == slot
    mark = {"key": "holdfast.damaged_slots", "value": {"stringValue": slot}}
    resources = event.document["resourceSpans"]
    assert resources
    assert all(mark in one["resource"]["attributes"] for one in resources)
    assert event.items == unit.items


@pytest.mark.parametrize("slot", ["otap_spans", HEADERS_SLOT])
def test_nothing_is_sent_without_what_all_else_belongs_to(tmp_path: Path, slot: str) -> None:
    """Without the headers a batch would go to whichever tenant is the default."""
    signal, bundle = damaged(tmp_path / "quiver", slot)
    assert signal.name == "traces"
    assert not signal.can_do_without(bundle.damaged_slots)
