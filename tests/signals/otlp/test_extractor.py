"""The times of stored requests: each once, cut to microseconds, and null for items without one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from holdfast.quiver.base.envelope import ITEM_TIMES
from holdfast.signals.otlp.extractor import OtlpExtractor
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import REQUESTS

FURTHEST_US = 2**62


def spans_ending(*times_ns: int) -> bytes:
    request: Any = REQUESTS[OtlpKind.TRACES]()
    spans = request.resource_spans.add().scope_spans.add().spans
    for time_ns in times_ns:
        spans.add(end_time_unix_nano=time_ns, trace_id=bytes(16))
    body: bytes = request.SerializeToString()
    return body


@pytest.mark.parametrize(
    ("times_ns", "times_us"),
    [
        ((), []),
        ((0, 0), [None]),
        ((9_000, 2_001, 2_999, 9_000), [2, 9]),
        ((0, 5_000), [5, None]),
        ((0, 999, 5_000), [0, 5, None]),
        ((1, 2**64 - 1), [0, min((2**64 - 1) // 1000, FURTHEST_US)]),
    ],
)
def test_item_times(times_ns: tuple[int, ...], times_us: list[int | None]) -> None:
    payloads = [spans_ending(1_000), spans_ending(*times_ns), b"\xff", spans_ending(7_000)]
    found = OtlpExtractor(OtlpKind.TRACES).extract(pa.record_batch({"payload": payloads}))
    as_lists = [[time.value for time in row] for row in found[ITEM_TIMES]]
    assert as_lists == [[1], times_us, [], [7]]
    known = [time for time in times_us if time is not None]
    for column, bound in (("event_time", min), ("latest_time", max)):
        assert [t.value for t in found[column]] == [1, bound(known, default=None), None, 7]
    assert found["items"].to_pylist() == [1, len(times_ns), 0, 1]
