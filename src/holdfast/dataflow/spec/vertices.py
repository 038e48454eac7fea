"""Vertices: where rows come from, what is done to them, and where they go.

Each kind of vertex is a model of its own, and a vertex has exactly one of them as a key. What a
field allows by itself is checked here; what fields mean beside each other, or across vertices, in
checks.py, where a finding has a line. The docstrings are the reference page.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BeforeValidator, Field, model_validator

from holdfast.dataflow.spec.functions import UserFunction
from holdfast.settings import DurationS, FileSettings, LocalPath, Secret, Settings, SizeBytes

VertexKind = Literal["source", "map", "filter", "flat_map", "reduce", "sink"]
KINDS: tuple[VertexKind, ...] = ("source", "map", "filter", "flat_map", "reduce", "sink")
# The columns that the rows of a pipeline carry beside their own. A map may set the first two.
SYSTEM_COLUMNS = ("_event_time", "_tags", "_wm", "_wm_prev", "_control", "_failed", "_lane")
SETTABLE = ("_event_time", "_tags")
# What the results of a window have beside the key and the columns that were asked for.
WINDOW_COLUMNS = ("window_start", "window_end")
RETRY_ATTEMPTS_MAX = 100
# The largest file of a sink that grows: with each batch all of it is written again.
TARGET_BYTES_MAX = 256 * 1024 * 1024


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


NameList = Annotated[list[str], BeforeValidator(_as_list)]
Positive = Annotated[float, Field(gt=0)]


def _one_of(settings: Settings, *names: str) -> None:
    """Raise unless exactly one of some settings is given: each says what kind of thing it is.

    pydantic's unions would try one kind after another and report what is wrong with each. Naming
    the keys that were given says which two contradict each other.
    """
    given = [name for name in names if getattr(settings, name) not in (None, "", [], {})]
    if len(given) != 1:
        others = f", not {' and '.join(given)}" if given else ""
        raise ValueError(f"give one of {', '.join(names)}{others}")


# ------------------------------------------------------------------------ sources


class ReadLimit(Settings):
    """How much one batch may be."""

    rows: int = Field(default=4_000_000, ge=1)
    """Rows of one batch, unless one bundle has more."""
    bytes: SizeBytes = 256 * 1024 * 1024
    """Stored bytes of one batch, unless one bundle has more."""


class GeneratorSettings(Settings):
    """Makes rows with `event_time`, `number`, `key` and `value`, to try things out."""

    rows_per_s: float = Field(default=1000.0, gt=0, le=1_000_000)
    """How many are due each second, since the pipeline first ran."""
    keys: int = Field(default=10, ge=1)
    """How many different keys there are."""
    rows: int | None = Field(default=None, ge=1)
    """Make this many rows, as fast as possible, and then no more."""


class FileSetSource(Settings):
    """A commit of a store."""

    store: str
    """The store: a folder, or `s3://bucket/prefix`."""
    database: Secret | None = None
    """Its database, where it is not in the folder."""
    commit: Annotated[str, Field(min_length=1)]
    """The commit, which must not be deleted before all of it was read."""


class SourceSettings(FileSettings):
    """Reads one or more quivers, files of a folder or of a commit, or what a generator makes."""

    quiver: NameList = Field(default_factory=list)
    """Data directories, addresses (`grpc://host:port/name`), or quivers of the same file."""
    files: LocalPath | None = None
    """A folder: its files are read once, in order of their names. Move them in as a whole."""
    fileset: FileSetSource | None = None
    """A commit of a store: its files are read once, in order of their paths."""
    format: Literal["ndjson", "parquet"] = "ndjson"
    """Of files: a JSON object a line (`.ndjson`, `.jsonl`, `.json`), or `.parquet`."""
    event_time: str = "event_time"
    """Of files: the column with the time of an event; without one, when it was taken in."""
    generator: GeneratorSettings | None = None
    """Rows that are made up."""
    slot: str | None = None
    """The slot to read; without it the only one there is."""
    table: Literal["spans", "logs", "points"] | None = None
    """Of telemetry, instead of a slot: a row for each span, log record or data point."""
    decode: Literal["openlineage"] | None = None
    """What the payloads are: adds `namespace`, `job`, `event_type`, `run_id` and `producer`."""
    own_runs: bool = False
    """With `decode`: also the events that Holdfast's pipelines send about their own runs."""
    columns: list[str] | None = None
    """The columns to read; by default all."""
    columns_are: str | None = None
    """Names and types (`key string, number bigint`), where nothing can be looked up yet."""
    read_limit: ReadLimit = ReadLimit()
    """How much one batch may be."""
    task_bytes: SizeBytes = 128 * 1024 * 1024
    """Stored bytes that one task reads: at least one segment, and no more than a core's share."""
    start: Literal["oldest", "latest"] | AwareDatetime = "oldest"
    """Where a pipeline that is new begins."""
    since: AwareDatetime | None = None
    """Only events with this time or a later one."""
    until: AwareDatetime | None = None
    """Only events before this time."""
    token: Secret | None = None
    """The bearer token for servers."""
    ca_file: LocalPath | None = None
    """Authorities (PEM) of the servers' certificates."""
    quiver_config: str = ""
    """`module:name` of the QuiverConfig of data directories."""
    producers: NameList = Field(default_factory=list)
    """Pipelines that write into the quivers: the watermark follows their promises."""

    @model_validator(mode="after")
    def _is_one_place(self) -> SourceSettings:
        _one_of(self, "quiver", "files", "fileset", "generator")
        if (self.files or self.fileset) and not self.columns_are:
            raise ValueError("files need `columns_are`: names and types, key string, number bigint")
        if not self.quiver and (self.decode or self.producers or self.table):
            raise ValueError("`decode`, `table` and `producers` are of quivers")
        if self.table and (self.slot or self.decode):
            raise ValueError("a table has its own slots; leave out `slot` and `decode`")
        return self


