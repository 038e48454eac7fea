"""Which worlds of the model behave alike, so that the search visits one of each.

Two worlds are alike if whatever can happen in the one can happen in the other, and if the one is a
violation, so is the other. What `Reduction.canonical` takes for alike, and why it may:

1. *Who is who.* Writers, readers and collectors are interchangeable: they are sorted.
2. *Which number.* No guard compares generations, and a row is never found by its age: rows are
   sorted by what they are and who names them, and numbered anew. So the search is finite though
   generations are not: it covers any number of them, with a bound on those that have a row.
3. *What nobody can name.* A generation whose row is gone never gets another. Its object, requests
   that are under way to it, and whoever is about to delete or forget it make no difference.
4. *What nobody will look at.* Dying is one way (`test_dying_is_one_way`), and a dying row that is
   referred to or held is a violation by itself. So its object and requests for it make no
   difference either. The same is true of a row that is not uploaded and that nobody refers to,
   unless a writer at work may still say that it is: then it is looked at.
5. *`uploaded` of a dying row*, if the table allows the same steps with it and without. If a guard
   is weakened so that it does not, this falls away by itself.
6. *A race that is lost.* A writer whose lease ended is refused whatever it says next, and begins
   again. A put that it makes before that is to a row that is not uploaded, and that nobody else may
   mark. So it is as if it had begun again already.
7. *Which generation is published* is not the writer's choice: a commit refers to what is current.
8. *A late put of an object that is there* changes nothing, unless objects vanish by themselves.

1 holds for every variant; the others are used only where objects and rows are named by their
generation. That all this is right is tested, too: where the whole search is small enough, it finds
the same worlds, put into canonical form, and the same verdict on each (`test_model.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import pairwise, permutations, product

from tests.store.gc.model import Cleaner, Model, Reader, Row, World, Writer

from holdfast.store.gc.transitions import allows

_WRITER_AT = ("idle", "put", "mark", "publish", "published")
_CLEANER_AT = (
    *("idle", "delete", "forget", "sweep"),
    *("lose", "put", "set aside", "lose, set aside", "set aside, put"),
)
_AT = {at: number for number, at in enumerate(_WRITER_AT)}
_CLEANS = {at: number for number, at in enumerate(_CLEANER_AT)}


class Reduction:
    """Puts worlds into canonical form."""

    def __init__(self, model: Model, *, names_only: bool = False) -> None:
        """With `names_only`, use 1 to 3 alone."""
        self._variant = model.variant
        self._names_only = names_only
        self._uploaded_matters = any(
            allows(step, row._asdict()) != allows(step, row._replace(uploaded=True)._asdict())
            for step in model.chunk_steps
            for row in _dying_rows()
        )

    def canonical(self, world: World) -> World:
        """Return the one of all worlds that behave like this one that is visited."""
        if not self._variant.numbered:
            return _sorted(world)
        if self._names_only:
            return _numbered(_without_unnamed(world), keep_used=self._variant.in_all)
        writers = tuple(self._writer(writer) for writer in world.writers)
        rows = tuple(self._row(row) for row in world.rows)
        looked_at = self._looked_at(rows, writers)
        objects = world.objects & looked_at
        late_puts = world.late_puts & looked_at
        return _numbered(
            world._replace(
                rows=rows,
                writers=writers,
                objects=objects,
                rotten=world.rotten & looked_at,
                excused=world.excused & looked_at,
                late_puts=late_puts if self._variant.damages else late_puts - objects,
                late_deletes=world.late_deletes & looked_at,
            ),
            keep_used=self._variant.in_all,
        )

    def _writer(self, writer: Writer) -> Writer:
        if writer.at in {"put", "mark", "publish"}:
            if self._variant.leases_checked and not writer.leased:
                return writer._replace(at="idle", generation=0)
            if writer.at == "publish":
                return writer._replace(generation=0)
        return writer

    def _row(self, row: Row) -> Row:
        if row.alive or self._uploaded_matters:
            return row
        return row._replace(uploaded=False)

    def _looked_at(self, rows: Iterable[Row], writers: Iterable[Writer]) -> frozenset[int]:
        """Return the generations whose objects somebody relies on, or may yet."""
        stored_next = {writer.generation for writer in writers}
        stored_next |= {writer.hold for writer in writers if writer.leased}
        return frozenset(
            row.generation
            for row in rows
            if row.alive and (row.uploaded or row.refcount or row.generation in stored_next)
        )


def pack(world: World) -> bytes:
    """Return a world in a few bytes; different ones differ."""
    packed = [world.generations_used, world.damages_left, len(world.rows)]
    packed += [_mask(numbers) for numbers in _sets(world)]
    for generation, uploaded, refcount, holds, removing, deleting in world.rows:
        states = uploaded | (removing is not None) << 1 | (deleting is not None) << 2
        packed += (generation << 3 | states, refcount << 4 | holds)
    for at, generation, leased, hold, committed in world.writers:
        packed += (_AT[at] | leased << 3 | generation << 4, hold << 4 | committed)
    packed += [pinned << 1 | leased for pinned, leased in world.readers]
    for cleaner_at, generation in (*world.collectors, *world.repairs):
        packed.append(_CLEANS[cleaner_at] << 4 | generation)
    return bytes(packed)


@cache
def _mask(numbers: frozenset[int]) -> int:
    return sum(1 << number for number in numbers)


def _dying_rows() -> Iterable[Row]:
    """Return every kind of row that is dying, not uploaded."""
    for refcount, holds, deleting in product((0, 1), (0, 1), (None, 0.0)):
        yield Row(1, False, refcount, holds, 0.0, deleting)


def _sorted(world: World) -> World:
    return world._replace(
        writers=tuple(sorted(world.writers)),
        readers=tuple(sorted(world.readers)),
        collectors=tuple(sorted(world.collectors)),
    )


def _without_unnamed(world: World) -> World:
    named = frozenset(row.generation for row in world.rows)
    return world._replace(
        objects=world.objects & named,
        rotten=world.rotten & named,
        excused=world.excused & named,
        late_puts=world.late_puts & named,
        late_deletes=world.late_deletes & named,
    )


def _numbered(world: World, *, keep_used: bool) -> World:
    """Number rows anew, in an order that depends on nothing but what they are."""
    used = world.generations_used if keep_used else len(world.rows)
    if len(world.rows) < 2:
        return _renumbered(world, [row.generation for row in world.rows], used)
    kinds = {row.generation: _kind(world, row) for row in world.rows}
    order = sorted(kinds, key=kinds.__getitem__)
    # Twins that nobody names may stand in any order.
    if not any(kinds[one] == kinds[other] and kinds[one][1] for one, other in pairwise(order)):
        return _renumbered(world, order, used)
    # Others: whichever order comes first in the end.
    orders = (o for o in permutations(order) if [kinds[n] for n in o] == [kinds[n] for n in order])
    return min((_renumbered(world, list(one), used) for one in orders), key=pack)


def _kind(world: World, row: Row) -> tuple[int, list[int]]:
    """Return all that there is to a row, but its number: what it is, and who names it as what."""
    number = row.generation
    states = row.uploaded | row.alive << 1 | (row.deleting is None) << 2
    for numbers in _sets(world):
        states = states << 1 | (number in numbers)
    named = []
    for at, generation, leased, hold, committed in world.writers:
        as_what = (generation == number) << 2 | (hold == number) << 1 | (committed == number)
        if as_what:
            named.append(_AT[at] << 4 | leased << 3 | as_what)
    named += [0x100 | one.leased for one in world.readers if one.pinned == number]
    named += [0x200 | _CLEANS[one.at] for one in world.collectors if one.generation == number]
    named += [0x300 | _CLEANS[one.at] for one in world.repairs if one.generation == number]
    named.sort()
    return states << 8 | row.refcount << 4 | row.holds, named


def _sets(world: World) -> tuple[frozenset[int], ...]:
    return (world.objects, world.rotten, world.excused, world.late_puts, world.late_deletes)


def _renumbered(world: World, order: list[int], used: int) -> World:
    new = {number: place for place, number in enumerate(order, start=1)}
    rows = {row.generation: row for row in world.rows}

    def moved(numbers: frozenset[int]) -> frozenset[int]:
        return frozenset(new[number] for number in numbers) if numbers else numbers

    def cleaner(one: Cleaner) -> Cleaner:
        return Cleaner(one.at, new[one.generation]) if one.generation in new else Cleaner()

    def writer(one: Writer) -> Writer:
        at, generation, leased, hold, committed = one
        return Writer(at, new.get(generation, 0), leased, new.get(hold, 0), new.get(committed, 0))

    return World(
        rows=tuple(rows[number]._replace(generation=new[number]) for number in order),
        objects=moved(world.objects),
        rotten=moved(world.rotten),
        excused=moved(world.excused),
        late_puts=moved(world.late_puts),
        late_deletes=moved(world.late_deletes),
        writers=tuple(sorted(map(writer, world.writers))),
        readers=tuple(sorted(Reader(new.get(one.pinned, 0), one.leased) for one in world.readers)),
        collectors=tuple(sorted(map(cleaner, world.collectors))),
        repairs=tuple(map(cleaner, world.repairs)),
        generations_used=used,
        damages_left=world.damages_left,
    )
