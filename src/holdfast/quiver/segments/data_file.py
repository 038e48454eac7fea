"""Reading a data file of a segment: block by block, by what the manifest says, into memory.

A block is a record batch. Its place and its checksum stand in the manifest, and so does the schema,
so that nothing else of the file is needed: a damaged block, one that the disk cannot read or one
that was cut off costs the rows that lie in it. The file's own beginning and end (its schema, its
footer) are for other programs. Only dictionaries are in the file alone, before the first block.

Segments of version 1 have larger blocks, and no schema in the manifest: it is taken from the first
block, with the dictionaries, or from the footer.

The blocks read last are kept in bounded memory: bundles are read one by one, and one block holds
many, so that without it every bundle would cost the reading of its whole block.
"""

from __future__ import annotations

import base64
import errno
import threading
import zlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import PurePath
from typing import NamedTuple

import pyarrow as pa
from xxhash import xxh3_64, xxh3_64_hexdigest

from holdfast.errors import Damaged, StorageFailed
from holdfast.quiver.base.arrow import has_dictionary
from holdfast.quiver.base.bundle import noted_damage, one_batch, without_reserved
from holdfast.quiver.segments.arrow_file import MAGIC, head_messages
from holdfast.quiver.segments.manifest import FileSummary
from holdfast.seam.disk import CANNOT_BE_READ, ReadableDisk

# Of one quiver, whatever the number of its readers. The block read last is kept in any case.
READ_CACHE_BYTES = 8 * 1024 * 1024

CacheKey = tuple[object, int]


class BatchCache:
    """Record batches by file and number, the ones used last. Safe to use from many threads."""

    def __init__(self, max_bytes: int = READ_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._size_bytes = 0
        self._found: OrderedDict[CacheKey, tuple[pa.RecordBatch, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: CacheKey) -> pa.RecordBatch | None:
        """Return a batch that was put here, if it still is."""
        with self._lock:
            found = self._found.get(key)
            if found is None:
                return None
            self._found.move_to_end(key)
            return found[0]

    def drop(self, key: CacheKey) -> None:
        """Forget a batch."""
        with self._lock:
            _, size_bytes = self._found.pop(key, (None, 0))
            self._size_bytes -= size_bytes

    def put(self, key: CacheKey, batch: pa.RecordBatch, size_bytes: int) -> None:
        """Keep a batch of so many bytes, and forget those that were not used for longest."""
        with self._lock:
            # Two readers may have read the same batch at the same time; one copy is enough.
            if key in self._found:
                return
            self._found[key] = batch, size_bytes
            self._size_bytes += size_bytes
            while self._size_bytes > self._max_bytes and len(self._found) > 1:
                _, (_, freed_bytes) = self._found.popitem(last=False)
                self._size_bytes -= freed_bytes


# Errors that mean a file is not what it should be. Others (too many open files, no permission) say
# nothing about it: they must cost nobody his data.
DAMAGE_ERRORS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR}) | CANNOT_BE_READ


class Head(NamedTuple):
    """What is needed to decode the blocks of a file."""

    schema: pa.Schema
    # Messages of an Arrow stream: schema and dictionaries, if there are any.
    messages: memoryview
    # Where in the first block its record batch begins; before that stands the above, in version 1.
    first_batch: int = 0


def split_head(content: memoryview) -> tuple[memoryview, memoryview]:
    """Return the schema's message and the dictionaries at the beginning of a file.

    `content` begins with the file and reaches behind its first record batch.
    """
    schema, *dictionaries = head_messages(content[len(MAGIC) :])
    schema_end = len(MAGIC) + len(schema)
    return schema, content[schema_end : schema_end + sum(map(len, dictionaries))]


def pack_schema(message: memoryview) -> str:
    """Return a schema's message as it stands in the manifest."""
    return base64.b64encode(zlib.compress(message)).decode()


