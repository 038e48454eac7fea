"""What `.option(…)` of the source understands.

Options are text, whatever they mean: Spark passes on what `.option(name, value)` was given, from
SQL, Python or Scala alike. So lists are written with commas, sizes and durations with units, and
all of it becomes typed here, once. The docstrings are the reference page.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import AwareDatetime, BeforeValidator, Field, ValidationError

from holdfast.dataflow.watermark.claims import WatermarkSettings
from holdfast.errors import BadConfig
from holdfast.quiver.base.config import ArchiveConfig, archive_problem_of
from holdfast.remote.settings import ClientSettings
from holdfast.settings import DurationS, LocalPath, Secret, Settings, SizeBytes
from holdfast.signals.registry import tables


def _names(value: object) -> object:
    """Return the parts of a list written with commas."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


Options = TypeVar("Options", bound=Settings)

NameTuple = Annotated[tuple[str, ...], BeforeValidator(_names)]
Paths = Annotated[tuple[LocalPath, ...], BeforeValidator(_names)]


class SourceOptions(Settings):
    """Options of the source; lists are written with commas, sizes and durations with units."""

    path: Paths = ()
    """Data directories of quivers that no other process has open (a batch may share them)."""

    quiver: NameTuple = ()
    """Quivers at Flight servers: `grpc://host:port/name` or `grpc+tls://host:port/name`."""

    nodes: NameTuple = ()
    """Of a batch: data nodes, `grpc://host:port`; of all they have, each part is read once."""

    nodes_away: Annotated[int, Field(ge=0)] = 0
    """How many of `nodes` need not answer: at most one less than each part has owners."""

    archive: NameTuple = ()
    """Of a batch: archives of sealed segments, `s3://bucket/prefix`, `gs://…`, `az://…` or folders.

    With `path`, `quiver` or `nodes` beside it, what is both here and there is read once.
    """

    archive_endpoint: str | None = None
    """The server of the bucket, where the environment of driver and executors does not say it."""

    archive_secrets: Secret | None = None
    """What else the environment does not say, by the names that obstore has for it:
    `region=…,access_key_id=…,secret_access_key=…`.
    """

    token: Secret | None = None
    """The bearer token for the servers."""

    ca_file: LocalPath | None = None
    """Authorities (PEM) of the servers' certificates; default: the system's."""

    cert_file: LocalPath | None = None
    """The own certificate (PEM), where servers ask for one."""

    key_file: LocalPath | None = None
    """Its private key (PEM)."""

    call_timeout: DurationS = 10.0
    """How long a server may take to answer, before it counts as one that does not."""

    local_reads: bool = True
    """Map files that are on the reader's own machine, even if a server offers them."""

    slot: str = "events"
    """The slot to read."""

    table: str = ""
    """Instead of a slot: a table of the items in it, `spans`, `logs` or `points`.

    `since` and `until` are then about items; limits are about what is stored, requests.
    """

    columns: NameTuple | None = None
    """The columns to read; without it all. Nothing else is read from disk.

    With `watermark` the event time comes along in any case.
    """

    partial: bool = False
    """Leave damaged rows out, and name in `_damaged_slots` the damaged slots of a row's bundle.

    The column is null where none is damaged. Whole segments are read for it.
    """

    since: AwareDatetime | None = None
    """Only events with this time or a later one."""

    until: AwareDatetime | None = None
    """Only events before this time."""

    since_seq: Annotated[int, Field(ge=0)] | None = None
    """Of one quiver, of a batch or `stored`: bundles from this number on, all of them or none."""

    until_seq: Annotated[int, Field(ge=0)] | None = None
    """Of one quiver, of a batch or `stored`: only bundles before this number."""

    stored: bool = False
    """A stream over what is stored now, processed or not: no subscriber, no progress is kept.

    The name in `subscriber` is only for the checkpoint.
    """

    seal: bool = False
    """Of a batch: have everything sealed first that is there now.

    A directory must not be open elsewhere then; a server's token needs the right `append`.
    """

    pushdown: bool = False
    """Of a batch: read only what conditions of the query on `_event_time` and `_seq` may need.

    Spark asks for `spark.sql.python.filterPushdown.enabled` with it.
    """

    subscriber: str = ""
    """The name under which a stream's progress is kept in every quiver."""

    checkpoint: str = ""
    """The stream's checkpoint folder: what it has as committed is acknowledged immediately."""

    start: Literal["oldest", "latest"] | AwareDatetime = "oldest"
    """Where a subscriber that is new begins."""

    max_rows: Annotated[int, Field(ge=1)] = 4_000_000
    """Rows of one batch, unless one bundle has more."""

    max_bytes: SizeBytes = 256 * 1024 * 1024
    """Stored bytes of one batch, unless one bundle has more."""

    partition_bytes: SizeBytes = 128 * 1024 * 1024
    """Stored bytes that one task reads: at least one segment, and no more than a core's share."""

    wait_while: str = ""
    """A file: while it is there nothing new is planned, because too much waits further down."""

    poll_every: DurationS = 0.05
    """How long a poll that finds nothing new waits; Spark polls again immediately."""

    on_data_loss: Literal["fail", "count"] = "fail"
    """What happens when data was deleted before it was read."""

    unfit: str = ""
    """A directory, of a stream with a `checkpoint`: the quiver of dead letters for rows that do not
    fit the query's columns.

    Without it such a row ends the query. No other process may have it open for long.
    """

    vertex: str = ""
    """What dead letters and errors call the source; default: its subscriber."""

    on_rewind: Literal["refuse", "trim"] = "refuse"
    """A checkpoint that lost its last batches: refuse it, or leave out what is processed.

    Only a query without state may be trimmed.
    """

    records: NameTuple = ()
    """Folders of the batch records of the query's sinks: what these have is processed too."""

    partials: str = ""
    """Instead of rows: partial aggregates of them, as a pipeline asks for them (JSON)."""

    quiver_config: str = ""
    """`module:name` of the QuiverConfig (or of a function that returns it) of `path`."""

    watermark: bool = False
    """Add `_wm`, `_wm_prev` and `_control`, and one control row per batch."""

    max_delay: DurationS = 10.0
    """See WatermarkSettings."""

    idle_after: DurationS = 5.0
    """See WatermarkSettings."""

    max_hold: DurationS = 600.0
    """See WatermarkSettings."""

    unreachable: Literal["hold", "release"] = "hold"
    """See WatermarkSettings."""

    producers: NameTuple = ()
    """Pipelines that write into the quivers: the watermark is theirs, not `max_delay` behind."""

    horizon: DurationS | None = None
    """How long after an event its windows may be open: until then an idle source sends heartbeats.

    Without it (a query that has no windows) there are none.
    """

    heartbeat_every: DurationS = 1.0
    """The shortest time between two heartbeats."""

    close: bool = False
    """When everything is read, claim the end of time, so that all windows close."""

    @property
    def claims(self) -> WatermarkSettings:
        """What the claims need to know."""
        return WatermarkSettings(
            max_delay=self.max_delay,
            idle_after=self.idle_after,
            max_hold=self.max_hold,
            unreachable=self.unreachable,
        )

    @property
    def client(self) -> ClientSettings:
        """How servers are called."""
        return ClientSettings(
            token=self.token,
            ca_file=self.ca_file,
            cert_file=self.cert_file,
            key_file=self.key_file,
            timeout=self.call_timeout,
        )

    def archive_at(self, address: str) -> ArchiveConfig:
        """Return how an archive is reached."""
        text = "" if self.archive_secrets is None else self.archive_secrets.get_secret_value()
        pairs = [part.partition("=") for part in text.split(",") if part.strip()]
        if not all(equals for _, equals, _ in pairs):
            raise BadConfig(
                "archive_secrets is not a list of settings", hint="write name=value,name=value"
            )
        known = {name.strip(): value.strip() for name, _, value in pairs}
        # Without TLS only where somebody names an endpoint that has none.
        return ArchiveConfig(address, self.archive_endpoint, allow_http=True, options=known)

    @property
    def called(self) -> str:
        """What people call the source."""
        return self.vertex or self.subscriber or ", ".join(self.places)

    @property
    def places(self) -> tuple[str, ...]:
        """What is named to be read, by directory or address."""
        return (*self.path, *self.quiver, *self.nodes, *self.archive)

    @property
    def is_range(self) -> bool:
        """Whether it is said which bundles to read, by number."""
        return self.since_seq is not None or self.until_seq is not None

    @property
    def times(self) -> tuple[datetime | None, datetime | None]:
        """The bounds of event time."""
        return self.since, self.until


