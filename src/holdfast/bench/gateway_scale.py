"""How much of the gateway is measured: enough to mean something, or just enough to see it run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GatewayScale:
    """Sizes of all measurements."""

    rounds: int
    # Of each load.
    seconds: float
    idle_events: int
    backlog_events: int
    backlog_mb: int
    # A second destination is dead, or not there: events per second meanwhile.
    neighbour_rate_per_s: float
    validated_events: int


FULL = GatewayScale(
    rounds=7,
    seconds=3.0,
    idle_events=50,
    backlog_events=20_000,
    backlog_mb=2_000,
    neighbour_rate_per_s=200.0,
    validated_events=2_000,
)

QUICK = GatewayScale(
    rounds=1,
    seconds=0.3,
    idle_events=3,
    backlog_events=200,
    backlog_mb=2,
    neighbour_rate_per_s=50.0,
    validated_events=50,
)
