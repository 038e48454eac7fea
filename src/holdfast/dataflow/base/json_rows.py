"""Rows as JSON objects in bytes, for quivers and files that hold events and not columns."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pyarrow as pa


def as_json(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with one column `payload`: each row as a JSON object.

    Times are ISO 8601 in UTC, decimals are texts, bytes are text if they are UTF-8, else base64.
    """
    payloads = [
        orjson.dumps(row, default=_plain, option=orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS)
        for row in rows.to_pylist(maps_as_pydicts="lossy")
    ]
    return pa.record_batch({"payload": pa.array(payloads, pa.binary())})


def _plain(value: Any) -> str:
    """Return as a text what JSON has no type for."""
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return base64.b64encode(value).decode("ascii")
    return str(value)
