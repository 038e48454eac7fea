"""Write docs/reference/metrics.md from the tables of metrics.

    python scripts/metrics_page.py

Run it after a change of a metric; a test fails while the page and the code disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from holdfast.operate.gateway_metrics import GATEWAY_METRICS, PIPELINE_METRICS
from holdfast.operate.handoff_metrics import HANDOFF_METRICS
from holdfast.operate.metrics import METRICS, Metric, prometheus_name
from holdfast.operate.node_metrics import NODE_METRICS
from holdfast.operate.telemetry_metrics import TELEMETRY_METRICS

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "metrics.md"

HEAD = """\
# Metrics

Every figure that a gateway, its quivers and its pipelines tell about themselves, made of their
`statistics()` and of nothing else. This page is written by `scripts/metrics_page.py` from the
tables in `src/holdfast/operate/metrics.py` and `gateway_metrics.py`.

A running gateway serves all of them as Prometheus' text at `/metrics` of its admin port
(`admin.listen`, 127.0.0.1:8480), pushes them over UDP if `statsd:` is configured, and sends them by
OTLP, beside its log and its traces, if [`telemetry:`](telemetry.md) is.

- statsd has the same names with dots, counters as what they grew by since the last push, gauges as
  they are; labels are DogStatsD tags, or with `labels: names` parts of the name.
- The figures named `gateway_…` and `handoff_…` have the label `worker`, the number of the process,
  beside those in the tables below. With several workers the admin port tells of all of them.

GATEWAY_TABLES

# Data nodes

What the senders of a gateway, one for each quiver, tell of the data nodes that its file names
([guide](../guide/nodes.md)). `deploy/alerts.yaml` has rules for Prometheus on them.

HANDOFF_TABLES

# Pipelines

What the driver process beside a gateway tells of its pipelines, on the gateway's admin port and to
its statsd server; `holdfast dataflow run --metrics HOST:PORT` serves the same names. Counters begin
at 0 with each run of a pipeline.

PIPELINE_TABLES

# Data nodes

`holdfast node --http HOST:PORT` serves these at `/metrics` of that address. Counters begin at 0
when the node is started.

NODE_TABLE

# Quivers

A quiver that you embed tells the same of itself as one in a gateway:

```sh
holdfast quiver metrics DIR      # of a directory that nobody has open
```

```python
from holdfast.operate.metrics import render

text = render({"main": quiver.statistics()})  # or, with cores: {"main": cores.statistics()}
```

- In records names have dots (`quiver.wal.bytes`), in Prometheus' text underscores
  (`quiver_wal_bytes`).
- Every figure has the labels `quiver`, the name its owner gives it, and `core_id`, its number where
  several quivers share a root (otherwise 0).
- A *counter* only grows, and begins at 0 when the quiver is opened; those that say "over all
  openings" go on where they were. A *gauge* is a figure of this moment.
- A subscriber that is unregistered takes its figures along. The ledger keeps its account.

Seven names come from the proposal that Quiver follows: `quiver.gc.evictions_total`,
`quiver.retention.size_emergency_total`, `quiver.ingest.throttle_total`,
`quiver.subscriber.dropped_segments_total`, `quiver.segment.dropped_total`, `quiver.core.bytes` and
`quiver.core.cap_fraction`.

The equation, per subscriber, in bundles and in events, at any time:

```text
accepted_total = sum by (outcome) of outcome_total + lag
```
"""


def page() -> str:
    """Return the whole page."""
    head = HEAD.replace("GATEWAY_TABLES\n", _sections((*GATEWAY_METRICS, *TELEMETRY_METRICS)))
    head = head.replace("HANDOFF_TABLES\n", _sections(HANDOFF_METRICS))
    head = head.replace("PIPELINE_TABLES\n", _sections(PIPELINE_METRICS))
    head = head.replace("\nNODE_TABLE\n", _section("data node", NODE_METRICS))
    return head + _sections(METRICS)


def _sections(table: Sequence[Metric[Any]]) -> str:
    areas = groupby(table, key=lambda metric: metric.name.split(".")[1])
    return "".join(_section(area, list(metrics)) for area, metrics in areas)


def _section(area: str, metrics: Sequence[Metric[Any]]) -> str:
    rows = "".join(_row(metric) for metric in metrics)
    head = "| metric | type | unit | what it is | what to look for |\n|---|---|---|---|---|\n"
    return f"\n## {area}\n\n{head}{rows}"


def _row(metric: Metric[Any]) -> str:
    labels = f"{{{', '.join(metric.labels)}}}" if metric.labels else ""
    name = f"`{prometheus_name(metric.name)}{labels}`"
    return f"| {name} | {metric.type} | {metric.unit} | {metric.help} | {metric.watch} |\n"


def main() -> None:
    """Write the page."""
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
