"""Sets a database aside that does not belong to the objects any more: an old copy of the right one.

Nothing in it is changed but a mark, and nothing of it is deleted: on SQLite its file gets another
name, on PostgreSQL its tables do. A rebuild then begins with an empty one.

Nobody may go on with the old one: whatever they store would be unknown to the new one. Before the
file moves, the mark keeps everybody out who opens it, and SQLite tells whether somebody is in: it
leaves its write-ahead log only if no other connection is open. On PostgreSQL the names lead to the
new tables at once, where the leases of all who are at work are gone.
"""

from __future__ import annotations

import contextlib
import sqlite3
from datetime import UTC, datetime
from pathlib import PurePath

from sqlalchemy import Connection, text

from holdfast.errors import CannotOpen
from holdfast.seam import Seam
from holdfast.store.gc.database import MAKING_TABLES_LOCK, SET_ASIDE, Database, metadata
from holdfast.store.gc.points import StorePoint

# Somebody who is in does not leave within any time that is worth waiting for.
BUSY_TIMEOUT_S = 1.0


def set_aside(database: Database, seam: Seam) -> str:
    """Close a database and move it out of the way; return its new name."""
    moment = datetime.fromtimestamp(seam.clock.wall_ns() / 1e9, UTC)
    suffix = f"old_{moment:%Y%m%dT%H%M%S%fZ}"
    if database.locks_rows:
        name = database.transact(lambda connection: _rename_tables(connection, suffix.lower()))
        database.close()
        return name
    database.close()
    path = PurePath(str(database.engine.url.database))
    with contextlib.closing(sqlite3.connect(path, BUSY_TIMEOUT_S, isolation_level=None)) as alone:
        _lock_out(alone, str(path))
    seam.reached(StorePoint.SETTING_ASIDE)
    target = path.with_name(f"{path.name}.{suffix}")
    seam.disk.rename(path, target, StorePoint.SET_ASIDE)
    seam.disk.sync_dir(path.parent, StorePoint.SET_ASIDE_SYNC)
    return str(target)


def _lock_out(alone: sqlite3.Connection, path: str) -> None:
    """Leave a database in one file that nobody has open, and nobody will open."""
    marked = "UPDATE gc_meta SET number = ? WHERE name = 'rebuilding'"
    try:
        alone.execute(marked, (SET_ASIDE,))
        [mode] = alone.execute("PRAGMA journal_mode=DELETE").fetchone()
    except sqlite3.OperationalError:
        mode = "locked"
    if mode != "delete":
        with contextlib.suppress(sqlite3.OperationalError):
            alone.execute(marked, (0,))
        raise CannotOpen(
            "somebody else has the database of references open",
            hint="stop all commands and services that work with this store, then try again",
            path=path,
        )


def _rename_tables(connection: Connection, suffix: str) -> str:
    connection.execute(text(f"SELECT pg_advisory_xact_lock({MAKING_TABLES_LOCK})"))
    names = sorted(metadata.tables)
    asked = text(
        "SELECT indexname FROM pg_indexes "
        "WHERE schemaname = current_schema() AND tablename = ANY(:names)"
    )
    for index in connection.execute(asked, {"names": names}).scalars().all():
        connection.execute(text(f'ALTER INDEX "{index}" RENAME TO "{index}_{suffix}"'))
    for name in names:
        connection.execute(text(f'ALTER TABLE "{name}" RENAME TO "{name}_{suffix}"'))
    return f"the tables gc_…_{suffix}"
