"""Writes a layer: operations in any order in, one sorted layer out, in bounded memory.

The buffer holds, for each path, the one change that its operations so far add up to. A folder that
is deleted takes effect without a look at what the buffer holds below it: each change knows when it
began, and what began before its folder was deleted last is not there any more.

When the buffer is full, it is stored as a layer of its own (a *run*, under the job's lease).
`close` merges the runs, which is what reading layers does anyway.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple, Self

from holdfast.errors import BadInput
from holdfast.store.filesets import algebra
from holdfast.store.filesets import fileset_pb2 as pb
from holdfast.store.filesets.algebra import Change, TagChange, Tombstones
from holdfast.store.filesets.entry import change_of, message_of
from holdfast.store.filesets.folder_reader import (
    FolderReader,
    FoundFile,
    ReadFile,
    metadata_of,
)
from holdfast.store.filesets.folder_walk import FolderReport, FolderWalk
from holdfast.store.filesets.info import FileInfo, Metadata, tag_of
from holdfast.store.filesets.layer import TOMBSTONES_MAX, Layer
from holdfast.store.filesets.layer_builder import Content, LayerBuilder, merge_into
from holdfast.store.filesets.merge import find, open_layers, open_nodes
from holdfast.store.filesets.paths import (
    check_file,
    check_folder,
    check_path,
    folders_above,
    is_target,
    leads_out,
)
from holdfast.store.filesets.selection import Selection

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from holdfast.store.gc.leases import Job
    from holdfast.store.store import Store

MAX_BUFFER_BYTES = 64 * 1024 * 1024
# Small pieces that are appended one after another become one until it has so many bytes: otherwise
# each would copy the list of all before it.
_JOINED_BYTES = 64 * 1024
# What a change takes in memory besides its path and its content, about.
_CHANGE_BYTES = 600

# Content that is stored, or so small that it waits in the buffer.
_PendingContent = pb.DataRef | bytes


class _PendingChange(NamedTuple):
    """A change in the buffer, and when it began: a deletion that came later takes it away."""

    began: int
    change: Change[_PendingContent]


class FileSetWriter:
    """Collects operations on files, and stores them as one layer. Not for several threads at once.

    Leaving the block without `close` drops everything; its chunks go with the job.
    """

    def __init__(self, store: Store, job: Job, *, max_buffer_bytes: int = MAX_BUFFER_BYTES) -> None:
        self._store = store
        self._writer = store.chunks.writer(job)
        self._small_bytes = store.chunks.chunking.small_file_bytes
        self._max_buffer_bytes = max_buffer_bytes
        # Counts operations, not time: all that matters is which came first.
        self._clock = itertools.count(1)
        self._buffer: dict[str, _PendingChange] = {}
        self._deleted: dict[str, int] = {}
        self._buffer_bytes = 0
        self._runs: list[Layer] = []
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._closed = True
        self._writer.close()

    @property
    def buffered_bytes(self) -> int:
        """What the buffer takes in memory, about."""
        return self._buffer_bytes

    @property
    def runs(self) -> int:
        """How often the buffer was full."""
        return len(self._runs)

    def put(
        self,
        path: str,
        data: Buffer | Iterable[Buffer],
        *,
        tag: bytes | int = b"",
        metadata: Metadata | None = None,
    ) -> None:
        """Store a file, instead of whatever is there."""
        content = self._content(check_file(path), data)
        self._change(path, algebra.overwrite(tag_of(tag), content, _message(metadata)))

    overwrite = put

    def append(
        self,
        path: str,
        data: Buffer | Iterable[Buffer],
        *,
        tag: bytes | int = b"",
        metadata: Metadata | None = None,
    ) -> None:
        """Put content behind what the file holds under this tag."""
        content = self._content(check_file(path), data)
        self._change(path, algebra.append(tag_of(tag), content, _message(metadata)))

    def replace_tag(self, path: str, data: Buffer | Iterable[Buffer], *, tag: bytes | int) -> None:
        """Replace what the file holds under this tag; other tags stay."""
        content = self._content(check_file(path), data)
        self._change(path, algebra.replace_tag(tag_of(tag), content))

    def delete_tag(self, path: str, *, tag: bytes | int) -> None:
        """Take a tag away from a file; with its last tag the file goes."""
        self._change(check_file(path), algebra.delete_tag(tag_of(tag)))

    def delete(self, path: str) -> None:
        """Delete a file; it may be missing. A folder goes with `delete_prefix`."""
        self._change(check_file(path), algebra.delete())

    def delete_prefix(self, folder: str) -> None:
        """Delete everything below a folder; '' is everything."""
        folder = check_folder(folder)
        if len(self._deleted) >= TOMBSTONES_MAX and folder not in self._deleted:
            raise BadInput(
                f"a layer cannot delete more than {TOMBSTONES_MAX} folders",
                hint="Delete a folder above them, or write several layers.",
            )
        self._deleted[folder] = next(self._clock)
        self._grow(_CHANGE_BYTES + len(folder))

    def make_folder(self, folder: str, *, metadata: Metadata | None = None) -> None:
        """Store a folder that may be empty; others are there because something stands in them."""
        path = check_path(folder if folder.endswith("/") else folder + "/")
        self._change(path, algebra.overwrite(b"", (), _message(metadata)))

    def link(
        self,
        path: str,
        target: str,
        *,
        metadata: Metadata | None = None,
        root: str = "",
        may_lead_out: bool = False,
    ) -> None:
        """Store a symbolic link, which must not lead out of the folder `root` unless it may."""
        inner = check_file(path)[len(root) :]
        if not is_target(target) or (leads_out(inner, target) and not may_lead_out):
            raise BadInput(
                f"the link {path!r} leads to {target!r}, outside of {root or 'the file set'}",
                hint="Store what it leads to, or leave it out.",
            )
        known = (metadata or Metadata())._replace(link_target=target)
        self._change(path, algebra.overwrite(b"", (), known.to_message()))

    def put_tree(
        self, folder: PurePath | str, *, into: str = "", selection: Selection | None = None
    ) -> FolderReport:
        """Store everything in a folder of the disk below `into`, beside what else is written.

        A whole file set is stored faster by the function `put_tree`.
        """
        below = check_folder(into)
        reader = FolderReader(FolderWalk(folder, selection), small_bytes=self._small_bytes)
        for found in reader.files():
            entry, path = found.entry, below + found.entry.path
            if entry.kind == "folder":
                self.make_folder(path, metadata=metadata_of(entry, found.xattrs))
            elif found.link_target is not None:
                known = metadata_of(entry, ())
                self.link(path, found.link_target, metadata=known, root=below, may_lead_out=True)
            else:
                self._put_found(reader, found, path)
        return reader.report

    def _put_found(self, reader: FolderReader, found: FoundFile, path: str) -> None:
        """Store one file of a folder; what cannot be read to its end is reported and left out."""
        entry = found.entry
        read: FoundFile | ReadFile = found
        if found.small is not None:
            content = self._content(check_file(path), found.small)
        else:
            file = reader.open(entry)
            if file is None:
                return
            content = self._content(check_file(path), file.blocks())
            if file.error is not None:
                reader.report.failed(entry.path, file.error)
                return
            read = file
        known = metadata_of(entry, read.xattrs)._replace(sparse=read.has_holes or None)
        self._change(path, algebra.overwrite(b"", content, known.to_message()))
        if read.has_changed:
            reader.report.has_changed(entry.path)

    def copy(self, path: str, file: FileInfo) -> None:
        """Store a file of this store under another path, by reference: no content is moved.

        The file set that it comes from must stay open until this layer is in a commit.
        """
        parts: dict[bytes, TagChange[_PendingContent]] = {}
        refs = iter(file.refs)
        for tag, size_bytes in file.tags:
            taken: list[_PendingContent] = []
            while size_bytes > 0:
                ref = next(refs)
                taken.append(ref)
                size_bytes -= ref.size_bytes  # noqa: PLW2901 - what is left of the tag
            parts[tag] = TagChange(True, tuple(taken))
        check = check_path if file.is_folder else check_file
        known = file.metadata
        if path != file.path:
            known = known._replace(hard_link=None)  # a copy is a file of its own
        self._change(check(path), Change(True, parts, _message(known)))

    def hard_link(self, source: str, path: str) -> None:
        """Store another name of a file; `source` must be in this layer already."""
        before = self._buffer.get(check_file(source))
        if before is not None and before.began < self._deleted_at(source):
            before = None
        change = before.change if before else self._find_in_runs(source)
        if change is None or not change.present:
            raise BadInput(
                f"{path!r} is a hard link to {source!r}, which did not come before it",
                hint="Make the archive of a folder that holds both.",
            )
        known = pb.Metadata()
        if change.metadata is not None:
            known.CopyFrom(change.metadata)
        # The first name gets the mark, too: both must say that they belong together, whichever is
        # restored first.
        if not known.hard_link:
            known.hard_link = source
            self._change(source, change._replace(reset=True, metadata=known))
        self._change(check_file(path), change._replace(reset=True, metadata=known))

    def _find_in_runs(self, path: str) -> Change[_PendingContent] | None:
        """Return a file that was spilled already; the index is stored first, to be read."""
        if not self._runs or self._deleted_at(path):
            return None
        self._writer.barrier()
        reader = self._store.chunks.reader()
        index = find(open_nodes(reader), open_layers(reader, self._runs), path, path)
        return change_of(index, path) if index is not None else None

    def close(self) -> Layer:
        """Store what is left, and return the layer; all of it is durable then."""
        if self._closed:
            raise BadInput("the writer is closed", hint="Open another one for more files.")
        if not self._runs:
            layer = self._store_buffer(check_collisions=True)
        else:
            self._spill()
            layer = self._merge_runs()
        self._writer.barrier()
        self._closed = True
        self._writer.close()
        return layer

    # The buffer.

    def _content(self, path: str, data: Buffer | Iterable[Buffer]) -> tuple[_PendingContent, ...]:
        """Return small content as it is, and large content as references to it."""
        blocks = _blocks(data)
        head = bytearray()
        for block in blocks:
            view = memoryview(block).cast("B")
            if len(head) + view.nbytes > self._small_bytes:
                stream: Iterator[Buffer] = itertools.chain((bytes(head), view), blocks)
                return tuple(map(message_of, self._writer.put_stream(stream)))
            head += view
        return (bytes(head),) if head else ()

    def _change(self, path: str, change: Change[_PendingContent]) -> None:
        """Put a change into the buffer, composed with an earlier one of the same path.

        An earlier change that a deleted folder took away does not count: the new one begins afresh.
        """
        if self._closed:
            raise BadInput("the writer is closed", hint="Open another one for more files.")
        before = self._buffer.get(path)
        # The earlier change was taken away by its folder's deletion. Composing with it would bring
        # back content that was deleted.
        if before is None or before.began < self._deleted_at(path):
            self._buffer[path] = _PendingChange(next(self._clock), change)
        else:
            composed = _joined(algebra.compose(change, before.change))
            self._buffer[path] = _PendingChange(before.began, composed)
        held_bytes = sum(
            len(item) if isinstance(item, bytes) else _CHANGE_BYTES // 4
            for part in change.parts.values()
            for item in part.refs or ()
        )
        self._grow(_CHANGE_BYTES + 2 * len(path) + held_bytes)

    def _deleted_at(self, path: str) -> int:
        """Return when a folder above the path was deleted last; 0: never."""
        deleted = self._deleted
        if not deleted:
            return 0
        latest = max(deleted.get("", 0), deleted.get(path, 0))
        return max([latest, *(deleted.get(folder, 0) for folder in folders_above(path))])

    def _grow(self, size_bytes: int) -> None:
        self._buffer_bytes += size_bytes
        if self._buffer_bytes > self._max_buffer_bytes:
            self._spill()

    def _spill(self) -> None:
        self._runs.append(self._store_buffer(check_collisions=False))

    def _store_buffer(self, *, check_collisions: bool) -> Layer:
        """Store the buffer as a layer, and begin a new one."""
        builder = LayerBuilder(self._store.chunks, self._writer, check_collisions=check_collisions)
        gone = Tombstones(self._deleted)
        for path in sorted(self._buffer):
            began, change = self._buffer[path]
            if began < self._deleted_at(path):
                continue
            # Below a folder that this layer deletes there is nothing older: an append is a whole
            # file, and a deletion is none at all.
            if gone.covers(path):
                bare = algebra.over_nothing(change)
                if bare is None:
                    continue
                change = bare
            builder.add(path, self._stored(builder, path, change))
        self._buffer, self._deleted, self._buffer_bytes = {}, {}, 0
        return builder.close(gone)

    def _stored(
        self, builder: LayerBuilder, path: str, change: Change[_PendingContent]
    ) -> Change[Content]:
        """Store the small content of a change; appended pieces of one tag become one."""
        parts: dict[bytes, TagChange[Content]] = {}
        for tag, part in change.parts.items():
            if part.refs is None:
                parts[tag] = TagChange(part.set, None)
                continue
            content: list[Content] = []
            for small, items in itertools.groupby(part.refs, lambda item: isinstance(item, bytes)):
                if not small:
                    content += [item for item in items if isinstance(item, pb.DataRef)]
                    continue
                joined = b"".join(item for item in items if isinstance(item, bytes))
                if len(joined) <= self._small_bytes:
                    content.append(builder.store_small(path, joined))
                else:
                    content += map(message_of, self._writer.put_stream((joined,)))
            parts[tag] = TagChange(part.set, tuple(content))
        return Change(change.reset, parts, change.metadata)

    def _merge_runs(self) -> Layer:
        """Merge spilled buffers into one layer.

        They are layers, oldest first, and merging layers is what reading does: the result is the
        same as if the buffer had been large enough. `by_reference=False`: the checks of paths see
        every entry.
        """
        self._writer.barrier()
        reader = self._store.chunks.reader()
        return merge_into(
            LayerBuilder(self._store.chunks, self._writer),
            open_nodes(reader),
            open_layers(reader, self._runs),
            is_base=False,
            by_reference=False,
        )


def _blocks(data: Buffer | Iterable[Buffer]) -> Iterator[Buffer]:
    try:
        return iter((memoryview(data),))  # type: ignore[arg-type]
    except TypeError:
        return iter(data)  # type: ignore[arg-type]


def _joined(change: Change[_PendingContent]) -> Change[_PendingContent]:
    """Return a change with the last two pieces of each part made one, if both are small."""
    parts = dict(change.parts)
    for tag, part in change.parts.items():
        if part.refs is None or len(part.refs) < 2:  # noqa: PLR2004 - there are not two
            continue
        *others, before, last = part.refs
        if (
            isinstance(before, bytes)
            and isinstance(last, bytes)
            and len(before) + len(last) <= _JOINED_BYTES
        ):
            parts[tag] = TagChange(part.set, (*others, before + last))
    return change._replace(parts=parts)


def _message(metadata: Metadata | None) -> pb.Metadata | None:
    return metadata.to_message() if metadata else None
