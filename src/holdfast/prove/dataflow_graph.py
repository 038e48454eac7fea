"""The gateway and the pipelines of a proof: names of all events, twice, and counts of windows."""

from __future__ import annotations

from pathlib import Path

import yaml

# The folders of the sinks, relative to the file.
NAMES, COPIES, COUNTS, LATE = "names", "copies", "counts", "late"
PIPELINES = (NAMES, COUNTS)
WINDOW_S = 5
# Small files and short pauses, so that every step happens often.
_QUIVER = {
    "segment": {"target_size": "1MB", "max_open_duration": "100ms"},
    "wal": {"file_size": "256KB"},
}
_SOURCE = {"source": {"quiver": "buffer", "decode": "openlineage", "read_limit": {"rows": 2000}}}
# `job` is the name of the event: the client's number, a count, and its place in the request.
_COLUMNS = {
    "name": "job",
    "client": "split(job, '-')[0]",
    "at_us": "unix_micros(_event_time)",
}
_MAP = {"map": {"select": _COLUMNS}}


def graph_file(port: int, folder: Path) -> str:
    """Return the configuration."""
    names = {
        "vertices": {
            "events": _SOURCE,
            "named": _MAP,
            NAMES: {"sink": {"files": NAMES}},
            COPIES: {"sink": {"files": COPIES, "target_size": "1MB"}},  # one file that grows
        },
        "edges": ["events -> named", f"named -> {NAMES}", f"named -> {COPIES}"],
    }
    counts = {
        "watermark": {"max_delay": "2s", "idle_after": "1s"},
        "shuffle_partitions": 1,
        "vertices": {
            "events": _SOURCE,
            "named": _MAP,
            "windows": {
                "reduce": {
                    "window": {"fixed": f"{WINDOW_S}s"},
                    "key": "client",
                    "aggregate": {"n": "count(*)"},
                    "late": "side_output",
                }
            },
            COUNTS: {"sink": {"files": COUNTS}},
            LATE: {"sink": {"files": LATE}},
        },
        "edges": [
            "events -> named",
            "named -> windows",
            f"windows -> {COUNTS}",
            f"windows.late -> {LATE}",
        ],
    }
    receiver = {
        "kind": "receiver",
        "type": "openlineage",
        "config": {"listen": f"127.0.0.1:{port}"},
        "to": ["buffer"],
    }
    spark = {
        "master": "local[2]",
        "conf": {"spark.driver.memory": "1g", "spark.local.dir": str(folder / "spark")},
        "restart_min": "200ms",
        "restart_max": "2s",
    }
    written = {
        "data_dir": "data",
        "drain": "20s",
        "admin": {"listen": None},
        "nodes": {
            "lineage": receiver,
            "buffer": {"kind": "processor", "type": "quiver", "config": _QUIVER},
        },
        "spark": spark,
        "pipelines": {NAMES: names, COUNTS: counts},
    }
    return yaml.safe_dump(written, sort_keys=False)
