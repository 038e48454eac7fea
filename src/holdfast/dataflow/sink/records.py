"""Batch records: which batch of a query is in a sink, and which range of the sources it covered.

Spark gives a batch that it runs again the same number, and nearly always the same range. Not
always: it does not sync its local checkpoints, so a power cut may take the last offsets back, and
the batch of that number then covers more. Taken for a repetition, its new rows would be lost; taken
for a new batch, the old ones would count twice. So a record keeps the range beside the number.

One small file per query, replaced as a whole, synced before it counts. It holds the last `KEPT_MAX`
batches: Spark itself keeps the offsets of a hundred.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from holdfast.errors import UnknownPosition

KEPT_MAX = 100

# The sources' offsets, where the batch begins and where it ends, as the offset log has them.
Span = list[list[dict[str, Any]]]


class BatchRecords:
    """The batches of one query in one sink."""

    def __init__(self, folder: Path, query_id: str) -> None:
        self._path = folder / f"{query_id}.json"
        self._spans: dict[int, Span] = self._load()

    def _load(self) -> dict[int, Span]:
        try:
            found = json.loads(self._path.read_text("utf-8"))
        except FileNotFoundError:
            return {}
        return {int(batch): span for batch, span in found.items()}

    def span(self, batch: int) -> Span | None:
        """Return what a batch covered, if it is recorded."""
        return self._spans.get(batch)

    def last(self) -> int | None:
        """Return the newest recorded batch."""
        return max(self._spans, default=None)

    def check(self, batch: int, span: Span) -> bool:
        """Return whether a batch is recorded with this very range; raise if with another.

        A batch older than what is remembered is refused: nobody can tell what it covered.
        """
        known = self.span(batch)
        if known == span:
            return True
        last = self.last()
        if known is not None or (last is not None and batch < last):
            raise self.other_range(batch)
        return False

    def other_range(self, batch: int) -> UnknownPosition:
        """Return the error for a batch whose number was used for other rows."""
        return UnknownPosition(
            f"batch {batch} is in the sink already, with another range of the sources",
            hint="the checkpoint lost its last batches: restore it, or begin a new one behind "
            "what the sink has; nothing was written",
        )

    def record(self, batch: int, span: Span | None) -> None:
        """Write down a batch, durably; without a range, that nothing is known of it."""
        if span is None:
            self._spans.pop(batch, None)
        else:
            self._spans[batch] = span
        for old in sorted(self._spans)[:-KEPT_MAX]:
            del self._spans[old]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=self._path.parent, prefix=".record-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(self._spans, file, sort_keys=True)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._path)
        except BaseException:
            os.unlink(temporary)
            raise
        sync_folder(self._path.parent)


def sync_folder(folder: Path) -> None:
    """Make names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