# --------------------------------------------------------------------------- maps


class RetrySettings(Settings):
    """How often something that failed is tried again, and how fast."""

    attempts: int = Field(default=1, ge=1, le=RETRY_ATTEMPTS_MAX)
    """Tries in all."""
    interval: DurationS = Field(default=0.1, le=60)
    """Before the second one …"""
    factor: float = Field(default=2.0, ge=1, le=10)
    """… then this many times longer each time …"""
    cap: DurationS = Field(default=10.0, le=600)
    """… up to this."""

    def pause_s(self, attempt: int) -> float:
        """Return how long to wait after a failed attempt, the first being 1."""
        return min(self.cap, self.interval * self.factor ** (attempt - 1))


class LaneSettings(RetrySettings):
    """How often a row that failed in its task comes again later, in batches of their own."""

    attempts: int = Field(default=5, ge=1, le=RETRY_ATTEMPTS_MAX)
    """How often it comes again; each time it has all tries of `retry`."""
    interval: DurationS = Field(default=30.0, le=86_400)
    """Before it comes the first time …"""
    cap: DurationS = Field(default=600.0, le=86_400)
    """… up to this; it may take longer while others wait ahead of it."""


class PythonSettings(Settings):
    """What all vertices with a Python function share."""

    returns: str | None = None
    """Names and types of the columns it returns (`key string, n bigint`); default: as it gets."""
    keep: NameList = Field(default_factory=list)
    """Columns that stay as they were, beside those that it returns."""
    timeout: DurationS = Field(default=60.0, gt=0)
    """How long one call may take; one that takes longer has failed."""
    retry: RetrySettings = RetrySettings()
    """Tried again in the same task."""
    retry_lane: LaneSettings | None = None
    """Then kept in the query's retry lane, a quiver, and tried again later; meanwhile it holds the
    watermark, for at most `watermark.max_hold`. By default it is not."""
    on_failure: Literal["dead_letters", "drop", "fail"] = "dead_letters"
    """A row that failed in the end: kept with its error (edge `name.failed`, else the query's dead
    letters), dropped and counted, or the end of the query."""


