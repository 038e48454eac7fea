"""Reading Spark's own logs: which offsets a checkpoint holds, and which batches are committed.

A checkpoint folder has `offsets/N` (written before batch N runs: a version line, a line of
metadata, one line per source) and `commits/N` (written when it is done). Nothing here writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.dataflow.watermark.claims import NOTHING_CLAIMED_US
from holdfast.errors import UnknownPosition

# Of the offsets that this program writes.
VERSION = 1
_SCHEME = "file:"


@dataclass(frozen=True)
class Offset:
    """How far every quiver of a source is read, and the claim that goes with it.

    Spark keeps it as JSON in its offset log and compares texts, so the keys are always in one
    order. It holds everything that a batch needs to be run again as it was.
    """

    subscriber: str
    # By quiver_id: the first seq that is not read.
    seqs: Mapping[str, int] = field(default_factory=dict)
    claim_us: int = NOTHING_CLAIMED_US
    # The newest event time read so far; 0 if none.
    newest_us: int = 0
    # Counts batches that carry no rows, only a new claim.
    heartbeat: int = 0
    # Rows of all batches so far, each once. Spark counts them for every branch that reads them, and
    # control rows, too. From where a version began that counts.
    rows: int = 0

    def to_fields(self) -> dict[str, Any]:
        """Return what JSON can hold, in the one order."""
        return {
            "claim_us": self.claim_us,
            "heartbeat": self.heartbeat,
            "holdfast": VERSION,
            "newest_us": self.newest_us,
            "rows": self.rows,
            "seqs": dict(sorted(self.seqs.items())),
            "subscriber": self.subscriber,
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Offset:
        """Return the offset that Spark kept."""
        if fields.get("holdfast") != VERSION:
            raise UnknownPosition(
                f"the checkpoint has offsets of version {fields.get('holdfast')!r}, not {VERSION}",
                hint="use the program that wrote it, or a new checkpoint folder",
            )
        return cls(
            fields["subscriber"],
            dict(fields["seqs"]),
            fields["claim_us"],
            fields["newest_us"],
            fields["heartbeat"],
            fields.get("rows", 0),
        )


class Checkpoint:
    """The logs of one query's checkpoint folder, as far as they are there."""

    def __init__(self, folder: str) -> None:
        path = folder.removeprefix(_SCHEME)
        self.folder = Path("/" + path.lstrip("/") if path != folder else path)
        # Our own files beside Spark's, which are synced less carefully: a stream's notes, batch
        # records of sinks, and what tasks stage. Spark passes over what it did not write.
        self.notes = self.folder / "holdfast"

    def query_id(self) -> str | None:
        """Return the id that Spark gave the query; None before its first start."""
        try:
            found = json.loads((self.folder / "metadata").read_text("utf-8"))
        except (OSError, ValueError):
            return None
        query_id = found.get("id")
        return query_id if isinstance(query_id, str) else None

    def require_query_id(self) -> str:
        """Return the id of the query that runs on this checkpoint."""
        query_id = self.query_id()
        if query_id is None:
            raise UnknownPosition(
                "the query's id is not in its checkpoint",
                hint="a sink has to see the checkpoint folder: use a local or mounted one",
                path=str(self.folder),
            )
        return query_id

    def span(self, batch: int) -> list[list[dict[str, Any]]]:
        """Return where all sources begin and end in a batch, whosever they are."""
        return [self._lines(number)[1:] for number in (batch - 1, batch)]

    def last_committed(self) -> int | None:
        """Return the newest batch that is done."""
        return max(self._batches("commits"), default=None)

    def last_planned(self) -> int | None:
        """Return the newest batch that has offsets."""
        return max(self._batches("offsets"), default=None)

    def offsets(self, batch: int) -> dict[str, Offset]:
        """Return where the sources of ours end in a batch, by subscriber."""
        found: dict[str, Offset] = {}
        for fields in self._lines(batch):
            if fields.get("holdfast") == VERSION:
                offset = Offset.from_fields(fields)
                found[offset.subscriber] = offset
        return found

    def watermark_ms(self, batch: int) -> int | None:
        """Return the watermark by which a batch evicts."""
        for fields in self._lines(batch):
            if "batchWatermarkMs" in fields:
                return int(fields["batchWatermarkMs"])
        return None

    def _batches(self, log: str) -> list[int]:
        """Return the numbers of the batches in a log; Spark keeps other files there, too."""
        try:
            names = [entry.name for entry in (self.folder / log).iterdir()]
        except OSError:
            return []
        return [int(name) for name in names if name.isdigit()]

    def _lines(self, batch: int) -> list[dict[str, Any]]:
        """Return what a batch's file of offsets has: metadata, and a line for each source."""
        try:
            text = (self.folder / "offsets" / str(batch)).read_text("utf-8")
        except OSError:
            return []
        found = []
        for line in text.splitlines():
            try:
                fields = json.loads(line)
            except ValueError:
                continue  # the version line, or a source that has no offset yet
            if isinstance(fields, dict):
                found.append(fields)
        return found
