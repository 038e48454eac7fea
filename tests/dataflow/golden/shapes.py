"""The golden pipelines: what they were given before, and what they must have put out in the end.

Each was stopped in the middle: 45 rows are read, windows are open, rows wait to be tried again.
Then come 45 more. Whatever version goes on from there, its results are those of one run over all.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.dataflow.compiler.places import SINK_CONFIG
from holdfast.dataflow.sink.options import SLOT
from holdfast.quiver import Quiver

START = datetime(2026, 5, 1, 10, tzinfo=UTC)
HERE = "tests.dataflow.golden.functions"
CONFIG = "holdfast.dataflow.compiler.places:SINK_CONFIG"
BEFORE, ALL = range(45), range(90)
COLUMNS = "event_time timestamp, key string, number bigint"

Row = dict[str, Any]
Result = tuple[Any, ...]


def rows(numbers: range) -> list[Row]:
    """Return rows, one a second, of three keys."""
    return [
        {"event_time": START + timedelta(seconds=n), "key": "abc"[n % 3], "number": n}
        for n in numbers
    ]


def _reduce(window: dict[str, Any], key: str | None = "key", **more: Any) -> dict[str, Any]:
    made = more or {"aggregate": {"n": "count(*)", "total": "sum(number)"}}
    return {"reduce": {"window": window, **({"key": key} if key else {}), **made}}


def _files(name: str) -> dict[str, Any]:
    return {"sink": {"files": f"out/{name}"}}


EVENTS = {"source": {"quiver": "q", "quiver_config": CONFIG, "slot": SLOT}}
TENS, MINUTES = _reduce({"fixed": "10s"}), _reduce({"fixed": "60s"})
DOUBLED = {"python": f"{HERE}:doubled", "returns": "key string, number bigint"}
LANE = {"interval": "1h", "cap": "1h", "attempts": 3}

# By name: vertices and edges.
SHAPES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "one": ({"ev": EVENTS, "tens": TENS, "out": _files("tens")}, ["ev -> tens", "tens -> out"]),
    "two": (
        {"ev": EVENTS, "tens": TENS, "minutes": MINUTES, "t": _files("tens"), "m": _files("mins")},
        ["ev -> tens", "ev -> minutes", "tens -> t", "minutes -> m"],
    ),
    "chain": (
        {
            "ev": EVENTS,
            "tens": TENS,
            "minutes": _reduce({"fixed": "60s"}, None, aggregate={"total": "sum(total)"}),
            "out": _files("out"),
        },
        ["ev -> tens", "tens -> minutes", "minutes -> out"],
    ),
    "windows": (
        {
            "ev": EVENTS,
            "few": {"filter": "key = 'a'"},
            "slide": {
                "reduce": {
                    "window": {"sliding": {"size": "30s", "every": "10s"}},
                    "aggregate": {"n": "count(*)"},
                    "late": "side_output",
                }
            },
            "session": _reduce({"session": "60s"}, aggregate={"n": "count(*)"}),
            "slides": _files("slides"),
            "late": _files("late"),
            "sessions": _files("sessions"),
        },
        ["ev -> slide", "ev -> few", "few -> session", "slide -> slides", "slide.late -> late",
         "session -> sessions"],
    ),
    "cut": (
        {"ev": EVENTS, "half": {"map": {**DOUBLED, "python": f"{HERE}:halved"}}, "tens": TENS,
         "out": _files("tens")},
        ["ev -> half", "half -> tens", "tens -> out"],
    ),
    "lane": (
        {"ev": EVENTS, "double": {"map": {**DOUBLED, "retry_lane": LANE}}, "out": _files("out"),
         "minutes": MINUTES, "m": _files("mins")},
        ["ev -> double", "double -> out", "double -> minutes", "minutes -> m"],
    ),
    "python": (
        {
            "ev": EVENTS,
            "tens": _reduce({"fixed": "10s"}, python=f"{HERE}:counted", returns="n bigint"),
            "session": _reduce({"session": "60s"}, python=f"{HERE}:counted", returns="n bigint"),
            "t": _files("tens"),
            "s": _files("sessions"),
        },
        ["ev -> tens", "ev -> session", "tens -> t", "session -> s"],
    ),
    "files": (
        {
            "ev": {"source": {"files": "incoming", "columns_are": COLUMNS}},
            "tens": TENS,
            "out": _files("tens"),
        },
        ["ev -> tens", "tens -> out"],
    ),
}  # fmt: skip


def pipeline(name: str) -> dict[str, Any]:
    """Return a pipeline as it was written: nothing closes a window but the end."""
    vertices, edges = SHAPES[name]
    watermark = {"max_delay": "1h", "idle_after": "1h", "max_hold": "1h"}
    return {
        "watermark": watermark,
        "shuffle_partitions": 1,
        "vertices": dict(vertices),
        "edges": list(edges),
    }


def feed(folder: Path, name: str, numbers: range) -> None:
    """Give a pipeline rows."""
    if name == "files":
        (folder / "incoming").mkdir(exist_ok=True)
        lines = [json.dumps({**row, "event_time": str(row["event_time"])}) for row in rows(numbers)]
        text = "".join(f"{line}\n" for line in lines)
        (folder / "incoming" / f"{numbers.start:03d}.ndjson").write_text(text)
        return
    with Quiver.open(folder / "q", SINK_CONFIG) as quiver:
        quiver.append({SLOT: pa.RecordBatch.from_pylist(rows(numbers))})


# ----------------------------------------------------------------------- one run


def _windows(length_s: int, *, times: int = 1) -> list[Result]:
    found: dict[tuple[int, str], list[int]] = {}
    for n in ALL:
        found.setdefault((n // length_s * length_s, "abc"[n % 3]), []).append(n * times)
    return sorted((start, key, len(ns), sum(ns)) for (start, key), ns in found.items())


def _halved() -> list[Result]:
    found: dict[tuple[int, str], list[int]] = {}
    for n in ALL:
        found.setdefault((n // 10 * 10, "abc"[n % 3]), []).append(n // 2)
    return sorted((start, key, len(ns), sum(ns)) for (start, key), ns in found.items())


def _slides() -> list[Result]:
    starts = [start for n in ALL for start in range(n // 10 * 10 - 20, n // 10 * 10 + 1, 10)]
    return sorted(Counter(starts).items())


def _tens_counted() -> list[Result]:
    return [(start, key, n) for start, key, n, _ in _windows(10)]


# The columns of a sink's folder, and the rows it must have.
EXPECTED: dict[str, dict[str, tuple[tuple[str, ...], Callable[[], list[Result]]]]] = {
    "one": {"tens": (("key", "n", "total"), lambda: _windows(10))},
    "two": {
        "tens": (("key", "n", "total"), lambda: _windows(10)),
        "mins": (("key", "n", "total"), lambda: _windows(60)),
    },
    "chain": {"out": (("total",), lambda: [(0, sum(range(60))), (60, sum(range(60, 90)))])},
    "windows": {
        "slides": (("n",), _slides),
        "late": ((), list),
        "sessions": (("key", "n"), lambda: [(0, "a", 30)]),
    },
    "cut": {"tens": (("key", "n", "total"), _halved)},
    "lane": {
        "out": (("key", "number"), lambda: sorted(("abc"[n % 3], 2 * n) for n in ALL)),
        "mins": (("key", "n", "total"), lambda: _windows(60, times=2)),
    },
    "python": {
        "tens": (("key", "n"), _tens_counted),
        "sessions": (("key", "n"), lambda: [(n, "abc"[n], 30) for n in range(3)]),
    },
    "files": {"tens": (("key", "n", "total"), lambda: _windows(10))},
}
