"""Metrics of a data node: a row of the table for each figure, as in `metrics.py`.

Made of `DataNode.statistics()`, and served at `/metrics` of its probe port (`--http`). A node keeps
parts of many quivers for senders it does not know beforehand, so no figure has a label for either.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.node.data_node import NodeStatistics
from holdfast.operate.metrics import Labels, Metric, each, exposition, samples, whole


def _info(node: NodeStatistics) -> Iterator[tuple[Labels, float]]:
    yield {"node_id": node.node_id, "version": node.version}, 1


NODE_METRICS: tuple[Metric[NodeStatistics], ...] = (
    Metric(
        "data_node.info", "gauge", "1",
        "Always 1; who the data node is, and of which version.",
        "`node_id` changes: another directory is served at this address.",
        _info, ("node_id", "version"),
    ),
    Metric(
        "data_node.writable", "gauge", "0 or 1",
        "1 while the data node takes new parts, 0 while its disk has less free than `--min-free`, "
        "or more is damaged than `--quarantine-max-size` and `--quarantine-max-parts` allow.",
        "0: its senders wait, and keep what is for it.", each(whole, "is_writable"),
    ),
    Metric(
        "data_node.free_bytes", "gauge", "bytes",
        "What is free on the disk of the data directory.",
        "Falls to `data_node_min_free_bytes`: make room, or set `--max-size`.",
        each(whole, "free_bytes"),
    ),
    Metric(
        "data_node.min_free_bytes", "gauge", "bytes",
        "What is kept free (`--min-free`).", "See above.", each(whole, "min_free_bytes"),
    ),
    Metric(
        "data_node.quivers", "gauge", "quivers", "Quivers of which parts are, or were, here.",
        "More than there are gateways and workers: one of them lost its data directory.",
        each(whole, "quivers"),
    ),
    Metric(
        "data_node.parts", "gauge", "parts", "Parts that are stored and served.",
        "Falls only by retention; see removed.", each(whole, "parts"),
    ),
    Metric(
        "data_node.size_bytes", "gauge", "bytes", "Their bytes.",
        "Near `--max-size` the oldest are removed.", each(whole, "size_bytes"),
    ),
    Metric(
        "data_node.damaged_parts", "gauge", "parts",
        "Parts that were found damaged, and that no sound copy replaced yet.",
        "Any: `holdfast handoff repair` fetches them from another node. Look after the disk.",
        each(whole, "damaged"),
    ),
    Metric(
        "data_node.damaged_bytes", "gauge", "bytes",
        "What is left of damaged parts, in quarantine.",
        "Beyond `--quarantine-max-size` nothing new is taken until they are repaired.",
        each(whole, "damaged_bytes"),
    ),
    Metric(
        "data_node.adopted_parts_total", "counter", "parts",
        "Parts that were taken in since the start: durable, verified, acknowledged.",
        "Stands still while senders send: see the answers.", each(whole, "adopted_total"),
    ),
    Metric(
        "data_node.adopted_bytes_total", "counter", "bytes", "Their bytes.",
        "Its rate is the load.", each(whole, "adopted_bytes_total"),
    ),
    Metric(
        "data_node.removed_parts_total", "counter", "parts",
        "Parts that retention removed since the start.",
        "More than `--max-age` explains: `--max-size` is too small.", each(whole, "removed_total"),
    ),
    Metric(
        "data_node.answers_total", "counter", "answers",
        "What was answered to offers and puts since the start, by answer.",
        "`busy`: the disk is nearly full. `retry`: parts arrive damaged, or the disk fails. "
        "`conflict`, `reject`: senders hold parts. `wrong_node`: a sender means another node.",
        each(whole, "answers_total", "answer"), ("answer",),
    ),
    Metric(
        "data_node.scrubs_total", "counter", "scrubs",
        "How often a scrub came to the end of all parts since the start.",
        "Stands still: nobody looks for damage.", each(whole, "scrubs_total"),
    ),
    Metric(
        "data_node.cold_commits_total", "counter", "commits",
        "Commits that the cold tier made in its store since the start.",
        "One for each hour, more if parts came late.", each(whole, "cold_commits_total"),
    ),
    Metric(
        "data_node.cold_parts_total", "counter", "parts",
        "Parts that it put there.", "They are removed here afterwards.",
        each(whole, "cold_parts_total"),
    ),
    Metric(
        "data_node.cold_bytes_total", "counter", "bytes",
        "Their bytes.", "What the store already had takes no more room there.",
        each(whole, "cold_bytes_total"),
    ),
    Metric(
        "data_node.cold_failures_total", "counter", "failures",
        "How often the store did not take an hour of parts.",
        "Its rate: the log has the reason. Parts stay here until it takes them.",
        each(whole, "cold_failures_total"),
    ),
)  # fmt: skip


def render_node(node: NodeStatistics) -> str:
    """Return all figures of a data node in Prometheus' text format."""
    return exposition(NODE_METRICS, samples(NODE_METRICS, [({}, node)]))
