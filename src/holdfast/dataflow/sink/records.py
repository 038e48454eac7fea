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
from pathlib import Path
from typing import Literal, NamedTuple

from holdfast.dataflow.base.durable_file import replace_durably
from holdfast.dataflow.source.checkpoint import Checkpoint
from holdfast.dataflow.source.notes import BatchSpan, is_more
from holdfast.errors import UnknownPosition

KEPT_MAX = 100

BatchVerdict = Literal["new", "again", "more"]


class BatchRecord(NamedTuple):
    """What is known of one batch."""

    span: BatchSpan
    # How often rows were published under this number: more than once if the batch was trimmed.
    parts: int = 1
    # Its rows are there. Else they are about to be, or were when the driver died.
    is_sure: bool = True


class BatchRecords:
    """The batches of one query in one sink."""

    def __init__(self, folder: Path, query_id: str, checkpoint: Checkpoint) -> None:
        self._path = folder / f"{query_id}.json"
        self._checkpoint = checkpoint
        self._records = self._load()

    def _load(self) -> dict[int, BatchRecord]:
        """Return what the file holds; sinks that keep records elsewhere replace this."""
        try:
            found = json.loads(self._path.read_text("utf-8"))
        except FileNotFoundError:
            return {}
        return {int(batch): BatchRecord(**record) for batch, record in found.items()}

    def of(self, batch: int) -> BatchRecord | None:
        """Return what is recorded of a batch."""
        return self._records.get(batch)

    def last(self) -> int | None:
        """Return the newest recorded batch."""
        return max(self._records, default=None)

    def judge(self, batch: int, span: BatchSpan) -> BatchVerdict:
        """Return whether a batch is new, here already, or goes on; raise if it is another.

        A batch older than what is remembered is refused: what it covered is not known any more.
        """
        known, last = self.of(batch), self.last()
        if known is None and (last is None or batch > last):
            return "new"
        if known is not None and _each_once(known.span) == _each_once(span):
            return "again"
        if known is not None and known.is_sure and is_more(self._checkpoint, known.span, span):
            return "more"
        raise self.other_range(batch)

    def other_range(self, batch: int) -> UnknownPosition:
        """Return the error for a batch whose number was used for other rows."""
        return UnknownPosition(
            f"batch {batch} is in the sink already, with another range of the sources",
            hint="the checkpoint lost its last batches: restore it, or begin a new one behind "
            "what the sink has; nothing was written",
        )

    def record(self, batch: int, record: BatchRecord | None) -> None:
        """Write down a batch, durably; without a record, that nothing is known of it.

        Only the newest are kept: Spark does not run a batch again that is older than its own logs.
        """
        if record is None:
            self._records.pop(batch, None)
        else:
            self._records[batch] = record
        for old in sorted(self._records)[:-KEPT_MAX]:
            del self._records[old]
        kept = {batch: one._asdict() for batch, one in self._records.items()}
        replace_durably(self._path, json.dumps(kept, sort_keys=True))


def _each_once(span: BatchSpan) -> list[set[str]]:
    """Return a span without what follows from the plan: how often a source is there, and where."""
    return [{json.dumps(line, sort_keys=True) for line in lines} for lines in span]
