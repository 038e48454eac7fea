"""Segments in an archive: a bucket, or a folder that is used as one.

    <quiver_id>/segments/<segment>/000-<slot>.arrow, …, bundles.arrow, manifest

The names are those of a data directory, below the quiver that the manifest names. So many quivers
may share an archive, and what is copied out of it can be read like any quiver's segments.

The manifest is put last. A segment without one is not there, whatever else is: that is what a crash
leaves, and what the next try completes. All of it may be put again at any time, also by a request
that lands late, because a name stands for the same bytes for ever. What keeps that true where a
data directory was copied, and two machines go on with one `quiver_id`, is that a segment that is
there and is another is an error, and never replaced.

What says that a segment is in the archive is the archive: no state of that is kept on this side.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import PurePath, PurePosixPath
from urllib.parse import unquote, urlsplit

from holdfast.bucket_url import is_bucket
from holdfast.errors import CannotOpen, Damaged, ObjectMissing, UnknownFormat, WrongQuiver
from holdfast.quiver.base import names
from holdfast.quiver.base.config import ArchiveConfig
from holdfast.quiver.base.points import ArchivePoint
from holdfast.quiver.segments import manifest
from holdfast.quiver.segments.manifest import Summary
from holdfast.quiver.segments.segment import Segment
from holdfast.seam import Seam
from holdfast.seam.bucket import Bucket, BucketAccess
from holdfast.seam.bucket_disk import BucketDisk
from holdfast.seam.disk import Disk, pieces
from holdfast.seam.folder_bucket import FolderBucket

# A manifest has a few hundred bytes for each record batch of 256 kB.
MANIFEST_BYTES_MAX = 64 << 20
# Manifests that are asked for at once.
MANIFEST_REQUESTS = 8

log = logging.getLogger("holdfast.quiver")


def open_place(config: ArchiveConfig, seam: Seam) -> Bucket:
    """Return the bucket or folder of an archive. Nothing is asked of it yet."""
    if not is_bucket(config.url):
        url = urlsplit(config.url)
        path = unquote(url.path) if url.scheme == "file" else config.url
        return FolderBucket(seam.disk, PurePath(path))
    return seam.open_bucket(
        BucketAccess(
            config.url,
            config.endpoint,
            config.allow_http,
            config.options,
            config.request_timeout_s,
        )
    )


def folder_of(summary: Summary) -> str:
    """Return the folder of a segment in any archive."""
    return f"{summary.quiver_id}/{names.SEGMENTS_DIR}/{names.segment_dir(summary.name)}"


class ArchiveStopped(Exception):
    """Whoever is putting a segment is to end."""


class SegmentArchive:
    """Puts segments into an archive. Safe to use from many threads, but not for one segment."""

    def __init__(self, bucket: Bucket, disk: Disk, reached: Callable[[str], None]) -> None:
        self._bucket = bucket
        self._disk = disk
        self._reached = reached

    def keep(self, segment: Segment, stopping: Callable[[], bool]) -> bool:
        """Have a segment in the archive for good; return whether it had to be put there.

        Raises what the bucket raises, OSError of the own disk, and `WrongQuiver` if another segment
        has its name.
        """
        if self._has(segment):
            return False
        self._reached(ArchivePoint.SENDING)
        folder = folder_of(segment.summary)
        for name in self._names(segment):
            if name == names.MANIFEST:
                self._reached(ArchivePoint.FILES_SENT)
            self._put(f"{folder}/{name}", segment.path / name, stopping)
        self._reached(ArchivePoint.SENT)
        if not self._has(segment):
            raise Damaged(
                "an archive does not have what it said it took",
                hint="it is sent again; see who else writes or removes there",
                path=f"{self._bucket.url}/{folder}",
            )
        return True

    def _put(self, key: str, path: PurePath, stopping: Callable[[], bool]) -> None:
        content = _FileContent(self._disk, path, stopping)
        try:
            self._bucket.put(key, self._disk.file_bytes(path), iter(content))
        except Exception:
            if content.failure is not None:
                raise content.failure from None
            raise

    def _has(self, segment: Segment) -> bool:
        """Whether all of a segment is there, and is the same one."""
        folder = folder_of(segment.summary)
        there = dict(self._bucket.list(folder))
        key = f"{folder}/{names.MANIFEST}"
        if key not in there:
            return False
        try:
            known = manifest.decode(self._bucket.get(key, 0, there[key]))
        except (ObjectMissing, manifest.ManifestFault):
            return False
        if known != segment.summary:
            raise WrongQuiver(
                "the archive has another segment of this name",
                hint="a data directory was copied, and both go on with one quiver_id: give one of "
                "them another archive, or begin a new quiver",
                path=f"{self._bucket.url}/{folder}",
            )
        # Not of the manifest: one of its two copies is cut off where a disk is full.
        if not all(
            there.get(f"{folder}/{name}") == self._disk.file_bytes(segment.path / name)
            for name in self._names(segment)
            if name != names.MANIFEST
        ):
            return False
        self._bucket.sync(folder)
        return True

    def _names(self, segment: Segment) -> Iterator[str]:
        """Yield the files of a segment, the manifest last."""
        for file in segment.summary.files:
            yield file.name
            ids = names.ids_file(file.name)
            if file.ids_checksum and self._disk.exists(segment.path / ids):
                yield ids
        yield names.BUNDLES
        yield names.MANIFEST


class _FileContent:
    """A file on its way. What fails on this side is kept: a bucket may say it in its own words."""

    def __init__(self, disk: Disk, path: PurePath, stopping: Callable[[], bool]) -> None:
        self.failure: Exception | None = None
        self._pieces = pieces(disk, path)
        self._stopping = stopping

    def __iter__(self) -> Iterator[bytes]:
        try:
            for piece in self._pieces:
                if self._stopping():
                    raise ArchiveStopped
                yield piece
        except (ArchiveStopped, OSError) as failure:
            self.failure = failure
            raise


def archived_segments(
    bucket: Bucket, folder: str = "", *, skips_damaged: bool = False
) -> list[Segment]:
    """Return the segments in an archive or a folder of it, by quiver and number; each whole.

    One whose manifest cannot be read raises `Damaged`, or is left out and logged.
    """
    disk = BucketDisk(bucket, folder)
    paths = sorted(path for key in disk.keys if (path := _segment_of(key)) is not None)
    if not paths:
        return []
    with ThreadPoolExecutor(min(MANIFEST_REQUESTS, len(paths))) as pool:
        summaries = list(pool.map(partial(_summary, bucket, disk, skips_damaged), paths))
    found = zip(paths, summaries, strict=True)
    return [Segment(disk, path, one) for path, one in found if one is not None]


def _segment_of(key: str) -> PurePosixPath | None:
    """Return the folder of a segment whose manifest this is."""
    path = PurePosixPath(key)
    segment = path.parent
    is_one = path.name == names.MANIFEST and segment.parent.name == names.SEGMENTS_DIR
    return segment if is_one and names.parse_segment_dir(segment.name) is not None else None


def _summary(
    bucket: Bucket, disk: BucketDisk, skips_damaged: bool, path: PurePath
) -> Summary | None:
    where = f"{bucket.url}/{path}"
    try:
        return manifest.decode(manifest.content(disk, path / names.MANIFEST, MANIFEST_BYTES_MAX))
    except (manifest.ManifestFault, OSError) as error:
        damage = Damaged(
            f"a manifest in the archive cannot be read: {error}",
            hint="put the segment there again from a copy, or remove its folder; "
            "`on_damage` may leave it out",
            path=where,
        )
        if not skips_damaged:
            raise damage from error
        log.warning("left out: %s", damage)
        return None
    except manifest.NewerManifest as error:
        raise UnknownFormat(
            f"a segment in the archive is of {error}", hint="upgrade this program", path=where
        ) from error


def require_archive(segments: list[Segment], bucket: Bucket) -> None:
    """Raise `CannotOpen` if nothing is there: most likely it is another address."""
    if not segments:
        raise CannotOpen(
            "there is no archived segment here",
            hint="name what `segment.archive` names, a bucket with its prefix or a folder",
            path=bucket.url,
        )
