"""A model of all who work with one chunk, to be searched exhaustively (search.py).

It takes the very table that the code's statements are made from, so what is shown here is shown of
them. The world: rows of one hash (several generations), objects, writers with a job each, readers
with a pin, collectors and sweepers that may be zombies, a repair, requests that time out and land
later. Leases lapse at any moment; a transaction is one step here, because that is what it is.

Whoever dies takes no more steps, which the search covers because nobody is ever made to take one;
whoever starts again is `idle` and has forgotten everything, also between any two steps. So a writer
that is `idle` while its lease is at work has either died, or was told to repeat what it did.

An object that vanishes or rots by itself (`damages`) is excused: nobody can refer to what is not
there any more without being told. It is no longer once somebody has stored it, or has been told
that it is stored, since.

`Variant` turns the design into others, known to be wrong, so that the search shows that it can
fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from holdfast.store.gc.transitions import (
    BEGIN_DELETING,
    BEGIN_REMOVING,
    CLOSE,
    EXPIRE,
    FORGET,
    HOLD,
    LOSE,
    MARK_UPLOADED,
    NEW_CHUNK,
    REFER,
    RELEASE,
    UNREFER,
    WORK,
    Transition,
    after,
    allows,
    wins,
)


class Row(NamedTuple):
    """One generation. Times are 0: that they are set is all that matters."""

    generation: int
    uploaded: bool
    refcount: int
    holds: int
    removing: float | None
    deleting: float | None

    @property
    def alive(self) -> bool:
        """Whether it is not dying."""
        return self.removing is None


class Writer(NamedTuple):
    """A writer: where it is, the generation it works with, whether its lease is at work."""

    at: Literal["idle", "put", "mark", "publish", "published"] = "idle"
    generation: int = 0
    leased: bool = False
    # What the database has of it: a hold of its job, a reference of its commit, each to a row.
    hold: int = 0
    committed: int = 0


class Reader(NamedTuple):
    """A reader: the row that its pin refers to, and whether its lease is at work."""

    pinned: int = 0
    leased: bool = False


class Cleaner(NamedTuple):
    """A collector, sweeper or repair between two steps: what it is about to do to which object."""

    at: str = "idle"
    generation: int = 0


class World(NamedTuple):
    """Everything at one moment. Sets hold generations, or 0 if objects are not named by them."""

    rows: tuple[Row, ...] = ()
    objects: frozenset[int] = frozenset()
    # Objects that are there, and hold other bytes than they should.
    rotten: frozenset[int] = frozenset()
    # Those that nobody but the disk is to blame for.
    excused: frozenset[int] = frozenset()
    # Requests that timed out and may still land.
    late_puts: frozenset[int] = frozenset()
    late_deletes: frozenset[int] = frozenset()
    writers: tuple[Writer, ...] = ()
    readers: tuple[Reader, ...] = ()
    collectors: tuple[Cleaner, ...] = ()
    repairs: tuple[Cleaner, ...] = ()
    generations_used: int = 0
    damages_left: int = 0


class Become(Protocol):
    """Changes one writer of a world."""

    def __call__(self, world: World, **changes: object) -> World: ...


Happenings = Iterator[tuple[str, World]]


@dataclass(frozen=True)
class Variant:
    """A design, and the bounds of the world it is tried in. The default is ours."""

    writers: int = 2
    readers: int = 0
    collectors: int = 2
    generations: int = 3
    in_all: bool = False
    """Whether `generations` bounds all that there ever are; if not, those that have a row."""
    late: bool = True
    damages: int = 0
    """How many objects vanish or rot by themselves; with any, there is a repair."""
    # What the wrong ones leave out:
    generation_in_key: bool = True
    """False: an object's name is the hash alone, and a writer waits while a row is dying."""
    generation_checked: bool = True
    """False: a writer speaks of the hash's row, whichever it is by now."""
    references_checked: bool = True
    """False: a reference is taken whatever the row's state is, as the seed says."""
    leases_checked: bool = True
    """False: a job whose lease ended may go on."""
    lost_are_let_go: bool = True
    """False: jobs go on holding what a repair has found lost."""
    mended_in_place: bool = False
    """True: a repair puts an object anew under its old name."""

    @property
    def numbered(self) -> bool:
        """Whether objects and rows are told apart by their generation everywhere."""
        return self.generation_in_key and self.generation_checked