def validated(model: type[Options], options: Mapping[str, Any], fault: str, known: str) -> Options:
    """Return options as a model; raise `BadConfig` with everything that is wrong with them.

    Spark passes on what users write as it is, so that all three kinds of options (of sources, of
    sinks, of file sets) meet their first check here, in the driver, before any task runs.
    """
    try:
        return model.model_validate(dict(options))
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise BadConfig(
            f"{fault}: {'; '.join(wrong)}", hint=f"{known} are {', '.join(model.model_fields)}"
        ) from None


def parse_options(options: Mapping[str, Any]) -> SourceOptions:
    """Return the options of a source; raise `BadConfig` with everything that is wrong."""
    fault = "the source cannot be read like this"
    parsed = validated(SourceOptions, options, fault, "options of the source")
    if not parsed.places:
        raise BadConfig(
            "no quiver is named",
            hint="use option path (a directory), quiver, nodes (addresses), or archive",
        )
    for address in parsed.archive:
        problem = archive_problem_of(address)
        if problem is not None:
            raise BadConfig(f"{address!r} is not the address of an archive", hint=problem)
        parsed.archive_at(address)
    for node in parsed.nodes:
        if urlsplit(node).path or urlsplit(node).scheme not in ("grpc", "grpc+tls"):
            raise BadConfig(
                f"{node!r} is not the address of a data node",
                hint="write grpc://host:port; a single replica is named with option quiver",
            )
    if parsed.table:
        _check_table(parsed)
    if parsed.partial and parsed.subscriber and parsed.on_data_loss == "fail" and not parsed.stored:
        raise BadConfig(
            "option partial leaves damaged rows out, and on_data_loss is fail",
            hint="set on_data_loss to count: bundles that lack slots are then recorded as damaged",
        )
    if parsed.nodes and parsed.seal:
        raise BadConfig(
            "a data node has sealed parts only", hint="leave out option seal, or name no nodes"
        )
    if parsed.is_range and (len(parsed.places) > 1 or parsed.nodes):
        raise BadConfig(
            "each quiver has numbers of its own, and there are several",
            hint="read one with since_seq and until_seq, or all by event time: since, until",
        )
    return parsed


def _check_table(parsed: SourceOptions) -> None:
    known = sorted(tables())
    if parsed.table not in known:
        raise BadConfig(f"there is no table {parsed.table!r}", hint=f"there are {', '.join(known)}")
    if "slot" in parsed.model_fields_set:
        raise BadConfig(
            "a table has its own slots", hint="leave out the option slot, or the option table"
        )
