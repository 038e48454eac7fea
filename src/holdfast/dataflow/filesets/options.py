"""What `.option(…)` understands when a commit of a store is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field, ValidationError

from holdfast.dataflow.source.options import NameTuple
from holdfast.errors import BadConfig
from holdfast.settings import DurationS, Secret, Settings, SizeBytes

RowsFormat = Literal["files", "parquet", "arrow", "json"]


class FileSetOptions(Settings):
    """Options of a read; lists are written with commas, sizes and durations with units."""

    store: str
    """The store: a folder, or `s3://bucket/prefix`."""

    database: Secret | None = None
    """Its database, where it is not in the folder. Only the driver uses it."""

    path: str = ""
    """The commit: the argument of `load(…)`."""

    format: RowsFormat = "files"
    """`files`: a row per file (path, size, modified, content). Else the rows that are in them."""

    glob: str = ""
    """Only files whose path matches; by default all, or all that end as the format does."""

    columns: NameTuple | None = None
    """The columns to read; without it all. Content that is not asked for is not read."""

    since: AwareDatetime | None = None
    """Only rows with this time or a later one; of `files`, only files modified then or later."""

    until: AwareDatetime | None = None
    """Only rows, or files, before this time."""

    time_column: str = "event_time"
    """The column that `since` and `until` are about, if rows are read."""

    shard_files: Annotated[int, Field(ge=1)] = 10_000
    """Files that one task reads, about."""

    shard_bytes: SizeBytes = 64 * 1024 * 1024
    """Bytes of files that one task reads, about."""

    pin: Annotated[DurationS, Field(gt=0, le=7 * 86400)] = 3600.0
    """How long the read may take, from its plan on: until then nothing that it reads is collected,
    even if the commit is deleted. For longer reads hold the commit open: `Commits.open`."""


def parse_file_set_options(options: Mapping[str, Any]) -> FileSetOptions:
    """Return the options of a read; raise `BadConfig` with everything that is wrong."""
    try:
        parsed = FileSetOptions.model_validate(dict(options))
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        known = ", ".join(FileSetOptions.model_fields)
        raise BadConfig(
            f"the store cannot be read like this: {'; '.join(wrong)}",
            hint=f"options with `store` are {known}",
        ) from None
    if not parsed.path:
        raise BadConfig(
            "no commit is named", hint="write .load('name'); `holdfast files ls` lists them"
        )
    return parsed
