"""A world with one quiver, its producers and its readers, and a notebook of what each was told.

The notebook is simple: what was appended and how that was answered, what readers resolved, and what
of that must survive which kind of end. Everything the quiver says is compared with it.
"""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tests.crash.contents import Content, Shape, token_of
from tests.patience import APPEND_S, PATIENCE_S
from tests.quiver.machine import ROOT, START_NS, contents
from tests.readers.setting import StillMachine, calm, check_books, keep

from holdfast.errors import (
    Damaged,
    DataLoss,
    Fenced,
    NotAccepted,
    StorageFailed,
    UnknownPosition,
    UnknownSubscriber,
)
from holdfast.quiver import (
    AckLevel,
    Bundle,
    Cursor,
    Lease,
    LeasedBundle,
    LeaseOptions,
    Outcome,
    Position,
    Quiver,
    Range,
    Receipt,
    RetentionConfig,
    SubscriberOptions,
)
from holdfast.quiver.base.config import KB, MB
from holdfast.quiver.base.frame import FrameKind
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.simulated import SimulatedCrash, SimulatedDisk

NAMES = ("archive", "stats", "alerts", "audit")
LARGE_BYTES = 250 * KB
# Two closed ledger files, as long as they are small.
LEDGER_BYTES = 24 * KB

# What a reader never got. Given up is what somebody died over who was unregistering.
LOST = (Outcome.DROPPED, Outcome.EXPIRED, Outcome.DAMAGED, Outcome.GIVEN_UP)

RETENTIONS = (
    RetentionConfig(),
    RetentionConfig(steady_state_headroom_bytes=100 * KB, max_age_s=600.0),
    RetentionConfig(max_segments=3),
    RetentionConfig(max_segments=2, size_cap_policy="drop_oldest"),
    RetentionConfig(size_cap_bytes=4 * MB, max_pin_s=300.0),
    RetentionConfig(size_cap_bytes=4 * MB, size_cap_policy="drop_oldest", max_age_s=600.0),
)
OPTIONS = (
    SubscriberOptions(),
    SubscriberOptions(max_bytes=MB),
    SubscriberOptions(max_bytes=MB, on_full="drop_oldest"),
    SubscriberOptions(max_age_s=300.0, on_full="drop_oldest"),
    SubscriberOptions(on_full="drop_oldest"),
)


@dataclass(frozen=True)
class Events(Content):
    """A raw bundle of several events, so that a commit can stop between them."""

    count: int = 4

    def rows(self) -> dict[str, list[dict[str, object]]]:
        (row,) = super().rows()["raw"]
        return {"raw": [row] * self.count}

    def put(
        self, quiver: Quiver, level: AckLevel, producer: str | None, epoch: int | None
    ) -> Receipt:
        return quiver.append_raw(
            [self.filler] * self.count,
            slot="raw",
            headers=[{"token": self.token}] * self.count,
            producer=producer,
            epoch=epoch,
            level=level,
        )


class ArmedDisk(FaultyDisk):
    """A disk that fails where it is told to, from now on."""

    def __init__(self, inner: SimulatedDisk, faults: Iterable[Fault] = ()) -> None:
        super().__init__(inner, faults, inner.die)

    def arm(self, at: str, kind: FaultKind, nth: int, times: int) -> None:
        """Let the nth call from now fail, and those after it."""
        with self._lock:
            self._faults.append(Fault(at, kind, self._calls[at] + nth, times))


@dataclass
class Notes:
    """What is known of one subscriber."""

    # What it is owed: everything certainly stored, from its start on.
    due: set[int] = field(default_factory=set)
    # What its readers resolved, ever, or died over.
    decided: set[int] = field(default_factory=set)
    # What is certainly resolved: after a kill, and after a power cut.
    resolved: set[int] = field(default_factory=set)
    synced: set[int] = field(default_factory=set)
    # Attempts that failed and are on record, until a replay or a power cut.
    attempts: dict[int, int] = field(default_factory=dict)


