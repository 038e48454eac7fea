"""Proofs: real processes, real kill -9, and a checker that trusts only the journals of others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.extras import need
from holdfast.prove.runner import OnProgress, ProofOptions
from holdfast.prove.small_disk import data_directory
from holdfast.seam.points import FaultPoint

NAMES = {
    "quiver": "kill a process that appends to a quiver; everything it answered must be there",
    "gateway": "kill a gateway and its backends under load; all that was accepted must arrive",
    "otel": "kill a gateway of telemetry and its backends; every span must arrive, once",
    "otap": "the same with the proposal's file: OTLP and OTAP in, everything to both backends",
    "dataflow": "kill a gateway and the driver of its pipelines; every event must count once",
    "telemetry": "kill a gateway and the driver of its statistics; they must be a plain count's",
    "handoff": "kill, stop and cut off data nodes and their gateway; each owner has all, once",
    "store": "kill writers, readers, deleters and collectors; what is used stays, nothing else",
}

# Those that can be run on a small disk, which is full now and then.
ON_SMALL_DISK = ("quiver", "gateway")
# Those whose processes can be cut off from each other.
WITH_PARTITIONS = ("handoff",)


def run(
    name: str,
    *,
    kills: int,
    seed: int,
    directory: Path,
    progress: OnProgress,
    small_disk_bytes: int | None = None,
    seconds: float = 0.0,
    partitions: bool = False,
) -> dict[str, Any]:
    """Run one proof in an empty directory and return its findings; `ok` is the verdict.

    `name` may be the path of a graph file.
    """
    prove = _prover(name) if name in NAMES else _prover_of_file(name)
    fills_disk = small_disk_bytes is not None
    with data_directory(directory, small_disk_bytes) as data_dir:
        options = ProofOptions(
            kills, seed, directory, data_dir, progress, fills_disk, seconds, partitions
        )
        return prove(options)


def _prover(name: str) -> Callable[[ProofOptions], dict[str, Any]]:
    """Return a proof, with the libraries that it alone needs."""
    match name:
        case "quiver":
            from holdfast.prove.quiver import prove_quiver

            return prove_quiver
        case "gateway":
            need("gateway")
            from holdfast.prove.gateway import prove_gateway

            return prove_gateway
        case "otel":
            need("otel")
            from holdfast.prove.otel import prove_otel

            return prove_otel
        case "otap":
            need("otel")
            from holdfast.prove.otap import prove_otap

            return prove_otap
        case "dataflow":
            need("spark")
            from holdfast.prove.dataflow import prove_dataflow

            return prove_dataflow
        case "telemetry":
            need("otel")
            need("spark")
            from holdfast.prove.telemetry_stats import prove_telemetry

            return prove_telemetry
        case "handoff":
            need("gateway")
            from holdfast.prove.handoff import prove_handoff

            return prove_handoff
    need("store")
    from holdfast.prove.store import prove_store

    return prove_store


def _prover_of_file(name: str) -> Callable[[ProofOptions], dict[str, Any]]:
    need("gateway")
    from holdfast.prove.own_config import prove_config

    return lambda options: prove_config(options, Path(name))


def points(name: str) -> list[tuple[str, str]]:
    """Return the named fault points of a proof, with what happens at each."""
    from holdfast.quiver.base.points import QuiverPoint

    assert name in NAMES, f"BUG: no proof {name}"
    listed: list[FaultPoint] = list(QuiverPoint)
    if name == "store":
        from holdfast.store.gc.points import StorePoint

        listed = list(StorePoint)
    if name in ("gateway", "otel", "otap"):
        from holdfast.deliver.context import DeliveryPoint

        listed += DeliveryPoint
    if name in ("dataflow", "telemetry"):
        from holdfast.dataflow.base.points import BatchPoint

        listed += BatchPoint
    if name == "handoff":
        from holdfast.handoff.points import HandoffPoint
        from holdfast.node.points import NodePoint

        listed += [*HandoffPoint, *NodePoint]
    return [(str(point), point.description) for point in listed]
