"""Writing a Parquet file: under a temporary name first, so that half a file never counts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from holdfast.errors import BadInput


def write_parquet(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Write all batches; return the number of rows."""
    import pyarrow.parquet as pq

    if path.exists():
        raise BadInput("the file exists", hint="name a new one, or remove it", path=str(path))
    temporary, rows = path.with_name(path.name + ".tmp"), 0
    try:
        with pq.ParquetWriter(temporary, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
                rows += batch.num_rows
        temporary.rename(path)
    except pa.ArrowNotImplementedError as error:
        raise BadInput(
            f"Parquet cannot hold a column: {error}", hint="leave it out with --columns"
        ) from error
    except OSError as error:
        raise BadInput(
            f"the file cannot be written: {error.strerror}",
            hint="check the folder and the space on its disk",
            path=str(path),
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return rows