class MapSettings(PythonSettings):
    """Makes a row of each row: by SQL expressions, or by Python per row or per Arrow batch."""

    select: dict[str, str] = Field(default_factory=dict)
    """The columns of the new row, each an SQL expression."""
    add: dict[str, str] = Field(default_factory=dict)
    """Columns beside those that are there (or instead of them), each an SQL expression."""
    python: UserFunction | None = None
    """A function from a row (dict) to a row; None leaves it out."""
    arrow: UserFunction | None = None
    """A function from a RecordBatch to a RecordBatch or a Table."""

    @model_validator(mode="after")
    def _is_one_thing(self) -> MapSettings:
        _one_of(self, "select", "add", "python", "arrow")
        return self

    @property
    def is_python(self) -> bool:
        """Whether a Python function does it."""
        return self.python is not None or self.arrow is not None


class FilterSettings(PythonSettings):
    """Lets some rows through."""

    where: str = ""
    """An SQL expression."""
    python: UserFunction | None = None
    """A function from a row (dict) to true or false."""
    arrow: UserFunction | None = None
    """A function from a RecordBatch to an array of true and false, one for each of its rows."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"where": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _is_one_thing(self) -> FilterSettings:
        _one_of(self, "where", "python", "arrow")
        return self

    @property
    def is_python(self) -> bool:
        """Whether a Python function does it."""
        return self.python is not None or self.arrow is not None


class FlatMapSettings(PythonSettings):
    """Makes any number of rows of each row."""

    explode: str = ""
    """An SQL expression of an array: one row for each of its elements …"""
    into: str = "item"
    """… in this column."""
    python: UserFunction | None = None
    """A function from a row (dict) to rows."""
    arrow: UserFunction | None = None
    """A function from a RecordBatch to a RecordBatch or a Table of any number of rows; its column
    `_origin` says of which row each was made, the first being 0."""

    @model_validator(mode="after")
    def _is_one_thing(self) -> FlatMapSettings:
        _one_of(self, "explode", "python", "arrow")
        return self

    @property
    def is_python(self) -> bool:
        """Whether a Python function does it."""
        return self.python is not None or self.arrow is not None


# ------------------------------------------------------------------------ reduces


class SlidingSettings(Settings):
    """Windows that overlap."""

    size: Annotated[DurationS, Field(gt=0)]
    """How long each is."""
    every: Annotated[DurationS, Field(gt=0)]
    """How often one begins."""

    @model_validator(mode="after")
    def _overlap(self) -> SlidingSettings:
        if self.every > self.size:
            raise ValueError(
                "`every` is longer than `size`: rows between two windows would be lost"
            )
        return self


class WindowSettings(Settings):
    """How time is cut; windows begin at 1970."""

    fixed: Annotated[DurationS, Field(gt=0)] | None = None
    """Windows of this length, one after the other."""
    sliding: SlidingSettings | None = None
    """Windows that overlap."""
    session: Annotated[DurationS, Field(gt=0)] | None = None
    """A window ends when no event has arrived for this long."""

    @model_validator(mode="after")
    def _is_one_thing(self) -> WindowSettings:
        _one_of(self, "fixed", "sliding", "session")
        return self

    @property
    def span_s(self) -> float:
        """How long after an event a window that holds it may end."""
        if self.sliding is not None:
            return self.sliding.size
        return self.fixed or self.session or 0.0


class ReduceSettings(Settings):
    """Makes rows of all rows of a window (and key), when the watermark has passed it."""

    window: WindowSettings | None = None
    """How time is cut."""
    key: NameList = Field(default_factory=list)
    """Columns: each combination of their values has windows of its own."""
    aggregate: dict[str, str] = Field(default_factory=dict)
    """The columns of the results beside `window_start`, `window_end` and the key, in SQL."""
    python: UserFunction | None = None
    """Instead of it: a function of the window (dict) and its rows (list of dicts, by event time)
    that returns a row, or rows, or None. The rows are kept until their window closes."""
    arrow: UserFunction | None = None
    """The same by Arrow, for fixed and sliding windows: a function of the window (dict) and its
    rows (a RecordBatch, by event time) that returns a RecordBatch, or a Table, or as above."""
    fold: UserFunction | None = None
    """The same without keeping rows, for fixed and sliding windows: a class with `start(window)`,
    which returns a state, `add(state, row)`, which returns the state with one more row, and
    `end(window, state)`, which returns a row, or rows, or None. Rows are added as they come; the
    state is kept, as a pickle."""
    process: UserFunction | None = None
    """Instead of it, and of a window: a class with `on_row(row, context)` and, if it sets timers,
    `on_timer(time, context)`. Both return a row, or rows, or None; `context` has the `key`, the
    `state` (whatever is put there is kept), the `watermark`, and `set_timer(time)`."""
    timer_span: DurationS = Field(default=3600.0, gt=0)
    """How long after the event it is set at a timer of `process` may be."""
    returns: str | None = None
    """Names and types of the columns that the function returns."""
    timeout: DurationS = Field(default=60.0, gt=0)
    """How long one call may take; one that takes longer has failed."""
    retry: RetrySettings = RetrySettings()
    """A call that failed is tried again in the same task."""
    on_failure: Literal["dead_letters", "drop", "fail"] = "dead_letters"
    """A window whose call failed: as in a map."""
    allowed_lateness: DurationS = 0.0
    """How long after the watermark has passed a window the window closes."""
    late: Literal["drop", "side_output"] = "drop"
    """Rows all of whose windows are closed: dropped and counted, or sent along `name.late`."""

    @model_validator(mode="after")
    def _is_one_thing(self) -> ReduceSettings:
        _one_of(self, "aggregate", "python", "arrow", "fold", "process")
        if self.is_python != (self.returns is not None):
            raise ValueError(
                "`returns` is for `python`, `arrow`, `fold` and `process`, which all require it"
            )
        if self.keeps is not None and self.window is not None and self.window.session is not None:
            raise ValueError("sessions are for `aggregate` and `python`")
        if self.process is not None and self.window is not None:
            raise ValueError("`process` has no window: it decides itself, by its timers")
        return self

    @property
    def is_python(self) -> bool:
        """Whether a Python function makes its results."""
        return not self.aggregate

    @property
    def keeps(self) -> Literal["arrow", "state"] | None:
        """What of a window is kept other than its rows, or what Spark's own aggregates keep."""
        return "arrow" if self.arrow is not None else "state" if self.fold is not None else None

    @property
    def span_s(self) -> float:
        """How long after an event it may wait for the watermark on its account.

        By this the source knows how long an idle stream has to send heartbeats: until every window
        that an event may be in has closed.
        """
        if self.process is not None:
            return self.timer_span
        return 0.0 if self.window is None else self.window.span_s


