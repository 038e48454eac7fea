"""Metrics: every figure of `statistics()` under a name, and all of them as Prometheus text.

A figure is defined once: as a `Metric`, a row of a table. `METRICS` here is the table of quivers;
`gateway_metrics.py` has those of gateways and of the drivers of pipelines. The exposition,
statsd, docs/reference/metrics.md and `--json` are made from these rows, so that a figure has one
name, one unit and one explanation everywhere. Names have dots; Prometheus gets underscores.

The text format (version 0.0.4) is a page of specification, so it is written here and needs no
library: a program that embeds a quiver can serve it from its own handler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from holdfast.quiver.keep.archiver import ArchiveStatistics
from holdfast.quiver.keep.retention import REASONS
from holdfast.quiver.ledger.subscriber import Outcome
from holdfast.quiver.statistics import SignalStatistics, Statistics, SubscriberStatistics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]
StatisticsByQuiver = Mapping[str, Statistics | Iterable[Statistics]]
# The record that a table is about: of a quiver, a gateway, a driver.
S = TypeVar("S")


class Metric(NamedTuple, Generic[S]):
    """One name, and how its values are read from a record of statistics."""

    name: str
    type: Literal["counter", "gauge"]
    unit: str
    # One sentence: what the figure is.
    help: str
    # What to look for in it.
    watch: str
    read: Callable[[S], Iterable[tuple[Labels, float]]]
    # Beside those that all of its table have.
    labels: tuple[str, ...] = ()


class Sample(NamedTuple):
    """One figure with its labels."""

    name: str
    labels: Labels
    value: float


def each(
    rows: Callable[[S], Iterable[tuple[Labels, Any]]], field: str, key: str | None = None
) -> Callable[[S], Iterator[tuple[Labels, float]]]:
    """Return what reads one field of every row: None as 0, a mapping by its keys as label `key`.

    Fields are named, and not functions of their own, so that a table reads as a table.
    """
    get = attrgetter(field)

    def read(record: S) -> Iterator[tuple[Labels, float]]:
        for labels, row in rows(record):
            value = get(row)
            if key is None:
                yield labels, 0 if value is None else value
            else:
                yield from (({**labels, key: str(name)}, count) for name, count in value.items())

    return read


def whole(record: S) -> Iterable[tuple[Labels, S]]:
    """Return the record itself as the only row."""
    return [({}, record)]


def _evictions(statistics: Statistics) -> Iterator[tuple[Labels, float]]:
    # Every reason from the first moment on: a counter that appears with its first increase shows
    # no increase.
    for reason in REASONS:
        yield {"reason": reason}, statistics.retention.evictions.get(reason, 0)


def _signals(statistics: Statistics) -> Iterator[tuple[Labels, SignalStatistics]]:
    for signal, figures in statistics.signals.items():
        yield {"signal": signal}, figures


def _archive(statistics: Statistics) -> Iterator[tuple[Labels, ArchiveStatistics]]:
    if statistics.archive is not None:
        yield {}, statistics.archive


def _info(statistics: Statistics) -> Iterator[tuple[Labels, float]]:
    yield {"quiver_id": statistics.quiver_id}, 1


def _subscribers(statistics: Statistics) -> Iterator[tuple[Labels, SubscriberStatistics]]:
    for subscriber in statistics.subscribers:
        yield {"subscriber": subscriber.name}, subscriber


def _outcomes(field: Literal["bundles", "events"]) -> Callable[[Statistics], Any]:
    def read(statistics: Statistics) -> Iterator[tuple[Labels, float]]:
        for labels, subscriber in _subscribers(statistics):
            for outcome in (one.name.lower() for one in Outcome):
                yield {**labels, "outcome": outcome}, getattr(subscriber.outcomes[outcome], field)

    return read


_SUBSCRIBER = ("subscriber",)

METRICS: tuple[Metric[Statistics], ...] = (
    # ------------------------------------------------------------------ retention
    Metric(
        "quiver.gc.evictions_total", "counter", "segments",
        "Segments removed since the quiver was opened, by reason.",
        "`processed` is the normal case. `age`, `size` and `segments` may remove what a subscriber "
        "was still waiting for: see the outcomes of the subscribers.",
        _evictions, ("reason",),
    ),
    Metric(
        "quiver.gc.deleted_bundles_total", "counter", "bundles",
        "Bundles removed from disk, over all openings.",
        "Accepted minus deleted is what is on disk.", each(whole, "deleted_bundles"),
    ),
    Metric(
        "quiver.gc.deleted_events_total", "counter", "events",
        "Events removed from disk, over all openings.",
        "As above, in events.", each(whole, "deleted_events"),
    ),
    Metric(
        "quiver.retention.size_emergency_total", "counter", "segments",
        "Segments removed only because the size cap was reached.",
        "Any increase: the cap is too small for the slowest reader, or a reader is dead.",
        each(whole, "retention.size_emergencies"),
    ),
    # --------------------------------------------------------------------- ingest
    Metric(
        "quiver.ingest.throttle_total", "counter", "groups",
        "Groups of appends that had to wait because a cap was reached.",
        "Any increase: producers are held back. `cap_fraction` and the lags say by what.",
        each(whole, "retention.throttled"),
    ),
    Metric(
        "quiver.ingest.blocked_seconds_total", "counter", "seconds",
        "How long appends waited for room: for the sealer, or because a cap was reached.",
        "Its rate is the share of time in which nothing was accepted.",
        each(whole, "writer.blocked_seconds"),
    ),
    Metric(
        "quiver.ingest.stalled_seconds_total", "counter", "seconds",
        "The part of that time spent waiting for the sealer.",
        "Grows: segments are written more slowly than events arrive.",
        each(whole, "writer.stall_seconds"),
    ),
    Metric(
        "quiver.ingest.accepting", "gauge", "0 or 1",
        "Whether appends are accepted at all.",
        "0 while the process is running: the disk failed, and the quiver has to be reopened.",
        each(whole, "accepting"),
    ),
    Metric(
        "quiver.ingest.accepted_bundles_total", "counter", "bundles",
        "Bundles ever accepted, over all openings.",
        "The left side of the equation: it is the sum of all outcomes and what is pending.",
        each(whole, "accepted_bundles"),
    ),
    Metric(
        "quiver.ingest.accepted_events_total", "counter", "events",
        "Events ever accepted, over all openings.",
        "Its rate is the load.", each(whole, "accepted_events"),
    ),
    Metric(
        "quiver.ingest.appends_total", "counter", "appends",
        "Appends answered with success since the quiver was opened.",
        "Bundles per append and appends per group say how well syncs are shared.",
        each(whole, "writer.appends"),
    ),
    Metric(
        "quiver.ingest.groups_total", "counter", "groups",
        "Groups of appends written together since the quiver was opened.",
        "Appends divided by groups is the size of a group.", each(whole, "writer.groups"),
    ),
    Metric(
        "quiver.ingest.payload_bytes_total", "counter", "bytes",
        "Payload accepted since the quiver was opened.",
        "Its rate, times how long a reader may be away, is the cap you need.",
        each(whole, "writer.payload_bytes"),
    ),
    Metric(
        "quiver.ingest.pending_bytes", "gauge", "bytes",
        "Payload handed over and not yet written.",
        "Near `append.max_pending_bytes`: the disk is slower than the producers.",
        each(whole, "pending_bytes"),
    ),
    Metric(
        "quiver.ingest.staged_bytes", "gauge", "bytes",
        "Payload staged by open transactions.",
        "Stays up: a transaction is neither committed nor aborted.", each(whole, "staged_bytes"),
    ),
    Metric(
        "quiver.ingest.producers", "gauge", "producers",
        "Idempotent producers that the quiver remembers.",
        "At `producers.max_count` the one idle longest is forgotten.",
        each(whole, "producers"),
    ),
    # ------------------------------------------------------------------------ wal
    Metric(
        "quiver.wal.bytes", "gauge", "bytes",
        "Size of all files of the write-ahead log.",
        "Grows without falling: sealing fails. At `wal.max_size_bytes` appends wait.",
        each(whole, "wal_bytes"),
    ),
    Metric(
        "quiver.wal.files", "gauge", "files",
        "Files of the write-ahead log.", "As above.", each(whole, "wal_files"),
    ),
    Metric(
        "quiver.wal.syncs_total", "counter", "syncs",
        "Syncs of the write-ahead log.",
        "With the next one: the mean latency of a sync, which is what an append waits for.",
        each(whole, "writer.syncs"),
    ),
    Metric(
        "quiver.wal.sync_seconds_total", "counter", "seconds",
        "Time spent in these syncs.",
        "`rate(sync_seconds_total) / rate(syncs_total)` is the mean latency.",
        each(whole, "writer.sync_seconds"),
    ),
    Metric(
        "quiver.wal.sync_seconds_max", "gauge", "seconds",
        "The slowest of these syncs.",
        "Seconds: the disk or its controller has a problem, or another process keeps it busy.",
        each(whole, "writer.sync_seconds_max"),
    ),
    Metric(
        "quiver.wal.write_failures_total", "counter", "failures",
        "Writes of the write-ahead log that failed.",
        "Any increase: the disk is full or failing.", each(whole, "writer.write_failures"),
    ),
    Metric(
        "quiver.wal.sync_failures_total", "counter", "failures",
        "Syncs of the write-ahead log that failed; the data was written again elsewhere.",
        "Any increase: replace the disk.", each(whole, "writer.sync_failures"),
    ),
    # -------------------------------------------------------------------- segment
    Metric(
        "quiver.segment.dropped_total", "counter", "segments",
        "Segments removed to make room while a subscriber was still waiting for them.",
        "Any increase is lost data, caused by your `drop_oldest`.",
        each(whole, "retention.dropped_segments"),
    ),
    Metric(
        "quiver.segment.outstanding", "gauge", "segments",
        "Segments on disk by how many subscribers still wait for something in them.",
        "At 0 is what cleanup may take. Many at 1: one subscriber holds them.",
        each(whole, "outstanding", "subscribers"), ("subscribers",),
    ),
    Metric(
        "quiver.segment.open_bytes", "gauge", "bytes",
        "Size of the open buffer: accepted, not handed to the sealer yet.",
        "Rises to `segment.target_size_bytes` and falls again.", each(whole, "open_bytes"),
    ),
    Metric(
        "quiver.segment.open_bundles", "gauge", "bundles",
        "Bundles in the open buffer.",
        "Very many in few bytes: let producers send larger bundles.", each(whole, "open_bundles"),
    ),
    Metric(
        "quiver.segment.sealing_bytes", "gauge", "bytes",
        "Size of the buffers that are being sealed.",
        "Does not fall: sealing is slow or fails.", each(whole, "sealing_bytes"),
    ),
    Metric(
        "quiver.segment.sealed", "gauge", "segments",
        "Segments on disk.", "At `retention.max_segments` the oldest goes.",
        each(whole, "segments"),
    ),
    Metric(
        "quiver.segment.bytes", "gauge", "bytes",
        "Size of the segments on disk.", "The backlog of the slowest reader.",
        each(whole, "segment_bytes"),
    ),
    Metric(
        "quiver.segment.events", "gauge", "events",
        "Events in the segments on disk.", "As above, in events.", each(whole, "segment_events"),
    ),
    Metric(
        "quiver.segment.signal_events", "gauge", "events",
        "Events in the segments on disk, by signal; a request of telemetry is one.",
        "Which signal the backlog is made of.", each(_signals, "events"), ("signal",),
    ),
    Metric(
        "quiver.segment.signal_bytes", "gauge", "bytes",
        "Size of their data files, by signal.", "As above, in bytes.",
        each(_signals, "size_bytes"), ("signal",),
    ),
    Metric(
        "quiver.segment.seals_total", "counter", "segments",
        "Segments sealed since the quiver was opened.",
        "Many per minute with little load: lengthen `segment.max_open_duration_s`.",
        each(whole, "sealer.segments"),
    ),
    Metric(
        "quiver.segment.seal_seconds_total", "counter", "seconds",
        "Time spent sealing.",
        "Its rate near 1: the sealer is the bottleneck.", each(whole, "sealer.seconds"),
    ),
    Metric(
        "quiver.segment.seal_failures_total", "counter", "failures",
        "Attempts to seal that failed; each is retried.",
        "Any increase: the disk is full or failing. Nothing is lost, but nothing is freed.",
        each(whole, "sealer.failures"),
    ),
    Metric(
        "quiver.segment.extractor_failures_total", "counter", "failures",
        "Batches whose event times or keys could not be read; they were stored without them.",
        "Any increase: the extractor does not fit the data.",
        each(whole, "extractor_failures_total"),
    ),
    Metric(
        "quiver.segment.rebuilt_tables", "gauge", "segments",
        "Segments whose damaged bundle table was rebuilt from their rows.",
        "Any: bytes on disk changed. Nothing was lost.", each(whole, "rebuilt_tables"),
    ),
    Metric(
        "quiver.segment.opaque_rows_total", "counter", "rows",
        "Rows that Arrow could not write together with others, kept as they arrived.",
        "Grows: schemas differ from bundle to bundle; scans of such rows are slow.",
        each(whole, "opaque_rows_total"),
    ),
    # --------------------------------------------------------------------- ledger
    Metric(
        "quiver.ledger.bytes", "gauge", "bytes",
        "Size of all files of the ledger.",
        "Bounded by `ledger.retain_bytes` and `ledger.rotate_bytes`.", each(whole, "ledger_bytes"),
    ),
    Metric(
        "quiver.ledger.depth", "gauge", "lines",
        "Lines since the last checkpoint, which a start has to replay.",
        "Falls to 0 whenever a file is full.", each(whole, "ledger_depth"),
    ),
    Metric(
        "quiver.ledger.lines_total", "counter", "lines",
        "Lines written to the ledger since the quiver was opened.",
        "Its rate is how often readers acknowledge.", each(whole, "ledger_lines_total"),
    ),
    Metric(
        "quiver.ledger.syncs_total", "counter", "syncs",
        "Syncs of the ledger.", "Lines divided by syncs is how well they are shared.",
        each(whole, "ledger_syncs_total"),
    ),
    Metric(
        "quiver.quarantine.bytes", "gauge", "bytes",
        "Damaged bytes in quarantine; they count towards the size cap.",
        "Any increase: bytes on disk changed. `holdfast quiver ls` names them.",
        each(whole, "quarantined_bytes"),
    ),
    # -------------------------------------------------------------------- archive
    Metric(
        "quiver.archive.segments", "gauge", "segments",
        "Segments on this disk that are also in the archive.",
        "Only with `segment.archive`, as all of these.", each(_archive, "archived_segments"),
    ),
    Metric(
        "quiver.archive.waiting_segments", "gauge", "segments",
        "Segments that are not in the archive yet; they are not removed.",
        "Grows for minutes: the log says why, or raise `uploads`.",
        each(_archive, "waiting_segments"),
    ),
    Metric(
        "quiver.archive.waiting_bytes", "gauge", "bytes",
        "Their size.", "Near the size cap: what comes in will be refused, see `on_full`.",
        each(_archive, "waiting_bytes"),
    ),
    Metric(
        "quiver.archive.uploads_total", "counter", "segments",
        "Segments put into the archive since the quiver was opened.",
        "As many as are sealed.", each(_archive, "uploaded_segments"),
    ),
    Metric(
        "quiver.archive.uploaded_bytes_total", "counter", "bytes",
        "Their size.", "What the archive grows by.", each(_archive, "uploaded_bytes"),
    ),
    Metric(
        "quiver.archive.failures_total", "counter", "failures",
        "Tries that failed. Each is made again, after a pause.",
        "Any rate for long: the log says why.", each(_archive, "failures"),
    ),
    Metric(
        "quiver.archive.removed_unarchived_total", "counter", "segments",
        "Segments removed at the size cap that were not in the archive.",
        "Any increase is missing in the archive, caused by your `on_full: remove`.",
        each(_archive, "removed_unarchived"),
    ),
    # ----------------------------------------------------------------------- core
    Metric(
        "quiver.core.bytes", "gauge", "bytes",
        "Disk space the quiver uses: log, segments, ledger, quarantine.",
        "Per core: an imbalance shows producers or readers that are not spread evenly.",
        each(whole, "used_bytes"),
    ),
    Metric(
        "quiver.core.cap_bytes", "gauge", "bytes",
        "Its size cap: the configured cap divided by the number of cores.",
        "Changes while a core left over from a larger number is drained.",
        each(whole, "size_cap_bytes"),
    ),
    Metric(
        "quiver.core.cap_fraction", "gauge", "fraction",
        "How full it is: 1 is at the cap.",
        "Above 0.8 for long: readers are behind. Appends wait before 1, because of the reserve.",
        each(whole, "cap_fraction"),
    ),
    Metric(
        "quiver.retention.clock_doubted_seconds", "gauge", "seconds",
        "How much longer nothing expires: at the start the clock was far ahead of all data.",
        "Above 0 and the clock is wrong: set it before `retention.clock_grace_s` is over.",
        each(whole, "clock_doubted_s"),
    ),
    Metric(
        "quiver.core.adopted", "gauge", "0 or 1",
        "Whether the core is left over from a larger number of cores and only drained.",
        "Stays 1: one of its subscribers is no longer read.", each(whole, "adopted"),
    ),
    Metric(
        "quiver.core.info", "gauge", "1",
        "The identity of the quiver, as a label.",
        "A new `quiver_id`: the store was emptied, restored, or lost its sequence floor.",
        _info, ("quiver_id",),
    ),
    # ---------------------------------------------------------------- subscribers
    Metric(
        "quiver.subscriber.dropped_segments_total", "counter", "segments",
        "Segments that the subscriber lost to make room, by its own cap or by that of the quiver.",
        "Any increase is lost data, caused by your `drop_oldest`.",
        each(_subscribers, "dropped_segments"), _SUBSCRIBER,
    ),
    Metric(
        "quiver.subscriber.lag_bundles", "gauge", "bundles",
        "Bundles waiting for the subscriber.",
        "Grows: it is slower than the producers, or dead.",
        each(_subscribers, "pending.bundles"), _SUBSCRIBER,
    ),
    Metric(
        "quiver.subscriber.lag_events", "gauge", "events",
        "Events waiting for the subscriber.", "As above, in events.",
        each(_subscribers, "pending.events"), _SUBSCRIBER,
    ),
    Metric(
        "quiver.subscriber.lag_bytes", "gauge", "bytes",
        "Payload waiting for the subscriber.",
        "At its `max_bytes` its `on_full` decides.",
        each(_subscribers, "pending_bytes"), _SUBSCRIBER,
    ),
    Metric(
        "quiver.subscriber.oldest_unresolved_age_seconds", "gauge", "seconds",
        "Age of the oldest bundle waiting for the subscriber; 0 if there is none.",
        "The one to alert on: it grows with every second of an outage, whatever the load.",
        each(_subscribers, "oldest_age_s"), _SUBSCRIBER,
    ),
    Metric(
        "quiver.subscriber.gap_ranges", "gauge", "ranges",
        "Resolved ranges beyond the first unresolved bundle.",
        "Large: single old bundles are retried again and again, and hold back their segments.",
        each(_subscribers, "gap_ranges"), _SUBSCRIBER,
    ),
    Metric(
        "quiver.subscriber.high_water_seq", "gauge", "seq",
        "Number of the first bundle that is not resolved: the high-water mark.",
        "Stands still while the lag grows: one bundle blocks.",
        each(_subscribers, "high_water_seq"), _SUBSCRIBER,
    ),
    Metric(
        "quiver.subscriber.high_water_segment", "gauge", "segment",
        "Number of the newest segment that is resolved with all before it; 0 if there is none.",
        "Stands still while segments are sealed: something of the next one is held up.",
        each(_subscribers, "high_water_segment"), _SUBSCRIBER,
    ),
    Metric(
        "quiver.subscriber.gap_segments", "gauge", "segments",
        "Resolved segments beyond the first unresolved one: the size of the gap set.",
        "Grows: one old segment is held up, and others overtake it.",
        each(_subscribers, "gap_segments"), _SUBSCRIBER,
    ),
    Metric(
        "quiver.subscriber.pins", "gauge", "ranges",
        "Planned ranges that retention must not remove.",
        "Many: a reader plans and does not commit.", each(_subscribers, "pins"), _SUBSCRIBER,
    ),
    Metric(
        "quiver.subscriber.attached", "gauge", "0 or 1",
        "Whether a reader is attached.",
        "0 for long: nobody reads; the backlog is kept unless `retention.orphan_ttl_s` is set.",
        each(_subscribers, "attached"), _SUBSCRIBER,
    ),
    Metric(
        "quiver.subscriber.paused", "gauge", "0 or 1",
        "Whether it was paused.", "1, forgotten: its lag grows.",
        each(_subscribers, "paused"), _SUBSCRIBER,
    ),
    Metric(
        "quiver.subscriber.generation", "gauge", "generation",
        "How many times a reader attached.",
        "Grows all the time: two readers under one name fence each other off.",
        each(_subscribers, "generation"), _SUBSCRIBER,
    ),
    Metric(
        "quiver.subscriber.accepted_bundles_total", "counter", "bundles",
        "Bundles accepted for the subscriber since it was registered, including replayed ones.",
        "Equals the sum of its outcomes and its lag, always.",
        each(_subscribers, "accepted.bundles"), _SUBSCRIBER,
    ),
    Metric(
        "quiver.subscriber.accepted_events_total", "counter", "events",
        "Events accepted for the subscriber since it was registered, including replayed ones.",
        "As above, in events.", each(_subscribers, "accepted.events"), _SUBSCRIBER,
    ),
    Metric(
        "quiver.subscriber.outcome_bundles_total", "counter", "bundles",
        "What became of the subscriber's bundles, over all openings.",
        "`dropped`, `expired`, `damaged`: it did not get them. `dead_lettered`: it refused them.",
        _outcomes("bundles"), (*_SUBSCRIBER, "outcome"),
    ),
    Metric(
        "quiver.subscriber.outcome_events_total", "counter", "events",
        "What became of the subscriber's events, over all openings.",
        "As above, in events.", _outcomes("events"), (*_SUBSCRIBER, "outcome"),
    ),
)  # fmt: skip


def prometheus_name(name: str) -> str:
    """Return a metric's name as Prometheus spells it."""
    return name.replace(".", "_")


