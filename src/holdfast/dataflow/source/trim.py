"""Trimming: going on with a checkpoint that lost its last batches, without a row twice or never.

Spark does not sync local checkpoints. After a power cut the offsets of batch N may be gone while
its rows are in the sink; planned again, N covers more. A query with state has to be refused: its
state is that of N - 1. One without may go on if exactly those rows are left out that the sink has.

The sink knows what that is, from its batch record; the source is who leaves rows out. So the source
reads the sinks' records (option `records`), begins the batch behind them, and leaves a note of
where each quiver began. The sink takes the batch as *more* of N only if the note says that it
begins where the record ends. If sinks disagree, or there is no note, nothing is written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.dataflow.source.checkpoint import Checkpoint
from holdfast.dataflow.source.offset import VERSION, Offset
from holdfast.errors import UnknownPosition

FOLDER = "holdfast"
_SUFFIX = ".trimmed.json"

# The sources' offsets, where a batch begins and where it ends, as the offset log has them.
BatchSpan = list[list[dict[str, Any]]]


def ends_of(span: BatchSpan) -> dict[str, Offset]:
    """Return where our own sources end in a span, by subscriber."""
    offsets = [Offset.from_fields(line) for line in span[1] if line.get("holdfast") == VERSION]
    return {offset.subscriber: offset for offset in offsets}


def recorded_ends(folders: Sequence[str], query_id: str, subscriber: str) -> Mapping[str, int]:
    """Return how far the sinks of a query have a stream, by quiver; raise if they disagree."""
    found: list[dict[str, int]] = []
    for folder in folders:
        for path in sorted(Path(folder).glob(f"*{query_id}.json")):
            records = json.loads(path.read_text("utf-8"))
            sure = [record for record in records.values() if record["is_sure"]]
            # A checkpoint of another pipeline has none of ours: the planner will say so.
            known = [ends_of(record["span"]).get(subscriber) for record in sure]
            ends = [dict(end.seqs) for end in known if end is not None]
            found.append(
                {quiver: max(e.get(quiver, 0) for e in ends) for e in ends for quiver in e}
            )
    if any(ends != found[0] for ends in found):
        raise UnknownPosition(
            "the checkpoint lost its last batches, and the sinks of the query have not the same",
            hint="begin a new checkpoint with a new subscriber, or restore the old one",
        )
    return found[0] if found else {}


class TrimNote:
    """Where the quivers of a stream begin in a batch that was trimmed."""

    def __init__(self, checkpoint: Checkpoint, subscriber: str) -> None:
        self._path = checkpoint.folder / FOLDER / f"{subscriber}{_SUFFIX}"

    def write(self, end: Offset, starts: Mapping[str, int]) -> None:
        """Leave the note, before any task of the batch runs."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps({"end": end.to_fields(), "starts": dict(starts)}), "utf-8")
        os.replace(fresh, self._path)

    def starts(self, end: Offset) -> dict[str, int] | None:
        """Return where the quivers begin in the batch that ends there; None without a note."""
        try:
            note = json.loads(self._path.read_text("utf-8"))
        except (OSError, ValueError):
            return None
        starts: dict[str, int] = note["starts"]
        return starts if Offset.from_fields(note["end"]) == end else None


def is_more(checkpoint: Checkpoint, known: BatchSpan, span: BatchSpan) -> bool:
    """Whether a batch that was trimmed begins exactly where what is known of it ends."""
    had, has = ends_of(known), ends_of(span)
    ours = all(line.get("holdfast") == VERSION for one in (known, span) for line in one[1])
    if not ours or known[0] != span[0] or set(had) != set(has):
        return False
    for subscriber, end in has.items():
        starts = TrimNote(checkpoint, subscriber).starts(end)
        if starts is None or any(starts.get(q) != seq for q, seq in had[subscriber].seqs.items()):
            return False
    return True
