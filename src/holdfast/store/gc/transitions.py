"""Every step that a row of the collector's database can take, as data.

The statements that the code sends are made from this table, and so are the steps of the model that
the tests search exhaustively (tests/store/gc/model.py). A guard that is weakened here is weakened
in both, and the search finds the crash or the race that it was there for.

    Nascent ⇄ Live → Removing → Deleting → Deleted

A row is one *generation* of a chunk: one object, stored at most once, never reused. Why that is
needed: a delete that timed out may land minutes later. If the object's name were the hash alone, it
would take away what another writer has stored since. With the generation in the name, it can only
hit an object that nobody will ever ask for again. Hence a writer never waits for a delete either:
it is given a new generation beside the dying one.

- **Nascent**: nobody refers to the row (`refcount` is 0). Jobs may hold it (`holds` counts them).
  Whether the object exists is what `uploaded` says, and nothing else is to be trusted.
- **Live**: a commit, a chunk or a reader's pin refers to it. Only uploaded rows can be referred to.
- **Removing**: nobody refers to it and nobody can any more. One way.
- **Deleting**: the references that it held itself are gone. One way. Its object may be deleted.
- **Deleted**: the object is gone, and the row with it.

Several rows of one hash may be Nascent and not uploaded: writers that met, each with an object of
its own. The first to say that it has uploaded wins (`MARK_UPLOADED` is guarded by "no other row of
this hash is uploaded and not dying"); the others give up theirs and hold the winner's. Nobody waits
for a writer that may be dead.

Time appears in one guard alone: a lease lapses by the database's clock. The model lets it lapse at
any moment, so no clock, however wrong, can break what the model shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal, NamedTuple


class ChunkState(StrEnum):
    """What a row is, as the seed names it. Derived from its columns, never stored."""

    NASCENT = "nascent"
    LIVE = "live"
    REMOVING = "removing"
    DELETING = "deleting"
    DELETED = "deleted"


class JobKind(StrEnum):
    """What holds a lease: a writer, whose holds are no references, or a reader's pin."""

    JOB = "job"
    PIN = "pin"


class CommitState(StrEnum):
    """Where a commit is between its row and its object."""

    PUBLISHING = "publishing"
    PUBLISHED = "published"
    DELETING = "deleting"


class DatabaseTime(StrEnum):
    """A value that only the database knows when the statement runs."""

    NOW = "now"
    LEASE_END = "now + lease"


class ColumnCondition(NamedTuple):
    """One thing that must be true of the row."""

    column: str
    test: Literal["is", "above", "is set", "is not set", "is past"]
    value: Any = None


class ColumnChange(NamedTuple):
    """What becomes of one column: a new value, or so much more."""

    column: str
    how: Literal["set", "add"]
    value: Any


class Transition(NamedTuple):
    """One guarded step of one row; `deletes` says that the row goes."""

    name: str
    table: Literal["chunk", "job", "commit"]
    guard: tuple[ColumnCondition, ...]
    effect: tuple[ColumnChange, ...] = ()
    deletes: bool = False


_NOT_DYING = ColumnCondition("removing", "is not set")
_UPLOADED = ColumnCondition("uploaded", "is", True)
_AT_WORK = ColumnCondition("ended", "is not set")

# Chunks. A new row is Nascent: not uploaded, held by the job that reserved it.
NEW_CHUNK: Mapping[str, Any] = {
    "uploaded": False,
    "refcount": 0,
    "holds": 1,
    "removing": None,
    "deleting": None,
}
HOLD = Transition("hold", "chunk", (_UPLOADED, _NOT_DYING), (ColumnChange("holds", "add", 1),))
RELEASE = Transition(
    "release", "chunk", (ColumnCondition("holds", "above", 0),), (ColumnChange("holds", "add", -1),)
)
MARK_UPLOADED = Transition(
    "mark uploaded",
    "chunk",
    (ColumnCondition("uploaded", "is", False), _NOT_DYING),
    (ColumnChange("uploaded", "set", True),),
)
REFER = Transition("refer", "chunk", (_UPLOADED, _NOT_DYING), (ColumnChange("refcount", "add", 1),))
UNREFER = Transition(
    "unrefer",
    "chunk",
    (ColumnCondition("refcount", "above", 0),),
    (ColumnChange("refcount", "add", -1),),
)
BEGIN_REMOVING = Transition(
    "begin removing",
    "chunk",
    (ColumnCondition("refcount", "is", 0), ColumnCondition("holds", "is", 0), _NOT_DYING),
    (ColumnChange("removing", "set", DatabaseTime.NOW),),
)
BEGIN_DELETING = Transition(
    "begin deleting",
    "chunk",
    (ColumnCondition("removing", "is set"), ColumnCondition("deleting", "is not set")),
    (ColumnChange("deleting", "set", DatabaseTime.NOW),),
)
FORGET = Transition("forget", "chunk", (ColumnCondition("deleting", "is set"),), deletes=True)
# A repair found its object missing or damaged. Jobs let go of it with that: whoever holds a row
# that is not uploaded may store it, and this one is never to be stored again. What refers to it
# stays, to be moved once the chunk is stored anew.
LOSE = Transition(
    "lose",
    "chunk",
    (_UPLOADED, _NOT_DYING),
    (ColumnChange("uploaded", "set", False), ColumnChange("holds", "set", 0)),
)