# -------------------------------------------------------------------------- sinks


class FileSetTarget(Settings):
    """Commits of a store."""

    store: str
    """The store: a folder, or `s3://bucket/prefix`. Make it first: `holdfast store create`."""
    database: Secret | None = None
    """Its database, where it is not in the folder."""
    commit: Annotated[str, Field(min_length=1, pattern="[^/]$")]
    """Batch 7 of a query is the commit `<commit>/000000000007`, with all rows up to it."""
    format: Literal["parquet", "ndjson"] = "parquet"
    """How the files in it are written."""
    keep_commits: Annotated[int, Field(ge=1)] | None = None
    """Keep this many of the newest commits and delete older ones; by default all are kept."""


class TargetSettings(Settings):
    """One place that rows are written to."""

    quiver: str | None = None
    """A data directory, an address (`grpc://host:port/name`), or a quiver of the same file."""
    slot: str = "events"
    """The slot of the quiver's bundles."""
    encode: Literal["rows", "json"] = "rows"
    """How a quiver keeps the rows: as columns, or each as a JSON object, like an event that came to
    a gateway: exporters behind a gateway's quiver (`http`, `kafka`, …) then deliver it."""
    files: LocalPath | None = None
    """A folder for Parquet files."""
    format: Literal["parquet"] = "parquet"
    """How they are written."""
    target_size: Annotated[SizeBytes, Field(le=TARGET_BYTES_MAX)] = 0
    """Of `files`: a small batch is added to the newest file until that has this size. 0: each batch
    has files of its own, which never change: for readers that take every file once."""
    fileset: FileSetTarget | None = None
    """Commits of a store: each batch is a version of all rows so far."""
    console: bool | None = None
    """Print the rows of each batch; for a look, not for keeping."""
    token: Secret | None = None
    """The bearer token for a server."""
    ca_file: LocalPath | None = None
    """Authorities (PEM) of the server's certificate."""
    quiver_config: str = ""
    """`module:name` of the QuiverConfig of a data directory."""

    @model_validator(mode="after")
    def _is_one_place(self) -> TargetSettings:
        _one_of(self, *self._places())
        if self.target_size and not self.files:
            raise ValueError("`target_size` is of `files`: no other place has files that grow")
        return self

    @classmethod
    def _places(cls) -> tuple[str, ...]:
        return ("quiver", "files", "fileset", "console")


