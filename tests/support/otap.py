"""OTAP by hand: small tables of each signal, and a stream of grpcio to send them on."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
import pyarrow as pa
from tests.patience import PATIENCE_S

from holdfast.signals.otap.messages import GRPC_PATHS, BatchStatus
from holdfast.signals.otap.payloads import PayloadType
from holdfast.signals.otlp.kinds import OtlpKind

Tables = dict[str, pa.RecordBatch]
STARTED_NS = 1_750_000_000_000_000_000
TOOK_NS = 5_000_000_000
_TEXT = pa.dictionary(pa.uint16(), pa.string())
_STRING = 1


def tables_of(kind: OtlpKind, ids: Sequence[str]) -> Tables:
    """Return tables with an item for each id, of 16 hexadecimal digits."""
    rows = range(len(ids))
    id_texts = pa.array([f"item {one}" for one in ids], pa.string()).dictionary_encode()
    texts = id_texts.cast(_TEXT)
    times = pa.array([STARTED_NS] * len(ids), pa.timestamp("ns"))
    if kind is OtlpKind.TRACES:
        spans = {
            "id": pa.array(rows, pa.uint16()),
            "start_time_unix_nano": times,
            "duration_time_unix_nano": pa.array([TOOK_NS] * len(ids), pa.duration("ns")),
            "trace_id": pa.array([bytes.fromhex(one) * 2 for one in ids], pa.binary(16)),
            "span_id": pa.array([bytes.fromhex(one) for one in ids], pa.binary(8)),
            "name": texts,
        }
        return {
            PayloadType.SPANS.slot: pa.record_batch(spans),
            PayloadType.SPAN_ATTRS.slot: _attributes(pa.uint16(), ids),
        }
    if kind is OtlpKind.LOGS:
        logs = {"id": pa.array(rows, pa.uint16()), "time_unix_nano": times, "severity_text": texts}
        return {
            PayloadType.LOGS.slot: pa.record_batch(logs),
            PayloadType.LOG_ATTRS.slot: _attributes(pa.uint16(), ids),
        }
    metric = {
        "id": pa.array([0], pa.uint16()),
        "metric_type": pa.array([1], pa.uint8()),
        "name": pa.array(["work"], pa.string()),
    }
    points = {
        "id": pa.array(rows, pa.uint32()),
        "parent_id": pa.array([0] * len(ids), pa.uint16()),
        "time_unix_nano": times,
        "int_value": pa.array(rows, pa.int64()),
    }
    return {
        PayloadType.UNIVARIATE_METRICS.slot: pa.record_batch(metric),
        PayloadType.NUMBER_DATA_POINTS.slot: pa.record_batch(points),
        PayloadType.NUMBER_DP_ATTRS.slot: _attributes(pa.uint32(), ids),
    }


def _attributes(id_type: pa.DataType, ids: Sequence[str]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "parent_id": pa.array(range(len(ids)), id_type),
            "key": pa.array(["id"] * len(ids), pa.string()).dictionary_encode().cast(_TEXT),
            "type": pa.array([_STRING] * len(ids), pa.uint8()),
            "str": pa.array(ids, pa.string()).dictionary_encode().cast(_TEXT),
        }
    )


class OtapCall:
    """A stream to a receiver, by grpcio."""

    def __init__(self, channel: grpc.Channel, kind: OtlpKind, metadata: Any) -> None:
        self._sent: queue.Queue[bytes | None] = queue.Queue()
        method: Any = channel.stream_stream(GRPC_PATHS[kind])
        self._answers = method(
            iter(self._sent.get, None), timeout=PATIENCE_S, metadata=metadata, wait_for_ready=True
        )

    def send(self, *messages: bytes) -> None:
        for message in messages:
            self._sent.put(message)

    def status(self) -> tuple[int, str, str]:
        """Return the next one: which batch, the name of the code, and what is said."""
        status = BatchStatus.FromString(next(self._answers))
        code = next(one.name for one in grpc.StatusCode if one.value[0] == status.status_code)
        return status.batch_id, code, status.status_message

    def statuses(self, count: int) -> dict[int, str]:
        """Return the codes of the next ones, in whatever order they come."""
        return {batch_id: code for batch_id, code, _ in (self.status() for _ in range(count))}

    def finish(self) -> str:
        """Send no more; return how the call ends, after the last status."""
        self._sent.put(None)
        return self.ended()

    def ended(self) -> str:
        """Return how the call ends by itself; a status that nobody asked for is an error."""
        try:
            left = list(self._answers)
        except grpc.RpcError as error:
            return str(error.code().name)
        assert not left
        return "OK"


@contextmanager
def otap_call(
    target: str, kind: OtlpKind = OtlpKind.TRACES, metadata: Mapping[str, str] | None = None
) -> Iterator[OtapCall]:
    """Open a stream."""
    with grpc.insecure_channel(target) as channel:
        yield OtapCall(channel, kind, tuple((metadata or {}).items()))
