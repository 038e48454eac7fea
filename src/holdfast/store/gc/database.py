"""The tables, the database's clock, and the one way to run a transaction; SQLite and PostgreSQL.

Rules that every transaction keeps:

- All times are the database's. A process whose clock is wrong can do no harm.
- Rows are locked in one order: the job, the commit, then chunks by hash and generation. Rows that
  are dying are locked by collectors alone, and before any others. So nobody waits in a circle;
  where a database finds one all the same (PostgreSQL looks), the transaction runs again.
- What a row may do is decided under its lock, by the guards of `transitions.py`; each statement
  that changes rows carries the guard too, and the number of rows that it changed is checked.
- Every transaction may be repeated: an answer that got lost makes the caller ask again.

SQLite knows no row locks: writers take the database as a whole (`BEGIN IMMEDIATE`), which is why
transactions are batches, and small ones. The statements are the same.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    ClauseElement,
    Column,
    Connection,
    Delete,
    Double,
    Engine,
    Index,
    LargeBinary,
    MetaData,
    Table,
    Text,
    Update,
    bindparam,
    case,
    create_engine,
    delete,
    event,
    insert,
    inspect,
    literal_column,
    select,
    text,
    update,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError
from sqlalchemy.sql import ColumnElement
from sqlalchemy.sql.compiler import SQLCompiler

from holdfast.errors import (
    BadInput,
    CannotOpen,
    DatabaseLost,
    DiskFull,
    StoreUnavailable,
    UnknownFormat,
)
from holdfast.seam import Seam
from holdfast.seam.process import bind_to_process
from holdfast.store.gc.reserve import DatabaseReserve
from holdfast.store.gc.settings import GcSettings
from holdfast.store.gc.transitions import ColumnCondition, DatabaseTime, Transition

Result = TypeVar("Result")

# A database that is rebuilt gives out numbers far above all that the lost one may have given out.
REBUILD_NUMBER_STEP = 2**40
# What `rebuilding` says while the rows are made, and while an old database is set aside.
REBUILDING, SET_ASIDE = 1, 2
# Held on PostgreSQL while the tables are made. Any number that nobody else uses.
MAKING_TABLES_LOCK = 0x686F6C64

metadata = MetaData()

# Format version, the last number given out, whether a rebuild is under way; the store's id.
meta = Table(
    "gc_meta",
    metadata,
    Column("name", Text, primary_key=True),
    Column("number", BigInteger, nullable=False, default=0),
    Column("words", Text, nullable=False, default=""),
)

chunk = Table(
    "gc_chunk",
    metadata,
    Column("hash", LargeBinary, primary_key=True),
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("uploaded", Boolean, nullable=False),
    Column("refcount", BigInteger, nullable=False),
    Column("holds", BigInteger, nullable=False),
    Column("updated", Double, nullable=False),
    Column("removing", Double),
    Column("deleting", Double),
    # Of the object, as stored; not known of what was stored before format version 2, or rebuilt.
    Column("stored_bytes", BigInteger),
    sqlite_with_rowid=False,
)
# What the collector looks for is found without a look at what lives: these two hold garbage alone.
IS_GARBAGE = text("refcount = 0 AND holds = 0 AND removing IS NULL")
IS_DYING = text("removing IS NOT NULL")
Index("gc_chunk_garbage", chunk.c.hash, chunk.c.generation, sqlite_where=IS_GARBAGE)
Index("gc_chunk_dying", chunk.c.hash, chunk.c.generation, sqlite_where=IS_DYING)

# `source` refers to one generation of a chunk. Sources of kind "job" hold, all others refer.
edge = Table(
    "gc_edge",
    metadata,
    Column("source_kind", Text, primary_key=True),
    Column("source_id", LargeBinary, primary_key=True),
    Column("source_generation", BigInteger, primary_key=True, autoincrement=False),
    Column("hash", LargeBinary, primary_key=True),
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    sqlite_with_rowid=False,
)

job = Table(
    "gc_job",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("created", Double, nullable=False),
    Column("lease_until", Double, nullable=False, index=True),
    Column("ended", Double),
    # Whose it is (holdfast/seam/holder.py); not known of leases that an older version opened.
    Column("host", Text),
    Column("pid", BigInteger),
    Column("boot", Text),
    Column("started", Text),
    # Since when collectors have seen `lease_until` as it is (watch.py).
    Column("seen_until", Double),
    Column("seen_clock", Text),
    Column("seen_s", Double),
)

commit = Table(
    "gc_commit",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("record", LargeBinary, nullable=False),
    Column("state", Text, nullable=False),
    Column("job_id", BigInteger, nullable=False),
    Column("created", Double, nullable=False),
)
# A name can be used again while the commit that had it is being deleted.
_HAS_A_NAME = text("state <> 'deleting'")
Index("gc_commit_name", commit.c.name, unique=True, sqlite_where=_HAS_A_NAME)
IS_UNFINISHED = text("state <> 'published'")
Index("gc_commit_unfinished", commit.c.id, sqlite_where=IS_UNFINISHED)

# What each collector has done since it began, for `status`.
collector = Table(
    "gc_collector",
    metadata,
    Column("name", Text, primary_key=True),
    Column("started", Double, nullable=False),
    Column("updated", Double, nullable=False),
    Column("chunks", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("busy_s", Double, nullable=False),
)

TABLES: Mapping[str, Table] = {"chunk": chunk, "job": job, "commit": commit}


def _make_tables(connection: Connection) -> None:
    # Both databases have the same partial indexes. PostgreSQL's are named here, because naming them
    # above loads its dialect, which costs every command on SQLite a part of its start.
    if connection.dialect.name == "postgresql":
        for index in (index for table in metadata.tables.values() for index in table.indexes):
            where = index.dialect_options["sqlite"]["where"]
            index.dialect_options["postgresql"]["where"] = where
    metadata.create_all(connection)


def _add_stored_bytes(connection: Connection) -> None:
    connection.execute(text("ALTER TABLE gc_chunk ADD COLUMN stored_bytes BIGINT"))


def _add_holders(connection: Connection) -> None:
    words = ("host TEXT", "pid BIGINT", "boot TEXT", "started TEXT", "seen_clock TEXT")
    numbers = ("seen_until DOUBLE PRECISION", "seen_s DOUBLE PRECISION")
    for column in (*words, *numbers):
        connection.execute(text(f"ALTER TABLE gc_job ADD COLUMN {column}"))


# How a database of each version, from the first on, becomes one of the next.
MIGRATIONS: Sequence[Callable[[Connection], None]] = (_add_stored_bytes, _add_holders)
FORMAT_VERSION = 1 + len(MIGRATIONS)

_CLOCKS = {
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
    "postgresql": "EXTRACT(EPOCH FROM statement_timestamp())::double precision",
}
_DRIVERS = {"sqlite": "sqlite+pysqlite", "postgresql": "postgresql+psycopg"}


class Database:
    """A connection pool, and the statements of the transition table."""

    def __init__(
        self,
        url: str,
        *,
        settings: GcSettings,
        store_id: str = "",
        create: bool = True,
        now: str | None = None,
        seam: Seam | None = None,
    ) -> None:
        """Open the database, and make or migrate its tables.

        With `create` false, a database without tables is an error: it was lost, and a collector
        that starts with an empty one would take every chunk for an orphan. `now` is SQL that tests
        put in the place of the database's clock.
        """
        self.settings = settings
        self.reserve = _reserve(url, settings, seam or Seam())
        if self.reserve is not None:
            self.reserve.spend_to_open()
        self.engine = _engine(url, settings)
        self.url = self.engine.url.render_as_string(hide_password=True)
        self.now: ColumnElement[float] = literal_column(now or _CLOCKS[self.engine.name], Double())
        self.lease_end: ColumnElement[float] = self.now + literal_column(repr(settings.lease_s))
        # SQLite locks the database as a whole when a transaction begins.
        self.locks_rows = self.engine.name != "sqlite"
        self._writing = threading.Lock()
        self._numbers: list[int] = []
        self._numbers_lock = threading.Lock()
        bind_to_process(self)
        try:
            # Also on a database that exists: this is where its version and its store are checked,
            # before any caller gets to see a row.
            self.transact(lambda connection: self._prepare(connection, store_id, create))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give back all connections, and the reserve, if it was spent."""
        self.engine.dispose()
        if self.reserve is not None:
            self.reserve.restore()

    def transact(self, work: Callable[[Connection], Result], *, spends: bool = True) -> Result:
        """Run `work` in one transaction; again, if it could not be placed beside others.

        On a full disk it is tried once more in the blocks of the reserve, unless it serves those
        who fill the disk (`spends` is False).
        """
        # In turns, because SQLite's own way of waiting is unfair among threads of one process.
        turn = contextlib.nullcontext() if self.locks_rows else self._writing
        for attempt in range(self.settings.transaction_attempts):
            try:
                with turn, self.engine.begin() as connection:
                    return work(connection)
            except DBAPIError as error:
                # Before the question whether to repeat: repeating does not help unless something
                # is freed.
                if self._is_full(error):
                    if spends and self.reserve is not None and self.reserve.spend():
                        continue
                    raise self._full(error) from error
                again = _may_be_repeated(error)
                if again and attempt + 1 < self.settings.transaction_attempts:
                    continue
                # What is left is the database being away. Anything else (a broken constraint, a
                # bug in a statement) is raised as it is, with its stack.
                if again or isinstance(error, OperationalError):
                    raise self._unavailable(error) from error
                raise
        raise AssertionError("BUG: no attempt was made")

    def read(self, work: Callable[[Connection], Result]) -> Result:
        """Run `work` in one transaction that changes nothing."""
        try:
            with self.engine.connect() as connection:
                return work(connection.execution_options(holdfast_reads=True))
        except OperationalError as error:
            raise self._unavailable(error) from error

    def execute_many(
        self, connection: Connection, statement: ClauseElement, rows: Sequence[Mapping[str, Any]]
    ) -> int:
        """Run a statement once for each of `rows`; return how many rows it changed, all in all.

        Compiled once and handed to the driver as it is: what SQLAlchemy does for every row by
        itself takes several times as long as SQLite does.
        """
        keys = list(rows[0])
        compiled = statement.compile(dialect=self.engine.dialect, column_keys=keys)
        assert isinstance(compiled, SQLCompiler), "BUG: no such statement is sent many times"
        fixed = compiled.params
        if compiled.positiontup is None:
            given: list[Any] = [{**fixed, **row} for row in rows]
        else:
            given = [
                tuple(row[name] if name in row else fixed[name] for name in compiled.positiontup)
                for row in rows
            ]
        return connection.exec_driver_sql(compiled.string, given).rowcount

    def numbers(self, count: int, *, spends: bool = False) -> list[int]:
        """Return numbers that were never given out: generations, ids of jobs and commits.

        Never inside of a transaction: they are taken from the database in one of their own.
        """
        with self._numbers_lock:
            # A block at a time: one row that every writer updates would otherwise be the
            # bottleneck of the store. A process that dies loses the rest of its block; numbers
            # have 63 bits.
            while len(self._numbers) < count:
                self._numbers += self.transact(self._take_numbers, spends=spends)
            taken, self._numbers = self._numbers[:count], self._numbers[count:]
            return taken

    def give_back(self, numbers: Sequence[int]) -> None:
        """Take back numbers that were certainly not used."""
        with self._numbers_lock:
            self._numbers = [*numbers, *self._numbers]

    def last_number(self) -> int:
        """Return the largest number that may have been given out."""
        asked = select(meta.c.number).where(meta.c.name == "last_number")
        return int(self.read(lambda connection: connection.execute(asked).scalar_one()))

    def check_given_out(self, number: int, key: str) -> None:
        """Refuse to go on if an object bears a number that this database never gave out."""
        if number > self.last_number():
            raise DatabaseLost(
                f"{key} has a number that this database never gave out: "
                "it is another store's, or an old copy",
                hint="bring back the store's own database, or make a new one from its objects: "
                "`holdfast store rebuild`, which sets this one aside; nothing was changed",
                path=self.url,
            )

    def step(self, step: Transition, *, times: bool = False) -> Update | Delete:
        """Return the guarded statement of a step; with `times`, taken `:times` times at once.

        The transition table is the only place that says what a row may do; this turns a line of it
        into SQL. Statements are never written by hand, so the model that the tests check and the
        statements that run cannot drift apart.
        """
        table = TABLES[step.table]
        guard = [self._met(table, condition) for condition in step.guard]
        if step.deletes:
            return delete(table).where(*guard)
        changes: dict[str, Any] = {}
        for column, how, value in step.effect:
            if how == "add":
                by = bindparam("times", type_=BigInteger) * value if times else value
                changes[column] = table.c[column] + by
            else:
                changes[column] = self._value(table, column, value)
        if table is chunk:
            changes["updated"] = self.now
        return update(table).where(*guard).values(changes)

    def guard(self, step: Transition) -> list[ColumnElement[bool]]:
        """Return the conditions under which rows may take a step."""
        return [self._met(TABLES[step.table], condition) for condition in step.guard]

    def _met(self, table: Table, condition: ColumnCondition) -> ColumnElement[bool]:
        """Return a condition of the transition table as SQL."""
        column = table.c[condition.column]
        match condition.test:
            case "is" if isinstance(condition.value, bool):
                return column.is_(condition.value)
            case "is" if isinstance(condition.value, int):
                # Spelled out, because a partial index is used only if the statement shows it may.
                return column == literal_column(str(condition.value))
            case "is":
                return column == bindparam(None, condition.value)
            case "above":
                return column > literal_column(str(condition.value))
            case "is set":
                return column.is_not(None)
            case "is not set":
                return column.is_(None)
            case "is past":
                return column < self.now

    def _value(self, table: Table, column: str, value: Any) -> Any:
        """Return what a step writes into a column, as SQL where it is the database's time."""
        if value is DatabaseTime.LEASE_END:
            return self.lease_end
        if value is not DatabaseTime.NOW:
            return value
        if table is chunk and column == "deleting":
            # The clock may have been set back since; the order of the states is not.
            return case((self.now < chunk.c.removing, chunk.c.removing), else_=self.now)
        return self.now

    def _take_numbers(self, connection: Connection) -> range:
        """Take a block of numbers; those that are not used are never given out again."""
        taken = (
            update(meta)
            .where(meta.c.name == "last_number")
            .values(number=meta.c.number + self.settings.number_block)
            .returning(meta.c.number)
        )
        last = connection.execute(taken).scalar_one()
        return range(last - self.settings.number_block + 1, last + 1)

    def _prepare(self, connection: Connection, store_id: str, create: bool) -> None:
        """Make the tables, or migrate them, in one transaction that others wait for."""
        # Two processes that open a new store would both make the tables. SQLite's transaction
        # excludes the other; on PostgreSQL `CREATE TABLE IF NOT EXISTS` may still collide, so an
        # advisory lock does.
        if self.engine.name == "postgresql":
            connection.execute(text(f"SELECT pg_advisory_xact_lock({MAKING_TABLES_LOCK})"))
        version = self._version(connection)
        if version == 0 and not create:
            raise self._lost("is empty")
        if not 0 <= version <= FORMAT_VERSION:
            raise UnknownFormat(
                f"the database of references has format version {version}, "
                f"and this is the code of version {FORMAT_VERSION}",
                hint="open it with the version of holdfast that wrote it, or a newer one",
                path=self.url,
            )
        if version == 0:
            _make_tables(connection)
            rows = [
                {"name": "format_version", "number": FORMAT_VERSION, "words": ""},
                {"name": "last_number", "number": 0, "words": ""},
                {"name": "rebuilding", "number": 0, "words": ""},
                {"name": "store_id", "number": 0, "words": store_id},
            ]
            connection.execute(insert(meta), rows)
        elif version < FORMAT_VERSION:
            for migrate in MIGRATIONS[version - 1 :]:
                migrate(connection)
            named = update(meta).where(meta.c.name == "format_version")
            connection.execute(named.values(number=FORMAT_VERSION))
        self._check_store(connection, store_id)

    def _check_store(self, connection: Connection, store_id: str) -> None:
        """Refuse the database of another store: its rows would make garbage of all objects here."""
        asked = select(meta.c.words).where(meta.c.name == "store_id")
        found = connection.execute(asked).scalar_one()
        if store_id and found and store_id != found:
            raise DatabaseLost(
                f"the database of references belongs to store {found}, not to {store_id}",
                hint="name the database that this store was created with (--database)",
                path=self.url,
            )

    def _version(self, connection: Connection) -> int:
        if not inspect(connection).has_table(meta.name):
            return 0
        asked = select(meta.c.number).where(meta.c.name == "format_version")
        return connection.execute(asked).scalar_one_or_none() or 0

    def rebuilding(self) -> int:
        """Say whether the rows are being rebuilt, or set aside, and must not be relied on."""
        asked = select(meta.c.number).where(meta.c.name == "rebuilding")
        return int(self.read(lambda connection: connection.execute(asked).scalar_one()))

    def check_complete(self) -> None:
        """Refuse a database whose rebuild did not end."""
        if self.rebuilding():
            raise self._lost("was not rebuilt to the end")

    def keep_complete(self, connection: Connection) -> None:
        """Refuse it in a transaction, during which no rebuild begins either."""
        asked = select(meta.c.number).where(meta.c.name == "rebuilding")
        if connection.execute(asked.with_for_update(read=True)).scalar_one():
            raise self._lost("was not rebuilt to the end")

    def _lost(self, what: str) -> DatabaseLost:
        return DatabaseLost(
            f"the database of references {what}",
            hint="bring back the database, or make a new one from the store's objects "
            "(`holdfast store rebuild`); until then nothing is written and nothing collected",
            path=self.url,
        )

    def _is_full(self, error: DBAPIError) -> bool:
        if "database or disk is full" in str(error.orig):
            return True
        # What SQLite says when there is no room for the memory that all who use it share.
        failed = "disk I/O error" in str(error.orig)
        return failed and self.reserve is not None and self.reserve.is_disk_full()

    def _full(self, error: DBAPIError) -> DiskFull:
        return DiskFull(
            f"the disk of the database of references is full: {error.orig}",
            hint="delete commits (`holdfast files rm`), then collect (`holdfast gc run`), "
            "which work on a full disk; or make room otherwise",
            path=self.url,
        )

    def _unavailable(self, error: DBAPIError) -> StoreUnavailable:
        return StoreUnavailable(
            f"the database of references did not take a transaction: {error.orig}",
            hint="check that it runs and has room, and try again; a repeated call changes nothing",
            path=self.url,
        )


