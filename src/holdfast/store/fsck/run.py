"""Check, repair, check again: until nothing is wrong, or nothing more can be done.

`rebuild_database` makes a lost database again from the objects of its store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.seam import Seam
from holdfast.store.chunks.settings import StoreSettings
from holdfast.store.filesets.reachable import walk_record
from holdfast.store.fsck.check import CheckEngine, check
from holdfast.store.fsck.findings import FsckReport, StoreFinding, without_known
from holdfast.store.fsck.repair import Repair, RepairReport, plan_repair
from holdfast.store.fsck.settings import FsckSettings
from holdfast.store.gc.quarantine import release_quarantine
from holdfast.store.gc.rebuild import RebuildReport, rebuild
from holdfast.store.store import Store, open_objects


@dataclass
class Repaired:
    """What was wrong, what was done, and what is wrong still."""

    before: FsckReport
    repairs: list[RepairReport] = field(default_factory=list)
    after: FsckReport = field(default_factory=FsckReport)
    released: int = 0
    """Chunks that a rebuild had held back, and that the collector may take now."""


def check_and_repair(
    store: Store,
    engine: CheckEngine,
    settings: FsckSettings | None = None,
    damaged: Sequence[StoreFinding] = (),
) -> Repaired:
    """Repair what a check finds, and what a scrub has found damaged before.

    One repair may bring to light what another one is needed for: the references of a row that came
    back, or chunks that only a leaked one kept.
    """
    limits = settings or FsckSettings()
    before = check(store, engine, limits)
    before.findings += without_known(damaged, before.findings)
    result = Repaired(before, after=before)
    for _ in range(limits.repair_rounds):
        if result.after.ok:
            break
        done = Repair(store).execute(plan_repair(result.after.findings))
        result.repairs.append(done)
        result.after = check(store, engine, limits)
        if not done.done:
            break
    if result.after.ok:
        # All that is in use is known, and has its references.
        result.released = release_quarantine(store.references.database)
    return result


def rebuild_database(
    url: str,
    *,
    database: str | None = None,
    settings: StoreSettings | None = None,
    seam: Seam | None = None,
) -> RebuildReport:
    """Fill a database that is gone, empty, or half rebuilt; one that knows chunks is left alone."""
    used = settings or StoreSettings()
    with open_objects(url, database=database, settings=used, seam=seam) as found:
        return rebuild(
            found.database_url,
            found.objects,
            walk_record(found.objects),
            settings=used.gc,
            store_id=found.store_id,
            seam=seam,
        )
