"""The engine against a simple model: anything may be asked of it, and anything may happen to it.

The model is the journal: what producers were told. After every step the store must agree with it.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePath

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.crash.contents import Shape
from tests.crash.journal import Journal
from tests.crash.scripts import FILLS_A_SEGMENT_BYTES, wal_paths
from tests.crash.stage import CONFIG, NOON_NS, ROOT, Stage, append_in_one_group
from tests.crash.test_matrix import kinds_at
from tests.support.examples import USUAL

from holdfast.errors import CannotOpen, NotAccepted, StaleEpoch
from holdfast.quiver import AckLevel, ProducerConfig, Quiver
from holdfast.quiver.base import names
from holdfast.quiver.base.frame import BUNDLE_KINDS, Frame
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.log.quarantine import Quarantine
from holdfast.quiver.log.wal import HEADER_BYTES, decode_header, walk
from holdfast.seam.clock import JumpingClock
from holdfast.seam.faulty import Fault, FaultKind
from holdfast.seam.simulated import SimulatedCrash, SimulatedDisk

THOROUGH = os.environ.get("HOLDFAST_THOROUGH") == "1"

# One test is many lives: a busy machine gets more than the usual bound.
pytestmark = pytest.mark.timeout(7_200 if THOROUGH else 600)

shapes = st.sampled_from([Shape.RAW, Shape.ARROW, Shape.TWO_SLOTS])
# Level `segment` has a rule of its own: otherwise nothing would seal, and everybody would wait.
levels = st.sampled_from([AckLevel.MEMORY, AckLevel.WRITTEN, AckLevel.FSYNCED])
sizes_bytes = st.sampled_from([40, 3_000, 40_000])
producers = st.sampled_from(["p", "q"])
faults = st.sampled_from([(point, kind) for point in QuiverPoint for kind in kinds_at(point)])
# None: a power cut that takes all it may. A number: one that leaves some, chosen by this seed.
endings = st.one_of(st.just("kill"), st.none(), st.integers(0, 1_000))
# Not `st.randoms`: threads make how many files there are, and so what is drawn, a matter of time.
seeds = st.integers(0, 1_000_000)
Ending = str | int | None
Step = Callable[[Quiver], object]


def token_in(frame: Frame) -> str:
    """Return whose frame it is: its filler says so, or its producer if it is a heartbeat."""
    found = re.search(rb"(t\d+)\.", frame.payload)
    return found[1].decode() if found else str(frame.producer)


class Engine(RuleBasedStateMachine):
    """A quiver that is used, killed, cut off, damaged and opened again."""

    def __init__(self) -> None:
        super().__init__()
        self.journal = Journal()
        self.clock = JumpingClock(NOON_NS)
        self.config = CONFIG
        self.stage = Stage(SimulatedDisk())
        self.lives = 0
        self.flipped: set[PurePath] = set()
        # How the process ends if a fault kills it.
        self.ending: Ending = "kill"

    @initialize(
        level=st.sampled_from([AckLevel.WRITTEN, AckLevel.FSYNCED]),
        flush_interval_s=st.sampled_from([0.0, 3600.0]),
    )
    def begin(self, level: AckLevel, flush_interval_s: float) -> None:
        self.config = replace(
            CONFIG,
            append=replace(CONFIG.append, level=level),
            wal=replace(CONFIG.wal, flush_interval_s=flush_interval_s),
            # Clocks jump here, and a producer must not be forgotten for that.
            producers=ProducerConfig(ttl_s=3e9),
        )
        self.start(SimulatedDisk(), AckLevel.MEMORY)

    def teardown(self) -> None:
        self.stage.crash()

    # --------------------------------------------------------------- appending

    @rule(shape=shapes, size_bytes=sizes_bytes, level=levels)
    def append(self, shape: Shape, size_bytes: int, level: AckLevel) -> None:
        self.do(lambda q: self.journal.append(q, shape, size_bytes=size_bytes, level=level))

    @rule()
    def append_and_wait_for_its_segment(self) -> None:
        self.do(
            lambda quiver: self.journal.append(
                quiver, size_bytes=FILLS_A_SEGMENT_BYTES, level=AckLevel.SEGMENT
            )
        )

    @rule(sizes=st.lists(sizes_bytes, min_size=2, max_size=4), levels=st.lists(levels, max_size=4))
    def append_in_one_group(self, sizes: list[int], levels: list[AckLevel]) -> None:
        levels += [AckLevel.FSYNCED] * len(sizes)
        entries = [
            self.journal.entry(size_bytes=size_bytes, level=level)
            for size_bytes, level in zip(sizes, levels, strict=False)
        ]
        self.do(lambda _: append_in_one_group(self.stage, self.journal, entries))

    @rule(members=st.lists(shapes, min_size=2, max_size=3), size_bytes=sizes_bytes)
    def commit(self, members: list[Shape], size_bytes: int) -> None:
        level = self.config.append.level
        self.do(lambda q: self.journal.append(q, *members, size_bytes=size_bytes, level=level))

    @rule()
    def abort(self) -> None:
        self.do(self.journal.abort)

    @rule()
    def heartbeat(self) -> None:
        level = self.config.append.level
        self.do(lambda quiver: self.journal.append(quiver, Shape.HEARTBEAT, level=level))

    @rule(producer=producers, level=levels, members=st.lists(shapes, min_size=1, max_size=2))
    def append_an_epoch(self, producer: str, level: AckLevel, members: list[Shape]) -> None:
        if len(members) > 1:
            level = self.config.append.level
        newest = self.journal.newest_epochs().get(producer)
        epoch = 1 + ((newest.epoch or 0) if newest else 0)
        self.do(
            lambda quiver: self.journal.append(
                quiver, *members, level=level, producer=producer, epoch=epoch
            )
        )

    @rule(producer=producers, level=levels)
    def repeat_an_epoch(self, producer: str, level: AckLevel) -> None:
        entry = self.journal.newest_epochs().get(producer)
        if entry is None or self.journal.is_damaged(entry):
            return
        if len(entry.contents) > 1:
            level = self.config.append.level
        self.do(lambda quiver: self.journal.repeat(quiver, entry, level))

    @rule(producer=producers)
    def send_a_stale_epoch(self, producer: str) -> None:
        newest = self.journal.newest_epochs().get(producer)
        if newest is None or newest.epoch == 1 or self.journal.is_damaged(newest):
            return
        if newest.fate not in ("acked", "found"):
            return

        def send(quiver: Quiver) -> None:
            try:
                quiver.append_raw(b"stale", slot="stale", producer=producer, epoch=1)
            except (StaleEpoch, NotAccepted):
                return
            raise AssertionError("a stale epoch was accepted")

        self.do(send)

    # -------------------------------------------------------- what else happens

    @rule()
    def flush(self) -> None:
        def flush(quiver: Quiver) -> None:
            try:
                quiver.flush()
            except NotAccepted:
                return

        self.do(flush)

    @rule(hours=st.integers(-1_000, 1_000))
    def jump(self, hours: int) -> None:
        self.clock.jump(hours * 3600.0)

    @rule(fault=faults, skipped=st.integers(0, 3), times=st.sampled_from([1, 1, 2]), ending=endings)
    def prepare_a_fault(
        self, fault: tuple[QuiverPoint, FaultKind], skipped: int, times: int, ending: Ending
    ) -> None:
        self.ending = ending
        at, kind = fault
        nth = self.stage.faulty.calls().get(at, 0) + 1 + skipped
        self.stage.faulty.add(Fault(at, kind, nth, times))

    @rule(ending=endings)
    def close_and_open_again(self, ending: Ending) -> None:
        try:
            self.stage.quiver.close()
        except SimulatedCrash:
            self.end_process(self.ending)
        else:
            disk, promised = self.end(ending)
            self.start(disk, promised if self.stage.faulty.has_faults else AckLevel.MEMORY)

    @rule(ending=endings)
    def end_and_open_again(self, ending: Ending) -> None:
        self.end_process(ending)

    @rule(fault=faults, nth=st.integers(1, 3), first=endings, second=endings)
    def meet_a_fault_while_opening(
        self, fault: tuple[QuiverPoint, FaultKind], nth: int, first: Ending, second: Ending
    ) -> None:
        disk, promised = self.end(first)
        self.stage = Stage(disk, [Fault(*fault, nth)], self.config, self.clock, self.lives)
        self.lives += 1
        with contextlib.suppress(CannotOpen, SimulatedCrash):
            self.stage.open()
        disk, again = self.end(second)
        self.start(disk, max(promised, again))

    # ------------------------------------------------------------------ damage

    @rule(seed=seeds, bit=st.integers(0, 7))
    def damage_the_log(self, seed: int, bit: int) -> None:
        """Flip a bit of what certainly was on stable storage; it costs one bundle at most."""
        choose = random.Random(seed)
        disk, promised = self.end("kill")
        path = choose.choice(wal_paths(disk))
        content = memoryview(disk.read(path))
        frames = [
            item for item in walk(content, decode_header(content).salt) if isinstance(item, Frame)
        ]
        synced_through = max([HEADER_BYTES, *(frame.synced_through for frame in frames)])
        # There are two copies of the header: one may be damaged.
        first = HEADER_BYTES if path in self.flipped else 0
        if first < synced_through:
            offset = choose.randrange(first, synced_through)
            hit = next((frame for frame in frames if frame.end > offset), None)
            if offset >= HEADER_BYTES and hit is not None and hit.kind in BUNDLE_KINDS:
                self.journal.damaged.add(token_in(hit))
            self.flip(disk, path, offset, bit)
        self.start(disk, promised)

    @rule(seed=seeds, bit=st.integers(0, 7))
    def damage_a_segment(self, seed: int, bit: int) -> None:
        """Flip a bit of a data file or of a manifest; it costs nothing outside that file."""
        choose = random.Random(seed)
        disk, promised = self.end("kill")
        folder = ROOT / names.SEGMENTS_DIR
        segments = [entry.name for entry in disk.list(folder)]
        sealed = [name for name in segments if names.parse_segment_dir(name)]
        if sealed:
            name = choose.choice(sealed)
            files = [entry for entry in disk.list(folder / name) if entry.name != names.BUNDLES]
            file = choose.choice(files)
            path = folder / name / file.name
            if file.name != names.MANIFEST:
                self.lose_slot(name, file.name.removesuffix(".arrow").partition("-")[2])
            if file.name != names.MANIFEST or path not in self.flipped:  # it has two copies too
                self.flip(disk, path, choose.randrange(file.size_bytes), bit)
        self.start(disk, promised)

    def lose_slot(self, segment: str, slot: str) -> None:
        name = names.parse_segment_dir(segment)
        assert name is not None
        # What a power cut took before it was sealed still has a seq between others.
        kept = [entry for entry in self.journal.entries if not entry.must_not_be_there()]
        contents = {c.token: c for entry in kept for c in entry.contents}
        for seq in range(name.first_seq, name.last_seq + 1):
            token = self.journal.owners.get(seq)
            if token in contents and slot in contents[token].rows():
                self.journal.damaged.add(token)

    def flip(self, disk: SimulatedDisk, path: PurePath, offset: int, bit: int) -> None:
        self.flipped.add(path)
        disk.overwrite(path, offset, bytes([disk.read(path)[offset] ^ (1 << bit)]))

    # ------------------------------------------------------------------ insides

    def do(self, step: Step) -> None:
        """Take a step; whatever ends the process there, another one takes over."""
        try:
            step(self.stage.quiver)
            accepting = self.stage.quiver.statistics().accepting
        except SimulatedCrash:
            self.end_process(self.ending)
        else:
            if not accepting:
                self.end_process("kill")

    def end(self, ending: Ending) -> tuple[SimulatedDisk, AckLevel]:
        """End the process; return the disk it leaves, and the lowest level that holds on it."""
        self.stage.crash()
        if ending == "kill":
            return self.stage.disk.kill(), AckLevel.WRITTEN
        chosen = None if ending is None else random.Random(ending)
        return self.stage.disk.power_loss(chosen), AckLevel.FSYNCED

    def end_process(self, ending: Ending) -> None:
        self.start(*self.end(ending))

    def start(self, disk: SimulatedDisk, promised: AckLevel) -> None:
        self.lives += 1
        self.stage = Stage(disk, (), self.config, self.clock, seed=self.lives)
        quiver = self.stage.open()
        self.journal.verify(quiver, promised, restarted=True)
        self.journal.verify_damages(quiver, Quarantine(disk, ROOT).damages())

    @invariant()
    def the_store_holds_what_was_told(self) -> None:
        if self.lives:
            verify = self.journal.verify
            self.do(lambda quiver: verify(quiver, AckLevel.FSYNCED, restarted=False))


TestEngine = Engine.TestCase
TestEngine.settings = settings(
    max_examples=3_000 if THOROUGH else 80 if settings().max_examples >= USUAL else 8,
    stateful_step_count=60 if THOROUGH else 40,
)