class World:
    """One store over all its lives."""

    def __init__(self, retention: RetentionConfig = RETENTIONS[0]) -> None:
        self.machine = StillMachine()
        self.contents: dict[str, Content] = {}
        self.owners: dict[int, str] = {}
        self.refused: set[str] = set()
        self.notes: dict[str, Notes] = {}
        self.damaged = False
        self.epoch = 0
        self.retention = retention

    # ------------------------------------------------------------------ lives

    def start(self, faults: Sequence[Fault] = ()) -> None:
        """Open the store; what survived must be in order."""
        self.crashed = False
        self.faulty = bool(faults)
        self.readers: dict[str, Lease | Cursor] = {}
        self.deliveries: list[tuple[str, LeasedBundle]] = []
        self.plans: list[tuple[str, Cursor, Range]] = []
        self.disk = ArmedDisk(self.machine.disk, faults)
        config = calm(
            self.retention, timeout_s=APPEND_S, rotate_bytes=64 * KB, retain_bytes=LEDGER_BYTES
        )
        with self._may_crash():
            quiver = self.machine.start(config, through=lambda _: self.disk)
            assert self.damaged or quiver.recovery.damages == []
            self._know_subscribers()
        self.check()

    def survivor(self, how: str, seed: int) -> World:
        """Return the world as it is after one end, so that another one can be tried too."""
        other = World(self.retention)
        for part in ("contents", "owners", "refused", "notes"):
            setattr(other, part, copy.deepcopy(getattr(self, part)))
        other.machine.clock.jump((self.machine.clock.wall_ns() - START_NS) / 1e9)
        other.machine.disk = self.machine.disk
        other.damaged, other.epoch = self.damaged, self.epoch
        other.end(how, seed)
        return other

    @property
    def quiver(self) -> Quiver:
        assert self.machine.quiver is not None
        return self.machine.quiver

    def end(self, how: str, seed: int) -> None:
        """End the process, in one way or another."""
        if how == "stop" and self.machine.quiver is not None and not self.crashed:
            with self._may_crash():
                self.machine.stop()
                self._note_synced()
            if not self.crashed:
                return
        if how in ("forget", "some"):
            self.machine.cut_power(random.Random(seed) if how == "some" else None)
            for notes in self.notes.values():
                notes.resolved = set(notes.synced)
                notes.attempts.clear()
        else:
            self.machine.kill()

    def restart(self, how: str, seed: int, retention: RetentionConfig) -> None:
        """End the process and open the store again, with other bounds."""
        self.end(how, seed)
        self.retention = retention
        self.start()

    def damage(self, folder: str, pick: int, how: str, seed: int) -> None:
        """End the process, flip a bit somewhere, and open the store again."""
        self.end(how, seed)
        found = contents(self.machine.disk, ROOT / folder)
        paths = sorted(path for path, content in found.items() if content)
        if paths:
            path = paths[pick % len(paths)]
            self.machine.flip(path, random.Random(seed).randrange(8 * len(found[path])))
            self.damaged = True
        self.start_damaged()

    def start_damaged(self) -> None:
        """Open a store that lost something, if it is `damaged`."""
        if self.damaged:
            for notes in self.notes.values():
                # Lines of the ledger may be lost, and with them what was resolved.
                notes.resolved.clear()
                notes.synced.clear()
        self.start()
        readable = {ref.seq for ref in self.quiver._engine.readable.refs(0)}
        for notes in self.notes.values():
            # The rest has an outcome, or is taken for the torn end of a log.
            notes.due &= readable

    def close(self) -> None:
        """Leave nothing running."""
        self.machine.kill()

    # --------------------------------------------------------------- checking

    @contextlib.contextmanager
    def _may_crash(self) -> Iterator[None]:
        try:
            yield
        except SimulatedCrash:
            self.crashed = True

    @contextlib.contextmanager
    def acting(self) -> Iterator[None]:
        """Do something that may end the process, or fail where the disk was told to."""
        if self.crashed:
            self.restart("kill", 0, self.retention)
        with self._may_crash():
            try:
                yield
            except StorageFailed:
                assert self.faulty, "the disk failed, and nobody told it to"
        self.check()

    def check(self) -> None:
        """See that the equation holds for everyone, and that nothing is damaged by itself."""
        if self.crashed:
            return
        with self._may_crash():
            balances = check_books(self.quiver)
            for balance in balances.values():
                if not self.damaged:
                    assert balance.outcomes[Outcome.DAMAGED] == (0, 0), balance
            self._note_synced()

    def _note_synced(self) -> None:
        file = self.quiver._engine.ledger._file if self.machine.quiver else None
        if file is None or file.synced == file.end:
            for notes in self.notes.values():
                notes.synced = set(notes.resolved)

    def _know_subscribers(self) -> None:
        known = set(self.quiver.subscribers())
        if not self.damaged:
            assert known <= set(self.notes), "a subscriber came back from the dead"
        self.notes = {name: self.notes.get(name, Notes()) for name in known}

    def _own(self, seq: int, token: str) -> None:
        owner = self.owners.setdefault(seq, token)
        assert owner == token, f"seq {seq} stood for {owner}, and now stands for {token}"

    def check_bundle(self, bundle: Bundle) -> None:
        """See that a bundle is what was appended under its seq."""
        slots = {slot: batch.to_pylist() for slot, batch in bundle.slots.items()}
        if bundle.kind == FrameKind.CONTROL:
            if self.damaged and bundle.producer is None:
                return  # a bundle table that is made anew knows no producers
            token = str(bundle.producer)
        else:
            slot, rows = next(iter(slots.items()))
            token = token_of(slot, rows[0])
        assert token in self.contents, "delivered, and never appended"
        assert token not in self.refused, "delivered, and refused before"
        assert slots == self.contents[token].rows()
        self._own(bundle.seq, token)

    # -------------------------------------------------------------- appending

    def new(self, shape: Shape | None, size_bytes: int) -> Content:
        """Return a bundle that nobody has seen; without a shape: one of several events."""
        token = f"t{len(self.contents)}"
        made = Events(token, Shape.RAW, size_bytes) if shape is None else None
        content = made or Content(token, shape or Shape.RAW, size_bytes)
        self.contents[token] = content
        return content

    def append(self, content: Content, level: AckLevel, *, with_epoch: bool) -> None:
        """Append one bundle, and note the answer."""
        producer, epoch = None, None
        if with_epoch and content.shape is not Shape.HEARTBEAT:
            self.epoch += 1
            producer, epoch = "p", self.epoch
        try:
            receipt = content.put(self.quiver, level, producer, epoch)
        except NotAccepted as error:
            if error.stored == "no":
                self.refused.add(content.token)
            if isinstance(error, StorageFailed):
                assert self.faulty
            return
        self._stored([content], receipt.seq, level)

    def transact(self, contents: list[Content]) -> None:
        """Append several bundles together."""
        transaction = self.quiver.transaction()
        for content in contents:
            content.stage(transaction)
        try:
            receipt = transaction.commit()
        except NotAccepted as error:
            if error.stored == "no":
                self.refused.update(content.token for content in contents)
            return
        self._stored(contents, receipt.seq, AckLevel.FSYNCED)

    def _stored(self, contents: list[Content], seq: int, level: AckLevel) -> None:
        for place, content in enumerate(contents):
            self._own(seq + place, content.token)
            if level >= AckLevel.FSYNCED:
                for notes in self.notes.values():
                    notes.due.add(seq + place)

    # ------------------------------------------------------------ subscribers

    def register(self, name: str, start: int, options: SubscriberOptions) -> None:
        """Register a subscriber at the oldest, the latest, or a moment."""
        if name in self.quiver.subscribers():
            self.quiver.set_options(name, options)
            return
        now = datetime.fromtimestamp(self.machine.clock.wall_ns() / 1e9, UTC)
        self.notes[name] = Notes()  # also if nobody lives to tell
        self.quiver.register(name, start=("oldest", "latest", now)[start % 3], options=options)
        engine = self.quiver._engine
        first_seq = engine.ledger.subscriber(name).start_seq
        self.notes[name].due = {ref.seq for ref in engine.readable.refs(first_seq)}

    def unregister(self, name: str) -> None:
        """Forget a subscriber."""
        with contextlib.suppress(UnknownSubscriber):
            self.quiver.unregister(name)
            self.notes.pop(name)

    def attach(self, name: str, reader: str) -> None:
        """Attach a reader; whoever read before is fenced off."""
        if name not in self.quiver.subscribers():
            return
        if reader == "cursor":
            self.readers[name] = self.quiver.cursor(name, on_data_loss="fail")
        else:
            order = LeaseOptions(order=reader, max_in_flight=3)  # type: ignore[arg-type]
            self.readers[name] = self.quiver.lease(name, leasing=order)

    def detach(self, name: str) -> None:
        """Close a reader; it stays around, and is refused whatever it says."""
        if name in self.readers:
            self.readers[name].close()

    def pause(self, name: str, *, paused: bool) -> None:
        """Pause or resume a subscriber."""
        with contextlib.suppress(Fenced, UnknownSubscriber, KeyError):
            reader = self.readers[name]
            if paused:
                reader.pause()
            else:
                reader.resume()

    def replay(self, name: str, first_seq: int, count: int) -> None:
        """Hand out again what is still there."""
        with contextlib.suppress(UnknownSubscriber, UnknownPosition):
            end_seq = first_seq + count
            if name in self.notes:
                self.notes[name].resolved -= set(range(first_seq, end_seq))
                self.notes[name].attempts.clear()
                self.notes[name].synced -= set(range(first_seq, end_seq))
            self.quiver.replay(name, first_seq, end_seq)

    def keep(self) -> None:
        """Do the housekeeping."""
        keep(self.quiver)
        self._know_subscribers()

    # ---------------------------------------------------------------- reading

    def poll(self, name: str) -> None:
        """Take a delivery from a lease."""
        if name not in self.readers:
            self.attach(name, "fifo")
        reader = self.readers.get(name)
        if not isinstance(reader, Lease):
            return
        with contextlib.suppress(Fenced, UnknownSubscriber):
            delivery = reader.poll()
            if delivery is not None:
                self.check_bundle(delivery.bundle)
                assert delivery.seq not in self.notes[name].resolved, "resolved, and handed out"
                tried = self.notes[name].attempts.get(delivery.seq, 0)
                assert delivery.attempt > tried, "an attempt on record was forgotten"
                self.deliveries.append((name, delivery))

    def decide(self, pick: int, verb: str) -> None:
        """Say something about a delivery, however old it is."""
        if not self.deliveries:
            return
        name, delivery = self.deliveries[pick % len(self.deliveries)]
        with contextlib.suppress(Fenced, UnknownSubscriber, UnknownPosition):
            if verb == "nack":
                delivery.nack(retry_after_s=20.0 * (pick % 2))
                self._note_attempt(name, delivery)
            elif verb == "extend":
                delivery.extend()
            else:
                self._resolve(name, delivery, verb)

    def _note_attempt(self, name: str, delivery: LeasedBundle) -> None:
        """Remember an attempt that is on record: the next one has a higher number."""
        known = self.quiver._engine.ledger.state.subscribers.get(name)
        attempts = {} if known is None else known.attempts
        if name in self.notes and attempts.get(delivery.seq, 0) >= delivery.attempt:
            self.notes[name].attempts[delivery.seq] = delivery.attempt

    def _resolve(self, name: str, delivery: LeasedBundle, verb: str) -> bool:
        notes = self.notes.get(name, Notes())
        notes.decided.add(delivery.seq)
        decided = delivery.ack() if verb == "ack" else delivery.reject("no")
        if decided:
            assert delivery.seq not in notes.resolved, "resolved twice"
            notes.resolved.add(delivery.seq)
        return decided

    def plan(self, name: str, max_events: int) -> None:
        """Plan a range, and read it."""
        if name not in self.readers:
            self.attach(name, "cursor")
        reader = self.readers.get(name)
        if not isinstance(reader, Cursor):
            return
        with contextlib.suppress(Fenced, UnknownSubscriber):
            try:
                planned = reader.plan(max_events=max_events)
            except DataLoss:
                reader.accept_losses()
                planned = reader.plan(max_events=max_events)
            if planned is not None:
                seqs = {ref.seq for ref in planned.refs}
                assert not seqs & self.notes[name].resolved, "resolved, and planned"
                self.plans.append((name, reader, planned))
                self.read(-1)

    def read(self, pick: int) -> None:
        """Read a planned range, again or for the first time."""
        if not self.plans:
            return
        _, reader, planned = self.plans[pick % len(self.plans)]
        with contextlib.suppress(Damaged, DataLoss, Fenced, UnknownSubscriber):
            for bundle in reader.read(planned):
                self.check_bundle(bundle)

    def commit(self, pick: int, place: int, row: int) -> None:
        """Commit a planned range, whole or up to some event, in any order."""
        if not self.plans:
            return
        name, reader, planned = self.plans[pick % len(self.plans)]
        refs = planned.refs
        through = planned.end
        if place < len(refs):
            through = Position(refs[place].seq, row if row < refs[place].events else 0)
        with contextlib.suppress(Fenced, UnknownSubscriber, UnknownPosition):
            notes = self.notes.get(name, Notes())
            before = reader.subscriber.resolved_totals.bundles
            seqs = {ref.seq for ref in refs if ref.seq < through.seq}
            notes.decided |= seqs
            reader.commit(planned, through=through)
            resolved = reader.subscriber.resolved_totals.bundles - before
            # Others, such as retention, may have resolved some of them before.
            assert resolved <= len(seqs - notes.resolved), "a commit resolved more than it covers"
            notes.resolved |= seqs

    # ----------------------------------------------------------------- ending

    def settle(self) -> None:
        """Let everyone read to the end: all is delivered, or has another outcome."""
        if self.crashed or self.faulty or self.quiver._engine.writer.failure is not None:
            self.restart("kill", 0, self.retention)
        self.quiver.flush(PATIENCE_S)  # what is only written cannot be read yet
        for name in self.quiver.subscribers():
            lease = self.quiver.lease(name)
            lease.resume()
            while (delivery := lease.poll()) is not None:
                self.check_bundle(delivery.bundle)
                assert self._resolve(name, delivery, "ack")
        self.check()
        for name, balance in check_books(self.quiver).items():
            assert balance.pending == (0, 0), balance
            notes, lost = self.notes[name], 0
            for outcome in LOST:
                lost += balance.outcomes[outcome].bundles
            undecided = notes.due - notes.decided
            assert len(undecided) <= lost, f"{name} never got {sorted(undecided)}"
        keep(self.quiver)
        self.check()
        self.restart("stop", 0, self.retention)
        for name in self.quiver.subscribers():
            assert self.quiver.lease(name).poll() is None, "delivered again after a clean end"

    def arm(self, at: str, kind: FaultKind, nth: int, times: int) -> None:
        """Let the disk fail soon."""
        self.faulty = True
        self.disk.arm(at, kind, nth, times)

    def heal(self) -> None:
        """Let the disk work again."""
        self.disk.heal()
