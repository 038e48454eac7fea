"""What is written beside Arrow's own writer of files is what that writer writes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.quiver.segments.arrow_file import MAGIC, MessageWriter, Placed, file_end

ROWS = 100
PLAIN = pa.table({"number": list(range(ROWS)), "text": [f"row {row}" for row in range(ROWS)]})
NESTED = pa.table({"pairs": [[{"x": row, "y": None}] * (row % 3) for row in range(ROWS)]})
NAMED = PLAIN.replace_schema_metadata({"by": "someone", "ü": "漢"})
WORDS = pa.table(
    {
        "word": pa.array([f"word {row % 7}" for row in range(ROWS)]).dictionary_encode(),
        "other": pa.array(["a", None] * (ROWS // 2)).dictionary_encode(),
        "number": list(range(ROWS)),
    }
)
TABLES = {"plain": PLAIN, "nested": NESTED, "metadata": NAMED, "dictionaries": WORDS}


def blocks(table: pa.Table, rows: int) -> list[pa.RecordBatch]:
    """Return the table in batches that share their dictionaries."""
    (batch,) = table.combine_chunks().to_batches()
    return [batch.slice(start, rows) for start in range(0, batch.num_rows, rows)]


def ours(table: pa.Table, batches: list[pa.RecordBatch], codec: str | None) -> bytes:
    """Return a file as a segment has it."""
    messages = MessageWriter(table.schema, None if codec is None else pa.Codec(codec))
    schema, *dictionaries = messages.head(table.combine_chunks().to_batches()[0])
    content, placed, found = bytearray(MAGIC) + schema, Placed(), Placed()
    for message in dictionaries:
        placed.add(len(content), message)
        content += message
    for batch in batches:
        written = messages.batch(batch)
        found.add(len(content), written)
        content += written
    return bytes(content) + file_end(schema, placed, found)


def arrows(table: pa.Table, batches: list[pa.RecordBatch], codec: str | None) -> bytes:
    """Return the file that Arrow writes."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def without_footer(content: bytes) -> bytes:
    """Return a file up to the end of its stream."""
    footer_bytes = int.from_bytes(content[-10:-6], "little")
    return content[: -10 - footer_bytes]


@pytest.mark.parametrize("codec", [None, "zstd"])
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("rows", [7, ROWS])
def test_a_file_is_what_arrow_writes_up_to_its_footer(
    name: str, rows: int, codec: str | None
) -> None:
    table = TABLES[name]
    batches = blocks(table, rows)
    made = ours(table, batches, codec)
    assert without_footer(made) == without_footer(arrows(table, batches, codec))


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("rows", [1, 7, ROWS])
def test_arrow_finds_every_batch_by_the_footer(name: str, rows: int) -> None:
    table = TABLES[name]
    batches = blocks(table, rows)
    reader = pa.ipc.open_file(pa.py_buffer(ours(table, batches, None)))
    assert reader.schema.equals(table.schema, check_metadata=True)
    assert reader.num_record_batches == len(batches)
    # In another order than they were written: each is found by its own place.
    found = [reader.get_batch(number) for number in reversed(range(len(batches)))]
    assert found[::-1] == batches


def test_a_file_without_rows_has_a_schema() -> None:
    reader = pa.ipc.open_file(pa.py_buffer(ours(PLAIN, [], None)))
    assert (reader.num_record_batches, reader.schema) == (0, PLAIN.schema)
