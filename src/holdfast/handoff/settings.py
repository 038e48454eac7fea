"""The exporter `nodes` of a graph file: which data nodes there are, and what may wait for them.

A limit is written for the whole gateway and holds for each quiver with its share: quivers do not
know of each other, and a limit that all of them had in full would be a multiple of what was asked
for.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from holdfast.errors import BadInput
from holdfast.handoff.calls import CALL_TIMEOUT_S
from holdfast.handoff.membership import subscriber_of
from holdfast.handoff.monitor import MonitorSettings
from holdfast.handoff.owners import BLOCK_SEQS
from holdfast.handoff.scheduler import SchedulerSettings
from holdfast.handoff.sender import HandoffSettings
from holdfast.quiver.ledger.subscriber import OnFull, SubscriberOptions
from holdfast.remote.settings import ClientSettings, split_address
from holdfast.settings import DurationS, LocalPath, Secret, Settings, SizeBytes

# Each has two threads and two connections.
NODES_MAX = 256

_SCHEDULER, _MONITOR = SchedulerSettings(), MonitorSettings()


def node_name(name: str) -> str:
    """Return the name of a data node if it can be one: a subscriber is called after it."""
    try:
        subscriber_of(name)
    except BadInput:
        message = "a data node's name has 1 to 59 letters, digits, '_', '-' or '.'"
        raise ValueError(message) from None
    return name


def node_address(text: str) -> str:
    """Return the address of a data node if it is one that can be called."""
    host, port = split_address(text)
    if not port or text.startswith(":"):
        raise ValueError(f"{text!r} cannot be called; write host:port")
    del host
    return text


def named_after_addresses(value: object) -> object:
    """Return a list of addresses, or a text with commas between them, as names to addresses.

    The name is the address, with `_` for what a name cannot have: `10.0.0.1:8816` is the data node
    `10.0.0.1_8816`. It stays the same when others come and go.
    """
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list):
        return value
    named = {}
    for address in value:
        if not isinstance(address, str):
            raise ValueError("write addresses as host:port")
        name = "".join(c if c.isascii() and (c.isalnum() or c in ".-") else "_" for c in address)
        if name in named:
            raise ValueError(f"{address!r} is named twice")
        named[name] = address
    return named


NodeAddresses = Annotated[
    dict[
        Annotated[str, AfterValidator(node_name)],
        Annotated[str, AfterValidator(node_address)],
    ],
    BeforeValidator(named_after_addresses),
    Field(max_length=NODES_MAX),
    # As it is written, not as it is kept.
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "object", "additionalProperties": {"type": "string"}},
                {"type": "array", "items": {"type": "string"}},
                {"type": "string"},
            ]
        }
    ),
]


class NodesTls(Settings):
    """Encryption of all calls to data nodes. Paths are relative to the configuration file."""

    ca_file: LocalPath | None = None
    """Authorities (PEM) that may have signed the nodes' certificates; default: the system's."""
    cert_file: LocalPath | None = None
    """Our own certificate (PEM), where nodes ask for one."""
    key_file: LocalPath | None = None
    """Its private key (PEM)."""

    @model_validator(mode="after")
    def _both_or_none(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("give both `cert_file` and `key_file`, or none of them")
        return self


class Config(Settings):
    """Sends every sealed segment to data nodes, byte for byte; what one misses is kept for it."""

    nodes: NodeAddresses = Field(default_factory=dict)
    """The data nodes: names to addresses (`host:port`), or a list of addresses, whose names are
    then made of them. What waits for a node is kept under its name."""
    nodes_file: LocalPath | None = None
    """A YAML or JSON file with more of them, as `nodes` has them. It is read again and again; one
    that is missing, wrong or empty changes nothing."""
    nodes_dns: Annotated[str, AfterValidator(node_address)] | None = None
    """`host:port` of a headless service: every data node that answers at one of its addresses is
    one of them, and is known by its own id from then on, wherever it comes back."""
    nodes_refresh: DurationS = Field(default=10.0, ge=0.05, le=3600)
    """How often the file is read and DNS is asked."""
    replicas: int | None = Field(default=None, ge=1)
    """How many nodes get each part; by default all of them."""
    block: int = Field(default=BLOCK_SEQS, ge=1)
    """With `replicas`: so many consecutive bundles have the same owners."""
    max_size: SizeBytes | None = Field(default=None, gt=0)
    """What may wait for one node, in bytes of segments on disk, over all workers; by default there
    is no limit but the quiver's `size_cap`."""
    max_age: DurationS | None = Field(default=None, gt=0)
    """How old the oldest part that waits for a node may become; by default there is no limit."""
    on_full: OnFull | None = None
    """At these limits: drop the oldest that another node still holds and else refuse what comes in
    (`drop_copied`, the default if there is a limit), drop the oldest (`drop_oldest`), or refuse
    (`block`)."""
    token: Secret | None = None
    """What nodes are sent as `authorization: Bearer …`; use `${env:NAME}` or `${file:PATH}`."""
    tls: NodesTls | None = None
    """Encrypt calls; `{}` trusts the authorities of the system."""
    node_rate: SizeBytes | None = Field(default=None, gt=0)
    """Bytes a second to one node: what a node missed waits for it, new parts do not. Over all
    workers; by default there is no limit."""
    rate: SizeBytes | None = Field(default=None, gt=0)
    """Bytes a second to all nodes together."""
    permits: int = Field(default=_SCHEDULER.permits, ge=1, le=NODES_MAX)
    """Nodes that are sent what they missed at the same time; over all workers, each of which has
    one at least."""
    probe_interval: DurationS = Field(default=_MONITOR.probe_interval_s, ge=0.01, le=3600)
    """How often each node is asked how it is."""
    probe_timeout: DurationS = Field(default=_MONITOR.probe_timeout_s, ge=0.01, le=3600)
    """How long it may take to answer that; three misses in a row, and it counts as down."""
    timeout: DurationS = Field(default=CALL_TIMEOUT_S, ge=0.1, le=3600)
    """How long an offer may take, and what a put may take besides a second for each megabyte."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if not (self.nodes or self.nodes_file or self.nodes_dns):
            raise ValueError("give at least one of `nodes`, `nodes_file` and `nodes_dns`")
        if self.on_full not in (None, "block") and not self.has_limit:
            raise ValueError(f"`on_full: {self.on_full}` needs `max_size` or `max_age`")
        return self

    @property
    def has_limit(self) -> bool:
        """Whether there is a limit at which something may be dropped."""
        return self.max_size is not None or self.max_age is not None

    @property
    def when_full(self) -> OnFull:
        """What happens at a limit: nothing is dropped that nobody set a limit for."""
        return self.on_full or ("drop_copied" if self.has_limit else "block")

    def as_settings(self, shares: int) -> HandoffSettings:
        """Return it as the sender of one of so many quivers takes it: bounds are divided."""

        def share(bytes_: int | None) -> int | None:
            return None if bytes_ is None else max(1, bytes_ // shares)

        return HandoffSettings(
            replicas=self.replicas,
            block_seqs=self.block,
            monitor=MonitorSettings(
                probe_interval_s=self.probe_interval, probe_timeout_s=self.probe_timeout
            ),
            scheduler=SchedulerSettings(
                permits=max(1, self.permits // shares),
                node_bytes_s=share(self.node_rate),
                total_bytes_s=share(self.rate),
            ),
            subscriber=SubscriberOptions(
                max_segment_bytes=share(self.max_size),
                max_age_s=self.max_age,
                on_full=self.when_full,
            ),
        )

    def client_settings(self, base_dir: PurePath) -> ClientSettings:
        """Return how nodes are called."""
        files = {} if self.tls is None else self.tls.model_dump(exclude_none=True)
        paths: dict[str, Any] = {key: str(base_dir / path) for key, path in files.items()}
        return ClientSettings(token=self.token, timeout=self.timeout, **paths)

    @property
    def scheme(self) -> Literal["grpc", "grpc+tls"]:
        """How a location begins."""
        return "grpc" if self.tls is None else "grpc+tls"
