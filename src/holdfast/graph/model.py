"""What a graph file may say, key by key; and the graph that it describes, ready to be run.

Two steps, because the settings of a node depend on its type: `GraphFile` is the file with each
node's `config` still plain data, `Graph` has them checked by the component's own model.

Both are immutable. A reload builds a new `Graph` and compares; nothing that runs sees its settings
change beneath it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from holdfast.dataflow.driver.settings import SparkSettings
from holdfast.dataflow.spec import PipelineSettings
from holdfast.dead_letters.queue import DeadLettersSettings
from holdfast.deliver.settings import DeliverySettings
from holdfast.graph.registry import Component, Kind
from holdfast.processors.processor import Processor, Router
from holdfast.quiver.ledger.subscriber import NAME_PATTERN
from holdfast.receive.listening import AddressText, parse_address
from holdfast.remote.settings import FlightSettings
from holdfast.settings import DurationS, LocalPath, Secret, Settings, SizeBytes

WORKERS_MAX = 64
# Where `to:` leads.
DEFAULT_PORT = "out"


def _node_name(name: str) -> str:
    if not NAME_PATTERN.fullmatch(name):
        raise ValueError(
            "a name has 1 to 64 letters, digits, '_', '-' or '.', and begins with none of '-' '.'"
        )
    return name


def _as_list(value: object) -> object:
    # `to: marquez` is what most people write first.
    return [value] if isinstance(value, str) else value


def _as_mapping(value: object) -> object:
    # `config:` with nothing behind it.
    return {} if value is None else value


Name = Annotated[str, AfterValidator(_node_name)]
NodeNames = Annotated[list[str], BeforeValidator(_as_list)]
ComponentConfig = Annotated[dict[str, Any], BeforeValidator(_as_mapping)]


class PortSettings(Settings):
    """Where a port of a node leads."""

    destinations: NodeNames
    """The nodes behind it."""
    dispatch_strategy: Literal["broadcast", "round_robin"] = "broadcast"
    """Every destination gets every event, or the exporters behind the port take turns."""


class NodeSettings(Settings):
    """A component, its settings, and where its events go."""

    kind: Kind
    """Receivers take events in, processors hold or change them, exporters send them out."""
    type: str = ""
    """Which one: `holdfast components` lists them."""
    plugin_urn: str = ""
    """Another way to write `type`."""
    config: ComponentConfig = Field(default_factory=dict)
    """The settings of the component."""
    to: NodeNames = Field(default_factory=list)
    """The nodes behind it."""
    out_ports: dict[Name, PortSettings] = Field(default_factory=dict)
    """The same port by port, for a processor with several ways out."""
    delivery: DeliverySettings | None = None
    """How an exporter's events are delivered: order, retries, limits."""

    @model_validator(mode="after")
    def _says_things_once(self) -> NodeSettings:
        if bool(self.type) == bool(self.plugin_urn):
            raise ValueError("give either `type` or `plugin_urn`")
        if self.to and self.out_ports:
            raise ValueError("give either `to` or `out_ports`")
        return self

    @property
    def ports(self) -> Mapping[str, PortSettings]:
        """Where its events go, whichever way it is written.

        From here on there are only ports: no check has to know the two ways to write them.
        """
        if self.to:
            return {DEFAULT_PORT: PortSettings(destinations=self.to)}
        return self.out_ports


class HandlerSettings(Settings):
    """What is done with events that were not accepted: an exporter of rejected events."""

    type: str
    """Any exporter: `log`, `http`, `files`, `python`, …"""
    config: ComponentConfig = Field(default_factory=dict)
    """The settings of the exporter."""
    delivery: DeliverySettings | None = None
    """How the letters are delivered."""


class DeadLettersSection(DeadLettersSettings):
    """Events that were not accepted, or that a destination will never take."""

    path: LocalPath | None = None
    """Their directory, relative to the file; by default `dead_letters` in `data_dir`."""
    handlers: dict[Name, HandlerSettings] = Field(default_factory=dict)
    """Exporters that are sent the events that were not accepted; each gets all of them."""


class AdminSettings(Settings):
    """The port for `/healthz`, `/readyz`, `/metrics` and the console."""

    listen: AddressText | None = "127.0.0.1:8480"
    """Its address; null turns it off."""
    console: bool | None = None
    """Whether the console is at `/` of this port: docs/guide/console.md. By default where `listen`
    is an address of loopback."""
    token: Secret | None = Field(default=None, min_length=16)
    """What the console asks for before it shows an event or changes anything. By default one is
    made, and kept in `console.token` in the data directory."""
    hosts: tuple[str, ...] = Field(default=(), max_length=32)
    """Names under which browsers may reach the console, beside `localhost` and addresses."""

    @property
    def has_console(self) -> bool:
        """Whether the console is served."""
        if self.listen is None or self.console is False:
            return False
        return self.console is True or parse_address(self.listen).is_loopback


class StatsdSettings(Settings):
    """The metrics of `/metrics`, pushed over UDP."""

    address: AddressText = "127.0.0.1:8125"
    """Where the statsd server listens."""
    interval: DurationS = Field(default=10.0, ge=0.1, le=3600)
    """How often they are sent."""
    labels: Literal["tags", "names"] = "tags"
    """Labels as tags (`|#destination:marquez`), or as parts of the name for servers without."""
    max_packets: int = Field(default=200, ge=1, le=10_000)
    """Datagrams of one push; metrics beyond them wait for the next one."""