class Model:
    """All that can happen next, and what must never."""

    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        self.start = World(
            writers=(Writer(),) * variant.writers,
            readers=(Reader(),) * variant.readers,
            collectors=(Cleaner(),) * variant.collectors,
            repairs=(Cleaner(),) * bool(variant.damages),
            damages_left=variant.damages,
        )
        self.chunk_steps = (
            *(HOLD, RELEASE, MARK_UPLOADED, REFER, UNREFER),
            *(BEGIN_REMOVING, BEGIN_DELETING, FORGET, LOSE),
        )

    def violation(self, world: World) -> str | None:
        """Say what must never be, and is."""
        current = 0
        edges = [w.committed for w in world.writers] + [r.pinned for r in world.readers]
        holds = [w.hold for w in world.writers]
        for row in world.rows:
            relied_on = row.refcount > 0 or (row.uploaded and row.alive)
            if relied_on and self.is_gone(world, row.generation):
                return f"I1: g{row.generation} is relied on and its object is gone"
            if self.variant.generation_checked and self.variant.references_checked:
                if row.refcount != edges.count(row.generation):
                    return f"I2: g{row.generation} counts {row.refcount} references"
                if row.holds != holds.count(row.generation):
                    return f"I2: g{row.generation} counts {row.holds} holds"
            if not row.alive and row.refcount + row.holds > 0:
                return f"I4: g{row.generation} is dying and referred to"
            current += row.uploaded and row.alive
        if current > 1:
            return "I6: two generations are current"
        return self.disappointed(world)

    def disappointed(self, world: World) -> str | None:
        """Say who relies on an object that is not there."""
        for writer in world.writers:
            # Race 7: whoever was told that no upload is needed relies on the object.
            trusts = writer.at == "publish" and writer.leased and writer.hold
            if trusts and self.is_gone(world, writer.hold):
                return f"I1: a writer relies on g{writer.hold}, and its object is not there"
        for reader in world.readers:
            # A pin whose lease is at work reads whatever becomes of the commit.
            if reader.leased and self.is_gone(world, reader.pinned):
                return f"I8: a reader's g{reader.pinned} is gone"
        return None

    def is_gone(self, world: World, generation: int) -> bool:
        """Whether an object is not there, or spoiled, through somebody's fault."""
        key = self.key(generation)
        return key not in world.objects and key not in world.excused

    def key(self, generation: int) -> int:
        """Return the name of a generation's object."""
        return generation if self.variant.generation_in_key else 0

    def following(self, world: World) -> Happenings:
        """Yield everything that can happen next."""
        for key in world.late_puts:
            landed = world._replace(late_puts=world.late_puts - {key})
            # On an object that rots, it changes nothing, and nobody is told that it did.
            yield f"late put of g{key} lands", landed if key in world.rotten else _put(landed, key)
        for key in world.late_deletes:
            landed = world._replace(late_deletes=world.late_deletes - {key})
            yield f"late delete of g{key} lands", _deleted(landed, key)
        for place in range(len(world.writers)):
            yield from self.write(world, place)
        for place in range(len(world.readers)):
            yield from self.read(world, place)
        yield from self.mark(world)
        for place in range(len(world.collectors)):
            yield from self.delete(world, place)
        for repair in world.repairs:
            yield from self.damage(world)
            yield from self.repair(world, repair)

    # Writers.

    def write(self, world: World, place: int) -> Happenings:
        writer = world.writers[place]
        name = f"w{place}"

        def become(world: World, **changes: object) -> World:
            writers = list(world.writers)
            writers[place] = writers[place]._replace(**changes)  # type: ignore[arg-type]
            return world._replace(writers=tuple(writers))

        if writer.at == "idle":
            yield from self.reserve(world, place, become)
        elif writer.at == "put":
            key = self.key(writer.generation)
            yield f"{name} puts g{key}", become(_put(world, key), at="mark")
            if self.variant.late:
                lost = world._replace(late_puts=world.late_puts | {key})
                yield f"{name}'s put times out", become(lost, at="idle", generation=0)
        elif writer.at == "mark":
            yield from self.mark_uploaded(world, place, become)
        elif writer.at == "publish":
            yield from self.publish(world, place, become)
        elif writer.committed:
            row = _row(world, writer.committed)
            if row is not None and _allows(UNREFER, row):
                gone = _step(world, row, UNREFER)
                changes = {"at": "idle", "committed": 0}
                yield f"{name} deletes its commit", become(gone, **changes)
        if writer.leased:
            # The collector ends it when it lapsed, or the writer itself; then its hold goes.
            assert EXPIRE.guard[0] == CLOSE.guard[0] == WORK.guard[0]
            yield f"{name}'s lease ends", become(world, leased=False)
        elif writer.hold and (row := _row(world, writer.hold)) is not None:
            yield f"{name}'s hold is released", become(_step(world, row, RELEASE), hold=0)
        if writer.at in {"put", "mark", "publish"}:
            yield f"{name} dies, or begins again", become(world, at="idle", generation=0)

    def reserve(self, world: World, place: int, become: Become) -> Happenings:
        """Open a job, if there is none, and reserve, as `References.reserve_chunks` does."""
        writer = world.writers[place]
        name = f"w{place}"
        if writer.hold and not writer.leased:
            return  # the lease before this one is not cleared away yet
        current = [row for row in world.rows if _allows(HOLD, row)]
        if current:
            row = current[0]
            # The code lets a job that comes second hold both; nobody else ever uses the other one.
            held = self.move_hold(world, writer.hold, row.generation)
            changes = {"at": "publish", "generation": row.generation, "hold": row.generation}
            yield f"{name} holds g{row.generation}", become(held, leased=True, **changes)
            return
        if writer.hold:
            changes = {"at": "put", "generation": writer.hold}
            yield f"{name} goes on with g{writer.hold}", become(world, **changes)
            return
        if not self.variant.generation_in_key:
            if any(not row.alive for row in world.rows):
                return  # FlushDeletes: wait until the old one is gone
            if world.rows:  # one row per hash: share it
                row = world.rows[0]
                shared = _with(world, row, row._replace(holds=row.holds + 1))
                changes = {"at": "put", "generation": row.generation, "hold": row.generation}
                yield f"{name} shares g{row.generation}", become(shared, leased=True, **changes)
                return
        there = world.generations_used if self.variant.in_all else len(world.rows)
        if there < self.variant.generations:
            generation = world.generations_used + 1
            row = Row(generation=generation, **NEW_CHUNK)
            grown = world._replace(rows=(*world.rows, row), generations_used=generation)
            changes = {"at": "put", "generation": generation, "hold": generation}
            yield f"{name} reserves g{generation}", become(grown, leased=True, **changes)

    def mark_uploaded(self, world: World, place: int, become: Become) -> Happenings:
        writer = world.writers[place]
        name = f"w{place}"
        if self.variant.leases_checked and not writer.leased:
            yield f"{name} may not mark", become(world, at="idle", generation=0)
            return
        own = self.own_row(world, writer)
        if not self.variant.numbered:
            if own is not None and own.alive:
                marked = _with(world, own, own._replace(uploaded=True))
                yield f"{name} marks g{own.generation}", become(marked, at="publish")
            elif self.variant.references_checked:
                yield f"{name} cannot mark", become(world, at="idle", generation=0)
            else:
                yield f"{name} marks nothing", become(world, at="publish")
            return
        alive = {row.generation: row._asdict() for row in world.rows if row.alive}
        winner = wins(writer.generation, alive)
        if winner != writer.generation:
            moved = self.move_hold(world, writer.hold, winner)
            changes = {"at": "publish", "generation": winner, "hold": winner}
            yield f"{name} comes second to g{winner}", become(moved, **changes)
        elif own is not None and own.uploaded and own.alive:
            yield f"{name} marks g{own.generation} again", become(world, at="publish")
        elif own is not None and writer.hold == own.generation and _allows(MARK_UPLOADED, own):
            marked = _step(world, own, MARK_UPLOADED)
            yield f"{name} marks g{own.generation}", become(marked, at="publish")
        else:
            yield f"{name} cannot mark", become(world, at="idle", generation=0)

    def publish(self, world: World, place: int, become: Become) -> Happenings:
        writer = world.writers[place]
        name = f"w{place}"
        if self.variant.leases_checked and not writer.leased:
            yield f"{name} may not publish", become(world, at="idle", generation=0)
            return
        row = self.own_row(world, writer)
        # A commit refers to whatever is current, as `publish_commit` does.
        if self.variant.numbered:
            row = next((row for row in world.rows if _allows(REFER, row)), None)
        if row is not None and (_allows(REFER, row) or not self.variant.references_checked):
            changes = {"at": "published", "generation": 0, "committed": row.generation}
            referred = _step(world, row, REFER)
            yield f"{name} publishes g{row.generation}", become(referred, **changes)
        elif self.variant.references_checked:
            yield f"{name} cannot publish", become(world, at="idle", generation=0)

    def move_hold(self, world: World, held: int, wanted: int) -> World:
        """Let a job hold another row."""
        if held == wanted:
            return world
        released = _step(world, _the_row(world, held), RELEASE) if held else world
        return _step(released, _the_row(released, wanted), HOLD)

    def own_row(self, world: World, writer: Writer) -> Row | None:
        """Return the row that a writer means."""
        if self.variant.generation_checked:
            return _row(world, writer.generation)
        return world.rows[-1] if world.rows else None

    # Readers.

    def read(self, world: World, place: int) -> Happenings:
        reader = world.readers[place]

        def become(world: World, reader: Reader) -> World:
            readers = list(world.readers)
            readers[place] = reader
            return world._replace(readers=tuple(readers))

        if not reader.pinned:
            for number in {writer.committed for writer in world.writers}:
                row = _row(world, number)
                if row is not None and _allows(REFER, row):
                    pinned = _step(world, row, REFER)
                    yield f"r pins g{number}", become(pinned, Reader(number, True))
        elif reader.leased:
            yield "r's lease ends", become(world, reader._replace(leased=False))
        elif (row := _row(world, reader.pinned)) is not None:
            yield "r's pin is released", become(_step(world, row, UNREFER), Reader())

    # Collectors.

    def mark(self, world: World) -> Happenings:
        """Take a row through a state; which collector does so makes no difference."""
        for row in world.rows:
            for step in (BEGIN_REMOVING, BEGIN_DELETING):
                if _allows(step, row):
                    yield f"gc: {step.name} g{row.generation}", _step(world, row, step)

    def delete(self, world: World, place: int) -> Happenings:
        """Delete objects: those of rows that are Deleting, and those that have no row (sweep)."""
        collector = world.collectors[place]

        def become(world: World, at: str = "idle", generation: int = 0) -> World:
            collectors = list(world.collectors)
            collectors[place] = Cleaner(at, generation)
            return world._replace(collectors=tuple(collectors))

        key = self.key(collector.generation)
        if collector.at == "idle":
            for row in world.rows:
                if _allows(FORGET, row):
                    found = become(world, "delete", row.generation)
                    yield f"gc{place} finds g{row.generation}", found
            if self.variant.numbered:
                for orphan in world.objects - {row.generation for row in world.rows}:
                    yield f"gc{place} finds orphan g{orphan}", become(world, "sweep", orphan)
            return
        if collector.at == "forget":
            row_or_none = _row(world, collector.generation)
            if row_or_none is not None and _allows(FORGET, row_or_none):
                forgotten = _step(world, row_or_none, FORGET)
                yield f"gc{place} forgets g{collector.generation}", become(forgotten)
        else:
            then = ("forget", collector.generation) if collector.at == "delete" else ("idle", 0)
            yield f"gc{place} deletes g{key}", become(_deleted(world, key), *then)
            if self.variant.late:
                lost = world._replace(late_deletes=world.late_deletes | {key})
                yield f"gc{place}'s delete times out", become(lost)
        yield f"gc{place} dies", become(world)

    # Damage and repair.

    def damage(self, world: World) -> Happenings:
        """Let an object vanish or rot that a row says is stored."""
        if not world.damages_left:
            return
        worse = world._replace(damages_left=world.damages_left - 1)
        for row in world.rows:
            number = row.generation
            if row.uploaded and row.alive and number in world.objects:
                lost = worse._replace(
                    objects=world.objects - {number}, excused=world.excused | {number}
                )
                yield f"g{number} vanishes", lost
                yield f"g{number} rots", lost._replace(rotten=world.rotten | {number})

    def repair(self, world: World, repair: Cleaner) -> Happenings:
        """Do as `fsck --repair` does about a chunk that is missing or damaged.

        If it knows the bytes, it stores them anew after that, as every writer does.
        """

        def become(world: World, at: str = "idle", generation: int = 0) -> World:
            return world._replace(repairs=(Cleaner(at, generation),))

        number = repair.generation
        if repair.at == "idle":
            yield from self.move_edges(world)
            for row in world.rows:
                if row.uploaded and row.alive and row.generation not in world.objects:
                    plan = self.repair_plan(row.generation in world.rotten)
                    found = become(world, plan, row.generation)
                    yield f"repair finds g{row.generation}", found
            return
        step, _, rest = repair.at.partition(", ")
        if step == "set aside" and self.variant.late:
            lost = world._replace(late_deletes=world.late_deletes | {number})
            yield f"repair's delete of g{number} times out", become(lost)
        changed = world
        if step == "put":
            changed = _put(world, number)
        elif step == "set aside":
            changed = _deleted(world, number)
        elif (row_or_none := _row(world, number)) is not None and _allows(LOSE, row_or_none):
            changed = self.lose(world, row_or_none)
        then = become(changed, rest, number) if rest else become(changed)
        yield f"repair: {step} g{number}", then
        yield "repair dies", become(world)

    def repair_plan(self, rots: bool) -> str:
        """Return what is done about a chunk, in order."""
        if self.variant.mended_in_place:
            return "set aside, put" if rots else "put"
        return "lose, set aside" if rots else "lose"

    def lose(self, world: World, row: Row) -> World:
        """Take the step, and the holds that it says are gone."""
        if not self.variant.lost_are_let_go:
            return _with(world, row, row._replace(uploaded=False))
        let_go = tuple(
            writer._replace(hold=0) if writer.hold == row.generation else writer
            for writer in world.writers
        )
        return _step(world, row, LOSE)._replace(writers=let_go)

    def move_edges(self, world: World) -> Happenings:
        """Let references to what is lost name what is stored."""
        stored = next((row.generation for row in world.rows if _allows(REFER, row)), 0)
        lost = {row.generation for row in world.rows if row.alive and not row.uploaded}
        if not stored:
            return
        for place, writer in enumerate(world.writers):
            if writer.committed in lost:
                writers = list(world.writers)
                writers[place] = writer._replace(committed=stored)
                moved = _moved(world, writer.committed, stored)
                yield f"repair moves w{place}'s edge", moved._replace(writers=tuple(writers))
        for place, reader in enumerate(world.readers):
            if reader.pinned in lost:
                readers = list(world.readers)
                readers[place] = reader._replace(pinned=stored)
                moved = _moved(world, reader.pinned, stored)
                yield f"repair moves r{place}'s edge", moved._replace(readers=tuple(readers))


