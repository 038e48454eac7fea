"""Metrics of a gateway and of the driver of its pipelines.

The same idea as `metrics.py`, whose table has the figures of the quivers. There are two tables:
one is made of `DriverFigures` (a driver beside a gateway, or alone), the other of
`Gateway.statistics()` (receivers, destinations, dead letters, the process), and of nothing else.
`/metrics`, statsd and docs/reference/metrics.md are made from their rows.

The functions before a table yield what its rows are read from, with the labels of each. Labels are
names of the configuration and words of ours, never what a client sent: a client that makes up a
name for every request would otherwise make up a time series for each.

A state is one row per state, 1 or 0, as Prometheus has it for enumerations: a number for each state
could be neither summed over workers nor read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, get_args

from holdfast.dataflow.driver.wire import (
    DriverFigures,
    PipelineFigures,
    PipelineState,
    QueryStatistics,
)
from holdfast.dead_letters.queue import StoreStatistics
from holdfast.deliver.statistics import (
    DeliveredItems,
    DestinationStatistics,
    HeldEvent,
    State,
)
from holdfast.graph.statistics import GatewayStatistics
from holdfast.operate.handoff_metrics import HANDOFF_METRICS
from holdfast.operate.metrics import (
    METRICS,
    Labels,
    Metric,
    Sample,
    each,
    exposition,
    records,
    samples,
    whole,
)
from holdfast.operate.telemetry_metrics import TELEMETRY_METRICS
from holdfast.receive.receiver import ItemCounts, ReceiverStatistics

if TYPE_CHECKING:
    from holdfast.remote.server import ServerStatistics


def _queries(driver: DriverFigures) -> Iterator[tuple[Labels, QueryStatistics]]:
    for labels, figures in _pipelines(driver):
        for query in figures.queries:
            yield {**labels, "query": query.name}, query


def _lagging(driver: DriverFigures) -> Iterable[tuple[Labels, QueryStatistics]]:
    # Queries whose lag is known. A 0 for the others would look like a pipeline that keeps up.
    return [one for one in _queries(driver) if one[1].lag_s is not None]


def _pipelines(driver: DriverFigures) -> Iterable[tuple[Labels, PipelineFigures]]:
    return [({"pipeline": name}, one) for name, one in driver.pipelines.items()]


def _pipeline_states(driver: DriverFigures) -> Iterator[tuple[Labels, float]]:
    for labels, one in _pipelines(driver):
        for state in get_args(PipelineState):
            yield {**labels, "state": state}, one.state == state


def _watermarks(driver: DriverFigures) -> Iterator[tuple[Labels, float]]:
    for labels, query in _lagging(driver):
        if query.watermark is not None:
            try:
                yield labels, datetime.fromisoformat(query.watermark).timestamp()
            except ValueError:
                continue  # the end of time


def _counts(driver: DriverFigures) -> Iterator[tuple[Labels, float]]:
    for labels, query in _queries(driver):
        for name, count in query.counts.items():
            outcome, _, vertex = name.partition(".")
            yield {**labels, "outcome": outcome, "vertex": vertex}, count


_QUERY = ("pipeline", "query")
_PIPELINE = ("pipeline",)

PIPELINE_METRICS: tuple[Metric[DriverFigures], ...] = (
    Metric(
        "pipeline.driver.running", "gauge", "0 or 1",
        "Whether the driver process of the pipelines is running.",
        "0 for long: the log says why it exits.",
        each(whole, "is_running"),
    ),
    Metric(
        "pipeline.driver.starts_total", "counter", "starts",
        "How many times the driver process was started.",
        "Any increase after the first: Java or the machine ran out of something.",
        each(whole, "starts_total"),
    ),
    Metric(
        "pipeline.run.state", "gauge", "0 or 1",
        "1 for the state that the pipeline is in, 0 for the others.",
        "`waiting`: it failed and is restarted. `disk_full`: the same, until space is free. "
        "`refused`: the file has to change.",
        _pipeline_states, (*_PIPELINE, "state"),
    ),
    Metric(
        "pipeline.run.restarts_total", "counter", "restarts",
        "How many times the pipeline was restarted since its driver started.",
        "Its rate: a batch fails again and again; nothing is lost, but nothing is processed.",
        each(_pipelines, "restarts_total"), _PIPELINE,
    ),
    Metric(
        "pipeline.query.batches_total", "counter", "batches",
        "Batches that were processed.", "Stands still while events come in: see the state.",
        each(_queries, "batches_total"), _QUERY,
    ),
    Metric(
        "pipeline.query.batch_seconds", "gauge", "seconds",
        "How long the last batch took.", "Grows: more cores, or smaller batches.",
        each(_queries, "batch_s"), _QUERY,
    ),
    Metric(
        "pipeline.query.rows_total", "counter", "rows",
        "Rows read from the sources, each counted once, however many branches read it.",
        "Its rate is the throughput.", each(_queries, "rows_total"), _QUERY,
    ),
    Metric(
        "pipeline.query.rows_per_second", "gauge", "rows/s",
        "Rows per second of the last batch.", "As above, without a server to compute it.",
        each(_queries, "rows_per_s"), _QUERY,
    ),
    Metric(
        "pipeline.query.watermark_timestamp_seconds", "gauge", "seconds",
        "The watermark, as seconds since 1970.",
        "Stands still: `holdfast dataflow watermark` says what holds it.", _watermarks, _QUERY,
    ),
    Metric(
        "pipeline.query.lag_seconds", "gauge", "seconds",
        "How far the watermark is behind the clock; 0 while no window is open.",
        "The one to alert on: results are this late.", each(_lagging, "lag_s"), _QUERY,
    ),
    Metric(
        "pipeline.query.state_rows", "gauge", "rows",
        "Rows of state: keys of open windows.", "Keeps growing: a key is too fine.",
        each(_queries, "state_rows"), _QUERY,
    ),
    Metric(
        "pipeline.query.state_bytes", "gauge", "bytes",
        "Memory that the state uses.", "As above.", each(_queries, "state_bytes"), _QUERY,
    ),
    Metric(
        "pipeline.query.left_out_rows_total", "counter", "rows",
        "Rows that were left out of one of several windows, because it was closed.",
        "Grows with sliding windows and late rows.", each(_queries, "left_out_total"), _QUERY,
    ),
    Metric(
        "pipeline.query.outcome_rows_total", "counter", "rows",
        "What became of rows, and at which vertex: late, failed, written, fallback.",
        "`late`: raise max_delay or allowed_lateness. `failed`: look at the dead letters.",
        _counts, (*_QUERY, "outcome", "vertex"),
    ),
)  # fmt: skip


def driver_records(driver: DriverFigures) -> list[Sample]:
    """Return every figure of a driver and its pipelines."""
    return list(samples(PIPELINE_METRICS, [({}, driver)]))


_NOTHING_HELD = HeldEvent(seq=0, row=0, code="", reason="", attempts=0, age_s=0)


def _receivers(gateway: GatewayStatistics) -> Iterable[tuple[Labels, ReceiverStatistics]]:
    return [({"receiver": name}, figures) for name, figures in gateway.receivers.items()]


def _items(gateway: GatewayStatistics) -> Iterator[tuple[Labels, ItemCounts]]:
    for labels, figures in _receivers(gateway):
        for signal, counts in figures.items.items():
            yield {**labels, "signal": signal}, counts


def _delivered(gateway: GatewayStatistics) -> Iterator[tuple[Labels, DeliveredItems]]:
    for labels, figures in _destinations(gateway):
        for signal, counts in figures.items.items():
            yield {**labels, "signal": signal}, counts


def _destinations(gateway: GatewayStatistics) -> Iterator[tuple[Labels, DestinationStatistics]]:
    for one in gateway.destinations:
        labels = {"destination": one.name, "quiver": one.quiver, "core_id": str(one.core_id)}
        yield labels, one.figures


def _held(gateway: GatewayStatistics) -> Iterator[tuple[Labels, HeldEvent]]:
    for labels, figures in _destinations(gateway):
        # Always a sample: one that comes and goes cannot be compared with its own past.
        held = figures.held or _NOTHING_HELD
        yield {**labels, "code": held.code}, held


def _states(gateway: GatewayStatistics) -> Iterator[tuple[Labels, float]]:
    for labels, figures in _destinations(gateway):
        for state in State:
            yield {**labels, "state": state.value}, figures.state == state


def _breakers(gateway: GatewayStatistics) -> Iterator[tuple[Labels, float]]:
    for labels, figures in _destinations(gateway):
        yield labels, figures.breaker != "closed"


def _letters(gateway: GatewayStatistics) -> Iterator[tuple[Labels, StoreStatistics]]:
    if gateway.dead_letters is not None:
        for name, store in gateway.dead_letters._asdict().items():
            yield {"store": name}, store


def _filed(gateway: GatewayStatistics) -> Iterator[tuple[Labels, float]]:
    for labels, store in _letters(gateway):
        for (destination, reason), count in store.filed.items():
            yield {**labels, "destination": destination, "reason": reason}, count


def _refusing(gateway: GatewayStatistics) -> Iterator[tuple[Labels, float]]:
    for name in gateway.quivers:
        yield {"quiver": name}, name in gateway.refusing


def _flight(gateway: GatewayStatistics) -> Iterable[tuple[Labels, ServerStatistics]]:
    return [] if gateway.flight is None else [({}, gateway.flight)]


_RECEIVER = ("receiver",)
_DESTINATION = ("destination", "quiver", "core_id")
_STORE = ("store",)

# All have the label `worker` too.
GATEWAY_METRICS: tuple[Metric[GatewayStatistics], ...] = (
    # ------------------------------------------------------------------ receivers
    Metric(
        "gateway.receiver.received_events_total", "counter", "events",
        "Events that arrived since the start.",
        "Its rate is the load. It equals accepted + rejected + in flight.",
        each(_receivers, "received"), _RECEIVER,
    ),
    Metric(
        "gateway.receiver.accepted_events_total", "counter", "events",
        "Events that were answered with success: they are in the quiver at the promised level.",
        "Falls behind received: see rejected, by reason.", each(_receivers, "accepted"), _RECEIVER,
    ),
    Metric(
        "gateway.receiver.rejected_events_total", "counter", "events",
        "Events that were not accepted, by reason; the sender got an error.",
        "`invalid`: producers send wrong events. `busy`, `rate`, `unavailable`: they will retry.",
        each(_receivers, "rejected", "reason"), (*_RECEIVER, "reason"),
    ),
    Metric(
        "gateway.receiver.accepted_items_total", "counter", "items",
        "Spans, data points or log records of the requests that were accepted, by signal.",
        "Its rate is what your services send.",
        each(_items, "accepted"), (*_RECEIVER, "signal"),
    ),
    Metric(
        "gateway.receiver.refused_items_total", "counter", "items",
        "Spans, data points or log records of requests that were read and not stored, by signal.",
        "Any increase: the quiver takes nothing, or they are too large; clients send them again.",
        each(_items, "refused"), (*_RECEIVER, "signal"),
    ),
    Metric(
        "gateway.receiver.rejected_items_total", "counter", "items",
        "Items that were left out of requests of which the rest was accepted, by signal.",
        "Any increase: a producer sends items that are not valid; they are in the dead letters.",
        each(_items, "rejected"), (*_RECEIVER, "signal"),
    ),
    Metric(
        "gateway.receiver.dropped_before_buffer_events_total", "counter", "events",
        "Events of which processors before the buffer left nothing; their senders got a success.",
        "They are in no ledger and not accepted. More than you meant to drop: a rule is wrong.",
        each(_receivers, "dropped_before_buffer"), _RECEIVER,
    ),
    Metric(
        "gateway.receiver.dropped_before_buffer_items_total", "counter", "items",
        "Items that processors before the buffer dropped, also out of requests, by signal.",
        "As above, in spans, data points and log records.",
        each(_items, "dropped_before_buffer"), (*_RECEIVER, "signal"),
    ),
    Metric(
        "gateway.receiver.received_bytes_total", "counter", "bytes",
        "Bytes of request bodies, as they came over the wire.",
        "Less than what was accepted: clients compress.",
        each(_receivers, "received_bytes"), _RECEIVER,
    ),
    Metric(
        "gateway.receiver.written_bytes_total", "counter", "bytes",
        "Bytes of accepted events, as they were written.",
        "Its rate, times how long a destination may be away, is the room you need.",
        each(_receivers, "accepted_bytes"), _RECEIVER,
    ),
    Metric(
        "gateway.receiver.requests_total", "counter", "requests",
        "Requests answered.", "Events divided by requests is the size of a batch.",
        each(_receivers, "requests"), _RECEIVER,
    ),
    Metric(
        "gateway.receiver.in_flight_requests", "gauge", "requests",
        "Requests that are being answered.",
        "Near the limit: senders will soon be asked to wait.",
        each(_receivers, "in_flight_requests"), _RECEIVER,
    ),
    Metric(
        "gateway.receiver.in_flight_bytes", "gauge", "bytes",
        "Bytes that these requests hold in memory.", "As above.",
        each(_receivers, "in_flight_bytes"), _RECEIVER,
    ),
    Metric(
        "gateway.receiver.connections", "gauge", "connections",
        "Open connections.", "Keeps growing: clients do not close theirs.",
        each(_receivers, "connections"), _RECEIVER,
    ),
    # --------------------------------------------------------------- destinations
    Metric(
        "gateway.destination.sent_events_total", "counter", "events",
        "Events that the destination took since the start.",
        "Stands still while the lag grows: see the state.",
        each(_destinations, "sent_events"), _DESTINATION,
    ),
    Metric(
        "gateway.destination.sent_bytes_total", "counter", "bytes",
        "Payload of these events.", "As above, in bytes.",
        each(_destinations, "sent_bytes"), _DESTINATION,
    ),
    Metric(
        "gateway.destination.sends_total", "counter", "sends",
        "Attempts to send, successful or not.",
        "Sent events divided by sends is the size of a request, if none failed.",
        each(_destinations, "sends"), _DESTINATION,
    ),
    Metric(
        "gateway.destination.failed_events_total", "counter", "events",
        "Events that were not taken, by class; an event tried five times counts five times.",
        "`auth`: fix the credentials. `permanent`: dead letters. `transient`: it is retried.",
        each(_destinations, "failed", "class"), (*_DESTINATION, "class"),
    ),
    Metric(
        "gateway.destination.filtered_events_total", "counter", "events",
        "Events that processors filtered out on the way.",
        "Unexpectedly many: a pattern is too wide.", each(_destinations, "filtered"), _DESTINATION,
    ),
    Metric(
        "gateway.destination.dead_lettered_events_total", "counter", "events",
        "Events that the destination rejected for good and that became dead letters, by reason.",
        "Any increase: look with `holdfast dlq ls`.",
        each(_destinations, "dead_lettered_by_reason", "reason"), (*_DESTINATION, "reason"),
    ),
    Metric(
        "gateway.destination.dropped_events_total", "counter", "events",
        "Events that the destination lost, ever, by reason: dropped or expired at its limits, "
        "damaged on disk.",
        "Any increase is lost data; `dropped` and `expired` by your `on_full` and retention.",
        each(_destinations, "lost_events", "reason"), (*_DESTINATION, "reason"),
    ),
    Metric(
        "gateway.destination.sent_items_total", "counter", "items",
        "Spans, data points or log records that the destination took since the start, by signal.",
        "Its rate is what your backend gets; compare with what receivers accepted.",
        each(_delivered, "sent"), (*_DESTINATION, "signal"),
    ),
    Metric(
        "gateway.destination.failed_items_total", "counter", "items",
        "Items of requests that were not taken, by signal; tried five times, they count five "
        "times.",
        "Grows for long: `failed_events_total` has the class, `destination ls` the reason.",
        each(_delivered, "failed"), (*_DESTINATION, "signal"),
    ),
    Metric(
        "gateway.destination.filtered_items_total", "counter", "items",
        "Items that processors dropped on the way, by signal: whole requests, and some of others.",
        "Unexpectedly many: a condition is too wide, or a sampling ratio too small.",
        each(_delivered, "filtered"), (*_DESTINATION, "signal"),
    ),
    Metric(
        "gateway.destination.rejected_items_total", "counter", "items",
        "Items that the destination left out of requests that it took (partial success), by "
        "signal.",
        "Any increase is data that the backend does not have; its log says why.",
        each(_delivered, "rejected"), (*_DESTINATION, "signal"),
    ),
    Metric(
        "gateway.destination.queue_age_seconds", "gauge", "seconds",
        "Age of the oldest request of each signal that waits for the destination; none if none "
        "waits.",
        "As `oldest_age_seconds`, where one signal is held up and others are not.",
        each(_destinations, "queue_age_s", "signal"), (*_DESTINATION, "signal"),
    ),
    Metric(
        "gateway.destination.lag_events", "gauge", "events",
        "Events waiting for the destination: its consumer lag.",
        "Grows: it is down, or slower than the producers.",
        each(_destinations, "lag_events"), _DESTINATION,
    ),
    Metric(
        "gateway.destination.lag_bytes", "gauge", "bytes",
        "Payload waiting for the destination.",
        "At `retention_size` its `on_full` decides.",
        each(_destinations, "lag_bytes"), _DESTINATION,
    ),
    Metric(
        "gateway.destination.oldest_age_seconds", "gauge", "seconds",
        "Age of the oldest event waiting for the destination; 0 if there is none.",
        "The one to alert on: it grows with every second of an outage, whatever the load.",
        each(_destinations, "oldest_age_s"), _DESTINATION,
    ),
    Metric(
        "gateway.destination.held_seconds", "gauge", "seconds",
        "How long the longest-failing event has been failing, with the code of its last response.",
        "Minutes: nothing overtakes it. Fix what the code says; `holdfast destination ls` has "
        "its number.",
        each(_held, "age_s"), (*_DESTINATION, "code"),
    ),
    Metric(
        "gateway.destination.held_attempts", "gauge", "attempts",
        "How many times that event was sent.", "As above.",
        each(_held, "attempts"), (*_DESTINATION, "code"),
    ),
    Metric(
        "gateway.destination.in_flight_events", "gauge", "events",
        "Events that were sent and have no response yet.",
        "What a crash would deliver twice.", each(_destinations, "in_flight_events"), _DESTINATION,
    ),
    Metric(
        "gateway.destination.active_lanes", "gauge", "lanes",
        "With `order: key`: sends under way at once.",
        "Always at `lanes`: more of them may help.",
        each(_destinations, "active_lanes"), _DESTINATION,
    ),
    Metric(
        "gateway.destination.state", "gauge", "0 or 1",
        "1 for the state that the destination is in, 0 for the others.",
        "`auth_failed` and `stalled` need an operator.",
        _states, (*_DESTINATION, "state"),
    ),
    Metric(
        "gateway.destination.breaker_open", "gauge", "0 or 1",
        "Whether sending is suspended for a while after repeated failures.",
        "1: the destination is down.", _breakers, _DESTINATION,
    ),
    Metric(
        "gateway.destination.breaker_opened_total", "counter", "times",
        "How many times that happened since the start.", "Its rate: the destination flaps.",
        each(_destinations, "breaker_opened_total"), _DESTINATION,
    ),
    # --------------------------------------------------------------- dead letters
    Metric(
        "gateway.dead_letters.events", "gauge", "events",
        "Dead letters in the store: `rejected` (never accepted) or `undelivered`.",
        "Any `undelivered`: a destination did not get them. Fix, replay or purge.",
        each(_letters, "events"), _STORE,
    ),
    Metric(
        "gateway.dead_letters.bytes", "gauge", "bytes",
        "Their payload.", "As above.", each(_letters, "size_bytes"), _STORE,
    ),
    Metric(
        "gateway.dead_letters.used_bytes", "gauge", "bytes",
        "What the store occupies on disk.",
        "At the cap `rejected` loses its oldest, and `undelivered` stalls destinations.",
        each(_letters, "used_bytes"), _STORE,
    ),
    Metric(
        "gateway.dead_letters.max_bytes", "gauge", "bytes",
        "The cap of the store.", "Compare with the one above.", each(_letters, "max_bytes"), _STORE,
    ),
    Metric(
        "gateway.dead_letters.oldest_age_seconds", "gauge", "seconds",
        "Age of the oldest dead letter; 0 if there is none.", "Days: nobody looks.",
        each(_letters, "oldest_age_s"), _STORE,
    ),
    Metric(
        "gateway.dead_letters.filed_events_total", "counter", "events",
        "Dead letters filed since the start, by destination and reason.",
        "Its rate by reason says what is wrong.", _filed, (*_STORE, "destination", "reason"),
    ),
    Metric(
        "gateway.dead_letters.refused_events_total", "counter", "events",
        "Rejected events of which no copy was kept, by reason: rate, too_large, store.",
        "Many by `rate`: a producer floods with wrong events.", each(_letters, "refused", "reason"),
        (*_STORE, "reason"),
    ),
    Metric(
        "gateway.dead_letters.dropped_events_total", "counter", "events",
        "Dead letters dropped at the cap before anyone resolved them, ever.",
        "Any in `undelivered`: only damage can cause that.", each(_letters, "dropped"), _STORE,
    ),
    Metric(
        "gateway.dead_letters.expired_events_total", "counter", "events",
        "Dead letters that expired, ever.", "Nobody looked in time.",
        each(_letters, "expired"), _STORE,
    ),
    Metric(
        "gateway.dead_letters.resolved_events_total", "counter", "events",
        "Dead letters that were sent again, fixed or purged, ever.", "Work done.",
        each(_letters, "resolved"), _STORE,
    ),
    # --------------------------------------------------------------------- flight
    Metric(
        "gateway.flight.calls_total", "counter", "calls",
        "Flight calls to the owner of the quivers, not counting refused ones.",
        "Its rate: how often pipelines ask.", each(_flight, "calls_total"),
    ),
    Metric(
        "gateway.flight.refused_calls_total", "counter", "calls",
        "Calls refused because of a missing token or too many calls.",
        "Any increase: a wrong token, or `max_calls` is too small.", each(_flight, "refused_total"),
    ),
    Metric(
        "gateway.flight.attached_subscribers", "gauge", "subscribers",
        "Subscribers attached over Flight.",
        "Fewer than there are pipelines: a driver is away.", each(_flight, "attached"),
    ),
    Metric(
        "gateway.flight.reader_starts_total", "counter", "starts",
        "How many times the process that serves sealed data was started.",
        "Grows: it is being killed, perhaps by the kernel because memory ran out.",
        each(_flight, "reader_starts_total"),
    ),
    # -------------------------------------------------------------------- process
    Metric(
        "gateway.process.uptime_seconds", "gauge", "seconds",
        "How long the process has been running.",
        "Falls to 0: it was restarted.", each(whole, "uptime_s"),
    ),
    Metric(
        "gateway.process.refusing", "gauge", "0 or 1",
        "Whether events are refused right now, because the quiver is full or its disk failed.",
        "1: `/readyz` says why.", _refusing, ("quiver",),
    ),
    Metric(
        "gateway.process.resident_bytes", "gauge", "bytes",
        "Memory of the process.", "Keeps growing: report it.", each(whole, "resident_bytes"),
    ),
    Metric(
        "gateway.process.cpu_seconds_total", "counter", "seconds",
        "Processor time of the process.", "Its rate near 1: use more workers.",
        each(whole, "cpu_seconds"),
    ),
)  # fmt: skip

ALL_METRICS: tuple[Metric[Any], ...] = (
    *GATEWAY_METRICS,
    *HANDOFF_METRICS,
    *TELEMETRY_METRICS,
    *PIPELINE_METRICS,
    *METRICS,
)
COUNTERS = frozenset(metric.name for metric in ALL_METRICS if metric.type == "counter")


def gateway_records(gateway: GatewayStatistics) -> list[Sample]:
    """Return every figure of a gateway process and of its quivers."""
    own = samples(
        (*GATEWAY_METRICS, *HANDOFF_METRICS), [({"worker": str(gateway.worker)}, gateway)]
    )
    return [*own, *records(gateway.quivers)]


def render_records(told: Iterable[Sample]) -> str:
    """Return the records of one or several gateways as Prometheus' text.

    Sorted by name first: the format wants all samples of a metric together, and the workers of a
    gateway each bring some of every metric.
    """
    by_name: dict[str, list[Sample]] = {}
    for record in told:
        by_name.setdefault(record.name, []).append(record)
    together = (record for same in by_name.values() for record in same)
    return exposition(ALL_METRICS, together)
