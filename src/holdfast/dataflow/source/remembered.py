"""What a stream remembers beside its checkpoint: its columns, and where it began.

What is processed is deleted. A query that starts again when everything was processed would find no
data to read its columns from, so it finds them here.

Spark logs where batches end, and asks the source again where the first one begins. By then the
subscriber may have moved on: rows acknowledged or lost would be missing from a batch that is run
again, without anybody noticing. So the first answer is kept, and the quiver judges it like any
other range.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pyarrow as pa

from holdfast.dataflow.base.durable_file import replace_durably
from holdfast.dataflow.source.checkpoint import Checkpoint
from holdfast.dataflow.source.offset import Offset
from holdfast.dataflow.source.options import SourceOptions

FOLDER = "holdfast"


def remember(options: SourceOptions, schema: pa.Schema) -> None:
    """Keep the columns of a stream, if it has a checkpoint."""
    path = _path(options)
    if path is None or recall(options) == schema:
        return
    with contextlib.suppress(OSError):  # the checkpoint may be out of reach: then as without it
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_bytes(schema.serialize().to_pybytes())
        os.replace(fresh, path)


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
    if not options.checkpoint or not options.subscriber:
        return None
    name = f"{options.subscriber}.{options.slot}.schema"
    return Checkpoint(options.checkpoint).folder / FOLDER / name


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
    """Let a stream begin anew: its checkpoint has no offset of it any more."""
    _start_path(checkpoint, subscriber).unlink(missing_ok=True)


def _start_path(checkpoint: Checkpoint, subscriber: str) -> Path:
    return checkpoint.folder / FOLDER / f"{subscriber}.start.json"
