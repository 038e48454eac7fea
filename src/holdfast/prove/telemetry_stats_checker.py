"""The checker of statistics of telemetry: what clients sent, what is stored, what Spark counted.

Three things are compared. What clients were answered is in the stored requests, once, by the names
of the items, and as it was sent. Every row of statistics is the one that a plain count over the
stored requests makes, and there is no other. And what was too late for its window is in a folder of
its own, row by row, and in no count.

The plain count reads the requests with protobuf: flat tables, windows and joins are what is proven.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from holdfast.prove.journal import UNKNOWN, read_journals
from holdfast.prove.service_calls import CLIENT, FAILED, NAME, SERVER, fill, service_of
from holdfast.query import open_tables
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import REQUESTS

# The folders of the sinks below that of the proof, as in the example; and of late rows.
SPANS, LOGS, GRAPH = (f"telemetry_stats/{name}" for name in ("spans", "logs", "graph"))
LATE = "late"
MINUTE_S, GRAPH_S = 60, 120
_LATENCY_MS = {"le_10ms": 10, "le_100ms": 100, "le_1s": 1_000, "le_10s": 10_000}
EXAMPLES_MAX = 20


class StoredItem(NamedTuple):
    """What a stored request says of a span or a log record."""

    name: str
    service: str
    at_us: int
    severity: str = ""
    duration_ns: int = 0
    status: int = 0
    kind: int = 0
    # The trace and the client's span of the call that it is an end of.
    call: str = ""

    @property
    def failed(self) -> int:
        """Whether a server's end says that the call failed."""
        return int(self.kind == SERVER and self.status == FAILED)


