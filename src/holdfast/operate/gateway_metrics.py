"""Metrics of a gateway: receivers, destinations, dead letters and the process itself.

The same idea as `metrics.py`, whose table has the figures of the quivers: one table, made of
`Gateway.statistics()` and of nothing else, from which `/metrics`, statsd and the page are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Literal, NamedTuple

from holdfast.dead_letters.queue import StoreStatistics
from holdfast.deliver.statistics import State
from holdfast.graph.runtime import DestinationFigures, GatewayStatistics
from holdfast.operate.metrics import METRICS, Described, Labels, Sample, exposition, records
from holdfast.operate.pipeline_metrics import PIPELINE_METRICS

Rows = Iterable[tuple[Labels, float]]
_Read = Callable[[GatewayStatistics], Rows]


class GatewayMetric(NamedTuple):
    """One name, and how its values are read from a gateway's statistics."""

    name: str
    type: Literal["counter", "gauge"]
    unit: str
    # One sentence: what the figure is.
    help: str
    # What to look for in it.
    watch: str
    read: _Read
    # Beside `worker`, which all have.
    labels: tuple[str, ...] = ()


def _receivers(field: str) -> _Read:
    get = attrgetter(field)

    def read(gateway: GatewayStatistics) -> Iterator[tuple[Labels, float]]:
        for name, figures in gateway.receivers.items():
            yield {"receiver": name}, get(figures)

    return read


def _rejected(gateway: GatewayStatistics) -> Iterator[tuple[Labels, float]]:
    for name, figures in gateway.receivers.items():
        for reason, count in figures.rejected.items():
            yield {"receiver": name, "reason": reason}, count


def _of(one: DestinationFigures) -> dict[str, str]:
    return {"destination": one.name, "quiver": one.quiver, "core_id": str(one.core_id)}


def _destinations(field: str) -> _Read:
    get: Callable[[object], float | None] = attrgetter(field)

    def read(gateway: GatewayStatistics) -> Iterator[tuple[Labels, float]]:
        for one in gateway.destinations:
            yield _of(one), get(one.figures) or 0

    return read


def _destinations_by(field: str, label: str) -> _Read:
    get = attrgetter(field)

    def read(gateway: GatewayStatistics) -> Iterator[tuple[Labels, float]]:
        for one in gateway.destinations:
            for value, count in get(one.figures).items():
                yield {**_of(one), label: str(value)}, count

    return read


def _states(gateway: GatewayStatistics) -> Iterator[tuple[Labels, float]]:
    for one in gateway.destinations:
        for state in State:
            yield {**_of(one), "state": state.value}, one.figures.state == state


def _held(field: str) -> _Read:
    get: Callable[[object], float] = attrgetter(field)

    def read(gateway: GatewayStatistics) -> Iterator[tuple[Labels, float]]:
        for one in gateway.destinations:
            held = one.figures.held
            code = "" if held is None else held.code
            yield {**_of(one), "code": code}, 0 if held is None else get(held)

    return read


def _breakers(gateway: GatewayStatistics) -> Iterator[tuple[Labels, float]]:
    for one in gateway.destinations:
        yield _of(one), one.figures.breaker != "closed"


def _stores(gateway: GatewayStatistics) -> Iterator[tuple[str, StoreStatistics]]:
    if gateway.dead_letters is not None:
        yield from gateway.dead_letters._asdict().items()


def _letters(field: str) -> _Read:
    get: Callable[[object], float | None] = attrgetter(field)

    def read(gateway: GatewayStatistics) -> Iterator[tuple[Labels, float]]:
        for name, store in _stores(gateway):
            yield {"store": name}, get(store) or 0

    return read


def _filed(gateway: GatewayStatistics) -> Iterator[tuple[Labels, float]]:
    for name, store in _stores(gateway):
        for (destination, reason), count in store.filed.items():
            yield {"store": name, "destination": destination, "reason": reason}, count


def _not_filed(gateway: GatewayStatistics) -> Iterator[tuple[Labels, float]]:
    for name, store in _stores(gateway):
        for reason, count in store.refused.items():
            yield {"store": name, "reason": reason}, count


def _refusing(gateway: GatewayStatistics) -> Iterator[tuple[Labels, float]]:
    for name in gateway.quivers:
        yield {"quiver": name}, name in gateway.refusing