# The same few rows are asked about over and over.
_ALLOWED: dict[tuple[str, Row], bool] = {}
_AFTER: dict[tuple[str, Row], Row | None] = {}


def _allows(step: Transition, row: Row) -> bool:
    known = _ALLOWED.get((step.name, row))
    if known is None:
        known = _ALLOWED[step.name, row] = allows(step, row._asdict())
    return known


def _row(world: World, generation: int) -> Row | None:
    for row in world.rows:
        if row.generation == generation:
            return row
    return None


def _the_row(world: World, generation: int) -> Row:
    row = _row(world, generation)
    assert row is not None, "BUG: a row went that is held or referred to"
    return row


def _moved(world: World, before: int, now: int) -> World:
    """Move one reference from row to row."""
    gone = _step(world, _the_row(world, before), UNREFER)
    return _step(gone, _the_row(gone, now), REFER)


def _step(world: World, row: Row, step: Transition) -> World:
    """Take a step of the code's own table."""
    if (step.name, row) not in _AFTER:
        changed = after(step, row._asdict())
        _AFTER[step.name, row] = None if changed is None else Row(**changed)
    return _with(world, row, _AFTER[step.name, row])


def _with(world: World, row: Row, changed: Row | None) -> World:
    rows = [changed if one.generation == row.generation else one for one in world.rows]
    return world._replace(rows=tuple(one for one in rows if one is not None))


def _put(world: World, key: int) -> World:
    """Store an object, unless there is one of this name; whoever did so relies on it."""
    objects = world.objects if key in world.rotten else world.objects | {key}
    return world._replace(objects=objects, excused=world.excused - {key})


def _deleted(world: World, key: int) -> World:
    return world._replace(objects=world.objects - {key}, rotten=world.rotten - {key})
