"""What a gateway and its driver process send each other: lines of JSON.

The gateway writes one line of orders to the driver's standard input, and keeps it open: when it
ends, the gateway is gone, and the driver ends too. The driver writes a line of figures to its
standard output now and then, and its log to its standard error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

# `waiting`: it failed, and is restarted after a pause; `disk_full`: the same, until space is free.
# The last three are final.
PipelineState = Literal[
    "starting", "running", "waiting", "disk_full", "stopped", "drained", "closed", "refused"
]
ENDED: frozenset[PipelineState] = frozenset({"drained", "closed", "refused"})


class Access(NamedTuple):
    """How to reach the quivers of a gateway that runs."""

    # By the name of the node; several workers have one quiver each.
    addresses: Mapping[str, tuple[str, ...]]
    token: str | None = None

    def to_fields(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        addresses = {name: list(found) for name, found in self.addresses.items()}
        return {"addresses": addresses, "token": self.token}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Access:
        """Return what a gateway answered."""
        addresses = {name: tuple(found) for name, found in fields["addresses"].items()}
        return cls(addresses, fields["token"])

    def joined(self, other: Access) -> Access:
        """Return what two workers have together."""
        names = [*self.addresses, *(name for name in other.addresses if name not in self.addresses)]
        addresses = {
            name: self.addresses.get(name, ()) + other.addresses.get(name, ()) for name in names
        }
        return Access(addresses, self.token or other.token)


class DriverOrders(NamedTuple):
    """What the driver has to know."""

    # The graph file, as it was named.
    file: str
    # None: no pipeline uses a quiver of the file.
    access: Access | None
    # Where lineage goes that goes to the gateway; None: it has no receiver for it.
    lineage_url: str | None = None

    def encode(self) -> bytes:
        """Return the line."""
        access = None if self.access is None else self.access.to_fields()
        return json.dumps({**self._asdict(), "access": access}).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> DriverOrders:
        """Return what a line says."""
        fields = json.loads(line)
        access = fields["access"]
        given = None if access is None else Access.from_fields(access)
        return cls(fields["file"], given, fields["lineage_url"])


class QueryStatistics(NamedTuple):
    """A snapshot of one query. Totals count since the driver started."""

    name: str
    is_running: bool
    batch: int | None
    batches_total: int
    # How long the last batch took.
    batch_s: float
    rows_total: int
    rows_per_s: float
    # As Spark writes it; None before the first.
    watermark: str | None
    # How far the watermark is behind the clock of the driver; 0 while no window is open: one that
    # no window waits for does not move. None before the first.
    lag_s: float | None
    state_rows: int
    state_bytes: int
    # Rows that Spark left out of windows that were closed: of sliding windows, whose rows still
    # count in others. A row that counts in none is late, and is in `counts`.
    left_out_total: int
    # By what became of rows, and where: late.perjob, failed.parse, written.out, fallback.out.
    counts: Mapping[str, int]

    def to_fields(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        return {**self._asdict(), "counts": dict(self.counts)}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> QueryStatistics:
        """Return what another process reported."""
        return cls(**fields)


@dataclass(frozen=True)
class PipelineFigures:
    """A snapshot of one pipeline."""

    state: PipelineState
    # How often it was restarted since the driver started.
    restarts_total: int = 0
    # Why it failed the last time.
    error: str = ""
    queries: tuple[QueryStatistics, ...] = ()


@dataclass(frozen=True)
class DriverFigures:
    """A snapshot of the driver process and its pipelines."""

    is_running: bool = False
    # How often the process was started.
    starts_total: int = 0
    pipelines: Mapping[str, PipelineFigures] = field(default_factory=dict)


def encode_figures(pipelines: Mapping[str, PipelineFigures]) -> bytes:
    """Return a line of figures."""
    fields = {
        name: {**vars(one), "queries": [query.to_fields() for query in one.queries]}
        for name, one in pipelines.items()
    }
    return json.dumps(fields).encode() + b"\n"


def decode_figures(line: bytes) -> dict[str, PipelineFigures]:
    """Return what a line of figures says."""
    received: dict[str, dict[str, Any]] = json.loads(line)
    return {
        name: PipelineFigures(
            **{**one, "queries": tuple(map(QueryStatistics.from_fields, one["queries"]))}
        )
        for name, one in received.items()
    }