@dataclass
class StatisticsVerdict:
    """Counts of items, and the first few that break a promise."""

    # What the gateway answered for, and what it took without being able to answer.
    answered: int = 0
    unanswered_kept: int = 0
    unanswered_gone: int = 0
    # Sent while nobody listened.
    refused: int = 0
    # In the stored requests.
    spans: int = 0
    logs: int = 0
    points: int = 0
    # In statistics, late ones included; and calls with both ends.
    counted_spans: int = 0
    counted_logs: int = 0
    counted_calls: int = 0
    rows: int = 0
    late: int = 0
    duplicated: int = 0
    lost: int = 0
    # Sent by nobody, or not like this.
    invented: int = 0
    # Rows of statistics that are not what a plain count says, or are not there.
    wrong_rows: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every promise held, and something was shown by it."""
        broken = self.duplicated + self.lost + self.invented + self.wrong_rows
        spans_hold = self.counted_spans == self.spans > 0
        logs_hold = self.counted_logs == self.logs > 0
        return broken == 0 and spans_hold and logs_hold and self.counted_calls > 0

    def note(self, text: str) -> None:
        """Keep an example of a broken promise."""
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(text)


def check_statistics(journals: Path, directory: Path, quiver: Path) -> StatisticsVerdict:
    """Compare journals, stored requests and the files of the sinks."""
    verdict = StatisticsVerdict()
    stored = {kind: list(stored_items(kind, quiver)) for kind in OtlpKind}
    spans, logs = stored[OtlpKind.TRACES], stored[OtlpKind.LOGS]
    verdict.spans, verdict.logs = len(spans), len(logs)
    verdict.points = len(stored[OtlpKind.METRICS])
    _check_names(journals, Counter(one.name for items in stored.values() for one in items), verdict)

    in_time = _in_time(verdict, spans, directory / LATE / "span-stats", _span_row)
    expected = span_statistics(in_time)
    _compare(verdict, SPANS, directory, expected)
    verdict.counted_spans = sum(dict(row)["spans"] for row in _rows(directory / SPANS))
    verdict.counted_spans += len(spans) - len(in_time)

    in_time = _in_time(verdict, logs, directory / LATE / "log-stats", _log_row)
    _compare(verdict, LOGS, directory, log_statistics(in_time))
    verdict.counted_logs = sum(dict(row)["records"] for row in _rows(directory / LOGS))
    verdict.counted_logs += len(logs) - len(in_time)

    ends = [span for span in spans if span.kind in (CLIENT, SERVER)]
    in_time = _in_time(verdict, ends, directory / LATE / "service-graph", _end_row)
    _compare(verdict, GRAPH, directory, service_graph(in_time))
    verdict.counted_calls = sum(dict(row)["calls"] for row in _rows(directory / GRAPH))
    return verdict


# ------------------------------------------------------------------------ what is stored


def stored_items(kind: OtlpKind, quiver: Path) -> Iterator[StoredItem]:
    """Yield the items of all requests of a kind; the name of one that nobody sent so is `?`."""
    slots = open_tables(quiver)
    if kind.slot not in slots:
        return
    for body in slots[kind.slot].to_table(columns=["payload"])["payload"].to_pylist():
        request: Any = REQUESTS[kind].FromString(body)
        if kind is OtlpKind.TRACES:
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    yield from (_stored_span(resource, span) for span in scope.spans)
        elif kind is OtlpKind.LOGS:
            for resource in request.resource_logs:
                for scope in resource.scope_logs:
                    yield from (_stored_log(resource, record) for record in scope.log_records)
        else:
            for resource in request.resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        for point in metric.gauge.data_points:
                            name = _name(kind, resource, point, point.time_unix_nano)
                            yield StoredItem(name, "", point.time_unix_nano // 1000)


def _stored_span(resource: Any, span: Any) -> StoredItem:
    of_client = span.span_id if span.kind == CLIENT else span.parent_span_id
    return StoredItem(
        name=_name(OtlpKind.TRACES, resource, span, span.end_time_unix_nano),
        service=_service(resource),
        at_us=span.end_time_unix_nano // 1000,
        duration_ns=span.end_time_unix_nano - span.start_time_unix_nano,
        status=span.status.code,
        kind=span.kind,
        call=(span.trace_id + of_client).hex().upper(),
    )


def _stored_log(resource: Any, record: Any) -> StoredItem:
    name = _name(OtlpKind.LOGS, resource, record, record.time_unix_nano)
    severity = record.severity_text
    return StoredItem(name, _service(resource), record.time_unix_nano // 1000, severity)


def _name(kind: OtlpKind, resource: Any, item: Any, at_ns: int) -> str:
    """Return the name of an item, `?` if it is not what was sent under it."""
    name = "".join(one.value.string_value for one in item.attributes if one.key == NAME)
    expected = type(item)()
    try:
        fill(kind, expected, name, at_ns)
    except ValueError:
        return UNKNOWN
    return name if item == expected and _service(resource) == service_of(name) else UNKNOWN


def _service(resource: Any) -> str:
    attributes = resource.resource.attributes
    return "".join(one.value.string_value for one in attributes if one.key == "service.name")


def _check_names(journals: Path, names: Counter[str], verdict: StatisticsVerdict) -> None:
    """Compare the names of all stored items with what clients were answered."""
    verdict.invented += names.pop(UNKNOWN, 0)
    known = set[str]()
    for sent in read_journals(journals).values():
        mine = set(sent.events())
        there = mine & names.keys()
        known |= mine
        if sent.answered:
            verdict.answered += len(mine)
            verdict.lost += len(mine - there)
            for name in sorted(mine - there):
                verdict.note(f"lost {name}")
        elif sent.refused == "no":
            verdict.refused += len(mine)
            verdict.invented += len(there)
        else:
            verdict.unanswered_kept += len(there)
            verdict.unanswered_gone += len(mine - there)
    verdict.invented += len(names.keys() - known)
    for name, count in names.items():
        if count > 1:
            verdict.duplicated += count - 1
            verdict.note(f"{name} is stored {count} times")


# --------------------------------------------------------------------- the plain count

# A row of statistics, its columns by name, so that rows can be counted and compared.
StatisticsRow = frozenset[tuple[str, Any]]


def span_statistics(spans: Iterable[StoredItem]) -> Counter[StatisticsRow]:
    """Return errors and latency for each service and minute."""
    groups: defaultdict[tuple[int, str], list[StoredItem]] = defaultdict(list)
    for span in spans:
        groups[_window(span, MINUTE_S), span.service].append(span)
    found = Counter[StatisticsRow]()
    for (start_s, service), mine in groups.items():
        errors = sum(span.status == FAILED for span in mine)
        latency = {
            name: sum(span.duration_ns <= limit_ms * 1_000_000 for span in mine)
            for name, limit_ms in _LATENCY_MS.items()
        }
        row = {
            "window_start": start_s,
            "service_name": service,
            "spans": len(mine),
            "errors": errors,
            "error_rate": errors / len(mine),
            **latency,
            "max_ns": max(span.duration_ns for span in mine),
        }
        found[frozenset(row.items())] += 1
    return found


def log_statistics(logs: Iterable[StoredItem]) -> Counter[StatisticsRow]:
    """Return how many log records each service wrote, by severity and minute."""
    counts = Counter((_window(one, MINUTE_S), one.service, one.severity) for one in logs)
    names = ("window_start", "service_name", "severity_text")
    return Counter(
        frozenset([*zip(names, key, strict=True), ("records", n)]) for key, n in counts.items()
    )


def service_graph(ends: Iterable[StoredItem]) -> Counter[StatisticsRow]:
    """Return how often a service called another one, of the calls with both ends in a window."""
    calls: defaultdict[tuple[int, str], list[StoredItem]] = defaultdict(list)
    for end in ends:
        calls[_window(end, GRAPH_S), end.call].append(end)
    edges: defaultdict[tuple[int, str, str], list[int]] = defaultdict(list)
    for (start_s, _), mine in calls.items():
        clients = [end.service for end in mine if end.kind == CLIENT]
        servers = [end.service for end in mine if end.kind == SERVER]
        if clients and servers:
            failed = max(end.failed for end in mine)
            edges[start_s, max(clients), max(servers)].append(failed)
    names = ("window_start", "client", "server")
    return Counter(
        frozenset([*zip(names, key, strict=True), ("calls", len(mine)), ("failed", sum(mine))])
        for key, mine in edges.items()
    )


def _window(item: StoredItem, length_s: int) -> int:
    return item.at_us // 1_000_000 // length_s * length_s


# ------------------------------------------------------------------------ what was counted


def _span_row(span: StoredItem) -> tuple[Any, ...]:
    return span.at_us, span.service, span.duration_ns, span.status


def _log_row(record: StoredItem) -> tuple[Any, ...]:
    return record.at_us, record.service, record.severity


def _end_row(end: StoredItem) -> tuple[Any, ...]:
    return end.at_us, end.call, end.kind


def _in_time(
    verdict: StatisticsVerdict,
    items: list[StoredItem],
    folder: Path,
    row_of: Any,
) -> list[StoredItem]:
    """Return the items that were not late; a late row has the columns by which an item is known."""
    late = Counter(tuple(row.values()) for row in _read(folder))
    verdict.late += late.total()
    left = []
    for item in items:
        row = row_of(item)
        if late[row] > 0:
            late[row] -= 1
        else:
            left.append(item)
    for row in late.elements():
        verdict.invented += 1
        verdict.note(f"{folder.name}: {row} is late and was not stored, or is there twice")
    return left


def _compare(
    verdict: StatisticsVerdict, sink: str, directory: Path, expected: Counter[StatisticsRow]
) -> None:
    """Count the rows that a plain count does not make, and those that are not there."""
    found = Counter(_rows(directory / sink))
    verdict.rows += found.total()
    for what, rows in (("has", found - expected), ("lacks", expected - found)):
        verdict.wrong_rows += rows.total()
        for row in rows:
            verdict.note(f"{sink} {what} {dict(sorted(row))}")


def _rows(folder: Path) -> Iterator[StatisticsRow]:
    """Yield the rows of a sink; a window is known by its start."""
    for row in _read(folder):
        row["window_start"] = int(row["window_start"].timestamp())
        del row["window_end"]
        yield frozenset(row.items())


def _read(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.parquet")):
        yield from pq.read_table(path).to_pylist()
