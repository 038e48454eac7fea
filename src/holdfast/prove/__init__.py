"""Proofs: real processes, real kill -9, and a checker that trusts only the journals of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.extras import need
from holdfast.prove.strikes import OnProgress
from holdfast.seam.points import FaultPoint

NAMES = {
    "quiver": "kill a process that appends to a quiver; everything it answered must be there",
    "gateway": "kill a gateway and its backends under load; all that was accepted must arrive",
    "dataflow": "kill a gateway and the driver of its pipelines; every event must count once",
    "store": "kill writers, readers, deleters and collectors; what is used stays, nothing else",
}

# Those that can be run on a small disk, which is full now and then.
ON_SMALL_DISK = ("quiver", "gateway")


def run(
    name: str,
    *,
    kills: int,
    seed: int,
    directory: Path,
    progress: OnProgress,
    small_disk_bytes: int | None = None,
) -> dict[str, Any]:
    """Run one proof in an empty directory and return its findings; `ok` is the verdict."""
    assert name in NAMES, f"BUG: no proof {name}"
    if name in ON_SMALL_DISK:
        from holdfast.prove.gateway import prove_gateway
        from holdfast.prove.quiver import prove_quiver

        return (prove_gateway if name == "gateway" else prove_quiver)(
            kills=kills,
            seed=seed,
            directory=directory,
            progress=progress,
            small_disk_bytes=small_disk_bytes,
        )
    if name == "dataflow":
        need("spark")
        from holdfast.prove.dataflow import prove_dataflow as prove
    else:
        from holdfast.prove.store import prove_store as prove
    return prove(kills=kills, seed=seed, directory=directory, progress=progress)


def points(name: str) -> list[tuple[str, str]]:
    """Return the named fault points of a proof, with what happens at each."""
    from holdfast.quiver.base.points import QuiverPoint

    assert name in NAMES, f"BUG: no proof {name}"
    listed: list[FaultPoint] = list(QuiverPoint)
    if name == "store":
        from holdfast.store.gc.points import StorePoint

        listed = list(StorePoint)
    if name == "gateway":
        from holdfast.deliver.points import DeliveryPoint

        listed += DeliveryPoint
    if name == "dataflow":
        from holdfast.dataflow.base.points import BatchPoint

        listed += BatchPoint
    return [(str(point), point.description) for point in listed]
