"""Cores: several quivers under one root that share one size cap.

    with Cores.open("data", 4, config) as cores:
        cores[worker].append(batch)
        for core in cores.sources():
            core.lease("archive")

One instance per core means that nothing is locked across cores on the path of an event. Each has a
folder (`core-00`, `core-01`, …) and in it numbers, ledger and subscribers of its own; order is kept
within a core. `Cores` holds all of them in one process. A gateway with several workers holds one of
them in each (graph/worker_quivers.py), with the same folders, shares and rules.

When the number of cores shrinks, the folders beyond it are *adopted*: opened as well, readable by
their subscribers as before, counted in the budget, but closed to appends. An adopted core whose
subscribers have all resolved everything is removed, with its ledger; one without subscribers
stays until its data is too old, and one with quarantined bytes until somebody has taken them away.
When the number grows again, adopted cores are ordinary ones again.

**Bounds.** A configuration of cores describes the root as a whole. What bounds the whole is divided
by their number; what shapes one file, one bundle or one wait stays as it is:

    divided      disk     retention.size_cap_bytes, .reserve_bytes, .steady_state_headroom_bytes,
                          .max_segments; wal.max_size_bytes; ledger.retain_bytes
                 memory   append.max_pending_bytes; transactions.max_staged_bytes
    not divided           segment.target_size_bytes (so memory holds two buffers per core),
                          wal.file_size_bytes (unless the log itself became smaller than a file),
                          ledger.rotate_bytes, all times, and the caps of subscribers, which are
                          registered with each core

The size cap is the one that must hold for the root at any time, also when the number of cores
changed and some hold more than a share is now (`share_cap`). It is divided again at every tick.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import PurePath
from typing import NamedTuple, NoReturn, Self

from holdfast.errors import BadInput, CannotOpen, HoldfastError, QuiverClosed
from holdfast.quiver.base import names
from holdfast.quiver.base.bundle import DEFAULT_SLOT
from holdfast.quiver.base.config import AckLevel, QuiverConfig
from holdfast.quiver.base.frame import NOTHING
from holdfast.quiver.engine.balance import balance
from holdfast.quiver.engine.engine import cannot_open, make_folders, take_lock
from holdfast.quiver.keep.trash import Trash
from holdfast.quiver.log.inbox import Append, Intake
from holdfast.quiver.log.transaction import Transaction
from holdfast.quiver.quiver import Quiver
from holdfast.quiver.statistics import Statistics
from holdfast.seam import Seam
from holdfast.seam.disk import Disk
from holdfast.seam.process import bind_to_process

# Each has three threads and a handful of open files.
CORES_MAX = 1000


def check_count(count: int, config: QuiverConfig) -> None:
    """Refuse a number of cores that cannot work."""
    if type(count) is not int or not 1 <= count <= CORES_MAX:
        raise BadInput(f"{count!r} cores", hint=f"use a whole number from 1 to {CORES_MAX}")
    share, smallest = config.retention.size_cap_bytes // count, 4 * config.segment.target_size_bytes
    if share < smallest:
        raise BadInput(
            f"the size cap divided by {count} cores is {share} bytes, less than four segments "
            f"({smallest} bytes)",
            hint="raise the cap, make segments smaller (1 MB is the least), or use fewer cores",
        )


def share_of(config: QuiverConfig, count: int) -> QuiverConfig:
    """Return the configuration of one of `count` cores."""
    kept, wal, ledger = config.retention, config.wal, config.ledger
    wal_bytes = wal.max_size_bytes // count
    reserve_bytes = None if kept.reserve_bytes is None else kept.reserve_bytes // count
    append, staging = config.append, config.transactions
    return replace(
        config,
        retention=replace(
            kept,
            size_cap_bytes=kept.size_cap_bytes // count,
            reserve_bytes=reserve_bytes,
            steady_state_headroom_bytes=kept.steady_state_headroom_bytes // count,
            max_segments=max(1, kept.max_segments // count),
        ),
        wal=replace(
            wal,
            max_size_bytes=wal_bytes,
            file_size_bytes=min(wal.file_size_bytes, wal_bytes),
        ),
        ledger=replace(ledger, retain_bytes=ledger.retain_bytes // count),
        append=replace(append, max_pending_bytes=max(1, append.max_pending_bytes // count)),
        transactions=replace(staging, max_staged_bytes=max(1, staging.max_staged_bytes // count)),
    )


class CapClaim(NamedTuple):
    """What one core needs of the size cap: at least this, and at most that."""

    least_bytes: int
    most_bytes: int


def fair_share(size_cap_bytes: int, claims: Sequence[CapClaim]) -> int:
    """Return the largest share that everyone may have without exceeding the cap together.

    A core that already holds more keeps what it has; one that wants less leaves the rest to the
    others. The shares are those of water in connected vessels with raised floors and low lids.

    Found by halving: what is taken grows with the share, so there is one largest share that fits.
    If floors alone exceed the cap, it is 0, and every core that may not drop waits until others
    drain.
    """

    def taken_bytes(share: int) -> int:
        return sum(max(least, min(share, most)) for least, most in claims)

    low, high = 0, size_cap_bytes
    while low < high:
        middle = (low + high + 1) // 2
        if taken_bytes(middle) <= size_cap_bytes:
            low = middle
        else:
            high = middle - 1
    return low


log = logging.getLogger("holdfast.quiver")


def core_ids(disk: Disk, root: PurePath) -> list[int]:
    """Return the numbers of all cores that have a folder under a root."""
    found = (names.parse_core_dir(entry.name) for entry in disk.list(root) if entry.is_dir)
    return sorted(core_id for core_id in found if core_id is not None)


class AdoptedQuiver(Quiver):
    """A quiver that is only drained: everything but appending."""

    def transaction(self, *, producer: str | None = None, epoch: int | None = None) -> Transaction:
        """Refuse: nothing is appended to an adopted core."""
        self._refuse()

    def intake(self, *, slot: str = DEFAULT_SLOT, level: AckLevel | None = None) -> Intake:
        """Refuse: nothing is appended to an adopted core."""
        self._refuse()

    def _make_append(self, *_: object, **__: object) -> Append:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise QuiverClosed(
            "this core is adopted: it is drained, and takes no appends",
            hint="append to one of the cores that were asked for",
            path=str(self._engine.root),
        )


class Core:
    """One quiver of several."""

    def __init__(self, core_id: int, quiver: Quiver) -> None:
        self.core_id = core_id
        self.adopted = isinstance(quiver, AdoptedQuiver)
        self.quiver = quiver
        self.engine = quiver._engine

    def statistics(self) -> Statistics:
        """Return a snapshot."""
        return replace(self.quiver.statistics(), core_id=self.core_id, adopted=self.adopted)

    def claim(self, size_cap_bytes: int) -> CapClaim:
        """Return what it needs of the size cap of the root."""
        used_bytes = self.engine.retention.used_bytes()
        # Only with `drop_oldest` can it be made to give back what it holds.
        least_bytes = 0 if self.may_drop else used_bytes
        return CapClaim(least_bytes, used_bytes if self.adopted else size_cap_bytes)

    def remove(self, trash: Trash) -> None:
        """Close it and remove its folder; a crash in between leaves it drained, or in the trash.

        Closed first: the folder's lock and threads must be gone before it is renamed into the
        trash. From there it is removed piece by piece, and whatever a crash leaves is removed by
        the next `empty`.
        """
        used_bytes = self.engine.retention.used_bytes()
        self.quiver.close()
        trash.remove(self.engine.root, used_bytes)

    def is_archived(self) -> bool:
        """Whether all of it is in the archive, if there is one; has sealed what is not sealed."""
        archiver, writer = self.engine.archiver, self.engine.writer
        if archiver is None:
            return True
        # In this order: what leaves a buffer is a segment by then.
        if writer.buffer.bundles or self.engine.sealer.sealing():
            writer.seal_soon()
            return False
        return all(archiver.is_archived(one) for one in self.engine.catalog.snapshot())

    @property
    def may_drop(self) -> bool:
        """Whether a smaller share makes it drop its oldest."""
        return self.engine.config.retention.size_cap_policy == "drop_oldest"

    @property
    def is_drained(self) -> bool:
        """Whether nobody will ever need anything of it again."""
        # Set aside because nobody could read it. Removing the folder would be the last word on
        # bytes that an operator may still rescue.
        if not self.engine.quarantine.is_empty:
            return False
        # One lock for the list and the balances, so that both are of the same moment.
        with self.engine.ledger.lock:
            subscribers = list(self.engine.ledger.state.subscribers.values())
            if not subscribers:
                return not any(self.engine.readable.snapshot())
            return all(balance(one, self.engine.readable).pending == NOTHING for one in subscribers)


def share_cap(cores: Collection[Core], whole_bytes: int, free_bytes: int | None = None) -> None:
    """Divide a size cap, or what is left of it, among cores; what is drained leaves more and more.

    An adopted core cannot grow: its share only says from where on it drops. Where it may not drop,
    a share below what it holds would only be a bound that is always exceeded.
    """
    claims = [core.claim(whole_bytes) for core in cores]
    share = fair_share(whole_bytes if free_bytes is None else free_bytes, claims)
    for core in cores:
        kept_whole = core.adopted and not core.may_drop
        core.engine.retention.size_cap_bytes = whole_bytes if kept_whole else share


class Cores:
    """N quivers under one root, and those of a former, larger N."""

    def __init__(self, root: PurePath, count: int, config: QuiverConfig, seam: Seam) -> None:
        """Use `Cores.open`."""
        self._root = root
        self._count = count
        self._config = config
        self._seam = seam
        self._cores: dict[int, Core] = {}
        self._trash = Trash(seam.disk, root)
        # Guards the list of cores and the parts of the cap.
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._held = ExitStack()
        self._thread = threading.Thread(target=self._run, name="quiver-cores", daemon=True)
        bind_to_process(self)

    @classmethod
    def open(
        cls,
        root: str | os.PathLike[str],
        count: int,
        config: QuiverConfig | None = None,
        *,
        seam: Seam | None = None,
    ) -> Self:
        """Open `count` quivers under a root, and adopt what a larger number left there.

        The configuration describes the root as a whole; each core gets its part of the bounds.
        """
        cores = cls(PurePath(root), count, config or QuiverConfig(), seam or Seam())
        check_count(count, cores._config)
        with ExitStack() as held:
            try:
                cores._open_all(held)
            except OSError as error:
                raise cannot_open(cores._root, error) from error
            cores._held = held.pop_all()
        cores._thread.start()
        return cores

    def _open_all(self, held: ExitStack) -> None:
        disk = self._seam.disk
        make_folders(disk, self._root, (names.TRASH_DIR,))
        # Of the root, beside the lock of each core: the cap and the trash belong to the whole root,
        # and two processes that start at the same moment must not each end up with some folders.
        lock = take_lock(disk, self._root)
        held.callback(disk.unlock, lock)
        if disk.exists(self._root / names.FORMAT):
            raise CannotOpen(
                "the directory is a quiver itself, not a root of several",
                hint="open it with Quiver.open, or name another root",
                path=str(self._root),
            )
        self._trash.empty()
        part = share_of(self._config, self._count)
        for core_id in sorted({*range(self._count), *core_ids(disk, self._root)}):
            kind = Quiver if core_id < self._count else AdoptedQuiver
            quiver = kind.open(self._root / names.core_dir(core_id), part, seam=self._seam)
            held.callback(quiver.close)
            self._cores[core_id] = Core(core_id, quiver)
        self._share_cap()

    # ------------------------------------------------------------------ using

    def __len__(self) -> int:
        """Return how many cores take appends."""
        return self._count

    def __getitem__(self, core_id: int) -> Quiver:
        if not 0 <= core_id < self._count:
            raise IndexError(f"core {core_id} of {self._count}")
        return self._cores[core_id].quiver

    def __iter__(self) -> Iterator[Quiver]:
        return (self[core_id] for core_id in range(self._count))

    @property
    def adopted(self) -> dict[int, Quiver]:
        """The cores of a former, larger number that are still being drained, by number."""
        with self._lock:
            return {core.core_id: core.quiver for core in self._cores.values() if core.adopted}

    def sources(self) -> tuple[Quiver, ...]:
        """Return every core that may hold data: a reader of all events reads all of these."""
        return (*self, *self.adopted.values())

    def statistics(self) -> tuple[Statistics, ...]:
        """Return a snapshot, core by core, the adopted ones too."""
        with self._lock:
            return tuple(core.statistics() for core in self._cores.values())

    # ------------------------------------------------------------------ keeping

    def sweep(self) -> None:
        """Remove adopted cores that nobody needs, and share the cap anew; done at every tick."""
        with self._lock:
            self._trash.empty()
            for core in [core for core in self._cores.values() if core.adopted]:
                if core.is_drained and core.is_archived():
                    self._remove(core)
            self._share_cap()

    def _share_cap(self) -> None:
        whole = self._config.retention.size_cap_bytes
        # What lies in the trash still takes disk, and must not be given away before it is gone.
        share_cap(self._cores.values(), whole, whole - self._trash.left_bytes)

    def _remove(self, core: Core) -> None:
        log.info("removing drained core %d: %s", core.core_id, self._account(core))
        core.remove(self._trash)
        del self._cores[core.core_id]

    def _account(self, core: Core) -> str:
        seen = core.quiver.statistics()
        return f"{seen.quiver_id}, {seen.accepted_bundles} bundles accepted, " + "; ".join(
            f"{one.name}: {one.outcomes}" for one in seen.subscribers
        )

    def _run(self) -> None:
        while not self._closing.wait(self._config.retention.tick_s):
            try:
                self.sweep()
            except (HoldfastError, OSError) as error:
                log.warning("the cores could not be swept and will be again: %s", error)
            except BaseException as error:
                # A mistake in the program. The cores keep working with the shares they have; only
                # adopted ones stay, and the cap is not divided anew until the next start.
                log.warning("the cores are no longer swept: %s: %s", type(error).__name__, error)
                return

    # ------------------------------------------------------------------- ending

    def close(self) -> None:
        """Close all cores, and let go of the root."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
