"""Looking into a data directory without owning it: takes no lock, changes nothing.

It reads what is there at this moment, beside a running owner or without one. Bundles the owner has
not synced yet may be seen here; that is fine for looking, and the reason why readers that must not
err go through the owner.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from holdfast.errors import CannotOpen
from holdfast.quiver import manifest, names
from holdfast.quiver.buffer import Held
from holdfast.quiver.byte_order import check_machine
from holdfast.quiver.catalog import Catalog
from holdfast.quiver.header_block import HeaderFault, NewerVersion
from holdfast.quiver.identity import FormatFault, Identity, read_identity
from holdfast.quiver.quarantine import Damage, Quarantine
from holdfast.quiver.replay import Replay, WalContent
from holdfast.quiver.rivals import choices
from holdfast.quiver.segment import Segment
from holdfast.quiver.wal import decode_header
from holdfast.seam.disk import Disk


@dataclass(frozen=True)
class WalFileInfo:
    """One WAL file from outside."""

    name: str
    size_bytes: int
    # Why it cannot be read, if so.
    fault: str | None


@dataclass(frozen=True)
class Inventory:
    """What a data directory holds."""

    root: PurePath
    identity: Identity | None
    segments: tuple[Segment, ...]
    # Segment directories whose manifest cannot be read.
    unreadable: tuple[str, ...]
    wal_files: tuple[WalFileInfo, ...]
    # Accepted bundles that are in no segment yet, in order.
    unsealed: tuple[Held, ...]
    wal_damages: tuple[Damage, ...]
    quarantined: tuple[Damage, ...]


def inspect(disk: Disk, root: PurePath) -> Inventory:
    """Return what is in `root`."""
    check_machine(root)
    if not disk.exists(root / names.FORMAT) and not disk.exists(root / names.WAL_DIR):
        raise CannotOpen(
            "there is no quiver here", hint="name a data directory, it has a FORMAT file",
            path=str(root),
        )  # fmt: skip
    try:
        identity = read_identity(disk, root)
    except FormatFault:
        identity = None
    # The WAL before the segments: a bundle sealed in between is then seen twice and skipped once.
    contents, files = _read_wal(disk, root / names.WAL_DIR)
    catalog, unreadable = _read_segments(disk, root / names.SEGMENTS_DIR)
    replay = Replay(catalog)
    replay.walk_all(contents)
    return Inventory(
        root=root,
        identity=identity,
        segments=catalog.snapshot(),
        unreadable=tuple(unreadable),
        wal_files=tuple(files),
        unsealed=tuple(replay.bundles[seq] for seq in sorted(replay.bundles)),
        wal_damages=tuple(damage for _, damage in replay.real_damages()),
        quarantined=tuple(Quarantine(disk, root).damages()),
    )


def _read_segments(disk: Disk, directory: PurePath) -> tuple[Catalog, list[str]]:
    found, unreadable = [], []
    for entry in disk.list(directory):
        if names.parse_segment_dir(entry.name) is None:
            continue
        path = directory / entry.name
        try:
            summary = manifest.decode(disk.read(path / names.MANIFEST))
        except (OSError, manifest.ManifestFault, manifest.NewerManifest):
            unreadable.append(entry.name)
        else:
            found.append(Segment(disk, path, summary))
    catalog = Catalog()
    for choice in choices(found):
        catalog.add(choice.kept)
    return catalog, unreadable


def _read_wal(disk: Disk, directory: PurePath) -> tuple[list[WalContent], list[WalFileInfo]]:
    contents, files = [], []
    for entry in disk.list(directory):
        path, fault = directory / entry.name, None
        try:
            view = disk.map(path)
            contents.append(WalContent(path, view, decode_header(view)))
        except (OSError, HeaderFault, NewerVersion) as error:
            fault = str(error)
        files.append(WalFileInfo(entry.name, entry.size_bytes, fault))
    return contents, files
