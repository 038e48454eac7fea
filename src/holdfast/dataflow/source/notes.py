"""What a stream keeps beside Spark's logs, in the folder `holdfast` of its checkpoint.

**Its columns.** What is processed is deleted. A query that starts again when everything was
processed would find no data to read its columns from, so it finds them here.

**Where it began.** Spark logs where batches end, and asks the source again where the first one
begins. By then the subscriber may have moved on: rows acknowledged or lost would be missing from a
batch that is run again, without anybody noticing. So the first answer is kept, and the quiver
judges it like any other range.

**Where a trimmed batch begins.** Spark does not sync local checkpoints. After a power cut the
offsets of batch N may be gone while its rows are in the sink; planned again, N covers more. A query
with state has to be refused: its state is that of N - 1. One without may go on if exactly those
rows are left out that the sink has. The sink knows which, from its batch record; the source is what
leaves them out. So the source reads the sinks' records (option `records`), begins the batch behind
them, and leaves a note of where each quiver began. The sink takes the batch as *more* of N only if
the note says that it begins where the record ends. If sinks disagree, or there is no note, nothing
is written.

**What holds the watermark.** The process that knows it is a child of the JVM that answers only
Spark, so `holdfast dataflow watermark` cannot ask it. It leaves a note instead, replaced when
something has changed, and not synced: a note that is lost is written again.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.dataflow.base.durable_file import replace_durably
from holdfast.dataflow.source.checkpoint import VERSION, Checkpoint, Offset
from holdfast.dataflow.source.options import SourceOptions
from holdfast.dataflow.watermark.claims import Claim
from holdfast.errors import UnknownPosition

_WATERMARK_SUFFIX = ".watermark.json"

# The sources' offsets, where a batch begins and where it ends, as the offset log has them.
BatchSpan = list[list[dict[str, Any]]]


def _replace(path: Path, content: bytes) -> None:
    """Replace a note as a whole, unsynced: readers see the old one or the new one.

    A power cut may take it back. Columns and explanations are found out again then, and without the
    note of a trimmed batch the sink refuses it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content)
    os.replace(fresh, path)


def remember(options: SourceOptions, schema: pa.Schema) -> None:
    """Keep the columns of a stream, if it has a checkpoint."""
    path = _path(options)
    if path is None or recall(options) == schema:
        return
    with contextlib.suppress(OSError):  # the checkpoint may be out of reach: then as without it
        _replace(path, schema.serialize().to_pybytes())


def recall(options: SourceOptions) -> pa.Schema | None:
    """Return the columns that a stream had, as far as it still asks for them."""
    path = _path(options)
    if path is None:
        return None
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(path.read_bytes()))
    except (OSError, pa.ArrowException):
        return None
    if options.columns is None:
        return schema
    known = [schema.field(name) for name in options.columns if name in schema.names]
    return pa.schema(known) if len(known) == len(options.columns) else None


def _path(options: SourceOptions) -> Path | None:
    """Return where the columns of a stream are kept; slots of one quiver have different ones."""
    if not options.checkpoint or not options.subscriber:
        return None
    name = f"{options.subscriber}.{options.slot}.schema"
    return Checkpoint(options.checkpoint).notes / name


def remember_start(checkpoint: Checkpoint, start: Offset) -> None:
    """Keep where a stream began, durably, before Spark logs its first batch."""
    path = _start_path(checkpoint, start.subscriber)
    replace_durably(path, json.dumps(start.to_fields()))


def recall_start(checkpoint: Checkpoint, subscriber: str) -> Offset | None:
    """Return where a stream began, if its first batch may have to be run again."""
    if checkpoint.last_planned() is None:
        return None  # a fresh start: what is left here is of one that never planned anything
    try:
        return Offset.from_fields(
            json.loads(_start_path(checkpoint, subscriber).read_text("utf-8"))
        )
    except (OSError, ValueError):
        return None


def forget_start(checkpoint: Checkpoint, subscriber: str) -> None:
    """Let a stream start over: its checkpoint has no offset of it any more."""
    _start_path(checkpoint, subscriber).unlink(missing_ok=True)


def _start_path(checkpoint: Checkpoint, subscriber: str) -> Path:
    return checkpoint.notes / f"{subscriber}.start.json"


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
        self._path = checkpoint.notes / f"{subscriber}.trimmed.json"

    def write(self, end: Offset, starts: Mapping[str, int]) -> None:
        """Leave the note, before any task of the batch runs."""
        note = {"end": end.to_fields(), "starts": dict(starts)}
        _replace(self._path, json.dumps(note).encode())

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


class WatermarkExplanation:
    """The note of what holds the watermark of one stream."""

    def __init__(self, checkpoint: Checkpoint, subscriber: str) -> None:
        self._path = checkpoint.notes / f"{subscriber}{_WATERMARK_SUFFIX}"
        self._noted: tuple[object, ...] = ()

    def note(self, claim: Claim, is_released: bool, now_us: int) -> None:
        """Write down a claim, if what there is to say about it has changed."""
        holder = claim.holds[0] if claim.holds else None
        noted = (claim.us, holder and (holder.gateway, holder.bound.reason), is_released)
        if noted == self._noted:
            return
        note = {
            "claim_us": claim.us,
            "explanation": claim.explain(),
            "holds": [
                {
                    "gateway": hold.gateway,
                    "bound_us": hold.bound.us,
                    "reason": hold.bound.reason,
                    "silent_since_us": hold.silent_since_us,
                }
                for hold in claim.holds
            ],
            # Whether a gateway was left out of it since the query began.
            "is_released": is_released,
            "written_us": now_us,
        }
        with contextlib.suppress(OSError):  # no data depends on it
            _replace(self._path, json.dumps(note).encode())
            self._noted = noted


def read_explanations(checkpoint: str) -> dict[str, dict[str, Any]]:
    """Return the newest notes of a query's streams, by subscriber."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(Checkpoint(checkpoint).notes.glob(f"*{_WATERMARK_SUFFIX}")):
        with contextlib.suppress(OSError, ValueError):
            found[path.name.removesuffix(_WATERMARK_SUFFIX)] = json.loads(path.read_text("utf-8"))
    return found
