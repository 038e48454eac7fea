"""What a sealed segment says of its rows: in its manifest, its bundle table and its Arrow files."""

from __future__ import annotations

import pyarrow as pa
from tests.quiver.batches import extracting, seal
from tests.quiver.machine import START_NS, Machine

from holdfast.quiver import ColumnExtractor

NOW_US = START_NS // 1000
YEAR_2099_US = 4_071_006_245_000_000


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