class SinkSettings(TargetSettings):
    """Writes rows, each batch once."""

    python: UserFunction | None = None
    """A function that is called with each row (dict); one that raises has not taken it."""
    timeout: DurationS = Field(default=60.0, gt=0)
    """How long one call may take."""
    retry: RetrySettings = RetrySettings()
    """What the place did not take is tried again."""
    retry_lane: LaneSettings | None = None
    """Rows that a function did not take come again later, as in a map."""
    fallback: TargetSettings | None = None
    """Gets what the place did not take in the end; without it a batch fails, and a row that a
    function refused is a dead letter."""
    on_success: TargetSettings | None = None
    """Gets what the place took."""

    @model_validator(mode="after")
    def _has_rows_of_its_own(self) -> SinkSettings:
        if self.retry_lane is not None and self.python is None:
            raise ValueError("`retry_lane` is for functions: a place takes whole batches")
        return self

    @classmethod
    def _places(cls) -> tuple[str, ...]:
        return ("quiver", "files", "fileset", "console", "python")


FunctionStep = MapSettings | FilterSettings | FlatMapSettings


class VertexSettings(Settings):
    """One vertex: exactly one of its keys."""

    source: SourceSettings | None = None
    """Where rows come from."""
    map: MapSettings | None = None
    """A row of each row."""
    filter: FilterSettings | None = None
    """Some of the rows."""
    flat_map: FlatMapSettings | None = None
    """Any number of rows of each row."""
    reduce: ReduceSettings | None = None
    """A row of each window."""
    sink: SinkSettings | None = None
    """Where rows go."""

    @model_validator(mode="after")
    def _is_one_thing(self) -> VertexSettings:
        _one_of(self, *KINDS)
        return self

    @property
    def kind(self) -> VertexKind:
        """What it is."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def step(self) -> FunctionStep | None:
        """What it does to rows one by one, if that is what it does."""
        return self.map or self.filter or self.flat_map

    @property
    def is_python(self) -> bool:
        """Whether it calls a Python function for rows that go on."""
        return self.step is not None and self.step.is_python

    @property
    def retry_lane(self) -> LaneSettings | None:
        """How its rows come again after they failed, if they do."""
        settings = self.step or self.sink
        return None if settings is None else settings.retry_lane

    @property
    def keeps_failures(self) -> bool:
        """Whether it may have rows on its port `failed`."""
        settings = self.step or self.reduce
        calls = settings is not None and settings.is_python
        return calls and settings is not None and settings.on_failure == "dead_letters"

    @property
    def sets_aside(self) -> bool:
        """Whether rows may leave it by another path than its results."""
        reduces = self.reduce is not None and self.reduce.is_python
        steps = self.is_python and self.retry_lane is not None
        return self.keeps_failures or reduces or steps