def samples(table: Iterable[Metric[S]], sources: Sequence[tuple[Labels, S]]) -> Iterator[Sample]:
    """Yield every figure of every source, metric by metric; its labels are the source's first."""
    for metric in table:
        for common, source in sources:
            for labels, value in metric.read(source):
                yield Sample(metric.name, {**common, **labels}, value)


def records(statistics_by_quiver: StatisticsByQuiver) -> Iterator[Sample]:
    """Yield every figure of every quiver.

    The keys name the quivers; a value is one quiver's statistics, or those of several cores.
    """
    quivers = [
        ({"quiver": name, "core_id": str(one.core_id)}, one)
        for name, found in statistics_by_quiver.items()
        for one in ([found] if isinstance(found, Statistics) else found)
    ]
    return samples(METRICS, quivers)


def render(statistics_by_quiver: StatisticsByQuiver) -> str:
    """Return all figures in Prometheus' text format."""
    return exposition(METRICS, records(statistics_by_quiver))


def exposition(metrics: Iterable[Metric[Any]], told: Iterable[Sample]) -> str:
    """Return records in Prometheus' text format; those of one name stand together."""
    lines: list[str] = []
    described = {metric.name: metric for metric in metrics}
    for record in told:
        name = prometheus_name(record.name)
        metric = described.pop(record.name, None)
        if metric is not None:
            lines += [f"# HELP {name} {_escaped(metric.help)}", f"# TYPE {name} {metric.type}"]
        labels = ",".join(f'{key}="{_quoted(value)}"' for key, value in record.labels.items())
        # The sign turns True into 1.
        lines.append(f"{name}{{{labels}}} {+record.value!r}")
    return "".join(line + "\n" for line in lines)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")
