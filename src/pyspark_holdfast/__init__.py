"""So that `spark.read.format("holdfast")` works at once: Spark loads what is named `pyspark_…`."""

from holdfast.dataflow.data_source import HoldfastDataSource as DefaultSource

__all__ = ["DefaultSource"]
