"""Rebuilds the lost database of a store from its objects."""

from __future__ import annotations

from holdfast.seam import Seam
from holdfast.store.filesets.reachable import walk_record
from holdfast.store.gc.rebuild import RebuildReport, rebuild
from holdfast.store.settings import StoreSettings
from holdfast.store.store import open_objects


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