class DataFile:
    """One data file. Safe to use from many threads."""

    def __init__(
        self,
        disk: ReadableDisk,
        path: PurePath,
        summary: FileSummary,
        cache: BatchCache | None = None,
    ) -> None:
        self.summary = summary
        self.cache = cache or BatchCache()
        self._disk = disk
        self._path = path
        self._lock = threading.Lock()

    @cached_property
    def schema(self) -> pa.Schema:
        """The file's schema, envelope included, with the metadata that its user gave."""
        return without_reserved(self._schema)

    @cached_property
    def noted_damage(self) -> tuple[str, ...]:
        """The slots that all bundles of this file lost before it was written: in a salvage."""
        return noted_damage(self._schema)

    @cached_property
    def _schema(self) -> pa.Schema:
        if self.summary.schema:
            return pa.ipc.read_schema(pa.py_buffer(self._schema_message))
        return self._old[0]

    @cached_property
    def _schema_message(self) -> memoryview:
        return memoryview(zlib.decompress(base64.b64decode(self.summary.schema)))

    @cached_property
    def _has_dictionaries(self) -> bool:
        return any(has_dictionary(field.type) for field in self._schema)

    def batch(self, index: int) -> pa.RecordBatch:
        """Read a record batch; raise `Damaged` if its bytes are not what was written."""
        # Checked by its checksum first: Arrow's reader trusts its input, and damaged lengths could
        # make it read past the buffer.
        content = self._block(index)
        if not self._has_dictionaries:
            start = self._old[1] if index == 0 and not self.summary.schema else 0
            return pa.ipc.read_record_batch(pa.py_buffer(content[start:]), self.schema)
        batch = self._with_dictionaries(index, content)
        return batch.replace_schema_metadata(self.schema.metadata)

    def rows(self, first: int, count: int) -> pa.RecordBatch:
        """Return a range of rows, without the envelope."""
        batches, starts = [], self._starts
        index = bisect_right(starts, first) - 1
        while count and index < len(self.summary.batches):
            skipped = first - starts[index]
            taken = min(count, self.summary.batches[index].rows - skipped)
            if taken:
                # The last rows of a block are wanted, so a reader going forwards does not come
                # back to it: it need not stay in memory.
                ends = skipped + taken == self.summary.batches[index].rows
                batches.append(self._kept(index, until_now=ends).slice(skipped, taken))
            first, count, index = first + taken, count - taken, index + 1
        # Nearly always: a block ends between two bundles. Tables cost more than all else here.
        if len(batches) == 1:
            return batches[0]
        return one_batch(pa.Table.from_batches(batches, self._own_schema))

    def check_frame(self) -> None:
        """Raise `Damaged` if anything outside the blocks is not what was written."""
        hasher = xxh3_64()
        position = 0
        for batch in self.summary.batches:
            hasher.update(self._read(position, batch.offset - position))
            position = batch.offset + batch.length
        # One byte more, to see whether the file is longer.
        rest = self._read(position, self.summary.size_bytes - position + 1)
        hasher.update(rest)
        if hasher.hexdigest() != self.summary.frame_checksum:
            raise self._damaged("has a damaged schema or footer, or another length")

    # ------------------------------------------------------------------ insides

    @cached_property
    def _starts(self) -> Sequence[int]:
        """The number of the first row of each block, and of what would follow them."""
        return list(accumulate((batch.rows for batch in self.summary.batches), initial=0))

    @cached_property
    def _own_columns(self) -> list[int]:
        """Which columns are not the envelope's."""
        count = len(self.schema)
        return list(range(count - self.summary.own_columns, count))

    @cached_property
    def _own_schema(self) -> pa.Schema:
        fields = [self.schema.field(place) for place in self._own_columns]
        return pa.schema(fields, self.schema.metadata)

    def _kept(self, index: int, *, until_now: bool) -> pa.RecordBatch:
        """Return a block without the envelope, and keep it unless its last rows are wanted.

        Readers go forwards.
        """
        key = (self, index)
        # Inside the lock: two readers of one block read it once.
        with self._lock:
            own = self.cache.get(key)
            if own is None:
                batch = self.batch(index)
                own = batch.select(self._own_columns)
                if not until_now:
                    # The envelope lies in the same memory.
                    self.cache.put(key, own, batch.get_total_buffer_size())
            elif until_now:
                self.cache.drop(key)
            return own

    def _block(self, index: int) -> memoryview:
        place = self.summary.batches[index]
        content = self._read(place.offset, place.length)
        if xxh3_64_hexdigest(content) != place.checksum:
            cut = " (it is cut short)" if len(content) < place.length else ""
            raise self._damaged(f"is damaged in record batch {index}{cut}")
        return content

    def _read(self, offset: int, length: int) -> memoryview:
        try:
            return memoryview(self._disk.read_range(self._path, offset, length))
        except OSError as error:
            # Too many open files, or no permission, says nothing about the data. Recorded as
            # damage it would be final for every subscriber.
            if error.errno not in DAMAGE_ERRORS:
                raise unreadable(self._path, error) from error
            where = f"{length} bytes at {offset}"
            raise self._damaged(f"cannot be read, {where}: {error.strerror}") from error

    def _with_dictionaries(self, index: int, content: memoryview) -> pa.RecordBatch:
        if self.summary.schema:
            message = self._schema_message
            offset = len(MAGIC) + len(message)
            found = self._read(offset, self.summary.batches[0].offset - offset)
            if xxh3_64_hexdigest(found) != self.summary.dictionary_checksum:
                raise self._damaged("is damaged in its dictionaries")
            parts, start = [message, found], 0
        else:
            head = self._old_head()
            parts, start = [head.messages], head.first_batch if index == 0 else 0
        source = pa.PythonFile(_PartsFile([*parts, content[start:]]), "r")
        return pa.ipc.open_stream(source).read_next_batch()

    # ----------------------------------------------------------------- version 1

    @cached_property
    def _old(self) -> tuple[pa.Schema, int]:
        head = self._old_head()
        return head.schema, head.first_batch

    def _old_head(self) -> Head:
        """Return the beginning of a file of version 1.

        It is taken from the first block, or from the footer where that is damaged.
        """
        try:
            first = self._block(0) if self.summary.batches else None
        except Damaged:
            first = None
        if first is None:
            return self._head_of_footer()
        message, dictionaries = split_head(first)
        end = len(MAGIC) + len(message) + len(dictionaries)
        return Head(pa.ipc.read_schema(pa.py_buffer(message)), first[len(MAGIC) : end], end)

    def _head_of_footer(self) -> Head:
        start = sum(batch.length for batch in self.summary.batches)
        footer = self._read(start, self.summary.size_bytes - start)
        if xxh3_64_hexdigest(footer) != self.summary.frame_checksum:
            raise self._damaged("has a damaged schema or footer")
        schema = pa.ipc.open_file(pa.py_buffer(MAGIC + bytes(footer))).schema
        if any(has_dictionary(field.type) for field in schema):
            raise self._damaged("is damaged in its dictionaries")
        return Head(schema, memoryview(schema.serialize()))

    def _damaged(self, what: str) -> Damaged:
        return Damaged(
            f"a segment file {what}",
            hint="the other record batches are still served; restore this one from a copy",
            path=str(self._path),
        )


