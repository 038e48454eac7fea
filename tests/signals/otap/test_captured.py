"""Streams that a real sender wrote: the Collector's `otelarrow` exporter, version 0.145.0.

Kept as it sent them, beside the requests of OTLP that it was given, so that this runs everywhere:
`signal, request, message`, each with its length before it, in the order of each stream. Where
there is a Collector, `tests/gateway/test_otap.py` asks it itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from tests.signals.otap.normal_form import normal_form

from holdfast.signals.otap.stream_decoder import StreamDecoder
from holdfast.signals.otap.stream_encoder import StreamEncoder
from holdfast.signals.otap.to_otlp import otlp_of
from holdfast.signals.otlp.codec import item_lists
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import REQUESTS

CAPTURED = Path(__file__).with_name("collector_0.145.0.bin.zst")
_LENGTH_BYTES = 4


def captured(kind: OtlpKind) -> Iterator[tuple[bytes, bytes]]:
    """Yield what the Collector was given, and what it sent, in order."""
    data = zstandard.ZstdDecompressor().decompress(CAPTURED.read_bytes())
    parts: list[bytes] = []
    at = 0
    while at < len(data):
        end = at + _LENGTH_BYTES + int.from_bytes(data[at : at + _LENGTH_BYTES], "big")
        parts.append(data[at + _LENGTH_BYTES : end])
        at = end
    for place in range(0, len(parts), 3):
        if parts[place] == kind.value.encode():
            yield parts[place + 1], parts[place + 2]


def said(kind: OtlpKind, body: bytes) -> Counter[object]:
    """Return the items of a request, each with its resource, scope and metric, in no order.

    The Collector sorts them, and writes zeros for the ids of a log record that has none.
    """
    request: Any = REQUESTS[kind].FromString(body)
    if kind is OtlpKind.LOGS:
        for items in item_lists(kind, request):
            for item in items:
                for name in ("trace_id", "span_id"):
                    if not any(getattr(item, name)):
                        item.ClearField(name)
    found: Counter[object] = Counter()
    for resource, scopes in normal_form(kind, request.SerializeToString()).items():
        for scope, held in scopes.items():
            for one in held:
                head, points = one if kind is OtlpKind.METRICS else (b"", [one])
                found.update((resource, scope, head, point) for point in points)
    return found


@pytest.mark.parametrize("kind", list(OtlpKind))
def test_what_a_collector_sent_is_what_it_was_given_also_after_another_stream(
    kind: OtlpKind,
) -> None:
    decoder, encoder, again = StreamDecoder(kind), StreamEncoder(), StreamDecoder(kind)
    batches = 0
    for request, message in captured(kind):
        batch = decoder.decode(message)
        sent_on = again.decode(encoder.encode(batch.batch_id, batch.tables))
        for tables in (batch.tables, sent_on.tables):
            assert said(kind, b"".join(otlp_of(kind, tables))) == said(kind, request)
        batches += 1
    assert batches == 12
