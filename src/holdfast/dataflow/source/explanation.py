"""What holds a stream's watermark, written beside its checkpoint for whoever asks.

The process that knows it has no ears: it is a child of the JVM that answers only Spark. So it
leaves a note, replaced when something changed, not synced: a note that is lost is written again.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from holdfast.dataflow.source.checkpoint import Checkpoint
from holdfast.dataflow.watermark.claims import Claim

FOLDER = "holdfast"
_SUFFIX = ".watermark.json"


class WatermarkExplanation:
    """The note of one stream."""

    def __init__(self, checkpoint: Checkpoint, subscriber: str) -> None:
        self._path = checkpoint.folder / FOLDER / f"{subscriber}{_SUFFIX}"
        self._told: tuple[object, ...] = ()

    def tell(self, claim: Claim, is_released: bool, now_us: int) -> None:
        """Write down a claim, if what there is to say about it has changed."""
        holder = claim.holds[0] if claim.holds else None
        telling = (claim.us, holder and (holder.gateway, holder.bound.reason), is_released)
        if telling == self._told:
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
        with contextlib.suppress(OSError):  # nobody's data depends on it
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fresh = self._path.with_suffix(".new")
            fresh.write_text(json.dumps(note), "utf-8")
            os.replace(fresh, self._path)
            self._told = telling


def read_explanations(checkpoint: str) -> dict[str, dict[str, Any]]:
    """Return the newest notes of a query's streams, by subscriber."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(Path(Checkpoint(checkpoint).folder / FOLDER).glob(f"*{_SUFFIX}")):
        with contextlib.suppress(OSError, ValueError):
            found[path.name.removesuffix(_SUFFIX)] = json.loads(path.read_text("utf-8"))
    return found