class MappedFile(DataFile):
    """A data file whose blocks point into a map: for whoever asked for it (`ReadableDisk.map`)."""

    @cached_property
    def _view(self) -> memoryview:
        return self._disk.map(self._path)

    def _read(self, offset: int, length: int) -> memoryview:
        try:
            return self._view[offset : offset + length]
        except OSError as error:
            if error.errno not in DAMAGE_ERRORS:
                raise unreadable(self._path, error) from error
            raise self._damaged(f"cannot be read: {error.strerror}") from error


class _PartsFile:
    """Buffers one after the other as a file for Arrow, without joining them."""

    closed = False

    def __init__(self, parts: Sequence[memoryview]) -> None:
        self._parts = [part for part in parts if part]

    def read(self, size: int) -> memoryview:
        """Return some bytes; Arrow never asks for more than one part holds."""
        if not self._parts:
            return memoryview(b"")
        found, left = self._parts[0][:size], self._parts[0][size:]
        self._parts[:1] = [left] if left else []
        return found

    def close(self) -> None:
        """Nothing is held."""


def unreadable(path: PurePath, error: OSError) -> StorageFailed:
    """Return the error for a file that cannot be read now, and may be sound."""
    return StorageFailed(
        f"a segment file cannot be read now: {error.strerror}",
        hint="nothing is lost; look after the machine (open files, memory, rights), then try again",
        path=str(path),
    )
