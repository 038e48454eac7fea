"""Which writer a sink's options ask for."""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceStreamArrowWriter

from holdfast.dataflow.sink.options import SinkOptions


def stream_writer(options: SinkOptions) -> DataSourceStreamArrowWriter:
    """Return the writer of a sink, which takes each batch once."""
    if options.store:
        from holdfast.dataflow.filesets.sink import CommitWriter

        return CommitWriter(options)
    if options.files:
        from holdfast.dataflow.sink.files_writer import FilesWriter

        return FilesWriter(options)
    from holdfast.dataflow.sink.quiver_writer import QuiverWriter

    return QuiverWriter(options)
