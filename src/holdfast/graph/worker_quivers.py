"""The quivers behind one node in one process: the one that takes events, and those being drained.

Each worker has a folder of its own (`core-00`, `core-01`, …) under the node's directory, as `Cores`
lays them out. When there are fewer workers than before, the folders beyond their number are shared
out among the workers, which deliver what is in them and append nothing; one with nothing left is
removed at the next start. The size cap of the node is divided by the number of workers, and within
one worker shared as `Cores` does.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path, PurePath

from holdfast.quiver import Quiver, QuiverConfig, Statistics
from holdfast.quiver.base import names
from holdfast.quiver.cores import AdoptedQuiver, Core, check_count, core_ids, share_cap, share_of
from holdfast.quiver.engine.engine import cannot_open, make_folders
from holdfast.quiver.keep.trash import Trash
from holdfast.seam import Seam
from holdfast.signals.registry import extractors, tables

log = logging.getLogger("holdfast.graph")


class WorkerQuivers:
    """The open quivers of one node."""

    def __init__(self, main: Core, adopted: list[Core], size_cap_bytes: int) -> None:
        """Use `WorkerQuivers.open`."""
        self.main = main
        self.adopted = adopted
        self._size_cap_bytes = size_cap_bytes
        self._held = ExitStack()

    @classmethod
    def open(
        cls, directory: Path, config: QuiverConfig, worker: int, workers: int, seam: Seam
    ) -> WorkerQuivers:
        """Open what this worker owns, and recover what a crash left."""
        check_count(workers, config)
        root = PurePath(directory)
        part = share_of(replace(config, extractors=extractors(), tables=tables()), workers)
        try:
            make_folders(seam.disk, root, (names.TRASH_DIR,))
            found = core_ids(seam.disk, root)
        except OSError as error:
            raise cannot_open(root, error) from error
        with ExitStack() as held:
            cores = []
            for core_id in (worker, *(c for c in found if c >= workers and c % workers == worker)):
                kind = Quiver if core_id == worker else AdoptedQuiver
                quiver = kind.open(root / names.core_dir(core_id), part, seam=seam)
                core = Core(core_id, quiver)
                if core.adopted and core.is_drained:
                    log.info("removing the drained quiver of former worker %d", core_id)
                    core.remove(Trash(seam.disk, root))
                    continue
                held.callback(quiver.close)
                cores.append(core)
            store = cls(cores[0], cores[1:], part.retention.size_cap_bytes)
            store._held = held.pop_all()
        store.share_cap()
        return store

    @property
    def quiver(self) -> Quiver:
        """The quiver that takes events."""
        return self.main.quiver

    @property
    def cores(self) -> list[Core]:
        """Everything that may hold events: a destination reads all of these."""
        return [self.main, *self.adopted]

    def share_cap(self) -> None:
        """Divide this worker's cap among its quivers; what is drained leaves more and more."""
        share_cap(self.cores, self._size_cap_bytes)

    def statistics(self) -> tuple[Statistics, ...]:
        """Return a snapshot, quiver by quiver."""
        return tuple(core.statistics() for core in self.cores)

    def close(self) -> None:
        """Close all quivers."""
        self._held.close()
