"""The figures of a data node: all that it tells of itself, explained, at its probe port."""

from __future__ import annotations

import urllib.request
from pathlib import Path

from tests.node.handing_over import hand_over, offered, some_parts
from tests.operate.test_metrics import other

from holdfast.node.data_node import DataNode, NodeStatistics
from holdfast.node.probe import METRICS_TYPE, ProbeServer
from holdfast.node.settings import DataNodeSettings
from holdfast.operate.metrics import CONTENT_TYPE, samples
from holdfast.operate.node_metrics import NODE_METRICS, render_node


def test_figures_are_served_and_say_what_happened(tmp_path: Path) -> None:
    parts = some_parts()
    node = DataNode(tmp_path, DataNodeSettings(min_free=0))
    for one in parts[:3]:
        hand_over(node, one)
    offered(node, parts)
    (Path(node._all_parts()[1].folder) / "bundles.arrow").write_bytes(b"garbage")
    node.scrub()
    with ProbeServer(node, "127.0.0.1:0", lambda: render_node(node.statistics())) as probes:
        url = f"http://127.0.0.1:{probes.port}/metrics"
        with urllib.request.urlopen(url) as answer:
            assert answer.headers["content-type"] == METRICS_TYPE == CONTENT_TYPE
            text = answer.read().decode()
    node.close()
    told = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    size_bytes = sum(one.part.size_bytes for one in parts[:3])
    assert told["data_node_adopted_parts_total{}"] == "3"
    assert told["data_node_adopted_bytes_total{}"] == str(size_bytes)
    assert told["data_node_parts{}"] == "2"
    assert int(told["data_node_size_bytes{}"]) == size_bytes - parts[1].part.size_bytes
    assert told["data_node_damaged_parts{}"] == told["data_node_scrubs_total{}"] == "1"
    assert told['data_node_answers_total{answer="have"}'] == "3"
    assert told['data_node_answers_total{answer="need"}'] == "1"
    assert told["data_node_writable{}"] == "1"


def test_every_metric_explains_itself_and_has_the_labels_of_the_table(tmp_path: Path) -> None:
    node = DataNode(tmp_path)
    now = node.statistics()
    node.close()
    assert len({metric.name for metric in NODE_METRICS}) == len(NODE_METRICS)
    for metric in NODE_METRICS:
        assert metric.name.endswith("_total") == (metric.type == "counter")
        assert metric.help.endswith(".")
        assert "|" not in metric.help + metric.watch, "it would break the table of the page"
        assert metric.unit
        assert metric.watch
        assert {frozenset(labels) for labels, _ in metric.read(now)} == {frozenset(metric.labels)}
    told = list(samples(NODE_METRICS, [({}, now)]))
    for name in NodeStatistics._fields:
        changed = now._replace(**{name: other(getattr(now, name))})
        assert list(samples(NODE_METRICS, [({}, changed)])) != told, f"{name} is not told"
