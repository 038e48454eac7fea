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
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from holdfast.errors import BadInput, DatabaseLost, DiskFull, StoreUnavailable, UnknownFormat
from holdfast.seam import Seam
from holdfast.seam.process import bind_to_process
from holdfast.store.gc.connections import ConnectionPool, DatabaseAddress, DatabaseConnection
from holdfast.store.gc.reserve import DatabaseReserve
from holdfast.store.gc.settings import GcSettings
from holdfast.store.gc.tables import FORMAT_VERSION, make_tables, migrate, version_of
from holdfast.store.gc.transitions import ColumnCondition, DatabaseTime, Transition

Result = TypeVar("Result")

# A database that is rebuilt gives out numbers far above all that the lost one may have given out.
REBUILD_NUMBER_STEP = 2**40
# What `rebuilding` says while the rows are made, and while an old database is set aside.
REBUILDING, SET_ASIDE = 1, 2
# Held on PostgreSQL while the tables are made. Any number that nobody else uses.
MAKING_TABLES_LOCK = 0x686F6C64


class Database:
    """Transactions, numbers, and the statements of the transition table."""

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
        self.address = DatabaseAddress.parse(url)
        self.reserve = _reserve(self.address, settings, seam or Seam())
        if self.reserve is not None:
            self.reserve.spend_to_open()
        self.pool = ConnectionPool(self.address, settings, now)
        self.url = self.address.shown
        # SQLite locks the database as a whole when a transaction begins.
        self.locks_rows = self.pool.dialect.locks_rows
        self._writing = threading.Lock()
        self._numbers: list[int] = []
        self._numbers_lock = threading.Lock()
        bind_to_process(self)
        try:
            # Also on a database that exists: this is where its version and its store are checked,
            # before any caller gets to see a row.
            enter = self.read if settings.read_only else self.transact
            enter(lambda connection: self._prepare(connection, store_id, create))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give back all connections, and the reserve, if it was spent."""
        self.pool.close()
        if self.reserve is not None:
            self.reserve.restore()

    def transact(
        self, work: Callable[[DatabaseConnection], Result], *, spends: bool = True
    ) -> Result:
        """Run `work` in one transaction; again, if it could not be placed beside others.

        On a full disk it is tried once more in the blocks of the reserve, unless it serves those
        who fill the disk (`spends` is False).
        """
        if self.settings.read_only:
            raise BadInput(
                "the store was opened to look at it, and this would change something",
                hint="open it without `read_only`",
                path=self.url,
            )
        # In turns, because SQLite's own way of waiting is unfair among threads of one process.
        turn = contextlib.nullcontext() if self.locks_rows else self._writing
        for attempt in range(self.settings.transaction_attempts):
            connection = None
            try:
                with turn, self.pool.transaction(writes=True) as connection:
                    return work(connection)
            except self.pool.error as error:
                # Before the question whether to repeat: repeating does not help unless something
                # is freed.
                if self._is_full(error):
                    if spends and self.reserve is not None and self.reserve.spend():
                        continue
                    raise self._full(error) from error
                again = self._may_be_repeated(error, connection)
                if again and attempt + 1 < self.settings.transaction_attempts:
                    continue
                # What is left is the database being away. Anything else (a broken constraint, a
                # bug in a statement) is raised as it is, with its stack.
                if again or isinstance(error, self.pool.operational_error):
                    raise self._unavailable(error) from error
                raise
        raise AssertionError("BUG: no attempt was made")

    def read(self, work: Callable[[DatabaseConnection], Result]) -> Result:
        """Run `work` in one transaction that changes nothing."""
        try:
            with self.pool.transaction(writes=False) as connection:
                return work(connection)
        except self.pool.operational_error as error:
            raise self._unavailable(error) from error

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
        return int(self.read(lambda connection: connection.value(_NUMBER, name="last_number")))

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

    def step(
        self,
        step: Transition,
        where: str,
        *,
        times: bool = False,
        also: str = "",
        returning: str = "",
    ) -> str:
        """Return the guarded statement of a step, for rows `where`; with `times`, taken `:times`
        times at once, and with `also`, writing this as well.

        The transition table is the only place that says what a row may do; this turns a line of it
        into SQL. Statements are never written by hand, so the model that the tests check and the
        statements that run cannot drift apart.
        """
        conditions = " AND ".join(filter(None, (self.guard(step), where)))
        back = f" RETURNING {returning}" if returning else ""
        if step.deletes:
            return f"DELETE FROM gc_{step.table} WHERE {conditions}{back}"
        changes = []
        for column, how, value in step.effect:
            if how == "add":
                by = f":times * {value}" if times else f"{value}"
                changes.append(f"{column} = {column} + {by}")
            else:
                changes.append(f"{column} = {_written(step.table, column, value)}")
        if step.table == "chunk":
            changes.append("updated = :now")
        if also:
            changes.append(also)
        return f"UPDATE gc_{step.table} SET {', '.join(changes)} WHERE {conditions}{back}"

    def guard(self, step: Transition) -> str:
        """Return the conditions under which rows may take a step."""
        return " AND ".join(map(_met, step.guard))

    def _take_numbers(self, connection: DatabaseConnection) -> range:
        """Take a block of numbers; those that are not used are never given out again."""
        taken = (
            "UPDATE gc_meta SET number = number + :block WHERE name = 'last_number' "
            "RETURNING number"
        )
        last = connection.value(taken, block=self.settings.number_block)
        return range(last - self.settings.number_block + 1, last + 1)

    def _prepare(self, connection: DatabaseConnection, store_id: str, create: bool) -> None:
        """Make the tables, or migrate them, in one transaction that others wait for."""
        # Two processes that open a new store would both make the tables. SQLite's transaction
        # excludes the other; on PostgreSQL an advisory lock does.
        if self.locks_rows:
            connection.rows(f"SELECT pg_advisory_xact_lock({MAKING_TABLES_LOCK})")
        version = version_of(connection, self.pool.dialect)
        if version == 0 and not create:
            raise self._lost("is empty")
        if self.settings.read_only and version < FORMAT_VERSION:
            raise UnknownFormat(
                f"the database of references has format version {version}, older than this code's "
                f"{FORMAT_VERSION}, and it is only looked at",
                hint="open it once to bring it up to date: `holdfast store info`",
                path=self.url,
            )
        if not 0 <= version <= FORMAT_VERSION:
            raise UnknownFormat(
                f"the database of references has format version {version}, "
                f"and this is the code of version {FORMAT_VERSION}",
                hint="open it with the version of holdfast that wrote it, or a newer one",
                path=self.url,
            )
        if version == 0:
            make_tables(connection, self.pool.dialect, store_id)
        elif version < FORMAT_VERSION:
            migrate(connection, version)
        self._check_store(connection, store_id)

    def _check_store(self, connection: DatabaseConnection, store_id: str) -> None:
        """Refuse the database of another store: its rows would make garbage of all objects here."""
        found = connection.value("SELECT words FROM gc_meta WHERE name = 'store_id'")
        if store_id and found and store_id != found:
            raise DatabaseLost(
                f"the database of references belongs to store {found}, not to {store_id}",
                hint="name the database that this store was created with (--database)",
                path=self.url,
            )

    def rebuilding(self) -> int:
        """Say whether the rows are being rebuilt, or set aside, and must not be relied on."""
        return int(self.read(lambda connection: connection.value(_NUMBER, name="rebuilding")))

    def check_complete(self) -> None:
        """Refuse a database whose rebuild did not end."""
        if self.rebuilding():
            raise self._lost("was not rebuilt to the end")

    def keep_complete(self, connection: DatabaseConnection) -> None:
        """Refuse it in a transaction, during which no rebuild begins either."""
        if connection.value(f"{_NUMBER} FOR SHARE", name="rebuilding"):
            raise self._lost("was not rebuilt to the end")

    def _lost(self, what: str) -> DatabaseLost:
        return DatabaseLost(
            f"the database of references {what}",
            hint="bring back the database, or make a new one from the store's objects "
            "(`holdfast store rebuild`); until then nothing is written and nothing collected",
            path=self.url,
        )

    def _is_full(self, error: Exception) -> bool:
        if "database or disk is full" in str(error):
            return True
        # What SQLite says when there is no room for the memory that all who use it share.
        failed = "disk I/O error" in str(error)
        return failed and self.reserve is not None and self.reserve.is_disk_full()

    def _full(self, error: Exception) -> DiskFull:
        return DiskFull(
            f"the disk of the database of references is full: {error}",
            hint="delete commits (`holdfast files rm`), then collect (`holdfast gc run`), "
            "which work on a full disk; or make room otherwise",
            path=self.url,
        )

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(
            f"the database of references did not take a transaction: {error}",
            hint="check that it runs and has room, and try again; a repeated call changes nothing",
            path=self.url,
        )

    def _may_be_repeated(self, error: Exception, connection: DatabaseConnection | None) -> bool:
        """Tell a transaction that lost against another, or its connection, from one that is wrong.

        A connection that could not be opened is not tried again: that may take minutes each time.
        """
        deadlock, not_serializable, unique = "40P01", "40001", "23505"
        if getattr(error, "sqlstate", None) in (deadlock, not_serializable, unique):
            return True
        if connection is not None and connection.is_lost:
            return True
        return isinstance(error, self.pool.operational_error) and "database is locked" in str(error)


_NUMBER = "SELECT number FROM gc_meta WHERE name = :name"


def _met(condition: ColumnCondition) -> str:
    """Return a condition of the transition table as SQL."""
    column, value = condition.column, condition.value
    match condition.test:
        case "is" if isinstance(value, bool):
            return f"{column} IS {'TRUE' if value else 'FALSE'}"
        case "is" if isinstance(value, int):
            # Spelled out, because a partial index is used only if the statement shows it may.
            return f"{column} = {value}"
        case "is":
            return f"{column} = {_quoted(value)}"
        case "above":
            return f"{column} > {value}"
        case "is set":
            return f"{column} IS NOT NULL"
        case "is not set":
            return f"{column} IS NULL"
        case "is past":
            return f"{column} < :now"


def _written(table: str, column: str, value: Any) -> str:
    """Return what a step writes into a column, as SQL."""
    if value is DatabaseTime.LEASE_END:
        return ":lease_end"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return str(value)
    if value is not DatabaseTime.NOW:
        return _quoted(value)
    if table == "chunk" and column == "deleting":
        # The clock may have been set back since; the order of the states is not.
        return "CASE WHEN :now < removing THEN removing ELSE :now END"
    return ":now"


def _quoted(value: str) -> str:
    """Return a word of the transition table as SQL."""
    assert value.isidentifier(), f"BUG: {value!r} is no word"
    return f"'{value}'"


def _reserve(address: DatabaseAddress, settings: GcSettings, seam: Seam) -> DatabaseReserve | None:
    """Return the reserve of a database that is a file on the disk that we see."""
    if address.path is None or settings.read_only or not seam.disk.is_shared:
        return None
    return DatabaseReserve(address.path, seam, settings.reserve_bytes)


def slices(items: Sequence[Result], size: int) -> Iterator[Sequence[Result]]:
    """Yield `items` in pieces of `size`, the last one smaller."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
