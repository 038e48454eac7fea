"""A model of writers, readers and collectors on one chunk, searched exhaustively.

It takes the very table that the code's statements are made from, so what is shown here is shown of
them. The world: rows of one hash (several generations), objects, two writers with a job each, a
reader with a pin, collectors that may be zombies, requests that time out and land later. Leases
lapse at any moment; anybody may die at any step; a transaction is one step here, because that is
what a transaction is.

`Variant` turns the design into others, known to be wrong, so that the search shows that it can
fail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from holdfast.store.gc.transitions import (
    BEGIN_DELETING,
    BEGIN_REMOVING,
    CLOSE,
    EXPIRE,
    FORGET,
    HOLD,
    MARK_UPLOADED,
    NEW_CHUNK,
    REFER,
    RELEASE,
    UNREFER,
    WORK,
    Step,
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


class Writer(NamedTuple):
    """A writer: where it is, the generation it works with, whether its lease is at work."""

    at: str = "idle"
    generation: int = 0
    leased: bool = False
    # What the database has of it: a hold of its job, a reference of its commit, each to a row.
    hold: int = 0
    committed: int = 0


class Reader(NamedTuple):
    """A reader: where it is, whose commit it reads, the row its pin refers to."""

    at: str = "idle"
    pinned: int = 0
    leased: bool = False


class Collector(NamedTuple):
    """A collector between two transactions: what it is about to delete, or has deleted."""

    at: str = "idle"
    generation: int = 0


class World(NamedTuple):
    """Everything at one moment."""

    rows: tuple[Row, ...] = ()
    objects: frozenset[int] = frozenset()
    next_generation: int = 1
    writers: tuple[Writer, ...] = ()
    readers: tuple[Reader, ...] = ()
    collectors: tuple[Collector, ...] = ()
    # Requests that timed out and may still land: "P" puts, "D" deletes.
    late: frozenset[tuple[str, int]] = frozenset()


class Become(Protocol):
    """Changes one writer of a world."""

    def __call__(self, world: World, **changes: object) -> World: ...


@dataclass(frozen=True)
class Variant:
    """A design. The default is ours."""

    writers: int = 2
    readers: int = 1
    collectors: int = 2
    generations: int = 3
    """How many may exist at once; if `generation_in_key` is false, how many at all."""
    late: bool = True
    # What the wrong ones leave out:
    generation_in_key: bool = True
    """False: an object's name is the hash alone, and a writer waits while a row is dying."""
    generation_checked: bool = True
    """False: a writer speaks of the hash's row, whichever it is by now."""
    references_checked: bool = True
    """False: a reference is taken whatever the row's state is, as the seed says."""
    leases_checked: bool = True
    """False: a job whose lease ended may go on."""


@dataclass(frozen=True)
class Verdict:
    """What a search found."""

    states: int
    violation: str | None
    trace: tuple[str, ...]
    exhausted: bool


