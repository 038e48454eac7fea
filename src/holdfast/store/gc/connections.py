"""Connections to SQLite and to PostgreSQL, through their own drivers, with the same statements.

A statement is written once, as PostgreSQL takes it, and names what it is given: `hash = :hash`.
What differs is put in when a statement is first run, and remembered with its text:

- `:now` and `:lease_end` are the database's own clock, never a process's;
- `hash IN :hashes` takes a list, and gets a place for each of its members;
- SQLite has no row locks: `FOR UPDATE` and `FOR SHARE` fall away, since a transaction that writes
  holds the whole database there.

There is no layer that builds statements from objects: loading one took longer than all that most
commands do.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, NamedTuple
from urllib.parse import quote

from holdfast.errors import BadInput, CannotOpen, StoreUnavailable
from holdfast.store.gc.settings import GcSettings

DatabaseRow = tuple[Any, ...]

# Statements that a process remembers in the words of its database.
TRANSLATED_MAX = 256

_PLACES = re.compile(r":([a-z_]+)")
_LOCKS = re.compile(r"\s+FOR (?:UPDATE|SHARE)(?: SKIP LOCKED)?")
_PASSWORD = re.compile(r"(://[^/@:]*):[^@]*@")


class SqlDialect(NamedTuple):
    """What differs between the two databases."""

    name: str
    place: str
    clock: str
    blob: str
    double: str
    without_rowid: str
    begin_writing: str
    locks_rows: bool


SQLITE = SqlDialect(
    "sqlite",
    "?",
    "((julianday('now') - 2440587.5) * 86400.0)",
    "BLOB",
    "DOUBLE",
    " WITHOUT ROWID",
    # One that reads first and writes later fails where another one wrote meanwhile, and no waiting
    # helps: so the lock is taken when the transaction begins.
    "BEGIN IMMEDIATE",
    locks_rows=False,
)
POSTGRESQL = SqlDialect(
    "postgresql",
    "%s",
    "EXTRACT(EPOCH FROM statement_timestamp())::double precision",
    "BYTEA",
    "DOUBLE PRECISION",
    "",
    "BEGIN",
    locks_rows=True,
)


class DatabaseAddress(NamedTuple):
    """Where a database is: a file, or what PostgreSQL's driver is given."""

    dialect: SqlDialect
    target: str
    # As it was given, with its password: for processes that open it as well.
    url: str

    @classmethod
    def parse(cls, url: str) -> DatabaseAddress:
        """Read `sqlite:////folder/file` or `postgresql://user@host/name`; drivers may be named."""
        scheme, divider, rest = url.partition("://")
        kind = scheme.partition("+")[0]
        if divider and kind == SQLITE.name and rest.startswith("/") and rest != "/":
            return cls(SQLITE, rest[1:], url)
        if divider and kind == POSTGRESQL.name:
            return cls(POSTGRESQL, f"{kind}://{rest}", url)
        # The address is not shown: it may hold a password.
        raise BadInput(
            "the address of the database of references is not one of SQLite or PostgreSQL",
            hint="write sqlite:////folder/gc.sqlite or postgresql://user@host/database",
        )

    @property
    def path(self) -> PurePath | None:
        """The file of a database that is one."""
        return PurePath(self.target) if self.dialect is SQLITE else None

    @property
    def shown(self) -> str:
        """The address without its password."""
        if self.dialect is SQLITE:
            return f"sqlite:///{self.target}"
        return _PASSWORD.sub(r"\1:***@", self.target)


class _Translated(NamedTuple):
    """A statement as a driver takes it; what it is given, in order."""

    text: str
    names: tuple[str, ...]


class Statements:
    """Translates statements for one database, each once."""

    def __init__(self, dialect: SqlDialect, now: str, lease_s: float) -> None:
        self._dialect = dialect
        self._moments = {"now": now, "lease_end": f"({now} + {lease_s!r})"}
        # With each length of a list it is another text.
        self.translated = functools.lru_cache(TRANSLATED_MAX)(self._translate)

    def _translate(self, statement: str, lengths: tuple[tuple[str, int], ...]) -> _Translated:
        """Translate a statement whose lists have these lengths."""
        many, names = dict(lengths), list[str]()

        def place(found: re.Match[str]) -> str:
            name = found[1]
            if name in self._moments:
                return self._moments[name]
            names.append(name)
            if name not in many:
                return self._dialect.place
            return f"({', '.join([self._dialect.place] * many[name])})"

        if not self._dialect.locks_rows:
            statement = _LOCKS.sub("", statement)
        return _Translated(_PLACES.sub(place, statement), tuple(names))


