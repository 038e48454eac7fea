"""Which writer a sink's options ask for, in a stream and inside `foreachBatch`.

There the same sinks are given the number of the batch (`BatchWriter`):

    def fan_out(frame, batch):
        frame.persist()
        for options in sinks:
            frame.write.format("holdfast").options(**options, batch=batch).mode("append").save()

Each sink takes the batch once, whichever of them had it when the driver died.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from holdfast.dataflow.sink.options import SinkOptions
from holdfast.errors import BadConfig


def stream_writer(options: SinkOptions) -> DataSourceStreamArrowWriter:
    """Return the writer of a sink, which takes each batch once."""
    if options.store:
        from holdfast.dataflow.sink.commit_writer import CommitWriter

        return CommitWriter(options)
    if options.files:
        from holdfast.dataflow.sink.files_writer import FilesWriter

        return FilesWriter(options)
    from holdfast.dataflow.sink.quiver_writer import QuiverWriter

    return QuiverWriter(options)


class BatchWriter(DataSourceArrowWriter):
    """Writes one batch of a query into a sink."""

    def __init__(self, sink: DataSourceStreamArrowWriter, options: SinkOptions) -> None:
        if options.batch is None:
            raise BadConfig(
                "a batch is written without its number",
                hint="use writeStream, or option batch inside foreachBatch: it makes it count once",
            )
        self._sink = sink
        self._batch = options.batch

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        return self._sink.write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish the batch, once."""
        self._sink.commit(list(messages), self._batch)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Forget what was staged."""
        self._sink.abort(list(messages), self._batch)