class Model:
    """All that can happen next, and what must never."""

    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        self.start = World(
            writers=(Writer(),) * variant.writers,
            readers=(Reader(),) * variant.readers,
            collectors=(Collector(),) * variant.collectors,
        )

    def search(self, states_max: int = 5_000_000) -> Verdict:
        """Visit every state, the nearest first."""
        seen: dict[World, tuple[World, str] | None] = {self.start: None}
        queue = deque([self.start])
        while queue:
            world = queue.popleft()
            wrong = self.violation(world)
            if wrong:
                return Verdict(len(seen), wrong, _trace(seen, world), False)
            if len(seen) > states_max:
                return Verdict(len(seen), None, (), False)
            for what, reached in self.following(world):
                following = _canonical(reached, self.variant.generation_in_key)
                if following not in seen:
                    seen[following] = (world, what)
                    queue.append(following)
        return Verdict(len(seen), None, (), True)

    def violation(self, world: World) -> str | None:
        """Say what must never be, and is."""
        current = 0
        edges = [w.committed for w in world.writers] + [r.pinned for r in world.readers]
        holds = [w.hold for w in world.writers]
        for row in world.rows:
            alive = row.removing is None
            if row.refcount > 0 and self.key(row.generation) not in world.objects:
                return f"I1: g{row.generation} is referred to and its object is gone"
            if row.uploaded and alive and self.key(row.generation) not in world.objects:
                return f"I1: g{row.generation} counts as uploaded and its object is gone"
            if self.variant.generation_checked and self.variant.references_checked:
                if row.refcount != edges.count(row.generation):
                    return f"I2: g{row.generation} counts {row.refcount} references"
                if row.holds != holds.count(row.generation):
                    return f"I2: g{row.generation} counts {row.holds} holds"
            if not alive and row.refcount + row.holds > 0:
                return f"I4: g{row.generation} is dying and referred to"
            current += row.uploaded and alive
        if current > 1:
            return "I6: two generations are current"
        return self.disappointed(world)

    def disappointed(self, world: World) -> str | None:
        """Say who relies on an object that is not there."""
        for writer in world.writers:
            # Race 7: whoever was told that no upload is needed relies on the object.
            trusts = writer.at == "publish" and writer.leased and writer.hold
            if trusts and self.key(writer.hold) not in world.objects:
                return f"I1: a writer relies on g{writer.hold}, and its object is not there"
        for reader in world.readers:
            # A pin whose lease is at work reads whatever becomes of the commit.
            reads = reader.at == "reading" and reader.leased
            if reads and self.key(reader.pinned) not in world.objects:
                return f"I8: a reader's g{reader.pinned} is gone"
        return None

    def key(self, generation: int) -> int:
        """Return the name of a generation's object."""
        return generation if self.variant.generation_in_key else 0

    def following(self, world: World) -> Iterator[tuple[str, World]]:
        """Yield everything that can happen next."""
        for request in world.late:
            kind, key = request
            objects = world.objects | {key} if kind == "P" else world.objects - {key}
            landed = world._replace(objects=objects, late=world.late - {request})
            yield f"late {kind} of g{key} lands", landed
        for place in range(len(world.writers)):
            yield from self.write(world, place)
        for place in range(len(world.readers)):
            yield from self.read(world, place)
        yield from self.mark(world)
        for place in range(len(world.collectors)):
            yield from self.delete(world, place)

    # Writers.

    def write(self, world: World, place: int) -> Iterator[tuple[str, World]]:
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
            stored = world._replace(objects=world.objects | {key})
            yield f"{name} puts g{key}", become(stored, at="mark")
            if self.variant.late:
                lost = world._replace(late=world.late | {("P", key)})
                yield f"{name}'s put times out; it dies", become(lost, at="dead")
        elif writer.at == "mark":
            yield from self.mark_uploaded(world, place, become)
        elif writer.at == "publish":
            yield from self.publish(world, place, become)
        elif writer.at == "published" and writer.committed:
            row = _row(world, writer.committed)
            if row is not None and _allows(UNREFER, row):
                gone = _step(world, row, UNREFER)
                yield f"{name} deletes its commit", become(gone, at="done", committed=0)
        if writer.leased:
            # The collector ends it when it lapsed, or the writer itself; then its hold goes.
            assert EXPIRE.guard[0] == CLOSE.guard[0] == WORK.guard[0]
            yield f"{name}'s lease ends", become(world, leased=False)
        elif writer.hold and (row := _row(world, writer.hold)) is not None:
            yield f"{name}'s hold is released", become(_step(world, row, RELEASE), hold=0)
        if writer.at not in {"idle", "dead", "done", "published"}:
            yield f"{name} dies", become(world, at="dead")
        if writer.at in {"dead", "done"} and not writer.hold and not writer.leased:
            yield f"{name} begins again", become(world, at="idle")

    def reserve(self, world: World, place: int, become: Become) -> Iterator[tuple[str, World]]:
        """Open a job and reserve, as `References.open_job` and `reserve_chunks` do."""
        name = f"w{place}"
        if world.writers[place].hold:
            return  # the lease before this one is not cleared away yet
        current = [row for row in world.rows if _allows(HOLD, row)]
        if current:
            row = current[0]
            held = _step(world, row, HOLD)
            changes = {"at": "publish", "generation": row.generation, "hold": row.generation}
            yield f"{name} holds g{row.generation}", become(held, leased=True, **changes)
            return
        if not self.variant.generation_in_key:
            if world.rows and any(row.removing is not None for row in world.rows):
                return  # FlushDeletes: wait until the old one is gone
            if world.rows:  # one row per hash: share it
                row = world.rows[0]
                shared = _with(world, row, row._replace(holds=row.holds + 1))
                changes = {"at": "put", "generation": row.generation, "hold": row.generation}
                yield f"{name} shares g{row.generation}", become(shared, leased=True, **changes)
                return
        if world.next_generation > self.variant.generations:
            return
        generation = world.next_generation
        row = Row(generation=generation, **NEW_CHUNK)
        grown = world._replace(rows=(*world.rows, row), next_generation=generation + 1)
        changes = {"at": "put", "generation": generation, "hold": generation}
        yield f"{name} reserves g{generation}", become(grown, leased=True, **changes)

    def mark_uploaded(
        self, world: World, place: int, become: Become
    ) -> Iterator[tuple[str, World]]:
        writer = world.writers[place]
        name = f"w{place}"
        if self.variant.leases_checked and not writer.leased:
            yield f"{name} may not mark", become(world, at="idle")
            return
        own = self.own_row(world, writer)
        if not self.variant.generation_checked or not self.variant.generation_in_key:
            if own is not None and own.removing is None:
                marked = _with(world, own, own._replace(uploaded=True))
                yield f"{name} marks g{own.generation}", become(marked, at="publish")
            elif self.variant.references_checked:
                yield f"{name} cannot mark", become(world, at="idle")
            else:
                yield f"{name} marks nothing", become(world, at="publish")
            return
        alive = {row.generation: row._asdict() for row in world.rows if row.removing is None}
        winner = wins(writer.generation, alive)
        if winner != writer.generation:
            row = _row(world, winner)
            assert row is not None
            moved = world
            if writer.hold != winner:
                loser = _row(world, writer.hold)
                assert loser is not None
                moved = _step(_step(world, loser, RELEASE), row, HOLD)
            yield (
                f"{name} comes second to g{winner}",
                become(moved, at="publish", generation=winner, hold=winner),
            )
        elif own is not None and (own.uploaded or _allows(MARK_UPLOADED, own)):
            marked = world if own.uploaded else _step(world, own, MARK_UPLOADED)
            yield f"{name} marks g{own.generation}", become(marked, at="publish")
        else:
            yield f"{name} cannot mark", become(world, at="idle")

    def publish(self, world: World, place: int, become: Become) -> Iterator[tuple[str, World]]:
        writer = world.writers[place]
        name = f"w{place}"
        if self.variant.leases_checked and not writer.leased:
            yield f"{name} may not publish", become(world, at="idle")
            return
        row = self.own_row(world, writer)
        # A commit refers to whatever is current, as `publish_commit` does.
        if self.variant.generation_checked and self.variant.generation_in_key:
            row = next((row for row in world.rows if _allows(REFER, row)), None)
        if row is not None and (_allows(REFER, row) or not self.variant.references_checked):
            yield (
                f"{name} publishes g{row.generation}",
                become(_step(world, row, REFER), at="published", committed=row.generation),
            )
        elif self.variant.references_checked:
            yield f"{name} cannot publish", become(world, at="idle")

    def own_row(self, world: World, writer: Writer) -> Row | None:
        """Return the row that a writer means."""
        if self.variant.generation_checked:
            return _row(world, writer.generation)
        return world.rows[-1] if world.rows else None

    # Readers.

    def read(self, world: World, place: int) -> Iterator[tuple[str, World]]:
        reader = world.readers[place]

        def become(world: World, reader: Reader) -> World:
            readers = list(world.readers)
            readers[place] = reader
            return world._replace(readers=tuple(readers))

        if reader.at == "idle":
            for writer in world.writers:
                row = _row(world, writer.committed)
                if row is not None and _allows(REFER, row):
                    pinned = _step(world, row, REFER)
                    yield "r pins", become(pinned, Reader("reading", row.generation, True))
        elif reader.leased:
            yield "r's lease ends", become(world, reader._replace(at="done", leased=False))
        elif reader.pinned and (row := _row(world, reader.pinned)) is not None:
            yield "r's pin is released", become(_step(world, row, UNREFER), Reader())

    # Collectors.

    def mark(self, world: World) -> Iterator[tuple[str, World]]:
        """Take a row through a state; which collector does so makes no difference."""
        for row in world.rows:
            for step in (BEGIN_REMOVING, BEGIN_DELETING):
                if _allows(step, row):
                    yield f"gc: {step.name} g{row.generation}", _step(world, row, step)

    def delete(self, world: World, place: int) -> Iterator[tuple[str, World]]:
        collector = world.collectors[place]

        def become(world: World, at: str, generation: int = 0) -> World:
            collectors = list(world.collectors)
            collectors[place] = Collector(at, generation)
            return world._replace(collectors=tuple(collectors))

        key = self.key(collector.generation)
        if collector.at == "idle":
            for row in world.rows:
                if _allows(FORGET, row):
                    yield (
                        f"gc{place} finds g{row.generation}",
                        become(world, "delete", row.generation),
                    )
            return
        if collector.at == "delete":
            gone = world._replace(objects=world.objects - {key})
            yield f"gc{place} deletes g{key}", become(gone, "forget", collector.generation)
            if self.variant.late:
                lost = world._replace(late=world.late | {("D", key)})
                yield f"gc{place}'s delete times out; it dies", become(lost, "idle")
        else:
            found = _row(world, collector.generation)
            if found is not None and _allows(FORGET, found):
                yield (
                    f"gc{place} forgets g{found.generation}",
                    become(_step(world, found, FORGET), "idle"),
                )
        yield f"gc{place} dies", become(world, "idle")


