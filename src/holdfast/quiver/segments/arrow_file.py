"""The bytes of an Arrow IPC file, message by message.

    magic | schema | dictionaries | record batches | end of stream | footer | its length | magic

Arrow's own writer of files hands over every buffer of every record batch in a call of its own, and
waits for the interpreter's lock at each: 2,800 times for a segment of 32 MB, beside the threads
that append. Here a record batch is one buffer, made in one call.

The footer says once more what the schema is, and where each batch lies. Arrow gives it to nobody,
so it is put together here: a table in front of the schema's message, which becomes a part of it as
it is, since everything in a flatbuffer refers to its place by distance alone.
"""

from __future__ import annotations

import struct

import pyarrow as pa

# At the beginning of a file, padded to this; at its end without the padding.
MAGIC = b"ARROW1\0\0"
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"

# Behind the mark with which each message begins: the length of its metadata, and these.
_PREFIX = struct.Struct("<4xi")
# A footer up to its dictionaries: where its table is; the table's index of fields; the table itself
# (its index, schema, dictionaries, batches, version); how many dictionaries there are.
_FOOTER = struct.Struct("<I HHHHHH iIIIh2x I")
_FOOTER_TABLE = 16
_FOOTER_VECTORS = 36
_FOOTER_BYTES = 40
# Of the metadata of all messages and footers: V5.
_METADATA_VERSION = 4
# Where a message is: its place, the length of its metadata, and of its body.
_PLACE = struct.Struct("<qi4xq")


class MessageWriter:
    """Makes the messages of one file; one batch after the other, all with the same dictionaries."""

    def __init__(self, schema: pa.Schema, codec: pa.Codec | None) -> None:
        self._pieces = _WrittenPieces()
        options = pa.ipc.IpcWriteOptions(compression=codec)
        sink = pa.PythonFile(self._pieces, "w")
        self._stream = pa.ipc.new_stream(sink, schema, options=options)
        self._is_compressed = codec is not None

    def head(self, first: pa.RecordBatch) -> list[memoryview]:
        """Return the messages before those of the batches: the schema, and dictionaries."""
        self._stream.write_batch(first.slice(0, 0))
        return head_messages(memoryview(self._pieces.take()))

    def batch(self, batch: pa.RecordBatch) -> pa.Buffer:
        """Return the message of a batch."""
        if not self._is_compressed:
            return batch.serialize()
        self._stream.write_batch(batch)  # nothing else in pyarrow compresses a batch
        return pa.py_buffer(self._pieces.take())


class _WrittenPieces:
    """A file for Arrow to write to, in memory."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._pieces.append(data)
        return len(data)

    def take(self) -> bytes:
        """Return what was written since the last call."""
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is held."""


def head_messages(stream: memoryview) -> list[memoryview]:
    """Return the messages of a stream before its first record batch."""
    source = pa.BufferReader(pa.py_buffer(stream))
    found, start = [], 0
    for message in pa.ipc.MessageReader.open_stream(source):
        if message.type == "record batch":
            break
        found.append(stream[start : source.tell()])
        start = source.tell()
    return found


class Placed:
    """Where the messages of one kind are in a file, as its footer says it."""

    def __init__(self) -> None:
        self.count = 0
        self.packed = bytearray()

    def add(self, offset: int, message: memoryview | pa.Buffer) -> None:
        """Note a message."""
        (metadata_bytes,) = _PREFIX.unpack_from(message)
        metadata_bytes += _PREFIX.size
        self.packed += _PLACE.pack(offset, metadata_bytes, len(message) - metadata_bytes)
        self.count += 1


def file_end(schema: memoryview, dictionaries: Placed, batches: Placed) -> bytes:
    """Return what stands behind the last message of a file."""
    batches_at = _FOOTER_BYTES + len(dictionaries.packed) + 4
    schema_at = batches_at + 4 + len(batches.packed)
    metadata = schema[_PREFIX.size :]
    # Each field's value is the distance from its own place.
    footer = _FOOTER.pack(
        _FOOTER_TABLE,
        *(12, _FOOTER_VECTORS - _FOOTER_TABLE, 16, 4, 8, 12),
        _FOOTER_TABLE - 4,
        schema_at + _schema_table(metadata) - (_FOOTER_TABLE + 4),
        _FOOTER_VECTORS - (_FOOTER_TABLE + 8),
        batches_at - (_FOOTER_TABLE + 12),
        _METADATA_VERSION,
        dictionaries.count,
    )
    count = struct.pack("<4xI", batches.count)
    footer += b"".join((dictionaries.packed, count, batches.packed, metadata))
    return b"".join((_END_OF_STREAM, footer, struct.pack("<i", len(footer)), MAGIC.rstrip(b"\0")))


def _schema_table(metadata: memoryview) -> int:
    """Return where in the metadata of its message the table of a schema begins."""
    (root,) = struct.unpack_from("<I", metadata)
    (index,) = struct.unpack_from("<i", metadata, root)
    # The third field of a message is what it is about.
    (header,) = struct.unpack_from("<H", metadata, root - index + 8)
    (distance,) = struct.unpack_from("<I", metadata, root + header)
    return int(root + header + distance)
