"""The data source `holdfast`, as Spark knows it."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from holdfast.dataflow.sink.options import parse_sink_options
from holdfast.dataflow.sink.writers import stream_writer
from holdfast.dataflow.source.options import parse_options
from holdfast.dataflow.source.schema import stored_schema
from holdfast.errors import BadConfig


class HoldfastDataSource(DataSource):
    """Reads and writes quivers; with option `store`, file sets."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(…)`."""
        return "holdfast"

    def schema(self) -> StructType:
        """Return the columns that are stored, if the user did not give them."""
        if "store" in self.options:
            from holdfast.dataflow.filesets.reader import file_set_schema, parse_file_set_options

            return from_arrow_schema(file_set_schema(parse_file_set_options(self.options)))
        return from_arrow_schema(stored_schema(parse_options(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        from holdfast.dataflow.source.stored import BatchReader, PushingBatchReader

        if "store" in self.options:
            from holdfast.dataflow.filesets.reader import FileSetReader, parse_file_set_options

            return FileSetReader(parse_file_set_options(self.options), schema)
        options = parse_options(self.options)
        return (PushingBatchReader if options.pushdown else BatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a stream."""
        from holdfast.dataflow.source.stream import StreamReader

        if "store" in self.options:
            raise BadConfig(
                "a commit never changes, so there is nothing to stream from it",
                hint="use spark.read",
            )
        return StreamReader(parse_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the writer of a stream's batches."""
        return stream_writer(parse_sink_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of one batch of a stream, inside `foreachBatch`."""
        from holdfast.dataflow.sink.writers import BatchWriter

        options = parse_sink_options(self.options)
        return BatchWriter(stream_writer(options), options)