class DatabaseConnection:
    """One connection, while a transaction has it."""

    def __init__(self, raw: Any, statements: Statements) -> None:
        self.raw = raw
        # Set when a transaction has ended because its connection broke.
        self.is_lost = False
        self._statements = statements

    def rows(self, statement: str, **given: Any) -> list[DatabaseRow]:
        """Return all rows that a statement finds, or that it changed and returns."""
        found: list[DatabaseRow] = self._run(statement, given).fetchall()
        return found

    def row(self, statement: str, **given: Any) -> DatabaseRow | None:
        """Return the first row; None if there is none."""
        found: DatabaseRow | None = next(iter(self.rows(statement, **given)), None)
        return found

    def value(self, statement: str, **given: Any) -> Any:
        """Return the first column of the first row; None if there is none."""
        found = self.row(statement, **given)
        return None if found is None else found[0]

    def values(self, statement: str, **given: Any) -> list[Any]:
        """Return the first column of all rows."""
        return [row[0] for row in self.rows(statement, **given)]

    def named(self, statement: str, **given: Any) -> list[dict[str, Any]]:
        """Return all rows, their columns by name."""
        cursor = self._run(statement, given)
        columns = [column[0] for column in cursor.description]
        return [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]

    def change(self, statement: str, **given: Any) -> int:
        """Run a statement; return how many rows it changed."""
        changed: int = self._run(statement, given).rowcount
        return changed

    def change_many(self, statement: str, given: Sequence[Mapping[str, Any]]) -> int:
        """Run a statement once for each of `given`; return how many rows that changed in all."""
        if not given:
            return 0
        text, names = self._statements.translated(statement, ())
        cursor = self.raw.cursor()
        cursor.executemany(text, [tuple([one[name] for name in names]) for one in given])
        changed: int = cursor.rowcount
        return changed

    def _run(self, statement: str, given: Mapping[str, Any]) -> Any:
        lists = {name: value for name, value in given.items() if isinstance(value, list | tuple)}
        lengths = tuple((name, len(value)) for name, value in lists.items())
        text, names = self._statements.translated(statement, lengths)
        values: list[Any] = []
        for name in names:
            if name in lists:
                values += lists[name]
            else:
                values.append(given[name])
        return self.raw.execute(text, values)


@dataclass
class _Idle:
    """Connections that nobody has at the moment, and a place for each that may be open."""

    room: threading.BoundedSemaphore
    connections: list[Any] = field(default_factory=list)


class ConnectionPool:
    """Connections to one database, opened when they are needed. Safe to use from many threads."""

    def __init__(self, address: DatabaseAddress, settings: GcSettings, now: str | None) -> None:
        """Open one, so that a wrong address is reported here."""
        self.address = address
        self.dialect = address.dialect
        self._settings = settings
        self._driver = _driver(address.dialect)
        self._statements = Statements(self.dialect, now or self.dialect.clock, settings.lease_s)
        self._idle = _Idle(threading.BoundedSemaphore(settings.connections))
        try:
            self._idle.connections.append(self._open())
        except self._driver.Error as error:
            raise CannotOpen(
                f"the database of references cannot be opened: {error}",
                hint="check that it exists, runs, and may be used",
                path=address.shown,
            ) from error

    @property
    def error(self) -> type[Exception]:
        """What the driver raises, whatever went wrong."""
        found: type[Exception] = self._driver.Error
        return found

    @property
    def operational_error(self) -> type[Exception]:
        """What the driver raises if the database is away, busy or full."""
        found: type[Exception] = self._driver.OperationalError
        return found

    def close(self) -> None:
        """Close all connections that nobody has."""
        idle = self._idle.connections
        while idle:
            idle.pop().close()

    @contextlib.contextmanager
    def transaction(self, *, writes: bool) -> Iterator[DatabaseConnection]:
        """Give a connection for one transaction, which is committed at the end of the block."""
        if not self._idle.room.acquire(timeout=self._settings.busy_timeout_s):
            raise StoreUnavailable(
                f"all {self._settings.connections} connections to the database are in use",
                hint="use fewer threads, or allow more connections (connections)",
                path=self.address.shown,
            )
        try:
            raw = self._begin(self.dialect.begin_writing if writes else "BEGIN")
            connection = DatabaseConnection(raw, self._statements)
            try:
                yield connection
                raw.execute("COMMIT")
            except BaseException:
                # Also one that cannot be rolled back: its end does the same.
                with contextlib.suppress(self._driver.Error):
                    raw.execute("ROLLBACK")
                connection.is_lost = _is_broken(raw)
                if connection.is_lost:
                    raw.close()
                else:
                    self._idle.connections.append(raw)
                raise
            self._idle.connections.append(raw)
        finally:
            self._idle.room.release()

    def _begin(self, statement: str) -> Any:
        """Begin a transaction; connections that broke while nobody had them are replaced."""
        idle = self._idle.connections
        while True:
            try:
                raw, is_new = idle.pop(), False
            except IndexError:
                raw, is_new = self._open(), True
            try:
                raw.execute(statement)
            except self._driver.Error:
                broken = _is_broken(raw)
                if not broken:
                    idle.append(raw)
                else:
                    raw.close()
                if broken and not is_new:
                    continue
                raise
            return raw

    def _open(self) -> Any:
        """Open a connection that begins transactions as we say, and not by itself."""
        if self.dialect.locks_rows:
            raw = self._driver.connect(self.address.target, autocommit=True)
            if self._settings.read_only:
                raw.execute("SET default_transaction_read_only = on")
            return raw
        busy_s = self._settings.busy_timeout_s
        if self._settings.read_only:
            uri = f"file:{quote(self.address.target)}?mode=ro"
            return sqlite3.connect(
                uri, uri=True, timeout=busy_s, isolation_level=None, check_same_thread=False
            )
        # Passed between threads, one at a time.
        raw = sqlite3.connect(
            self.address.target, timeout=busy_s, isolation_level=None, check_same_thread=False
        )
        try:
            raw.execute("PRAGMA journal_mode=WAL")
            raw.execute(f"PRAGMA synchronous={self._settings.synchronous.upper()}")
        except BaseException:
            raw.close()
            raise
        return raw


def _driver(dialect: SqlDialect) -> Any:
    if dialect is SQLITE:
        return sqlite3
    import psycopg

    return psycopg


def _is_broken(raw: Any) -> bool:
    """Whether a connection has lost its server, or is in a state that it cannot leave."""
    if isinstance(raw, sqlite3.Connection):
        return raw.in_transaction
    return bool(raw.closed)
