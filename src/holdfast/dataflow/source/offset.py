"""The offset of a stream: how far every quiver is read, and the claim that goes with it.

Spark keeps it as JSON in its offset log and compares texts, so the keys are always in one order.
It holds everything that a batch needs to be run again as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.dataflow.watermark.claims import NOTHING_CLAIMED_US
from holdfast.errors import UnknownPosition

VERSION = 1


@dataclass(frozen=True)
class Offset:
    """A place in all quivers of a source, and the watermark there."""

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
