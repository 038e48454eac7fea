"""A real PostgreSQL server for tests, from PyPI's binaries, and an empty schema for each test."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

import psycopg

_numbers = itertools.count()


@contextmanager
def postgres_server() -> Iterator[str]:
    """Run a server on a socket in a folder of its own; yield its address."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its dependencies' own
        from pgserver.postgres_server import get_server
    # Short and open: a socket's path must fit into 107 bytes, and the server runs as its own user.
    folder = tempfile.mkdtemp(prefix="hf-pg-", dir="/tmp")
    os.chmod(folder, 0o755)
    server = get_server(f"{folder}/data", cleanup_mode="stop")
    try:
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            connection.execute(b"ALTER SYSTEM SET fsync = off")  # its own durability is not tested
            connection.execute(b"SELECT pg_reload_conf()")
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def schema(server_url: str) -> Iterator[str]:
    """Make an empty schema; yield an address whose tables lie in it; drop it with all it holds."""
    name = f"t{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}".encode())
    divider = "&" if "?" in server_url else "?"
    try:
        yield f"{server_url}{divider}options={quote(f'-csearch_path={name}')}"
    finally:
        with psycopg.connect(server_url, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA {name} CASCADE".encode())