class TelemetrySettings(Settings):
    """Holdfast's own metrics, log and traces, sent by OTLP to a collector or a backend."""

    config: ComponentConfig
    """Where, and how: the settings of the exporter `otlp`, such as `url` and `headers`."""
    signals: tuple[Literal["metrics", "logs", "traces"], ...] = Field(
        default=("metrics", "logs", "traces"), min_length=1
    )
    """What is sent."""
    interval: DurationS = Field(default=10.0, ge=0.1, le=3600)
    """How often metrics are sent, and what was logged and traced since."""
    sample_ratio: float = Field(default=0.01, ge=0, le=1)
    """Which part of requests and of sends becomes a span."""
    max_waiting: int = Field(default=2048, ge=1, le=100_000)
    """Log records that wait to be sent, and as many spans; what comes beyond is dropped, and
    counted."""
    attributes: dict[str, str] = Field(default_factory=dict, max_length=64)
    """Further attributes of the resource, such as `deployment.environment`; `service.name` is
    `holdfast` unless it is among them."""


class LoggingSettings(Settings):
    """Holdfast's own log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest severity that is logged."""
    format: Literal["auto", "json", "console"] = "auto"
    """Lines of JSON, or for people; `auto` is for people on a terminal only."""
    max_lines_per_s: int = Field(default=100, ge=1, le=100_000)
    """Lines beyond this are counted, not written."""
    max_line: SizeBytes = Field(default=8192, ge=256, le=1024 * 1024)
    """A longer line is cut."""


class GraphFile(Settings):
    """The whole file."""

    data_dir: LocalPath = "./holdfast_data"
    """The directory for everything durable, relative to the file."""
    persistence: Literal["quiver", "none"] = "quiver"
    """`none`: keep nothing. A receiver then answers when every destination has acknowledged, and
    503 when one has not; only dead letters are on disk. By default everything is held in a quiver,
    also if the file names none."""
    workers: int = Field(default=1, ge=1, le=WORKERS_MAX)
    """How many processes share the ports; each has a quiver and keeps its order."""
    drain: DurationS = Field(default=30.0, le=3600)
    """How long a stop waits for requests and deliveries that are under way."""
    admin: AdminSettings = AdminSettings()
    """The port for `/healthz`, `/readyz`, `/metrics` and the console."""
    logging: LoggingSettings = LoggingSettings()
    """Holdfast's own log."""
    statsd: StatsdSettings | None = None
    """Metrics over UDP; off by default."""
    telemetry: TelemetrySettings | None = None
    """Holdfast's own metrics, log and traces by OTLP; off by default."""
    dead_letters: DeadLettersSection = DeadLettersSection()
    """Events that were not accepted, or that a destination will never take."""
    nodes: dict[Name, NodeSettings] = Field(min_length=1)
    """The components, by name, and how they are connected."""
    pipelines: dict[Name, PipelineSettings] = Field(default_factory=dict)
    """Pipelines on Spark, by name: docs/guide/pipelines.md. They run beside the gateway."""
    spark: SparkSettings = SparkSettings()
    """Where the pipelines run, and how their driver is kept going."""
    data_node_list: list[str] | str | None = Field(default=None, exclude=True)
    """Addresses of data nodes, as a list or with commas between them: an exporter `data_nodes` of
    type `nodes` behind the quiver, which `print-config` shows. `holdfast up` has this key and the
    three below as flags, too."""
    handoff_max_size_mb: int | None = Field(default=None, gt=0, exclude=True)
    """`max_size` of that exporter: what may wait for one data node."""
    handoff_store_max_size_mb: int | None = Field(default=None, gt=0, exclude=True)
    """`retention.size_cap` of the quiver, which holds what waits for all of them."""
    handoff_root_path: LocalPath | None = Field(default=None, exclude=True)
    """`path` of the quiver."""
    flight: FlightSettings | None = None
    """Serve the quivers over Arrow Flight: docs/reference/flight.md. Without it they are served
    only to the pipelines of this file, on a port of loopback. Several workers listen on this port
    and the following ones."""


@dataclass(frozen=True)
class Node:
    """A node whose type is known and whose settings are checked."""

    name: str
    component: Component
    config: Settings
    ports: Mapping[str, PortSettings] = field(default_factory=dict)
    delivery: DeliverySettings | None = None
    # What a processor does; None for everything else, which is made when it is started.
    processor: Processor | Router | None = None

    @property
    def routes(self) -> bool:
        """Whether its ports get different events."""
        return hasattr(self.processor, "port")

    @property
    def kind(self) -> Kind:
        """Receiver, processor or exporter."""
        return self.component.kind

    @property
    def is_quiver(self) -> bool:
        """Whether it holds events, instead of passing them on."""
        return self.component.type == "quiver"

    @property
    def sends_parts(self) -> bool:
        """Whether it takes whole segments to data nodes, and so no single events."""
        return self.component.type == "nodes"

    @property
    def destinations(self) -> list[str]:
        """The names of the nodes behind it."""
        return [name for port in self.ports.values() for name in port.destinations]


@dataclass(frozen=True)
class Graph:
    """A graph that can be run."""

    file: Path
    settings: GraphFile
    nodes: Mapping[str, Node]
    # Exporters of rejected events.
    handlers: Mapping[str, Node]
    # What sends our own telemetry.
    telemetry: Node | None = None

    @property
    def base_dir(self) -> Path:
        """Where relative paths begin."""
        return self.file.parent

    @property
    def data_dir(self) -> Path:
        """Where everything durable is, unless a node says otherwise."""
        return self.base_dir / self.settings.data_dir

    def of_kind(self, kind: Kind) -> list[Node]:
        """Return the nodes of a kind; quivers are not among the processors."""
        return [n for n in self.nodes.values() if n.kind == kind and not n.is_quiver]

    @property
    def keeps_nothing(self) -> bool:
        """Whether there is no quiver, not even one that the file does not name."""
        return self.settings.persistence == "none"

    @property
    def quivers(self) -> list[Node]:
        """The nodes that hold events."""
        return [node for node in self.nodes.values() if node.is_quiver]
