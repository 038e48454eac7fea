"""Producers, readers, crashes, caps, damage and clocks, in any order: the equation always holds."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.crash.contents import Shape
from tests.patience import PATIENCE_S
from tests.readers.world import LARGE_BYTES, NAMES, OPTIONS, RETENTIONS, World

from holdfast.errors import NotAccepted
from holdfast.quiver import AckLevel, RetentionConfig, SubscriberOptions
from holdfast.quiver.base.points import QuiverPoint
from holdfast.seam.faulty import FaultKind

THOROUGH = os.environ.get("HOLDFAST_THOROUGH") == "1"

# One test is many lives.
pytestmark = pytest.mark.timeout(4 * 3600 if THOROUGH else 600)

WHO = st.sampled_from([*NAMES[:2], *NAMES])
PICK = st.integers(0, 50)
SEED = st.integers(0, 1000)
ENDS = st.sampled_from(["stop", "kill", "forget", "some"])
SHAPES = st.sampled_from([None, None, *Shape])
SIZES = st.sampled_from([40, 40, LARGE_BYTES])
# Those that a process reaches while it runs; how it starts is the matrix's business.
POINTS = st.sampled_from(
    [p for p in QuiverPoint if p.startswith(("ledger", "trash", "wal", "seal"))]
)
ERRORS = st.sampled_from([FaultKind.ENOSPC, FaultKind.EIO, FaultKind.FAILED_SYNC])
KILLS = st.sampled_from([FaultKind.KILL_BEFORE, FaultKind.KILL_MIDWAY, FaultKind.KILL_AFTER])


class Readers(RuleBasedStateMachine):
    """Every rule is possible at any time; what cannot be done then does nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.start()

    @initialize(first=st.sampled_from(OPTIONS), second=st.sampled_from(OPTIONS))
    def begin_with_two_readers(self, first: SubscriberOptions, second: SubscriberOptions) -> None:
        self.world.register(NAMES[0], 0, first)
        self.world.register(NAMES[1], 0, second)
        self.world.attach(NAMES[0], "fifo")
        self.world.attach(NAMES[1], "cursor")

    # -------------------------------------------------------------- producers

    @rule(shape=SHAPES, size=SIZES, level=st.sampled_from(AckLevel), epoch=st.booleans())
    def append(self, shape: Shape | None, size: int, level: AckLevel, epoch: bool) -> None:
        with self.world.acting():
            self.world.append(self.world.new(shape, size), level, with_epoch=epoch)

    @rule(count=st.integers(1, 6))
    def append_several(self, count: int) -> None:
        with self.world.acting():
            for _ in range(count):
                self.world.append(self.world.new(None, 40), AckLevel.FSYNCED, with_epoch=False)

    @rule(count=st.integers(2, 4))
    def transact(self, count: int) -> None:
        with self.world.acting():
            self.world.transact([self.world.new(Shape.RAW, 40) for _ in range(count)])

    @rule()
    def seal(self) -> None:
        with self.world.acting():
            try:
                self.world.quiver.flush(PATIENCE_S)
            except NotAccepted:
                assert self.world.faulty

    # ------------------------------------------------------------ subscribers

    @rule(name=WHO, start=PICK, options=st.sampled_from(OPTIONS))
    def register(self, name: str, start: int, options: SubscriberOptions) -> None:
        with self.world.acting():
            self.world.register(name, start, options)

    @rule(name=WHO, reader=st.sampled_from(["fifo", "newest_first", "cursor"]))
    def attach(self, name: str, reader: str) -> None:
        with self.world.acting():
            self.world.attach(name, reader)

    @rule(name=WHO, verb=st.sampled_from(["unregister", "detach", "pause", "resume"]))
    def leave_or_rest(self, name: str, verb: str) -> None:
        with self.world.acting():
            if verb == "unregister":
                self.world.unregister(name)
            elif verb == "detach":
                self.world.detach(name)
            else:
                self.world.pause(name, paused=verb == "pause")

    @rule(name=WHO, first=PICK, count=st.integers(1, 20))
    def replay(self, name: str, first: int, count: int) -> None:
        with self.world.acting():
            self.world.replay(name, first, count)

    # ---------------------------------------------------------------- readers

    @rule(name=WHO, count=st.integers(1, 4))
    def poll(self, name: str, count: int) -> None:
        with self.world.acting():
            for _ in range(count):
                self.world.poll(name)

    @rule(pick=PICK, verb=st.sampled_from(["ack", "ack", "reject", "nack", "extend"]))
    def decide(self, pick: int, verb: str) -> None:
        with self.world.acting():
            self.world.decide(pick, verb)

    @rule(verb=st.sampled_from(["ack", "ack", "reject", "nack"]))
    def decide_about_all_that_is_out(self, verb: str) -> None:
        with self.world.acting():
            for place in range(len(self.world.deliveries)):
                self.world.decide(place, verb)

    @rule(name=WHO, max_events=st.integers(1, 12), count=st.integers(1, 3))
    def plan(self, name: str, max_events: int, count: int) -> None:
        with self.world.acting():
            for _ in range(count):
                self.world.plan(name, max_events)

    @rule(pick=PICK, place=st.integers(0, 5), row=st.integers(0, 3))
    def commit(self, pick: int, place: int, row: int) -> None:
        with self.world.acting():
            self.world.commit(pick, place, row)

    @rule(pick=PICK)
    def read_again(self, pick: int) -> None:
        with self.world.acting():
            self.world.read(pick)

    @rule(name=WHO, count=st.integers(1, 12))
    def deliver(self, name: str, count: int) -> None:
        with self.world.acting():
            for _ in range(count):
                self.world.poll(name)
                self.world.decide(-1, "ack")
                self.world.plan(name, 3)
                self.world.commit(-1, 99, 0)

    # ---------------------------------------------------------- time and space

    @rule(seal=st.booleans())
    def keep(self, seal: bool) -> None:
        if seal:
            self.seal()
        with self.world.acting():
            self.world.keep()

    @rule()
    def sync(self) -> None:
        with self.world.acting():
            self.world.quiver._engine.ledger.sync()

    @rule(seconds=st.sampled_from([10.0, 40.0, 310.0, 700.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.machine.clock.pass_time(seconds)

    @rule(seconds=st.sampled_from([-1e6, -400.0, 400.0, 1e6]))
    def jump(self, seconds: float) -> None:
        self.world.machine.clock.jump(seconds)

    # ------------------------------------------------------------- misfortunes

    @rule(how=ENDS, seed=SEED, retention=st.sampled_from(RETENTIONS))
    def restart(self, how: str, seed: int, retention: RetentionConfig) -> None:
        self.world.restart(how, seed, retention)

    @rule(at=POINTS, kind=ERRORS, nth=st.integers(1, 3), times=st.integers(1, 3))
    def let_the_disk_fail(self, at: QuiverPoint, kind: FaultKind, nth: int, times: int) -> None:
        if not self.world.crashed:
            self.world.arm(at, kind, nth, times)

    @rule(at=POINTS, kind=KILLS, nth=st.integers(1, 3))
    def let_the_process_die(self, at: QuiverPoint, kind: FaultKind, nth: int) -> None:
        if not self.world.crashed:
            self.world.arm(at, kind, nth, 1)

    @rule(
        folder=st.sampled_from([None] * 9 + ["wal", "segments", "ledger"]),
        pick=PICK,
        how=ENDS,
        seed=SEED,
    )
    def damage_or_heal(self, folder: str | None, pick: int, how: str, seed: int) -> None:
        """Damage is rare: once there was some, less is certain."""
        if folder is None:
            self.world.heal()
        else:
            self.world.damage(folder, pick, how, seed)

    # ----------------------------------------------------------------- always

    @invariant()
    def the_equation_holds(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        try:
            self.world.settle()
        finally:
            self.world.close()


TestReaders = Readers.TestCase
TestReaders.settings = settings(
    max_examples=3000 if THOROUGH else settings().max_examples * 3 // 2,
    stateful_step_count=100 if THOROUGH else 60,
    suppress_health_check=list(HealthCheck),
)