# Jobs and pins. A lease that ended never comes back: whatever is said with it is refused.
WORK = Transition("work", "job", (_AT_WORK,))
RENEW = Transition(
    "renew", "job", (_AT_WORK,), (ColumnChange("lease_until", "set", DatabaseTime.LEASE_END),)
)
EXPIRE = Transition(
    "expire",
    "job",
    (_AT_WORK, ColumnCondition("lease_until", "is past")),
    (ColumnChange("ended", "set", DatabaseTime.NOW),),
)
CLOSE = Transition("close", "job", (_AT_WORK,), (ColumnChange("ended", "set", DatabaseTime.NOW),))
# Only once all that it held is released.
FORGET_JOB = Transition("forget job", "job", (ColumnCondition("ended", "is set"),), deletes=True)

# Commits. The row comes before the object and goes after it, so a database that is rebuilt from
# objects knows no commit whose chunks may be gone.
CONFIRM = Transition(
    "confirm",
    "commit",
    (ColumnCondition("state", "is", CommitState.PUBLISHING),),
    (ColumnChange("state", "set", CommitState.PUBLISHED),),
)
PIN = Transition("pin", "commit", (ColumnCondition("state", "is", CommitState.PUBLISHED),))
BEGIN_DELETE = Transition(
    "begin delete",
    "commit",
    (ColumnCondition("state", "is", CommitState.PUBLISHED),),
    (ColumnChange("state", "set", CommitState.DELETING),),
)
END_DELETE = Transition(
    "end delete", "commit", (ColumnCondition("state", "is", CommitState.DELETING),), deletes=True
)

TRANSITIONS: tuple[Transition, ...] = (
    HOLD,
    RELEASE,
    MARK_UPLOADED,
    REFER,
    UNREFER,
    BEGIN_REMOVING,
    BEGIN_DELETING,
    FORGET,
    LOSE,
    WORK,
    RENEW,
    EXPIRE,
    CLOSE,
    FORGET_JOB,
    CONFIRM,
    PIN,
    BEGIN_DELETE,
    END_DELETE,
)


def allows(step: Transition, row: Mapping[str, Any], now_s: float = 0.0) -> bool:
    """Say whether a row, as it is under its lock, may take a step."""
    return all(_is_met(condition, row[condition.column], now_s) for condition in step.guard)


def after(
    step: Transition, row: Mapping[str, Any], now_s: float = 0.0, lease_end_s: float = 0.0
) -> dict[str, Any] | None:
    """Return the row after a step; None if the step deletes it."""
    if step.deletes:
        return None
    moments = {DatabaseTime.NOW: now_s, DatabaseTime.LEASE_END: lease_end_s}
    changed = dict(row)
    for column, how, value in step.effect:
        given = moments[value] if isinstance(value, DatabaseTime) else value
        changed[column] = row[column] + given if how == "add" else given
    return changed


def state_of(row: Mapping[str, Any]) -> ChunkState:
    """Return the state of a chunk's row."""
    if row["deleting"] is not None:
        return ChunkState.DELETING
    if row["removing"] is not None:
        return ChunkState.REMOVING
    return ChunkState.LIVE if row["refcount"] > 0 else ChunkState.NASCENT


def wins(key_generation: int, rows: Mapping[int, Mapping[str, Any]]) -> int:
    """Return the generation that is current once the writer of `key_generation` has uploaded it.

    `rows` are those of one hash that are not dying, by generation. The first that is there stays.
    """
    uploaded = [generation for generation, row in rows.items() if row["uploaded"]]
    assert len(uploaded) <= 1, f"BUG: generations {uploaded} of one chunk are both current"
    return uploaded[0] if uploaded else key_generation


def _is_met(condition: ColumnCondition, value: Any, now_s: float) -> bool:
    match condition.test:
        case "is":
            return bool(value == condition.value)
        case "above":
            return bool(value > condition.value)
        case "is set":
            return value is not None
        case "is not set":
            return value is None
        case "is past":
            return bool(value < now_s)
