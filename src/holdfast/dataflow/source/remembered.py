"""The columns of a stream, remembered beside its checkpoint.

What is processed is deleted. A query that starts again when everything was processed would find no
data to read its columns from, so it finds them here.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pyarrow as pa

from holdfast.dataflow.source.checkpoint import Checkpoint
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
