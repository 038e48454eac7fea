"""Metrics of the senders to data nodes: a row of the table for each figure, as in `metrics.py`.

Made of `Gateway.statistics().handoffs`, one record for each data node and quiver. There are as many
as the configuration names, so labels are bounded.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.graph.statistics import GatewayStatistics
from holdfast.handoff.monitor import NodeState
from holdfast.handoff.statistics import BacklogStatistics
from holdfast.operate.metrics import Labels, Metric, each


def _nodes(gateway: GatewayStatistics) -> Iterator[tuple[Labels, BacklogStatistics]]:
    for one in gateway.handoffs:
        yield (
            {
                "exporter": one.name,
                "node": one.backlog.name,
                "quiver": one.quiver,
                "core_id": str(one.core_id),
            },
            one.backlog,
        )


def _states(gateway: GatewayStatistics) -> Iterator[tuple[Labels, float]]:
    for labels, node in _nodes(gateway):
        for state in NodeState:
            # One that was removed is not told of any more.
            if state is not NodeState.REMOVED:
                yield {**labels, "state": state.value}, node.state == state


def _held(gateway: GatewayStatistics) -> Iterator[tuple[Labels, float]]:
    for labels, node in _nodes(gateway):
        yield labels, len(node.held)


def _retries(gateway: GatewayStatistics) -> Iterator[tuple[Labels, float]]:
    for labels, node in _nodes(gateway):
        yield labels, sum(node.retries.values())


def _gaps(gateway: GatewayStatistics) -> Iterator[tuple[Labels, float]]:
    for labels, node in _nodes(gateway):
        yield labels, len(node.gaps)


_NODE = ("exporter", "node", "quiver", "core_id")

# All have the label `worker` too.
HANDOFF_METRICS: tuple[Metric[GatewayStatistics], ...] = (
    Metric(
        "handoff.node.state", "gauge", "0 or 1",
        "1 for the state that the data node is in, 0 for the others.",
        "`down`: what comes in is kept for it. `orphaned`: it is no longer in the configuration, "
        "and what waits for it is kept until you forget it.",
        _states, (*_NODE, "state"),
    ),
    Metric(
        "handoff.node.state_changes_total", "counter", "changes",
        "How often that changed since the start.", "Its rate: the node flaps.",
        each(_nodes, "state_changes"), _NODE,
    ),
    Metric(
        "handoff.node.pending_parts", "gauge", "parts",
        "Sealed parts that wait for the data node, held ones included.",
        "Grows while the node is up: it is slower than what comes in.",
        each(_nodes, "pending_parts"), _NODE,
    ),
    Metric(
        "handoff.node.pending_bytes", "gauge", "bytes",
        "What these parts occupy on disk; a part that waits for several nodes lies there once.",
        "Divided by the rate of sent bytes it is the time until the node has all.",
        each(_nodes, "pending_bytes"), _NODE,
    ),
    Metric(
        "handoff.node.max_bytes", "gauge", "bytes",
        "The cap of that in this quiver (`max_size` divided by the quivers); 0: there is none.",
        "Near it `on_full` decides.", each(_nodes, "max_bytes"), _NODE,
    ),
    Metric(
        "handoff.node.oldest_age_seconds", "gauge", "seconds",
        "Age of the oldest part that waits for the data node; 0 if there is none.",
        "The one to alert on: it grows with every second of an outage, whatever the load.",
        each(_nodes, "oldest_age_s"), _NODE,
    ),
    Metric(
        "handoff.node.held_parts", "gauge", "parts",
        "Parts that wait for an operator: the node refuses them, or they are damaged here.",
        "Any: `holdfast handoff ls` has the reasons.", _held, _NODE,
    ),
    Metric(
        "handoff.node.sent_parts_total", "counter", "parts",
        "Parts that were sent since the start and that the data node has.",
        "Stands still while parts wait and the node is up: look at the problem in "
        "`holdfast handoff status`.",
        each(_nodes, "sent_parts"), _NODE,
    ),
    Metric(
        "handoff.node.sent_bytes_total", "counter", "bytes",
        "Their bytes.", "Its rate is the throughput.", each(_nodes, "sent_bytes"), _NODE,
    ),
    Metric(
        "handoff.node.answers_total", "counter", "answers",
        "What the data node said of parts, by answer.",
        "`busy`: its disk is nearly full, or it is slow. `reject`, `conflict`: parts are held. "
        "`wrong_node`: another node took its address.",
        each(_nodes, "answers", "answer"), (*_NODE, "answer"),
    ),
    Metric(
        "handoff.node.retries_total", "counter", "retries",
        "How often a part had to wait after it failed.", "Its rate: the network or the node ails.",
        _retries, _NODE,
    ),
    Metric(
        "handoff.node.failed_calls_total", "counter", "calls",
        "Offers and puts that got no answer at all.", "As above.",
        each(_nodes, "failed_calls"), _NODE,
    ),
    Metric(
        "handoff.node.lost_events_total", "counter", "events",
        "Events that the data node will never get from here, ever, by reason: dropped or expired "
        "at its limits, damaged on disk.",
        "Any increase: `holdfast handoff gaps` names them, and `repair` fetches them from a node "
        "that has them.",
        each(_nodes, "lost_events", "reason"), (*_NODE, "reason"),
    ),
    Metric(
        "handoff.node.gaps", "gauge", "ranges",
        "Ranges of such events.", "As above.", _gaps, _NODE,
    ),
    Metric(
        "handoff.node.paused", "gauge", "0 or 1",
        "Whether an operator paused the data node.", "1 for long: somebody forgot.",
        each(_nodes, "is_paused"), _NODE,
    ),
    Metric(
        "handoff.node.draining", "gauge", "0 or 1",
        "Whether nothing new is placed on the data node.", "As above.",
        each(_nodes, "is_draining"), _NODE,
    ),
    Metric(
        "handoff.node.rate_limit_bytes", "gauge", "bytes/s",
        "How fast the data node may be sent what it missed; 0: there is no limit.",
        "Lower than you set: each quiver has its part of it.", each(_nodes, "rate_bytes_s"), _NODE,
    ),
)  # fmt: skip