def _reserve(url: str, settings: GcSettings, seam: Seam) -> DatabaseReserve | None:
    """Return the reserve of a database that is a file on the disk that we see."""
    with contextlib.suppress(ArgumentError):
        parsed = make_url(url)
        if parsed.get_backend_name() == "sqlite" and parsed.database and seam.disk.is_shared:
            return DatabaseReserve(PurePath(parsed.database), seam, settings.reserve_bytes)
    return None


def _engine(url: str, settings: GcSettings) -> Engine:
    """Open a pool of connections, and try one, so that a wrong address is reported here."""
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except ArgumentError as error:
        raise _bad_url() from error
    if backend not in _DRIVERS or (backend == "sqlite" and not parsed.database):
        raise _bad_url()
    engine = create_engine(
        parsed.set(drivername=_DRIVERS[backend]),
        pool_size=settings.connections,
        max_overflow=0,
        pool_timeout=settings.busy_timeout_s,
        pool_pre_ping=backend == "postgresql",
    )
    if backend == "sqlite":
        _set_up_sqlite(engine, settings)
    try:
        engine.connect().close()
    except DBAPIError as error:
        engine.dispose()
        raise CannotOpen(
            f"the database of references cannot be opened: {error.orig}",
            hint="check that it exists, runs, and may be used",
            path=parsed.render_as_string(hide_password=True),
        ) from error
    return engine


