"""Write deploy/grafana/holdfast.json, the dashboard, from the table of panels below.

    python scripts/dashboard.py

Grafana's own JSON is a thousand lines of defaults; what is decided is here. A test holds the file
to this script, and every figure in it to the table of metrics.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).parents[1] / "deploy" / "grafana" / "holdfast.json"
WIDTH, HEIGHT, PER_ROW = 8, 8, 3


class Panel(NamedTuple):
    """A graph, or a single figure: its queries by legend, and what to do when it looks bad."""

    title: str
    queries: dict[str, str]
    unit: str
    text: str
    kind: str = "timeseries"


ROWS: dict[str, tuple[Panel, ...]] = {
    "Is anything lost?": (
        Panel(
            "lost, last 24 h",
            {"events": "sum(increase(gateway_destination_dropped_events_total[24h])) or vector(0)"},
            "short",
            "Must be 0 unless you set limits. `holdfast report` names them.",
            "stat",
        ),
        Panel(
            "waiting",
            {"events": "sum(gateway_destination_lag_events)"},
            "short",
            "Accepted, and not yet at some destination.",
            "stat",
        ),
        Panel(
            "buffer used",
            {"{{quiver}}": "max by (quiver) (quiver_core_cap_fraction)"},
            "percentunit",
            "At 1 senders are refused (503), and nothing is lost.",
            "gauge",
        ),
    ),
    "In": (
        Panel(
            "accepted",
            {
                "{{receiver}}": "sum by (receiver) "
                "(rate(gateway_receiver_accepted_events_total[$__rate_interval]))"
            },
            "eps",
            "Answered with success: on disk.",
        ),
        Panel(
            "rejected",
            {
                "{{receiver}} {{reason}}": "sum by (receiver, reason) "
                "(rate(gateway_receiver_rejected_events_total[$__rate_interval]))"
            },
            "eps",
            "Not valid, too large, too many; kept as dead letters where they were events.",
        ),
        Panel(
            "sync to disk",
            {
                "mean": "sum(rate(quiver_wal_sync_seconds_total[$__rate_interval])) "
                "/ sum(rate(quiver_wal_syncs_total[$__rate_interval]))",
                "longest": "max(quiver_wal_sync_seconds_max)",
            },
            "s",
            "Every answer waits for one. Much above 20 ms: the disk is slow or shared.",
        ),
    ),
    "Out": (
        Panel(
            "sent",
            {
                "{{destination}}": "sum by (destination) "
                "(rate(gateway_destination_sent_events_total[$__rate_interval]))"
            },
            "eps",
            "",
        ),
        Panel(
            "oldest event waits",
            {"{{destination}}": "max by (destination) (gateway_destination_oldest_age_seconds)"},
            "s",
            "Grows: the destination is away, or slower than what comes in.",
        ),
        Panel(
            "failed",
            {
                "{{destination}} {{class}}": "sum by (destination, class) "
                "(rate(gateway_destination_failed_events_total[$__rate_interval]))"
            },
            "eps",
            "Sent again. `holdfast destination ls` has the last error.",
        ),
    ),
    "Data nodes": (
        Panel(
            "waits for a data node",
            {"{{node}}": "sum by (node) (handoff_node_pending_bytes)"},
            "bytes",
            "What it missed, kept for it.",
        ),
        Panel(
            "sent to data nodes",
            {"{{node}}": "sum by (node) (rate(handoff_node_sent_bytes_total[$__rate_interval]))"},
            "Bps",
            "",
        ),
        Panel(
            "gaps",
            {"{{node}}": "sum by (node) (handoff_node_gaps)"},
            "short",
            "Ranges that a node lacks for good; `holdfast handoff repair`.",
        ),
    ),
    "Pipelines and process": (
        Panel(
            "behind event time",
            {"{{pipeline}} {{query}}": "max by (pipeline, query) (pipeline_query_lag_seconds)"},
            "s",
            "`holdfast dataflow watermark` says what holds it.",
        ),
        Panel(
            "dead letters",
            {"{{store}}": "sum by (store) (gateway_dead_letters_events)"},
            "short",
            "`holdfast dlq ls`.",
        ),
        Panel(
            "memory",
            {"worker {{worker}}": "sum by (worker) (gateway_process_resident_bytes)"},
            "bytes",
            "",
        ),
    ),
}


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        place = {"h": 1, "w": WIDTH * PER_ROW, "x": 0, "y": top}
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "gridPos": place})
        for column, panel in enumerate(row):
            place = {"h": HEIGHT, "w": WIDTH, "x": column * WIDTH, "y": top + 1}
            panels.append(_panel(len(panels) + 1, panel, place))
        top += HEIGHT + 1
    source = {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    return {
        "uid": "holdfast",
        "title": "Holdfast",
        "tags": ["holdfast"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [source]},
        "panels": panels,
    }


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    targets = [
        {"refId": chr(65 + index), "expr": query, "legendFormat": legend, "datasource": source}
        for index, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "gridPos": place,
        "datasource": source,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def text() -> str:
    """Return the file."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(text())