def _figure(field: str) -> _Read:
    get = attrgetter(field)
    return lambda gateway: [({}, get(gateway))]


def _flight(field: str) -> _Read:
    get = attrgetter(field)
    return lambda gateway: [] if gateway.flight is None else [({}, get(gateway.flight))]


_RECEIVER = ("receiver",)
_DESTINATION = ("destination", "quiver", "core_id")
_STORE = ("store",)

GATEWAY_METRICS: tuple[GatewayMetric, ...] = (
    # ------------------------------------------------------------------ receivers
    GatewayMetric(
        "gateway.receiver.received_events_total", "counter", "events",
        "Events that arrived since the start.",
        "Its rate is the load. It is accepted + rejected + what is in flight.",
        _receivers("received"), _RECEIVER,
    ),
    GatewayMetric(
        "gateway.receiver.accepted_events_total", "counter", "events",
        "Events that were answered with success: they are in the quiver at the promised level.",
        "Falls behind received: see rejected, by reason.", _receivers("accepted"), _RECEIVER,
    ),
    GatewayMetric(
        "gateway.receiver.rejected_events_total", "counter", "events",
        "Events that were not accepted, by reason; their senders were told.",
        "`invalid`: producers send wrong events. `busy`, `rate`, `unavailable`: they will retry.",
        _rejected, (*_RECEIVER, "reason"),
    ),
    GatewayMetric(
        "gateway.receiver.received_bytes_total", "counter", "bytes",
        "Bytes of request bodies, as they came over the wire.",
        "Less than what was accepted: clients compress.", _receivers("received_bytes"), _RECEIVER,
    ),
    GatewayMetric(
        "gateway.receiver.written_bytes_total", "counter", "bytes",
        "Bytes of accepted events, as they were written.",
        "Its rate, times how long a destination may be away, is the room you need.",
        _receivers("accepted_bytes"), _RECEIVER,
    ),
    GatewayMetric(
        "gateway.receiver.requests_total", "counter", "requests",
        "Requests answered.", "Events divided by requests is the size of a batch.",
        _receivers("requests"), _RECEIVER,
    ),
    GatewayMetric(
        "gateway.receiver.in_flight_requests", "gauge", "requests",
        "Requests that are being answered.",
        "Near the limit: senders are about to be told to wait.",
        _receivers("in_flight_requests"), _RECEIVER,
    ),
    GatewayMetric(
        "gateway.receiver.in_flight_bytes", "gauge", "bytes",
        "Bytes that these requests hold in memory.", "As above.",
        _receivers("in_flight_bytes"), _RECEIVER,
    ),
    GatewayMetric(
        "gateway.receiver.connections", "gauge", "connections",
        "Open connections.", "Grows for ever: clients do not close theirs.",
        _receivers("connections"), _RECEIVER,
    ),
    # --------------------------------------------------------------- destinations
    GatewayMetric(
        "gateway.destination.sent_events_total", "counter", "events",
        "Events that the destination took since the start.",
        "Stands still while the lag grows: see the state.",
        _destinations("sent_events"), _DESTINATION,
    ),
    GatewayMetric(
        "gateway.destination.sent_bytes_total", "counter", "bytes",
        "Payload of these events.", "As above, in bytes.",
        _destinations("sent_bytes"), _DESTINATION,
    ),
    GatewayMetric(
        "gateway.destination.sends_total", "counter", "sends",
        "Attempts to send, whatever came of them.",
        "Sent events divided by sends is the size of a request, if none failed.",
        _destinations("sends"), _DESTINATION,
    ),
    GatewayMetric(
        "gateway.destination.failed_events_total", "counter", "events",
        "Events that were not taken, by class; one that is tried five times counts five times.",
        "`auth`: mend the credentials. `permanent`: dead letters. `transient`: it is tried again.",
        _destinations_by("failed", "class"), (*_DESTINATION, "class"),
    ),
    GatewayMetric(
        "gateway.destination.filtered_events_total", "counter", "events",
        "Events that processors on the way did not let through.",
        "Unexpectedly many: a pattern is too wide.", _destinations("filtered"), _DESTINATION,
    ),
    GatewayMetric(
        "gateway.destination.dead_lettered_events_total", "counter", "events",
        "Events that the destination will not take, and that are dead letters now, by reason.",
        "Any increase: look with `holdfast dlq ls`.",
        _destinations_by("dead_lettered_by_reason", "reason"), (*_DESTINATION, "reason"),
    ),
    GatewayMetric(
        "gateway.destination.dropped_events_total", "counter", "events",
        "Events that the destination lost, ever, by reason: dropped or expired at its limits, "
        "damaged on disk.",
        "Any increase is lost data; `dropped` and `expired` by your `on_full` and retention.",
        _destinations_by("lost_events", "reason"), (*_DESTINATION, "reason"),
    ),
    GatewayMetric(
        "gateway.destination.lag_events", "gauge", "events",
        "Events that wait for the destination: the seed's consumer lag.",
        "Grows: it is down, or slower than the producers.",
        _destinations("lag_events"), _DESTINATION,
    ),
    GatewayMetric(
        "gateway.destination.lag_bytes", "gauge", "bytes",
        "Payload that waits for the destination.",
        "At `retention_size` its `on_full` decides.", _destinations("lag_bytes"), _DESTINATION,
    ),
    GatewayMetric(
        "gateway.destination.oldest_age_seconds", "gauge", "seconds",
        "Age of the oldest event that waits for the destination; 0 if none does.",
        "The one to alert on: it grows with every second of an outage, whatever the load.",
        _destinations("oldest_age_s"), _DESTINATION,
    ),
    GatewayMetric(
        "gateway.destination.held_seconds", "gauge", "seconds",
        "For how long the event fails that fails for longest, with the code of its last answer.",
        "Minutes: nothing overtakes it. Mend what the code says; `holdfast destination ls` has "
        "its number.",
        _held("age_s"), (*_DESTINATION, "code"),
    ),
    GatewayMetric(
        "gateway.destination.held_attempts", "gauge", "attempts",
        "How often that event was sent.", "As above.",
        _held("attempts"), (*_DESTINATION, "code"),
    ),
    GatewayMetric(
        "gateway.destination.in_flight_events", "gauge", "events",
        "Events that were sent and not answered yet.",
        "What a crash would deliver twice.", _destinations("in_flight_events"), _DESTINATION,
    ),
    GatewayMetric(
        "gateway.destination.active_lanes", "gauge", "lanes",
        "With `order: key`: sends under way at once.",
        "Always at `lanes`: more of them may help.", _destinations("active_lanes"), _DESTINATION,
    ),
    GatewayMetric(
        "gateway.destination.state", "gauge", "0 or 1",
        "1 for the state that the destination is in, 0 for the others.",
        "`auth_failed` and `stalled` wait for somebody to do something.",
        _states, (*_DESTINATION, "state"),
    ),
    GatewayMetric(
        "gateway.destination.breaker_open", "gauge", "0 or 1",
        "Whether sending is stopped for a while because it failed again and again.",
        "1: the destination is down.", _breakers, _DESTINATION,
    ),
    GatewayMetric(
        "gateway.destination.breaker_opened_total", "counter", "times",
        "How often that happened since the start.", "Its rate: the destination flaps.",
        _destinations("breaker_opened_total"), _DESTINATION,
    ),
    # --------------------------------------------------------------- dead letters
    GatewayMetric(
        "gateway.dead_letters.events", "gauge", "events",
        "Letters that lie in the store: `rejected` (never accepted) or `undelivered`.",
        "Any `undelivered`: a destination did not get them. Fix, replay or purge.",
        _letters("events"), _STORE,
    ),
    GatewayMetric(
        "gateway.dead_letters.bytes", "gauge", "bytes",
        "Their payload.", "As above.", _letters("size_bytes"), _STORE,
    ),
    GatewayMetric(
        "gateway.dead_letters.used_bytes", "gauge", "bytes",
        "What the store occupies on disk.",
        "At the cap `rejected` loses its oldest, and `undelivered` stalls destinations.",
        _letters("used_bytes"), _STORE,
    ),
    GatewayMetric(
        "gateway.dead_letters.max_bytes", "gauge", "bytes",
        "The cap of the store.", "Compare with the one above.", _letters("max_bytes"), _STORE,
    ),
    GatewayMetric(
        "gateway.dead_letters.oldest_age_seconds", "gauge", "seconds",
        "Age of the oldest letter; 0 if there is none.", "Days: nobody looks.",
        _letters("oldest_age_s"), _STORE,
    ),
    GatewayMetric(
        "gateway.dead_letters.filed_events_total", "counter", "events",
        "Letters filed since the start, by destination and reason.",
        "Its rate by reason says what is wrong.", _filed, (*_STORE, "destination", "reason"),
    ),
    GatewayMetric(
        "gateway.dead_letters.refused_events_total", "counter", "events",
        "Rejected events of which no copy was kept, by why: rate, too_large, store.",
        "Many by `rate`: a producer floods with wrong events.", _not_filed, (*_STORE, "reason"),
    ),
    GatewayMetric(
        "gateway.dead_letters.dropped_events_total", "counter", "events",
        "Letters that the cap took unseen, ever.",
        "Any in `undelivered`: impossible but by damage.", _letters("dropped"), _STORE,
    ),
    GatewayMetric(
        "gateway.dead_letters.expired_events_total", "counter", "events",
        "Letters that went by their age, ever.", "Nobody looked in time.",
        _letters("expired"), _STORE,
    ),
    GatewayMetric(
        "gateway.dead_letters.resolved_events_total", "counter", "events",
        "Letters that were replayed, fixed or purged, ever.", "Work done.",
        _letters("resolved"), _STORE,
    ),
    # --------------------------------------------------------------------- flight
    GatewayMetric(
        "gateway.flight.calls_total", "counter", "calls",
        "Calls over Flight to the owner of the quivers, refused ones left out.",
        "Its rate: how often pipelines ask.", _flight("calls_total"),
    ),
    GatewayMetric(
        "gateway.flight.refused_calls_total", "counter", "calls",
        "Calls refused for want of a token or of room.",
        "Any increase: a wrong token, or `max_calls` is too small.", _flight("refused_total"),
    ),
    GatewayMetric(
        "gateway.flight.attached_subscribers", "gauge", "subscribers",
        "Subscribers that are attached over Flight.",
        "Fewer than there are pipelines: a driver is away.", _flight("attached"),
    ),
    GatewayMetric(
        "gateway.flight.reader_starts_total", "counter", "starts",
        "How often the process that serves sealed data was started.",
        "Grows: it is killed, by the kernel for want of memory perhaps.",
        _flight("reader_starts_total"),
    ),
    # -------------------------------------------------------------------- process
    GatewayMetric(
        "gateway.process.uptime_seconds", "gauge", "seconds",
        "How long the process runs.", "Falls to 0: it was started again.", _figure("uptime_s"),
    ),
    GatewayMetric(
        "gateway.process.refusing", "gauge", "0 or 1",
        "Whether events are refused right now, because the quiver is full or its disk failed.",
        "1: `/readyz` says why.", _refusing, ("quiver",),
    ),
    GatewayMetric(
        "gateway.process.resident_bytes", "gauge", "bytes",
        "Memory of the process.", "Grows without end: report it.", _figure("resident_bytes"),
    ),
    GatewayMetric(
        "gateway.process.cpu_seconds_total", "counter", "seconds",
        "Processor time of the process.", "Its rate near 1: use more workers.",
        _figure("cpu_seconds"),
    ),
)  # fmt: skip

ALL_METRICS: tuple[Described, ...] = (*GATEWAY_METRICS, *PIPELINE_METRICS, *METRICS)
COUNTERS = frozenset(metric.name for metric in ALL_METRICS if metric.type == "counter")


def gateway_records(gateway: GatewayStatistics) -> list[Sample]:
    """Return every figure of a gateway process and of its quivers."""
    worker = {"worker": str(gateway.worker)}
    own = [
        Sample(metric.name, {**worker, **labels}, value)
        for metric in GATEWAY_METRICS
        for labels, value in metric.read(gateway)
    ]
    return [*own, *records(gateway.quivers)]


def render_records(told: Iterable[Sample]) -> str:
    """Return the records of one or several gateways as Prometheus' text."""
    by_name: dict[str, list[Sample]] = {}
    for record in told:
        by_name.setdefault(record.name, []).append(record)
    together = (record for same in by_name.values() for record in same)
    return exposition(ALL_METRICS, together)
