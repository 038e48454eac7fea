"""Where a quiver is: a directory on this machine, a name at a Flight server, or in an archive.

Executors get locations, not connections. What is on their own machine they map, whichever process
owns it; everything else they read over Flight, and what is in an archive from there. The sealed
segments of a directory can be seen from outside, beside the process that owns it
(`sealed_segments`).
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from urllib.parse import urlsplit

import pyarrow as pa

from holdfast.dataflow.source.options import SourceOptions
from holdfast.errors import BadConfig, Damaged, OwnerGone, UnknownPosition, WrongQuiver
from holdfast.quiver.base import names
from holdfast.quiver.base.identity import identity_or_none
from holdfast.quiver.read.archive import refuse_forks, scan_archived
from holdfast.quiver.read.sealed import SealedRead, scan_sealed
from holdfast.quiver.segments import manifest
from holdfast.quiver.segments.archive import archived_segments, open_place, require_archive
from holdfast.quiver.segments.segment import Segment, choices
from holdfast.quiver.tools.inspect import require_quiver
from holdfast.remote import ClientSettings, RemoteQuiver
from holdfast.seam import Seam
from holdfast.seam.disk import Disk, RealDisk

# Connections that one process keeps open.
CONNECTIONS_MAX = 16

log = logging.getLogger("holdfast.dataflow")


@dataclass(frozen=True)
class QuiverLocation:
    """One quiver, as another process can find it again."""

    # How people call it.
    name: str
    # Of a server that has not answered yet: "".
    directory: str
    # Of the server, and the quiver's name there; "": the reader opens the directory.
    location: str = ""
    quiver: str = ""
    # The address of an archive. `quiver` is then the folder of one in it; "": all there are.
    archive: str = ""

    @property
    def is_here(self) -> bool:
        """Whether its directory can be seen from here."""
        return bool(self.directory) and os.path.isdir(self.directory)


def quiver_locations(options: SourceOptions) -> Iterator[QuiverLocation]:
    """Yield the quivers that the options name.

    Archives come last: a segment that goes meanwhile is in the archive before it goes from here, so
    that one of the two listings has it.
    """
    for path in options.path:
        yield QuiverLocation(path, path)
    for address in options.quiver:
        location, name = split_address(address)
        yield QuiverLocation(address, "", location, name)
    yield from _at_nodes(options)
    for address in options.archive:
        yield QuiverLocation(address, "", archive=address)


def _at_nodes(options: SourceOptions) -> Iterator[QuiverLocation]:
    """Yield the replicas at data nodes; a node that does not answer may be one of `nodes_away`."""
    away = []
    for node in options.nodes:
        try:
            names = RemoteQuiver.names(node, options.client)
        except OwnerGone as error:
            away.append(f"{node}: {error.message}")
            continue
        for name in names:
            yield QuiverLocation(f"{node}/{name}", "", node, name)
    if len(away) > options.nodes_away:
        raise OwnerGone(
            f"{len(away)} data nodes do not answer, and may have what no other has: "
            + "; ".join(away),
            hint="start them; or set nodes_away, to at most one less than each part has owners",
        )
    for one in away:
        log.warning("read without a data node, as nodes_away allows: %s", one)


def split_address(address: str) -> tuple[str, str]:
    """Return a server's location, and the name of a quiver there."""
    parts = urlsplit(address)
    name = parts.path.strip("/")
    if not (parts.scheme in ("grpc", "grpc+tls") and parts.netloc and name) or "/" in name:
        raise BadConfig(
            f"{address!r} is not the address of a quiver",
            hint="write grpc://host:port/name, or grpc+tls://host:port/name",
        )
    return f"{parts.scheme}://{parts.netloc}", name


@functools.lru_cache(maxsize=CONNECTIONS_MAX)
def connect(location: str, quiver: str, settings: ClientSettings) -> RemoteQuiver:
    """Return the connection to a quiver; each process has one."""
    return RemoteQuiver.open(location, quiver, settings)


def read_sealed(
    place: QuiverLocation, wanted: SealedRead, options: SourceOptions
) -> pa.RecordBatchReader:
    """Return sealed rows, from the files if they are on this machine."""
    if place.archive:
        return scan_archived(
            open_place(options.archive_at(place.archive), Seam()), place.quiver, wanted
        )
    if place.is_here and (options.local_reads or not place.location):
        try:
            return scan_sealed(RealDisk(), PurePath(place.directory), wanted)
        except (WrongQuiver, UnknownPosition, PermissionError):
            # Another machine's directory of the same name, or one that only its owner may read.
            if not place.location:
                raise
    return connect(place.location, place.quiver, options.client).read(wanted)


def segments_in_archive(address: str, options: SourceOptions) -> list[Segment]:
    """Return the segments in an archive, by quiver, oldest first; beside others it may be empty.

    Raises `WrongQuiver` if it has others than the directories that are read, under their numbers.
    """
    bucket = open_place(options.archive_at(address), Seam())
    found = archived_segments(bucket)
    if len(options.places) == 1:
        require_archive(found, bucket)
    refuse_forks([*found, *(one for path in options.path for one in sealed_segments(path))])
    return sorted(found, key=lambda one: (one.summary.quiver_id, one.summary.first_seq))


def with_directory(place: QuiverLocation, quiver: RemoteQuiver) -> QuiverLocation:
    """Return the place as its server describes it."""
    return replace(place, directory=quiver.directory)


def open_segment(path: str, disk: Disk | None = None) -> Segment:
    """Return one sealed segment."""
    disk, folder = disk or RealDisk(), PurePath(path)
    try:
        summary = manifest.read(disk, folder)
    except (OSError, manifest.ManifestFault) as error:
        raise Damaged(
            "a segment that was planned cannot be opened",
            hint="it was removed or damaged since; `holdfast quiver fsck` says which",
            path=path,
        ) from error
    return Segment(disk, folder, summary)


def sealed_segments(root: str) -> list[Segment]:
    """Return the segments in a data directory, oldest first."""
    disk, folder = RealDisk(), PurePath(root) / names.SEGMENTS_DIR
    require_quiver(disk, PurePath(root))
    found = []
    for entry in disk.list(folder) if disk.exists(folder) else []:
        if names.parse_segment_dir(entry.name) is None:
            continue
        try:
            found.append(open_segment(str(folder / entry.name), disk))
        except Damaged:
            if disk.exists(folder / entry.name):
                raise
    kept = [choice.kept for choice in choices(found)]
    return sorted(kept, key=lambda segment: segment.summary.first_seq)


def quiver_id_of(root: str, segments: Sequence[Segment]) -> str:
    """Return the id of the quiver in a data directory; segments may have that of an earlier one."""
    identity = identity_or_none(RealDisk(), PurePath(root))
    if identity is not None:
        return identity.quiver_id
    return segments[-1].summary.quiver_id if segments else ""
