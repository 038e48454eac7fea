"""Every bound and choice of references and collectors, with its unit and its default."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.store.base.bounds import (
    BoundedSettings,
    choice,
    count,
    duration_s,
    rate_per_s,
    size_bytes,
)

# What S3 takes in one DeleteObjects request.
DELETE_OBJECTS_MAX = 1000


@dataclass(frozen=True)
class GcSettings(BoundedSettings):
    """How one process works with the database of references."""

    lease_s: float = duration_s(600.0, above=0, most=7 * 86400)
    """A job or pin that was not renewed for so long may be expired; renewed at a third of it."""
    batch_rows: int = count(1000, least=1, most=10_000)
    """Chunks that one transaction changes, at most."""
    batch_edges: int = count(20_000, least=1, most=1_000_000)
    """References that one transaction of the collector removes; all of one chunk go at once."""
    update_rows_max: int = count(100_000, least=1)
    """References that one call of `update_references` changes, at most: it is one transaction."""
    number_block: int = count(1000, least=1, most=1_000_000)
    """Generations that a process takes from the database at once; what it does not use is lost."""
    connections: int = count(8, least=1, most=256)
    """Connections to the database; more threads wait."""
    busy_timeout_s: float = duration_s(60.0, above=0, most=3600)
    """How long a transaction waits for a connection or for another process's transaction."""
    transaction_attempts: int = count(20, least=1, most=1000)
    """How often a transaction is tried that met a deadlock, or a connection that broke."""
    synchronous: str = choice("full", "normal", "off")
    """SQLite alone: `full` survives a power cut; `normal` may forget the last transactions."""

    read_only: bool = False
    """Look and change nothing: the database refuses writes, so no lease or pin can be taken."""
    reserve_bytes: int = size_bytes(4_000_000)
    """SQLite alone: blocks kept beside the database, so that a full disk can be freed; 0: none."""

    delete_objects: int = count(DELETE_OBJECTS_MAX, least=1, most=DELETE_OBJECTS_MAX)
    """Objects that one delete request names, at most."""
    objects_per_s: float | None = rate_per_s()
    """Objects that a collector deletes in a second, at most; none: no limit."""
    bytes_per_s: int | None = size_bytes(None, least=1)
    """Plain bytes of chunks that a collector deletes in a second, at most; none: no limit."""
    collect_every_s: float = duration_s(60.0, above=0)
    """How long a serving collector rests after it found nothing more to do."""
    sweep_every_s: float = duration_s(6 * 3600.0, above=0)
    """How often a serving collector looks for objects without a row."""
    orphan_grace_s: float = duration_s(24 * 3600.0)
    """An object without a row is left alone until it is so old, by the object store's clock."""
    plan_rows_max: int = count(100_000, least=1)
    """Chunks that a plan follows into what they refer to, at most; behind it, it says so."""
    flush_timeout_s: float = duration_s(300.0, above=0)
    """How long FlushDeletes waits, at most, if the caller sets no deadline."""
