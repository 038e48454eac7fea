"""Where the quivers and folders of a pipeline are, and how they are read and written.

A pipeline names a quiver by its address, by its data directory, or by the name it has in the same
file; folders are relative to the file. Quivers between queries are served by the driver itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.dataflow.compiler.plan import Output, Plan, Query
from holdfast.dataflow.sink.options import EVENT_TIME, SLOT, SinkOptions, parse_sink_options
from holdfast.dataflow.spec.vertices import FileSetTarget, SourceSettings, TargetSettings
from holdfast.quiver import ColumnExtractor, QuiverConfig
from holdfast.settings import Secret
from holdfast.signals.openlineage.names import OpenLineageExtractor

# Of quivers that a sink opens by their directory, and of those between queries.
SINK_CONFIG = QuiverConfig(extractors={SLOT: ColumnExtractor(EVENT_TIME)})
LINEAGE_CONFIG = QuiverConfig(extractors={"openlineage": OpenLineageExtractor()})
# Of the events that pipelines send about their own runs; sources leave them out.
OWN_PRODUCER = "urn:holdfast:pipelines"

_HERE = "holdfast.dataflow.compiler.places"


@dataclass(frozen=True)
class Places:
    """The places of one pipeline."""

    # For checkpoints, dead letters and quivers between queries.
    state_dir: Path
    # Where relative paths begin.
    base_dir: Path
    # Quivers of the same file by name: addresses or data directories, several with commas (each
    # worker of a gateway has a quiver of its own).
    quivers: Mapping[str, str] = field(default_factory=dict)
    # Where sources that are no quivers are read, by vertex.
    intakes: Mapping[str, str] = field(default_factory=dict)
    # Of what the driver serves itself: intakes, quivers between queries, retry lanes.
    own_token: Secret | None = None
    # Who signed its certificate; "": it has none, or the system knows.
    own_ca_file: str = ""
    # Options of all sources, beside those that the pipeline gives them.
    reading: Mapping[str, str] = field(default_factory=dict)

    @property
    def own_access(self) -> dict[str, str]:
        """The options by which a quiver is reached that the driver serves."""
        authorities = {"ca_file": self.own_ca_file} if self.own_ca_file else {}
        if self.own_token is None:
            return authorities
        return {"token": self.own_token.get_secret_value(), **authorities}

    def of_query(self, query: Query) -> Path:
        """Return the folder of a query."""
        return self.state_dir / query.name

    def checkpoint(self, query: Query) -> Path:
        """Return where Spark keeps the progress of a query."""
        return self.of_query(query) / "checkpoint"

    def dead_letters(self, query: Query) -> Path:
        """Return the quiver of rows that a query rejected."""
        return self.of_query(query) / "dead_letters"

    def lane(self, query: Query, part: str) -> Path:
        """Return a directory of the retry lane of a query."""
        return self.of_query(query) / "lane" / part

    def wait_file(self, query: Query) -> Path:
        """Return the file that is there while the sources of a query have to wait."""
        return self.of_query(query) / "wait"

    def intake(self, vertex: str) -> Path:
        """Return the folder of a source that is no quiver."""
        return self.state_dir / "intakes" / vertex

    def buffer(self, output: Output) -> Path:
        """Return the directory of a quiver between queries."""
        return self.state_dir / "buffers" / str(output)

    def store(self, named: str) -> str:
        """Return where a store is: in a bucket, or in a folder."""
        return named if "://" in named else str(self.base_dir / named)

    def quiver(self, named: str) -> dict[str, str]:
        """Return the option that names a quiver."""
        place = self.quivers.get(named, named)
        if "://" in place:
            return {"quiver": place}
        if named not in self.quivers:
            return {"path": str(self.base_dir / place)}
        return {"path": ",".join(str(self.base_dir / one) for one in place.split(","))}


def subscriber(pipeline: str, vertex: str) -> str:
    """Return under which name a source reads."""
    return f"{pipeline}.{vertex}"[:64]


def buffer_subscriber(plan: Plan, query: Query, output: Output) -> str:
    """Return under which name a query reads what another puts out."""
    return subscriber(plan.name, f"{query.name}.{output}")


def source_options(
    plan: Plan, query: Query, vertex: str, places: Places, *, close: bool
) -> dict[str, str]:
    """Return the options of the stream that a source vertex is.

    Empty ones are left out: Spark passes on everything it is given, and the source has defaults.
    What a replay asks for (`reading`) comes last, because it overrides the pipeline.
    """
    settings = plan.pipeline.vertices[vertex].source
    assert settings is not None, "BUG: not a source"
    named = [places.quiver(name) for name in settings.quiver]
    access = {"token": settings.token.get_secret_value()} if settings.token else {}
    if not settings.quiver:
        named, access = [{"quiver": places.intakes[vertex]}], places.own_access
    options = {
        "path": ",".join(one["path"] for one in named if "path" in one),
        "quiver": ",".join(one["quiver"] for one in named if "quiver" in one),
        "slot": settings.slot or ("openlineage" if settings.decode else ""),
        "table": settings.table or "",
        "columns": ",".join(settings.columns or ()),
        "start": settings.start if isinstance(settings.start, str) else settings.start.isoformat(),
        "since": settings.since.isoformat() if settings.since else "",
        "until": settings.until.isoformat() if settings.until else "",
        "max_rows": str(settings.read_limit.rows),
        "max_bytes": str(settings.read_limit.bytes),
        "partition_bytes": str(settings.task_bytes),
        "ca_file": settings.ca_file or "",
        "quiver_config": settings.quiver_config or _config_of(settings),
        "producers": ",".join(settings.producers),
        "unfit": str(places.dead_letters(query)),
        "vertex": vertex,
    }
    given = {name: value for name, value in options.items() if value}
    streaming = stream_options(plan, query, vertex, places, close=close)
    return {**given, **access, **streaming, **places.reading}


def stream_options(
    plan: Plan, query: Query, vertex: str, places: Places, *, close: bool
) -> dict[str, str]:
    """Return the options that all streams of a query have."""
    watermark = plan.pipeline.watermark
    options = {
        "subscriber": subscriber(plan.name, vertex),
        "checkpoint": str(places.checkpoint(query)),
    }
    if not query.claims:
        return {**options, **_trimming(plan, query, places)}
    return {
        **options,
        "watermark": "true",
        "horizon": str(query.horizon_s + _SLACK_S),
        "close": str(close).lower(),
        "max_delay": str(watermark.max_delay),
        "idle_after": str(watermark.idle_after),
        "max_hold": str(watermark.max_hold),
        "unreachable": watermark.unreachable,
    }


def _trimming(plan: Plan, query: Query, places: Places) -> dict[str, str]:
    """Return the options by which a query without state goes on behind what its sink has.

    Only with one sink: several may have come to different batches when the power went.
    """
    if query.terminal != "writer":
        return {}
    (name,) = query.tail
    sink = plan.pipeline.vertices[name].sink
    assert sink is not None, "BUG: a writer without a sink"
    own = places.base_dir / sink.files / "_holdfast" if sink.files else None
    records = own or places.checkpoint(query) / "holdfast"
    return {"on_rewind": "trim", "records": str(records)}


# What a query promises to those behind it is the claim of the batch before: one heartbeat more.
_SLACK_S = 5.0


def _config_of(settings: SourceSettings) -> str:
    """Return the configuration with which a directory of lineage events is opened, if it is one."""
    return f"{_HERE}:LINEAGE_CONFIG" if settings.decode == "openlineage" else ""


def target_options(
    name: str, target: TargetSettings, places: Places, checkpoint: Path
) -> SinkOptions:
    """Return the options of a sink."""
    place = {}
    if target.files:
        size = {"target_size": str(target.target_size)} if target.target_size else {}
        place = {"files": str(places.base_dir / target.files), **size}
    if target.fileset is not None:
        place = _fileset_options(target.fileset, places)
    if target.quiver:
        ((option, found),) = places.quiver(target.quiver).items()
        # Of several workers' the first: each is as durable as the others.
        place = {option: found.partition(",")[0], "slot": target.slot, "encode": target.encode}
        if "path" in place:
            place["quiver_config"] = target.quiver_config or f"{_HERE}:SINK_CONFIG"
    secret = {"token": target.token.get_secret_value()} if target.token else {}
    authorities = {"ca_file": target.ca_file} if target.ca_file else {}
    return _options(name, checkpoint, **place, **secret, **authorities)


def _fileset_options(fileset: FileSetTarget, places: Places) -> dict[str, str]:
    """Return the options of a sink that commits to a store."""
    database, keep = fileset.database, fileset.keep_commits
    options = {
        "store": places.store(fileset.store),
        "database": database.get_secret_value() if database else "",
        "commit": fileset.commit,
        "format": fileset.format,
        "keep_commits": str(keep) if keep else "",
    }
    return {name: value for name, value in options.items() if value}


def directory_options(name: str, directory: Path, checkpoint: Path) -> SinkOptions:
    """Return the options of a quiver of our own."""
    return _options(name, checkpoint, path=str(directory), quiver_config=f"{_HERE}:SINK_CONFIG")


def buffer_options(
    plan: Plan,
    query: Query,
    output: Output,
    address: str,
    places: Places,
    hold_us: int | None = None,
) -> SinkOptions:
    """Return the options for writing to a quiver between queries."""
    options = {"quiver": address, "slot": SLOT, "watermark": "true", **places.own_access}
    if hold_us is not None:
        options["hold_us"] = str(hold_us)
    if not query.stateful:
        sources = [name for name in query.vertices if plan.pipeline.vertices[name].source]
        own = [subscriber(plan.name, source) for source in sources]
        read = [buffer_subscriber(plan, query, output) for output in query.reads]
        options["claims_of"] = ",".join((*own, *read))
    return _options(f"{output}", places.checkpoint(query), **options)


def lane_options(name: str, address: str, places: Places, checkpoint: Path) -> SinkOptions:
    """Return the options for writing to a retry lane."""
    return _options(name, checkpoint, quiver=address, slot=SLOT, **places.own_access)


def lane_subscriber(plan: Plan, query: Query) -> str:
    """Return under which name a query reads its retry lane."""
    return subscriber(plan.name, f"{query.name}.lane")


def _options(name: str, checkpoint: Path, **options: str) -> SinkOptions:
    return parse_sink_options({**options, "name": name, "checkpoint": str(checkpoint)})