def _bad_url() -> BadInput:
    # The address is not shown: it may hold a password.
    return BadInput(
        "the address of the database of references is not one of SQLite or PostgreSQL",
        hint="write sqlite:////folder/gc.sqlite or postgresql://user@host/database",
    )


def _set_up_sqlite(engine: Engine, settings: GcSettings) -> None:
    """Let SQLite begin transactions as we say.

    A transaction that writes takes the lock when it begins (IMMEDIATE): one that reads first and
    writes later fails where another one wrote meanwhile, and no waiting helps.
    """

    def connected(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # transactions begin as we say, below
        connection.execute(f"PRAGMA busy_timeout={int(settings.busy_timeout_s * 1000)}")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={settings.synchronous.upper()}")

    def begun(connection: Connection) -> None:
        reads = connection.get_execution_options().get("holdfast_reads", False)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", begun)


def _may_be_repeated(error: DBAPIError) -> bool:
    """Tell a transaction that lost against another, or its connection, from one that is wrong."""
    deadlock, not_serializable, unique = "40P01", "40001", "23505"
    state = getattr(error.orig, "sqlstate", None)
    if state in (deadlock, not_serializable, unique) or error.connection_invalidated:
        return True
    return isinstance(error, OperationalError) and "database is locked" in str(error.orig)


def slices(items: Sequence[Result], size: int) -> Iterator[Sequence[Result]]:
    """Yield `items` in pieces of `size`, the last one smaller."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
