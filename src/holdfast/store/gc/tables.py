"""The tables of the database of references, and how older ones become those of today.

- `gc_meta`: the format's version, the last number given out, whether a rebuild is under way, the
  store's id.
- `gc_chunk`: one generation of a chunk. `stored_bytes` is the size of its object; not known of what
  was stored before format version 2, or rebuilt.
- `gc_edge`: `source` refers to one generation of a chunk. Sources of kind "job" hold, all others
  refer.
- `gc_job`: leases. Whose they are (holdfast/seam/holder.py) is not known of those that an older
  version opened; since when collectors have seen `lease_until` as it is, see watch.py.
- `gc_commit`: commits; a name can be used again while the commit that had it is being deleted.
- `gc_collector`: what each collector has done since it began, for `status`.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.store.gc.connections import DatabaseConnection, SqlDialect

TABLE_NAMES = ("gc_chunk", "gc_collector", "gc_commit", "gc_edge", "gc_job", "gc_meta")

# In the order of the columns, for those who read whole rows.
CHUNK_COLUMNS = (
    "hash",
    "generation",
    "size_bytes",
    "uploaded",
    "refcount",
    "holds",
    "updated",
    "removing",
    "deleting",
    "stored_bytes",
)
EDGE_COLUMNS = ("source_kind", "source_id", "source_generation", "hash", "generation")

# What the collector looks for is found without a look at what lives: these hold garbage alone. A
# partial index is used only by statements that say so in the same words.
IS_GARBAGE = "refcount = 0 AND holds = 0 AND removing IS NULL"
IS_DYING = "removing IS NOT NULL"
IS_UNFINISHED = "state <> 'published'"

INSERT_EDGE = (
    "INSERT INTO gc_edge (source_kind, source_id, source_generation, hash, generation) "
    "VALUES (:source_kind, :source_id, :source_generation, :hash, :generation)"
)
OF_SOURCE = "source_kind = :kind AND source_id = :id AND source_generation = :source_generation"
ONE_CHUNK = "hash = :hash AND generation = :generation"

_SCHEMA = (
    """CREATE TABLE gc_meta (
	name TEXT NOT NULL,
	number BIGINT NOT NULL,
	words TEXT NOT NULL,
	PRIMARY KEY (name)
)""",
    """CREATE TABLE gc_chunk (
	hash {blob} NOT NULL,
	generation BIGINT NOT NULL,
	size_bytes BIGINT NOT NULL,
	uploaded BOOLEAN NOT NULL,
	refcount BIGINT NOT NULL,
	holds BIGINT NOT NULL,
	updated {double} NOT NULL,
	removing {double},
	deleting {double},
	stored_bytes BIGINT,
	PRIMARY KEY (hash, generation)
){without_rowid}""",
    f"CREATE INDEX gc_chunk_garbage ON gc_chunk (hash, generation) WHERE {IS_GARBAGE}",
    f"CREATE INDEX gc_chunk_dying ON gc_chunk (hash, generation) WHERE {IS_DYING}",
    """CREATE TABLE gc_edge (
	source_kind TEXT NOT NULL,
	source_id {blob} NOT NULL,
	source_generation BIGINT NOT NULL,
	hash {blob} NOT NULL,
	generation BIGINT NOT NULL,
	PRIMARY KEY (source_kind, source_id, source_generation, hash, generation)
){without_rowid}""",
    """CREATE TABLE gc_job (
	id BIGINT NOT NULL,
	kind TEXT NOT NULL,
	name TEXT NOT NULL,
	created {double} NOT NULL,
	lease_until {double} NOT NULL,
	ended {double},
	host TEXT,
	pid BIGINT,
	boot TEXT,
	started TEXT,
	seen_until {double},
	seen_clock TEXT,
	seen_s {double},
	PRIMARY KEY (id)
)""",
    "CREATE INDEX ix_gc_job_lease_until ON gc_job (lease_until)",
    """CREATE TABLE gc_commit (
	id BIGINT NOT NULL,
	name TEXT NOT NULL,
	record {blob} NOT NULL,
	state TEXT NOT NULL,
	job_id BIGINT NOT NULL,
	created {double} NOT NULL,
	PRIMARY KEY (id)
)""",
    "CREATE UNIQUE INDEX gc_commit_name ON gc_commit (name) WHERE state <> 'deleting'",
    f"CREATE INDEX gc_commit_unfinished ON gc_commit (id) WHERE {IS_UNFINISHED}",
    """CREATE TABLE gc_collector (
	name TEXT NOT NULL,
	started {double} NOT NULL,
	updated {double} NOT NULL,
	chunks BIGINT NOT NULL,
	size_bytes BIGINT NOT NULL,
	busy_s {double} NOT NULL,
	PRIMARY KEY (name)
)""",
)

# How a database of each version, from the first on, becomes one of the next.
MIGRATIONS: Sequence[Sequence[str]] = (
    ("ALTER TABLE gc_chunk ADD COLUMN stored_bytes BIGINT",),
    (
        "ALTER TABLE gc_job ADD COLUMN host TEXT",
        "ALTER TABLE gc_job ADD COLUMN pid BIGINT",
        "ALTER TABLE gc_job ADD COLUMN boot TEXT",
        "ALTER TABLE gc_job ADD COLUMN started TEXT",
        "ALTER TABLE gc_job ADD COLUMN seen_clock TEXT",
        "ALTER TABLE gc_job ADD COLUMN seen_until DOUBLE PRECISION",
        "ALTER TABLE gc_job ADD COLUMN seen_s DOUBLE PRECISION",
    ),
)
FORMAT_VERSION = 1 + len(MIGRATIONS)

_HAS_META = {
    "sqlite": "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'gc_meta'",
    "postgresql": "SELECT 1 FROM pg_class WHERE oid = to_regclass('gc_meta')",
}


def make_tables(connection: DatabaseConnection, dialect: SqlDialect, store_id: str) -> None:
    """Make all tables in an empty database."""
    words = {
        "blob": dialect.blob,
        "double": dialect.double,
        "without_rowid": dialect.without_rowid,
    }
    for statement in _SCHEMA:
        connection.change(statement.format(**words))
    named = "INSERT INTO gc_meta (name, number, words) VALUES (:name, :number, :words)"
    rows = [
        {"name": "format_version", "number": FORMAT_VERSION, "words": ""},
        {"name": "last_number", "number": 0, "words": ""},
        {"name": "rebuilding", "number": 0, "words": ""},
        {"name": "store_id", "number": 0, "words": store_id},
    ]
    connection.change_many(named, rows)


def migrate(connection: DatabaseConnection, version: int) -> None:
    """Make the tables of an older version those of today."""
    for statement in [one for step in MIGRATIONS[version - 1 :] for one in step]:
        connection.change(statement)
    connection.change(
        "UPDATE gc_meta SET number = :number WHERE name = 'format_version'", number=FORMAT_VERSION
    )


def version_of(connection: DatabaseConnection, dialect: SqlDialect) -> int:
    """Return the version of a database's tables; 0: it has none."""
    if connection.row(_HAS_META[dialect.name]) is None:
        return 0
    found = connection.value("SELECT number FROM gc_meta WHERE name = 'format_version'")
    return int(found or 0)
