"""Whether a part is what its sealer wrote: every byte, and the manifest that says so.

The manifest has a checksum for each record batch, one for what lies around the batches of a file,
and one for the bundle table; it proves itself. So whoever holds a part can check all of it without
its sender. But a manifest from afar may be a lie that proves itself, too: what it claims is held to
the rules of the format before a single name or size of it is used.

Nothing is decoded, and a file is read in pieces: checking takes little memory, whatever is in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import PurePath

from xxhash import xxh3_64

from holdfast.errors import BadInput, Damaged, UnknownFormat
from holdfast.quiver.base import names
from holdfast.quiver.segments import manifest
from holdfast.quiver.segments.data_file import DAMAGE_ERRORS, unreadable
from holdfast.quiver.segments.manifest import FileSummary, Summary
from holdfast.replica.part import FILES_MAX, SLICE_BYTES, checked_id, file_names, part_id
from holdfast.seam.disk import Disk

# A manifest has a few hundred bytes for each record batch of 256 kB.
MANIFEST_BYTES_MAX = 64 << 20


def read_manifest(disk: Disk, folder: PurePath) -> Summary:
    """Return the summary of a part.

    Raises `Damaged`, `UnknownFormat` if a newer program wrote it, and `BadInput` if it is sound and
    cannot be true.
    """
    path = folder / names.MANIFEST
    try:
        data = manifest.content(disk, path, MANIFEST_BYTES_MAX)
    except OSError as error:
        if error.errno not in DAMAGE_ERRORS:
            raise unreadable(path, error) from error
        raise _damaged(path, f"cannot be read: {error.strerror}") from error
    try:
        summary = manifest.decode(data)
    except manifest.ManifestFault as fault:
        raise _damaged(path, f"is damaged: {fault}") from fault
    except manifest.NewerManifest as newer:
        raise UnknownFormat(
            f"the part is of {newer}",
            hint=f"this program reads {_versions()}; upgrade the data node, then release the part",
            path=str(path),
        ) from newer
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise _impossible(path, "it is not the summary of a segment") from error
    _require_possible(path, summary)
    return summary


def verify(disk: Disk, folder: PurePath) -> Summary:
    """Check every byte of a part; return its summary, or raise as `read_manifest` does."""
    summary = read_manifest(disk, folder)
    _verify_table(disk, folder / names.BUNDLES, summary)
    for file in summary.files:
        _verify_file(disk, folder / file.name, file)
    found = {entry.name for entry in disk.list(folder)}
    wanted = set(file_names(summary))
    if found != wanted:
        strange = min(found ^ wanted)
        raise _impossible(folder, f"{strange!r} is not what its manifest lists")
    return summary


def _require_possible(path: PurePath, summary: Summary) -> None:
    """Hold a manifest to the rules of the format: its numbers become places in files."""
    try:
        checked_id(*part_id(summary))
        is_possible = (
            len(summary.files) <= FILES_MAX
            and len({file.name for file in summary.files}) == len(summary.files)
            and all(_is_possible(file) for file in summary.files)
            and summary.size_bytes >= sum(file.size_bytes for file in summary.files)
            and all(type(number) is int and number >= 0 for number in summary.name)
            and summary.segment_seq < names.SEGMENT_SEQ_END
        )
    except (TypeError, ValueError, AttributeError, BadInput) as error:
        raise _impossible(path, "a field is missing or of the wrong kind") from error
    if not is_possible:
        raise _impossible(path, "its files, sizes or names contradict each other")


def _is_possible(file: FileSummary) -> bool:
    named = names.parse_data_file(file.name)
    places = [(batch.offset, batch.offset + batch.length) for batch in file.batches]
    return (
        named is not None
        and names.SLOT_PATTERN.fullmatch(named[1]) is not None
        and all(0 <= start <= end <= file.size_bytes for start, end in places)
        and all(one[1] <= two[0] for one, two in pairwise(places))
    )


def _verify_table(disk: Disk, path: PurePath, summary: Summary) -> None:
    hasher = xxh3_64()
    for piece in _pieces(disk, path, 0, None):
        hasher.update(piece)
    if hasher.hexdigest() != summary.bundle_table_checksum:
        raise _damaged(path, "is damaged: the bundle table does not match its checksum")


def _verify_file(disk: Disk, path: PurePath, file: FileSummary) -> None:
    """Check each record batch, and all that is around them as one."""
    around = xxh3_64()
    position = 0
    for number, batch in enumerate(file.batches):
        for piece in _pieces(disk, path, position, batch.offset - position):
            around.update(piece)
        inside = xxh3_64()
        for piece in _pieces(disk, path, batch.offset, batch.length):
            inside.update(piece)
        if inside.hexdigest() != batch.checksum:
            raise _damaged(path, f"is damaged in record batch {number}")
        position = batch.offset + batch.length
    for piece in _pieces(disk, path, position, None):
        around.update(piece)
    if around.hexdigest() != file.frame_checksum:
        raise _damaged(path, "is damaged outside of its record batches, or of another length")


def _pieces(disk: Disk, path: PurePath, start: int, size_bytes: int | None) -> Iterator[bytes]:
    """Yield a part of a file, up to its end if no size is given."""
    position = start
    while size_bytes is None or position < start + size_bytes:
        wanted = SLICE_BYTES if size_bytes is None else start + size_bytes - position
        try:
            piece = disk.read_range(path, position, min(SLICE_BYTES, wanted))
        except OSError as error:
            if error.errno not in DAMAGE_ERRORS:
                raise unreadable(path, error) from error
            raise _damaged(path, f"cannot be read: {error.strerror}") from error
        if not piece:
            return
        yield piece
        position += len(piece)


def _versions() -> str:
    return "segment versions " + ", ".join(map(str, manifest.READABLE_VERSIONS))


def _damaged(path: PurePath, what: str) -> Damaged:
    return Damaged(
        f"a file of a part {what}",
        hint="fetch the part from another node that has it, or restore it from a copy",
        path=str(path),
    )


def _impossible(path: PurePath, why: str) -> BadInput:
    return BadInput(
        f"the manifest of a part cannot be true: {why}",
        hint="no Holdfast wrote it; look after whoever sent it",
        path=str(path),
    )
