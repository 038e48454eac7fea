"""What a quiver knows of tables: times by item, claims by the items alone, counts and signals."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from tests.support.otap import STARTED_NS, TOOK_NS, tables_of

from holdfast.quiver import Position, Quiver, QuiverConfig
from holdfast.signals.event import ArrowData
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.registry import extractors, signal_of

IDS = [f"{number:016x}" for number in range(1, 4)]
ENDED_US = (STARTED_NS + TOOK_NS) // 1000


def test_claims_go_by_items_and_not_by_what_belongs_to_them(tmp_path: Path) -> None:
    """Attributes have no times: at those of ingestion they would stand for the present."""
    with Quiver.open(tmp_path / "quiver", QuiverConfig(extractors=extractors())) as quiver:
        quiver.append(tables_of(OtlpKind.TRACES, IDS))
        for _ in range(2):
            stated = quiver.statement(Position(0))
            assert (stated.min_event_us, stated.max_event_us) == (ENDED_US, ENDED_US)
            # Once from the open buffer, and once from a segment.
            quiver.flush()
        found = quiver.scan(["_event_time"], slot="otap_spans").read_all()
        assert found.column("_event_time").cast(pa.int64()).to_pylist() == [ENDED_US] * 3


def test_a_log_record_without_a_time_has_the_one_at_which_it_was_seen() -> None:
    logs = pa.record_batch(
        {
            "time_unix_nano": pa.array([1_000_000, 0, None], pa.timestamp("ns")),
            "observed_time_unix_nano": pa.array([2, 3_000_000, None], pa.timestamp("ns")),
        }
    )
    found = extractors()["otap_logs"].extract(logs).column("event_time")
    assert found.cast(pa.int64()).to_pylist() == [1000, 3000, None]
    nothing = extractors()["otap_spans"].extract(
        pa.record_batch({"id": pa.array([1], pa.uint16())})
    )
    assert nothing.column("event_time").to_pylist() == [None]


def test_a_bundle_of_tables_is_one_unit_with_the_items_of_its_signal(tmp_path: Path) -> None:
    with Quiver.open(tmp_path / "quiver", QuiverConfig(extractors=extractors())) as quiver:
        for kind in OtlpKind:
            seq = quiver.append(tables_of(kind, IDS)).seq
            bundle = quiver.bundle(seq)
            assert bundle is not None
            signal = signal_of(bundle.kind, bundle.slots)
            (unit,) = signal.units(bundle, quiver.quiver_id, 0)
            assert isinstance(unit, ArrowData)
            assert (unit.signal, unit.items, unit.rows) == (kind.value, 3, bundle.events)
        quiver.flush()
        assert set(quiver.statistics().signals) == {kind.value for kind in OtlpKind}
