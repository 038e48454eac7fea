"""The crash matrix of ledger, trash and pins: every step with every fault and every kind of end.

One life of a quiver with readers reaches every step that records, syncs, rotates, pins or deletes.
It is run once for each fault; then the process is killed, or the power cut, and the store opened
again. Nobody may wait for what is gone, no outcome may be lost that was promised, nothing may be
resolved twice, and a planned range must read the same rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import pytest
from tests.crash.contents import Shape
from tests.readers.world import LARGE_BYTES, World

from holdfast.errors import CannotOpen, HoldfastError
from holdfast.quiver import AckLevel, RetentionConfig, SubscriberOptions
from holdfast.quiver.base.points import QuiverPoint
from holdfast.seam.faulty import Fault, FaultKind

THOROUGH = os.environ.get("HOLDFAST_THOROUGH") == "1"

POINTS = [point for point in QuiverPoint if point.startswith(("ledger.", "trash."))]
KILLS = (FaultKind.KILL_BEFORE, FaultKind.KILL_MIDWAY, FaultKind.KILL_AFTER)
WRITES = (
    QuiverPoint.LEDGER_HEADER,
    QuiverPoint.LEDGER_CHECKPOINT,
    QuiverPoint.LEDGER_WRITE,
    QuiverPoint.LEDGER_CONTINUE,
)
SYNCS = (
    QuiverPoint.LEDGER_SYNC,
    QuiverPoint.LEDGER_HEADER_SYNC,
    QuiverPoint.LEDGER_CHECKPOINT_SYNC,
    QuiverPoint.LEDGER_SYNC_DIR,
    QuiverPoint.LEDGER_CONTINUE_SYNC,
    QuiverPoint.TRASH_SYNC_DIR,
)
# So many calls of a step are struck, one after the other.
CALLS_MAX = 1000 if THOROUGH else 12
# How often dice are thrown for what a power cut keeps.
THROWS = 8 if THOROUGH else 1

pytestmark = pytest.mark.timeout(1800)

RETENTION = RetentionConfig(max_segments=3, max_age_s=600.0, size_cap_policy="drop_oldest")

# Half of an ack, cut off again: otherwise nothing is ever undone.
BASE_FAULTS = (Fault(QuiverPoint.LEDGER_WRITE, FaultKind.SHORT_WRITE, nth=6),)

Step = Callable[[World], object]


def append(count: int, shape: Shape | None = None) -> Step:
    def step(world: World) -> None:
        for _ in range(count):
            world.append(world.new(shape, 40), AckLevel.FSYNCED, with_epoch=False)

    return step


def append_large(world: World) -> None:
    world.append(world.new(Shape.RAW, LARGE_BYTES), AckLevel.FSYNCED, with_epoch=True)


def seal(world: World) -> None:
    world.quiver.flush(5.0)


def deliver(name: str, count: int, verb: str = "ack") -> Step:
    def step(world: World) -> None:
        for _ in range(count):
            world.poll(name)
            world.decide(-1, verb)

    return step


def ack_all(world: World) -> None:
    for place in range(len(world.deliveries)):
        world.decide(place, "ack")


def plan(name: str, max_events: int) -> Step:
    return lambda world: world.plan(name, max_events)


def commit(pick: int, place: int = 99, row: int = 0) -> Step:
    return lambda world: world.commit(pick, place, row)


def rotate(world: World) -> None:
    world.quiver._engine.ledger.checkpoint()


def pass_time(world: World) -> None:
    world.machine.clock.pass_time(700.0)


DROPPING = SubscriberOptions(on_full="drop_oldest")

STEPS: tuple[Step, ...] = (
    lambda world: world.register("archive", 0, SubscriberOptions()),
    lambda world: world.register("stats", 0, SubscriberOptions()),
    append(3),
    seal,
    append(1),
    deliver("archive", 3),
    ack_all,  # one of them could not be recorded
    plan("stats", 4),
    plan("stats", 8),
    append(2, Shape.ARROW),
    append_large,
    commit(1),
    lambda world: world.register("alerts", 1, DROPPING),
    seal,
    deliver("archive", 2, "reject"),
    commit(0, 0, 2),
    commit(0),
    World.keep,  # the first segment goes: everyone has resolved it
    rotate,
    append(3, Shape.TWO_SLOTS),
    deliver("archive", 9),
    deliver("archive", 1, "nack"),
    lambda world: world.replay("archive", 4, 2),
    lambda world: world.unregister("alerts"),
    plan("stats", 3),
    seal,
    append(1, Shape.HEARTBEAT),
    seal,
    append(1),
    seal,
    World.keep,  # too many segments
    lambda world: world.pause("archive", paused=True),
    commit(-1, 1),
    lambda world: world.detach("archive"),
    pass_time,
    rotate,
    World.keep,  # too old, but for what is planned
    rotate,
    append(2),
    World.keep,  # the oldest ledger goes
    lambda world: world.attach("archive", "newest_first"),
    lambda world: world.pause("archive", paused=False),
    deliver("archive", 2),
    lambda world: world.quiver._engine.ledger.sync(),
)


def kinds_at(point: QuiverPoint) -> Iterator[FaultKind]:
    """Return the faults that make sense at a step."""
    for kind in FaultKind:
        if kind in (FaultKind.KILL_MIDWAY, FaultKind.SHORT_WRITE) and point not in WRITES:
            continue
        if kind is FaultKind.FAILED_SYNC and point not in SYNCS:
            continue
        if kind in (FaultKind.BAD_BLOCK, FaultKind.STAYS_FULL):
            continue  # columns of their own: it may cost what lies in the block, or refuse
        yield kind


def run(faults: tuple[Fault, ...], *, cut: bool = False) -> World:
    """Live that life with faults; with `cut` it ends after the step in which they struck."""
    world = World(RETENTION)
    world.damaged = any(fault.kind is FaultKind.BAD_BLOCK for fault in faults)
    try:
        world.start([*faults, *BASE_FAULTS])
    except (CannotOpen, HoldfastError):
        return world  # told, and nothing left running; the next try is another process
    for step in STEPS:
        calls = world.disk.calls()
        if world.crashed or (cut and all(calls.get(f.at, 0) >= f.nth for f in faults)):
            break
        with world.acting():
            step(world)
    return world


@cache
def calls() -> dict[str, int]:
    """Return how often each step is reached when nothing (else) fails."""
    world = run(())
    try:
        return world.disk.calls()
    finally:
        world.close()


def struck(point: QuiverPoint) -> list[int]:
    """Return which calls of a step are struck: all, or some over the whole life."""
    times = calls()[point]
    if times <= CALLS_MAX:
        return list(range(1, times + 1))
    return sorted({1 + round(place * (times - 1) / (CALLS_MAX - 1)) for place in range(CALLS_MAX)})


def test_the_life_reaches_every_step_of_ledger_and_trash() -> None:
    assert [point for point in POINTS if not calls().get(point)] == []


CELLS = [(point, kind) for point in POINTS for kind in kinds_at(point)]


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("point", "kind"), CELLS)
def test_cell(point: QuiverPoint, kind: FaultKind) -> None:
    check_calls(point, kind, struck(point)[::2])


@pytest.mark.slow
@pytest.mark.parametrize(("point", "kind"), CELLS)
def test_rest_of_cell(point: QuiverPoint, kind: FaultKind) -> None:
    check_calls(point, kind, struck(point)[1::2])


def check_calls(point: QuiverPoint, kind: FaultKind, numbers: Sequence[int]) -> None:
    for nth in numbers:
        for cut in (True,) if kind in KILLS else (True, False):
            check_cell(Fault(point, kind, nth), cut=cut)


def check_cell(fault: Fault, *, cut: bool) -> None:
    world = run((fault,), cut=cut)
    try:
        for how, seed in [("kill", 0), ("forget", 0), *(("some", n) for n in range(THROWS))]:
            try:
                check_survivor(world, how, seed)
            except BaseException as error:
                error.add_note(f"{fault}, cut={cut}, then {how} with seed {seed}")
                raise
    finally:
        world.close()


def check_survivor(world: World, how: str, seed: int) -> None:
    plans = [(name, planned) for name, _, planned in world.plans]
    survivor = world.survivor(how, seed)
    try:
        survivor.start()
        survivor.keep()
        survivor.check()
        for name, planned in plans:
            if name in survivor.notes:
                check_plan(survivor, name, {ref.seq for ref in planned.refs})
        survivor.settle()
        survivor.restart("forget", seed, RETENTION)
    finally:
        survivor.close()


def check_plan(world: World, name: str, seqs: set[int]) -> None:
    """See that what was planned and not committed is still there, row by row."""
    for seq in seqs - world.notes[name].decided:
        bundle = world.quiver.bundle(seq)
        assert bundle is not None, f"bundle {seq} was planned by {name}, and is gone"
        world.check_bundle(bundle)
