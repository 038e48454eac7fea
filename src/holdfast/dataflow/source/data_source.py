"""The data source `holdfast`, as Spark knows it."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from holdfast.dataflow.sink.options import SinkOptions, parse_sink_options
from holdfast.dataflow.source.options import parse_options
from holdfast.dataflow.source.schema import stored_schema


class HoldfastDataSource(DataSource):
    """Reads and writes quivers."""

    @classmethod
    def name(cls) -> str:
        """Return what stands in `format(…)`."""
        return "holdfast"

    def schema(self) -> StructType:
        """Return the columns that are stored, if the user did not give them."""
        return from_arrow_schema(stored_schema(parse_options(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        from holdfast.dataflow.source.batch import BatchReader, PushingBatchReader

        options = parse_options(self.options)
        return (PushingBatchReader if options.pushdown else BatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a stream."""
        from holdfast.dataflow.source.stream import StreamReader

        return StreamReader(parse_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the writer of a stream's batches."""
        return _stream_writer(parse_sink_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of one batch of a stream, inside `foreachBatch`."""
        from holdfast.dataflow.sink.batch_writer import BatchWriter

        options = parse_sink_options(self.options)
        return BatchWriter(_stream_writer(options), options)


def _stream_writer(options: SinkOptions) -> DataSourceStreamArrowWriter:
    from holdfast.dataflow.sink.files_writer import FilesWriter
    from holdfast.dataflow.sink.quiver_writer import QuiverWriter

    return FilesWriter(options) if options.files else QuiverWriter(options)
