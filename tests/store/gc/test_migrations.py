"""Databases that older versions made: they open, become today's, and know what they knew."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.engine import make_url
from tests.store.gc.stage import SETTINGS

from holdfast.errors import UnknownFormat
from holdfast.store.gc.database import FORMAT_VERSION, metadata
from holdfast.store.gc.references import References
from holdfast.store.objects.objects import ChunkKey, hash_of

HASH = hash_of(b"stored long ago")
DRIVERS = {"sqlite": "sqlite+pysqlite", "postgresql": "postgresql+psycopg"}
# What version 1 made; {blob} and {double} are the database's own words.
VERSION_1 = """
CREATE TABLE gc_meta (name TEXT PRIMARY KEY, number BIGINT NOT NULL, words TEXT NOT NULL);
CREATE TABLE gc_chunk (hash {blob} NOT NULL, generation BIGINT NOT NULL,
  size_bytes BIGINT NOT NULL, uploaded BOOLEAN NOT NULL, refcount BIGINT NOT NULL,
  holds BIGINT NOT NULL, updated {double} NOT NULL, removing {double}, deleting {double},
  PRIMARY KEY (hash, generation));
CREATE INDEX gc_chunk_garbage ON gc_chunk (hash, generation)
  WHERE refcount = 0 AND holds = 0 AND removing IS NULL;
CREATE INDEX gc_chunk_dying ON gc_chunk (hash, generation) WHERE removing IS NOT NULL;
CREATE TABLE gc_edge (source_kind TEXT NOT NULL, source_id {blob} NOT NULL,
  source_generation BIGINT NOT NULL, hash {blob} NOT NULL, generation BIGINT NOT NULL,
  PRIMARY KEY (source_kind, source_id, source_generation, hash, generation));
CREATE TABLE gc_job (id BIGINT PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL,
  created {double} NOT NULL, lease_until {double} NOT NULL, ended {double});
CREATE INDEX ix_gc_job_lease_until ON gc_job (lease_until);
CREATE TABLE gc_commit (id BIGINT PRIMARY KEY, name TEXT NOT NULL, record {blob} NOT NULL,
  state TEXT NOT NULL, job_id BIGINT NOT NULL, created {double} NOT NULL);
CREATE UNIQUE INDEX gc_commit_name ON gc_commit (name) WHERE state <> 'deleting';
CREATE INDEX gc_commit_unfinished ON gc_commit (id) WHERE state <> 'published';
CREATE TABLE gc_collector (name TEXT PRIMARY KEY, started {double} NOT NULL,
  updated {double} NOT NULL, chunks BIGINT NOT NULL, size_bytes BIGINT NOT NULL,
  busy_s {double} NOT NULL);
INSERT INTO gc_meta VALUES ('format_version', 1, ''), ('last_number', 50, ''),
  ('rebuilding', 0, ''), ('store_id', 0, 'here');
INSERT INTO gc_job VALUES (9, 'job', 'an old one', 1.0, 2.0, NULL)
"""


def make_old(url: str) -> None:
    """Fill an empty database with the tables of version 1, one chunk and one lease."""
    parsed = make_url(url)
    backend = parsed.get_backend_name()
    words = {"blob": "BLOB", "double": "DOUBLE PRECISION"}
    if backend == "postgresql":
        words["blob"] = "BYTEA"
    engine = create_engine(parsed.set(drivername=DRIVERS[backend]))
    with engine.begin() as connection:
        for statement in VERSION_1.format(**words).split(";"):
            connection.execute(text(statement))
        row = "INSERT INTO gc_chunk VALUES (:hash, 7, 15, :yes, 1, 0, 1.0, NULL, NULL)"
        connection.execute(text(row), {"hash": HASH, "yes": True})
    engine.dispose()


def test_a_database_of_version_1_opens_and_becomes_todays(database_url: str) -> None:
    make_old(database_url)
    for _ in range(2):
        with References(database_url, settings=SETTINGS, store_id="here", create=False) as opened:
            assert opened.resolve([HASH]) == {HASH: ChunkKey(HASH, 7)}
            found = inspect(opened.database.engine)
            for table in metadata.tables.values():
                columns = {one["name"] for one in found.get_columns(table.name)}
                assert columns == set(table.columns.keys()), table.name
            with opened.open_job("goes on") as job:
                assert opened.reserve_chunks(job, [(HASH, 15)]) == [(ChunkKey(HASH, 7), False)]


def test_a_database_of_a_later_version_is_refused(database_url: str) -> None:
    with References(database_url, settings=SETTINGS) as opened:
        later = f"UPDATE gc_meta SET number = {FORMAT_VERSION + 1} WHERE name = 'format_version'"
        opened.database.transact(lambda connection: connection.execute(text(later)))
    with pytest.raises(UnknownFormat, match="or a newer one"):
        References(database_url, settings=SETTINGS)
