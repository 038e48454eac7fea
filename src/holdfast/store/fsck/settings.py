"""Every bound of check, scrub and repair, with its unit and its default."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from holdfast.settings import Settings, SizeBytes
from holdfast.store.fsck.tables import PREFIXES


class FsckSettings(Settings):
    """How much a check holds in memory, and how fast a scrub reads."""

    partitions: Annotated[int, Field(ge=1, le=PREFIXES)] = 16
    """Parts of the hashes that are compared one after another; more need less memory."""
    batch_rows: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    """Facts that are collected at once; rows that one query returns."""
    memory_rows: Annotated[int, Field(ge=1)] = 1_000_000
    """Facts that wait in memory, about 100 bytes each; more are written to the scratch folder."""
    visited_max: Annotated[int, Field(ge=0)] = 1_000_000
    """Index chunks that are remembered as read; behind it, those that commits share are reread."""
    findings_max: Annotated[int, Field(ge=1)] = 100_000
    """Findings that a report holds; more are only counted."""
    paths_per_chunk_max: Annotated[int, Field(ge=1)] = 20
    """Files that a report names for one chunk that is missing or damaged; more are counted."""
    repair_rounds: Annotated[int, Field(ge=1, le=100)] = 6
    """How often a repair is followed by a check, and that by a repair of what it found."""
    scrub_bytes_per_s: Annotated[SizeBytes, Field(gt=0)] | None = None
    """Stored bytes that a scrub reads in a second, at most; none: no limit."""
    scrub_save_objects: Annotated[int, Field(ge=1)] = 1000
    """A scrub notes where it is after so many objects; so many are read again after a crash."""
