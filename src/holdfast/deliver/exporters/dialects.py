"""How events stand in a request, and how its answer is read.

Events go out as the bytes they came in. A batch is made by putting those bytes between brackets and
commas; nothing is parsed and written again, because key order, numbers and unknown facets would
not survive it. Only NDJSON asks for one change: a line break between two tokens becomes a space.

| dialect        | body                    | answer                               |
|----------------|-------------------------|--------------------------------------|
| `single`       | one event               | the status                           |
| `batch_array`  | `[event,event]`         | status, and which events failed      |
| `batch_object` | `{"events":[event]}`    | the same                             |
| `batch_ndjson` | one event in each line  | the same                             |

The answer to a batch is the one of OpenLineage's `POST /lineage/batch`: 204, an empty body, or a
JSON object with `status`, `summary` and `failed_events` (OpenMetadata writes `failedEvents`). If it
contradicts itself, nobody knows which events were taken, and it is as good as no answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from holdfast.deliver.exporter import ALL_DELIVERED, Answer, Failure, FailureClass

DialectName = Literal["single", "batch_array", "batch_object", "batch_ndjson"]
PresetName = Literal["openlineage", "marquez", "datahub", "openmetadata"]

STATUSES = ("success", "partial_success", "failure")


@dataclass(frozen=True)
class Dialect:
    """The shape of a request's body."""

    many: bool
    content_type: str
    begin: bytes = b""
    between: bytes = b""
    end: bytes = b""

    def body(self, payloads: Sequence[bytes]) -> bytes:
        """Return the body that holds these events."""
        if self.between == b"\n":
            payloads = [one_line(payload) for payload in payloads]
        return self.begin + self.between.join(payloads) + self.end


_JSON = "application/json"
DIALECTS: dict[DialectName, Dialect] = {
    "single": Dialect(many=False, content_type=_JSON),
    "batch_array": Dialect(True, _JSON, b"[", b",", b"]"),
    "batch_object": Dialect(True, _JSON, b'{"events":[', b",", b"]}"),
    "batch_ndjson": Dialect(True, "application/x-ndjson", b"", b"\n", b"\n"),
}


@dataclass(frozen=True)
class Preset:
    """Where a product takes events, and in which shape. From its documentation, not from trials."""

    dialect: DialectName
    single_path: str
    batch_path: str

    def path(self, dialect: DialectName) -> str:
        """Return the path for a dialect."""
        return self.single_path if dialect == "single" else self.batch_path


_STANDARD = Preset("single", "/api/v1/lineage", "/api/v1/lineage/batch")
_DATAHUB = "/openapi/openlineage/api/v1/lineage"
_OPENMETADATA = "/api/v1/openlineage/lineage"
PRESETS: dict[PresetName, Preset] = {
    "openlineage": _STANDARD,
    "marquez": _STANDARD,
    "datahub": Preset("single", _DATAHUB, f"{_DATAHUB}/batch"),
    "openmetadata": Preset("batch_object", _OPENMETADATA, f"{_OPENMETADATA}/batch"),
}


def one_line(payload: bytes) -> bytes:
    """Return JSON without line breaks: inside of strings they cannot stand, elsewhere they mean
    nothing."""
    if b"\n" in payload or b"\r" in payload:
        return payload.replace(b"\n", b" ").replace(b"\r", b" ")
    return payload


def read_batch_answer(body: bytes, count: int) -> Answer | None:
    """Return what a 2xx answer says of each of `count` events; None if it cannot be believed.

    Believed only as a whole. An index twice, out of range, or a sum that does not match means that
    the backend numbers events in another way than we do, and then acknowledging any of them might
    lose it.
    """
    if not body.strip():
        return ALL_DELIVERED
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(answer, dict) or answer.get("status") not in STATUSES:
        return None
    failed_events = answer.get("failed_events", answer.get("failedEvents")) or []
    summary = answer.get("summary") or {}
    if not isinstance(failed_events, list) or not isinstance(summary, dict):
        return None
    failed: dict[int, Failure] = {}
    for entry in failed_events:
        index = _index(entry, count)
        if index is None or index in failed:
            return None
        # Nothing but a plain `true` is a promise that a repetition helps.
        failed[index] = _REFUSED if entry.get("retriable") is not True else _NOT_NOW
    return Answer(failed) if _agrees(answer["status"], summary, len(failed), count) else None


_NOT_NOW = Failure(FailureClass.TRANSIENT, "the backend asks to send it again", "batch_retriable")
_REFUSED = Failure(FailureClass.PERMANENT, "the backend refused it in a batch", "batch_refused")

UNREADABLE_ANSWER = Failure(
    FailureClass.TRANSIENT,
    "the answer to a batch does not say which events were taken; if the backend never says it, set"
    " `batch_answer: status`",
    "batch_answer",
    maybe_delivered=True,
)


def _index(entry: Any, count: int) -> int | None:
    index = entry.get("index") if isinstance(entry, dict) else None
    if isinstance(index, int) and not isinstance(index, bool) and 0 <= index < count:
        return index
    return None


def _agrees(status: str, summary: dict[str, Any], failed: int, count: int) -> bool:
    """Whether the parts of an answer tell the same story."""
    if summary.get("received", count) != count or summary.get("failed", failed) != failed:
        return False
    if status == "success":
        return failed == 0
    return failed == count if status == "failure" else True