# The same few rows are asked about over and over.
_ALLOWED: dict[tuple[str, Row], bool] = {}
_AFTER: dict[tuple[str, Row], Row | None] = {}
_PARTS: dict[Any, Any] = {}


def _allows(step: Step, row: Row) -> bool:
    known = _ALLOWED.get((step.name, row))
    if known is None:
        known = _ALLOWED[step.name, row] = allows(step, row._asdict())
    return known


def _canonical(world: World, numbered: bool) -> World:
    """Return one of the worlds that behave alike: no more than one needs a visit.

    Who is who among equals makes no difference. If objects are `numbered` by generation, neither do
    the numbers themselves, nor objects and requests of a generation whose row is gone: no row will
    have it again, and nothing that must not happen speaks of it. So the search is finite though
    generations are not: it covers any number of them, with a bound on those that exist at once.
    """
    writers = [
        one._replace(generation=0) if one.at in {"dead", "done", "published"} else one
        for one in world.writers
    ]
    row_went = len(world.rows) != world.next_generation - 1
    # A writer whose row went may still put; its number is 0 by then.
    if numbered and (row_went or 0 in world.objects or ("P", 0) in world.late):
        world = _renumbered(world._replace(writers=tuple(writers)))
        writers = list(world.writers)
    canonical = world._replace(
        writers=tuple(sorted(writers)),
        readers=tuple(sorted(world.readers)),
        collectors=tuple(sorted(world.collectors)),
    )
    # Worlds are made of few parts: keep each part once, not once per world.
    return World(*(_PARTS.setdefault(part, part) for part in canonical))


