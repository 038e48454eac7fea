"""Data nodes on simulated disks, and parts handed over to them without a network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import PurePath

from tests.replica.parts import NOON_NS, seal_parts

from holdfast.errors import HoldfastError
from holdfast.node.cold import ColdTier
from holdfast.node.data_node import DataNode
from holdfast.node.settings import DataNodeSettings
from holdfast.replica.messages import PartAnswer
from holdfast.replica.part import part_id, slices
from holdfast.replica.transport import OutgoingPart
from holdfast.replica.verify import verify
from holdfast.seam import Seam
from holdfast.seam.clock import Clock, JumpingClock
from holdfast.seam.disk import Disk
from holdfast.seam.randomness import seeded_randomness
from holdfast.seam.simulated import SimulatedDisk

ROOT = PurePath("/node")
SETTINGS = DataNodeSettings(min_free=0)


@cache
def some_parts(count: int = 4, seed: int = 0) -> tuple[OutgoingPart, ...]:
    """Return parts of one quiver, on a disk of their own."""
    sizes = [1 + number % 3 for number in range(count)]
    return tuple(seal_parts(SimulatedDisk(), PurePath("/quiver"), sizes, seed=seed))


def open_node(
    disk: Disk,
    settings: DataNodeSettings = SETTINGS,
    clock: Clock | None = None,
    seed: int = 1,
    cold: ColdTier | None = None,
) -> DataNode:
    seam = Seam(disk, clock or JumpingClock(NOON_NS), seeded_randomness(seed))
    return DataNode(ROOT, settings, seam, cold)


def hand_over(node: DataNode, sent: OutgoingPart) -> PartAnswer:
    """Put a part, as a sender would."""
    with node.receiving(sent.part) as incoming:
        if isinstance(incoming, PartAnswer):
            return incoming
        try:
            for piece in slices(sent.disk, sent.folder, sent.part):
                incoming.write(piece)
        except (HoldfastError, OSError) as error:
            return node.fail(incoming, error)
        return node.commit(incoming)


def offered(node: DataNode, parts: Iterable[OutgoingPart]) -> list[str]:
    return [str(answer.kind) for answer in node.offer([one.part for one in parts])]


def part_folders(disk: Disk, quiver_id: str) -> list[PurePath]:
    """Return every folder in which parts are stored, whatever the node says of it."""
    folder = ROOT / "replicas" / quiver_id / "segments"
    return [folder / entry.name for entry in disk.list(folder)] if disk.exists(folder) else []


def check_exactly_once(
    disk: Disk, parts: Sequence[OutgoingPart], acked: Iterable[OutgoingPart]
) -> None:
    """Read every folder: what was acknowledged is there once, sound, byte for byte."""
    found = [
        (part_id(verify(disk, folder)), folder)
        for folder in part_folders(disk, parts[0].part.id.quiver_id)
    ]
    ids = [one for one, _ in found]
    assert len(ids) == len(set(ids)), "a part is there twice"
    assert set(ids) <= {one.part.id for one in parts}
    for one in acked:
        (folder,) = [folder for found_id, folder in found if found_id == one.part.id]
        for file in one.part.files:
            assert disk.read(folder / file.name) == one.disk.read(one.folder / file.name)
