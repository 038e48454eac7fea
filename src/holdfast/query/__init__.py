"""Asking what is stored: quivers as tables for polars, duckdb and other readers of Arrow.

from holdfast.query import open_tables

spans = open_tables("holdfast_data/buffer")["spans"]
polars.scan_pyarrow_dataset(spans)            # a LazyFrame
duckdb.sql("select count(*) from spans")      # finds the variable by its name
"""

from holdfast.query.datasets import StoredDataset, open_tables

__all__ = ["StoredDataset", "open_tables"]
