"""Prove statistics of telemetry: clients send spans, log records and data points, Spark counts.

It is the proof of pipelines (dataflow.py) with other ends. The pipelines are those of
`examples/telemetry_stats.yaml`, word for word, and what is late goes beside, so that every item
can be accounted for. The quiver keeps what was read: in the end all of it is counted once more.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from holdfast.prove.dataflow import DataflowEnds, DataflowProver, gateway_file
from holdfast.prove.runner import ProofOptions, ProofRunner
from holdfast.prove.telemetry_stats_checker import LATE, StatisticsVerdict, check_statistics

_WATERMARK = {"max_delay": "10s", "idle_after": "5s"}
PIPELINES: Mapping[str, Mapping[str, Any]] = {
    "span-stats": {
        "watermark": _WATERMARK,
        "vertices": {
            "spans": {
                "source": {
                    "quiver": "buffer",
                    "table": "spans",
                    "columns": ["service_name", "duration_ns", "status_code"],
                }
            },
            "per_service": {
                "reduce": {
                    "window": {"fixed": "1m"},
                    "key": ["service_name"],
                    "aggregate": {
                        "spans": "count(*)",
                        "errors": "sum(cast(status_code = 2 AS int))",
                        "error_rate": "avg(cast(status_code = 2 AS double))",
                        "le_10ms": "sum(cast(duration_ns <= 10000000 AS int))",
                        "le_100ms": "sum(cast(duration_ns <= 100000000 AS int))",
                        "le_1s": "sum(cast(duration_ns <= 1000000000 AS int))",
                        "le_10s": "sum(cast(duration_ns <= 10000000000 AS int))",
                        "max_ns": "max(duration_ns)",
                    },
                    "allowed_lateness": "30s",
                }
            },
            "stats": {"sink": {"files": "./telemetry_stats/spans"}},
        },
        "edges": ["spans -> per_service", "per_service -> stats"],
    },
    "log-stats": {
        "watermark": _WATERMARK,
        "vertices": {
            "logs": {
                "source": {
                    "quiver": "buffer",
                    "table": "logs",
                    "columns": ["service_name", "severity_text"],
                }
            },
            "per_severity": {
                "reduce": {
                    "window": {"fixed": "1m"},
                    "key": ["service_name", "severity_text"],
                    "aggregate": {"records": "count(*)"},
                    "allowed_lateness": "30s",
                }
            },
            "volume": {"sink": {"files": "./telemetry_stats/logs"}},
        },
        "edges": ["logs -> per_severity", "per_severity -> volume"],
    },
    "service-graph": {
        "watermark": _WATERMARK,
        "vertices": {
            "spans": {
                "source": {
                    "quiver": "buffer",
                    "table": "spans",
                    "columns": [
                        *("service_name", "trace_id", "span_id", "parent_span_id"),
                        *("kind", "status_code"),
                    ],
                }
            },
            "ends": {"filter": "kind IN (2, 3)"},
            "calls": {
                "map": {
                    "select": {
                        "call": (
                            "concat(hex(trace_id), "
                            "hex(CASE WHEN kind = 3 THEN span_id ELSE parent_span_id END))"
                        ),
                        "client": "CASE WHEN kind = 3 THEN service_name END",
                        "server": "CASE WHEN kind = 2 THEN service_name END",
                        "failed": "cast(kind = 2 AND status_code = 2 AS int)",
                    }
                }
            },
            "joined": {
                "reduce": {
                    "window": {"fixed": "2m"},
                    "key": ["call"],
                    "aggregate": {
                        "client": "max(client)",
                        "server": "max(server)",
                        "failed": "max(failed)",
                    },
                }
            },
            "known": {"filter": "client IS NOT NULL AND server IS NOT NULL"},
            "per_edge": {
                "reduce": {
                    "window": {"fixed": "2m"},
                    "key": ["client", "server"],
                    "aggregate": {"calls": "count(*)", "failed": "sum(failed)"},
                }
            },
            "graph": {"sink": {"files": "./telemetry_stats/graph"}},
        },
        "edges": [
            "spans -> ends",
            "ends -> calls",
            "calls -> joined",
            "joined -> known",
            "known -> per_edge",
            "per_edge -> graph",
        ],
    },
}
# The reduce of each whose rows may be late, and by what the checker knows such a row.
_AT = "unix_micros(_event_time)"
_LATE_ROWS = {
    "span-stats": (
        "per_service",
        {
            "at_us": _AT,
            "service_name": "service_name",
            "duration_ns": "duration_ns",
            "status_code": "status_code",
        },
    ),
    "log-stats": (
        "per_severity",
        {"at_us": _AT, "service_name": "service_name", "severity_text": "severity_text"},
    ),
    "service-graph": (
        "joined",
        {"at_us": _AT, "call": "call", "kind": "CASE WHEN client IS NULL THEN 2 ELSE 3 END"},
    ),
}
# Fewer segments than in other proofs: all are kept, and each batch makes tables of its own.
_SEGMENT = {"target_size": "1MB", "max_open_duration": "1s"}
# More than a proof of a day makes.
_RETENTION = {"size_cap": "64GB", "keep_delivered": "8GB", "max_segments": 1_000_000}


def graph_file(ports: Sequence[int], folder: Path) -> str:
    """Return the configuration."""
    grpc_address, http_address = (f"127.0.0.1:{port}" for port in ports)
    receiver = {
        "type": "otlp",
        "config": {"listening_addr": grpc_address, "http_listening_addr": http_address},
    }
    pipelines = copy.deepcopy(dict(PIPELINES))
    for name, (reduce, columns) in _LATE_ROWS.items():
        vertices, edges = pipelines[name]["vertices"], pipelines[name]["edges"]
        vertices[reduce]["reduce"]["late"] = "side_output"
        vertices["late_rows"] = {"map": {"select": columns}}
        vertices["late"] = {"sink": {"files": f"{LATE}/{name}"}}
        edges += [f"{reduce}.late -> late_rows", "late_rows -> late"]
    quiver = {"segment": _SEGMENT, "retention": _RETENTION}
    return gateway_file(receiver, quiver, pipelines, folder)


def _check(journals: Path, directory: Path) -> StatisticsVerdict:
    return check_statistics(journals, directory, directory / "data" / "buffer" / "core-00")


STATISTICS_ENDS = DataflowEnds(
    module="telemetry",
    ports=2,
    graph=graph_file,
    pipelines=tuple(PIPELINES),
    check=_check,
)


def prove_telemetry(options: ProofOptions) -> dict[str, Any]:
    """Kill gateway and driver again and again under load, and check what was counted."""
    runner, prover = ProofRunner(options), DataflowProver(options, STATISTICS_ENDS)
    verdict = runner.run(prover, options.kills, options.seconds)
    return runner.report("telemetry", verdict.ok, asdict(verdict))