def _renumbered(world: World) -> World:
    new = {row.generation: number for number, row in enumerate(world.rows, start=1)}
    return World(
        rows=tuple(row._replace(generation=new[row.generation]) for row in world.rows),
        objects=frozenset(new[number] for number in world.objects if number in new),
        next_generation=len(new) + 1,
        writers=tuple(
            one._replace(
                generation=new.get(one.generation, 0),
                hold=new.get(one.hold, 0),
                committed=new.get(one.committed, 0),
            )
            for one in world.writers
        ),
        readers=tuple(one._replace(pinned=new.get(one.pinned, 0)) for one in world.readers),
        collectors=tuple(
            Collector(one.at, new[one.generation]) if one.generation in new else Collector()
            for one in world.collectors
        ),
        late=frozenset((kind, new[number]) for kind, number in world.late if number in new),
    )


def _row(world: World, generation: int) -> Row | None:
    return next((row for row in world.rows if row.generation == generation), None)


def _step(world: World, row: Row, step: Step) -> World:
    """Take a step of the code's own table."""
    if (step.name, row) not in _AFTER:
        changed = after(step, row._asdict())
        _AFTER[step.name, row] = None if changed is None else Row(**changed)
    return _with(world, row, _AFTER[step.name, row])


def _with(world: World, row: Row, changed: Row | None) -> World:
    rows = [changed if one.generation == row.generation else one for one in world.rows]
    return world._replace(rows=tuple(one for one in rows if one is not None))


def _trace(seen: dict[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    steps: list[str] = []
    while (before := seen[world]) is not None:
        world, what = before
        steps.append(what)
    return tuple(reversed(steps))
