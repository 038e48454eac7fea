"""Where objects lie, for tests that are the same for all places."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path, PurePath

from holdfast.seam import Seam
from holdfast.seam.simulated import SimulatedDisk
from holdfast.store.objects.faulty import FaultyObjects
from holdfast.store.objects.local import LocalObjects
from holdfast.store.objects.objects import Objects
from holdfast.store.objects.remote import RemoteLimits, RemoteObjects

ROOT = PurePath("/store")


def simulated_disk() -> SimulatedDisk:
    """Return a disk with an empty folder for a store, durable."""
    disk = SimulatedDisk()
    disk.make_dir(ROOT, "test")
    disk.sync_dir(ROOT.parent, "test")
    return disk


def on_simulated_disk(disk: SimulatedDisk) -> LocalObjects:
    return LocalObjects(ROOT, Seam(disk=disk))


def opened(kind: str, tmp_path: Path, s3_url: str) -> Iterator[Objects]:
    objects: Objects
    if kind == "s3":
        objects = RemoteObjects(f"{s3_url}/{uuid.uuid4().hex}", Seam(), RemoteLimits())
    elif kind == "simulated":
        objects = on_simulated_disk(simulated_disk())
    else:
        objects = LocalObjects(tmp_path, Seam())
    if kind == "faulty":
        objects = FaultyObjects(objects)
    yield objects
    objects.close()
