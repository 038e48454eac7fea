"""Databases that older versions made: they open, become today's, and know what they knew."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.store.gc.stage import SETTINGS

from holdfast.errors import UnknownFormat
from holdfast.store.gc.connections import ConnectionPool, DatabaseAddress, DatabaseConnection
from holdfast.store.gc.references import References
from holdfast.store.gc.tables import FORMAT_VERSION, TABLE_NAMES
from holdfast.store.objects.objects import ChunkKey, hash_of

HASH = hash_of(b"stored long ago")
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
    pool = ConnectionPool(DatabaseAddress.parse(url), SETTINGS, None)
    words = {"blob": pool.dialect.blob, "double": "DOUBLE PRECISION"}
    with pool.transaction(writes=True) as connection:
        for statement in VERSION_1.format(**words).split(";"):
            connection.change(statement)
        row = "INSERT INTO gc_chunk VALUES (:hash, 7, 15, TRUE, 1, 0, 1.0, NULL, NULL)"
        connection.change(row, hash=HASH)
    pool.close()


def columns_of(references: References) -> dict[str, set[str]]:
    """Return the columns of every table."""

    def ask(connection: DatabaseConnection) -> dict[str, set[str]]:
        return {
            table: {
                column[0] for column in connection.raw.execute(f"SELECT * FROM {table}").description
            }
            for table in TABLE_NAMES
        }

    return references.database.read(ask)


def test_a_database_of_version_1_opens_and_becomes_todays(
    database_url: str, tmp_path: Path
) -> None:
    make_old(database_url)
    with References(f"sqlite:///{tmp_path}/new.sqlite", settings=SETTINGS) as new:
        todays = columns_of(new)
    for _ in range(2):
        with References(database_url, settings=SETTINGS, store_id="here", create=False) as opened:
            assert opened.resolve([HASH]) == {HASH: ChunkKey(HASH, 7)}
            assert columns_of(opened) == todays
            with opened.open_job("goes on") as job:
                assert opened.reserve_chunks(job, [(HASH, 15)]) == [(ChunkKey(HASH, 7), False)]


def test_a_database_of_a_later_version_is_refused(database_url: str) -> None:
    with References(database_url, settings=SETTINGS) as opened:
        later = f"UPDATE gc_meta SET number = {FORMAT_VERSION + 1} WHERE name = 'format_version'"
        opened.database.transact(lambda connection: connection.change(later))
    with pytest.raises(UnknownFormat, match="or a newer one"):
        References(database_url, settings=SETTINGS)
