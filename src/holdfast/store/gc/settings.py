"""Every bound and choice of references and collectors, with its unit and its default."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from holdfast.settings import DurationS, Settings, SizeBytes

# What S3 takes in one DeleteObjects request.
DELETE_OBJECTS_MAX = 1000


class GcSettings(Settings):
    """How one process works with the database of references."""

    lease_s: Annotated[DurationS, Field(gt=0, le=7 * 86400)] = 600.0
    """A job or pin that was not renewed for so long may be expired; renewed at a third of it."""
    batch_rows: Annotated[int, Field(ge=1, le=10_000)] = 1000
    """Chunks that one transaction changes, at most."""
    batch_edges: Annotated[int, Field(ge=1, le=1_000_000)] = 20_000
    """References that one transaction of the collector removes; all of one chunk go at once."""
    update_rows_max: Annotated[int, Field(ge=1)] = 100_000
    """References that one call of `update_references` changes, at most: it is one transaction."""
    number_block: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """Generations that a process takes from the database at once; what it does not use is lost."""
    connections: Annotated[int, Field(ge=1, le=256)] = 8
    """Connections to the database; more threads wait."""
    busy_timeout_s: Annotated[DurationS, Field(gt=0, le=3600)] = 60.0
    """How long a transaction waits for a connection or for another process's transaction."""
    transaction_attempts: Annotated[int, Field(ge=1, le=1000)] = 20
    """How often a transaction is tried that met a deadlock, or a connection that broke."""
    synchronous: Literal["full", "normal", "off"] = "full"
    """SQLite alone: `full` survives a power cut; `normal` may forget the last transactions."""

    reserve_bytes: SizeBytes = 4_000_000
    """SQLite alone: blocks kept beside the database, so that a full disk can be freed; 0: none."""

    delete_objects: Annotated[int, Field(ge=1, le=DELETE_OBJECTS_MAX)] = DELETE_OBJECTS_MAX
    """Objects that one delete request names, at most."""
    objects_per_s: Annotated[float, Field(gt=0)] | None = None
    """Objects that a collector deletes in a second, at most; none: no limit."""
    bytes_per_s: Annotated[SizeBytes, Field(gt=0)] | None = None
    """Plain bytes of chunks that a collector deletes in a second, at most; none: no limit."""
    collect_every_s: Annotated[DurationS, Field(gt=0)] = 60.0
    """How long a serving collector rests after it found nothing more to do."""
    sweep_every_s: Annotated[DurationS, Field(gt=0)] = 6 * 3600.0
    """How often a serving collector looks for objects without a row."""
    orphan_grace_s: DurationS = 24 * 3600.0
    """An object without a row is left alone until it is so old, by the object store's clock."""
    plan_rows_max: Annotated[int, Field(ge=1)] = 100_000
    """Chunks that a plan follows into what they refer to, at most; behind it, it says so."""
    flush_timeout_s: Annotated[DurationS, Field(gt=0)] = 300.0
    """How long FlushDeletes waits, at most, if the caller sets no deadline."""
