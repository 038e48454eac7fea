"""What a field on disk cannot hold is refused before it reaches the writer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import PurePath

import pyarrow as pa
import pytest

from holdfast.errors import BadInput
from holdfast.quiver import AppendConfig, Quiver, SegmentConfig, TransactionConfig, WalConfig
from holdfast.seam import Seam
from holdfast.seam.simulated import SimulatedDisk

BATCH = pa.record_batch({"n": [1, 2, 3]})


@pytest.fixture
def quiver() -> Iterator[Quiver]:
    with Quiver.open(PurePath("/data"), seam=Seam(SimulatedDisk())) as quiver:
        yield quiver


@pytest.mark.parametrize("producer", ["", "x" * 1025, "\ud800"])
def test_a_producer_name_that_no_frame_can_hold_is_refused(quiver: Quiver, producer: str) -> None:
    for refused in (
        lambda: quiver.append(BATCH, producer=producer),
        lambda: quiver.append(BATCH, producer=producer, epoch=1),
        lambda: quiver.heartbeat(producer, 1),
        lambda: quiver.transaction(producer=producer),
    ):
        with pytest.raises(BadInput):
            refused()
    assert quiver.append(BATCH).bundles == 1


@pytest.mark.parametrize("watermark_ns", [2**63, -(2**63), -(2**63) - 1])
def test_a_watermark_that_no_frame_can_hold_is_refused(quiver: Quiver, watermark_ns: int) -> None:
    with pytest.raises(BadInput):
        quiver.append(BATCH, producer="edge", watermark_ns=watermark_ns)
    assert quiver.append(BATCH, producer="edge", watermark_ns=2**63 - 1).bundles == 1


def test_a_batch_without_columns_is_refused(quiver: Quiver) -> None:
    rows = pa.array([{}, {}], pa.struct([]))
    with pytest.raises(BadInput):
        quiver.append(pa.RecordBatch.from_struct_array(rows))


@pytest.mark.parametrize(
    "configure",
    [
        lambda: AppendConfig(max_bundle_bytes=0),
        lambda: AppendConfig(max_bundle_bytes=513 << 20),
        lambda: WalConfig(max_group_bytes=513 << 20),
        lambda: TransactionConfig(max_staged_bytes=1025 << 20),
        lambda: SegmentConfig(max_files=1001),
    ],
)
def test_bounds_that_a_segment_could_not_hold_are_refused(configure: Callable[[], object]) -> None:
    with pytest.raises(BadInput):
        configure()
