"""What `.option(…)` of the sinks understands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from holdfast.dataflow.source.options import validated
from holdfast.dataflow.spec.vertices import TARGET_BYTES_MAX
from holdfast.errors import BadConfig
from holdfast.remote.settings import ClientSettings
from holdfast.settings import LocalPath, Secret, Settings, SizeBytes

# The column in which a quiver sink keeps the event time of its rows, and the slot they are in.
EVENT_TIME = "event_time"
SLOT = "events"


class SinkOptions(Settings):
    """Options of a sink: a quiver (`path` or `quiver`), Parquet files in the folder `files`, or
    commits of a `store`."""

    path: LocalPath = ""
    """The data directory of the quiver to append to, if no other process has it open."""

    quiver: str = ""
    """The quiver to append to, at a Flight server: `grpc://host:port/name`."""

    token: Secret | None = None
    """The bearer token for the server."""

    ca_file: LocalPath | None = None
    """Authorities (PEM) of the server's certificate; default: the system's."""

    cert_file: LocalPath | None = None
    """The own certificate (PEM), where the server asks for one."""

    key_file: LocalPath | None = None
    """Its private key (PEM)."""

    files: LocalPath = ""
    """The folder for Parquet files."""

    target_size: Annotated[SizeBytes, Field(le=TARGET_BYTES_MAX)] = 0
    """With `files`: a small batch is added to the newest file until that has this size; 0: each
    batch has files of its own, which never change."""

    store: str = ""
    """The store for commits: a folder, or `s3://bucket/prefix`."""

    database: Secret | None = None
    """Its database, where it is not in the folder. Only the driver uses it."""

    commit: str = ""
    """With `store`: each batch is the commit `<commit>/<number of the batch>`."""

    format: Literal["parquet", "ndjson"] = "parquet"
    """With `store`: how the files in a commit are written."""

    keep_commits: Annotated[int, Field(ge=1)] | None = None
    """With `store`: keep this many of the newest commits; by default all are kept."""

    slot: str = SLOT
    """The slot of the quiver's bundles."""

    encode: Literal["rows", "json"] = "rows"
    """How a quiver keeps the rows: as they are, or each as a JSON object in bytes, like an event
    that a gateway received: then its exporters can deliver it."""

    name: str = ""
    """The sink's name, where a query has several that append to quivers."""

    batch: int | None = None
    """The batch's number, inside `foreachBatch`; a stream's own writer knows it."""

    checkpoint: str = ""
    """The query's checkpoint folder; without it `checkpointLocation`."""

    quiver_config: str = ""
    """`module:name` of the QuiverConfig (or of a function that returns it) of `path`."""

    watermark: bool = False
    """State the query's watermark in the quiver, for a source with option `producers`.

    The event time of the results must not be before it: use the end of a window, less 1 ms.
    """

    claims_of: str = ""
    """With `watermark`: state what these subscribers claimed (a list with commas), not the
    watermark by which Spark closes windows. For a query that has none: its results are complete
    that far with this batch, not with the next."""

    hold_us: int | None = None
    """With `watermark`: state no later one than this, because rows of that time will come again."""

    staging: str = ""
    """A folder that tasks and driver share, for what is too large to be sent to the driver."""

    inline_bytes: SizeBytes = 4 * 1024 * 1024
    """What one task sends to the driver itself; more is staged."""

    @property
    def is_files(self) -> bool:
        """Whether rows become files, in a folder or in a store."""
        return bool(self.files or self.store)

    @property
    def client(self) -> ClientSettings:
        """How the server is called."""
        return ClientSettings(
            token=self.token,
            ca_file=self.ca_file,
            cert_file=self.cert_file,
            key_file=self.key_file,
        )


def parse_sink_options(options: Mapping[str, Any]) -> SinkOptions:
    """Return the options of a sink; raise `BadConfig` with everything that is wrong."""
    # To Spark the case of an option's name means nothing, and it may arrive in lower case.
    given = {name.lower(): value for name, value in options.items()}
    location = given.pop("checkpointlocation", "")
    given.pop("queryname", None)  # Spark gives a named query's name to its writer
    given.setdefault("checkpoint", location)
    fault = "nothing can be written like this"
    parsed = validated(SinkOptions, given, fault, "options of the sinks")
    places = (parsed.path, parsed.quiver, parsed.files, parsed.store)
    if len([place for place in places if place]) != 1 or not parsed.checkpoint:
        raise BadConfig(
            "a sink needs one of `path`, `quiver`, `files` and `store`, and the checkpoint",
            hint="name one, and checkpointLocation as an option of the same writer",
        )
    if bool(parsed.store) != bool(parsed.commit.strip("/")):
        raise BadConfig(
            "a store and the name of its commits go together",
            hint="use options store and commit: batch 7 of `lineage` is lineage/000000000007",
        )
    return parsed
