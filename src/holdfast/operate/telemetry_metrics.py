"""Metrics of what a gateway tells of itself by OTLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.operate.metrics import Metric, Sample, each, samples, whole


@dataclass(frozen=True)
class TelemetryStatistics:
    """What became of our own telemetry in one process. By signal."""

    waiting: Mapping[str, int]
    sent: Mapping[str, int]
    dropped: Mapping[str, int]
    failures: int
    # Whether it came back to where it was sent from, and so is not sent any more.
    is_looping: bool


LOOPING = "gateway.telemetry.looping"
TELEMETRY_METRICS: tuple[Metric[TelemetryStatistics], ...] = (
    Metric(
        "gateway.telemetry.waiting_items", "gauge", "items",
        "Log records and spans of our own that wait to be sent.",
        "At `telemetry.max_waiting` more are dropped.",
        each(whole, "waiting", "signal"), ("signal",),
    ),
    Metric(
        "gateway.telemetry.sent_items_total", "counter", "items",
        "Data points, log records and spans of our own that were taken by `telemetry.config.url`.",
        "Stands still: see the failures.",
        each(whole, "sent", "signal"), ("signal",),
    ),
    Metric(
        "gateway.telemetry.dropped_items_total", "counter", "items",
        "Data points, log records and spans of our own that were dropped: there was no room, or "
        "they were refused. Nothing that was received is among them.",
        "Any increase: telemetry has gaps there.",
        each(whole, "dropped", "signal"), ("signal",),
    ),
    Metric(
        "gateway.telemetry.failures_total", "counter", "sends",
        "How many times sending our own telemetry failed.",
        "Its rate: the log says why.", each(whole, "failures"),
    ),
    Metric(
        LOOPING, "gauge", "0 or 1",
        "Whether our own telemetry came back to a receiver of this gateway; it is not sent then.",
        "1: change `telemetry.config.url`, or what forwards it, and restart.",
        each(whole, "is_looping"),
    ),
)  # fmt: skip


def telemetry_records(statistics: TelemetryStatistics, worker: str) -> list[Sample]:
    """Return every figure of one process."""
    return list(samples(TELEMETRY_METRICS, [({"worker": worker}, statistics)]))
