"""The rules for Prometheus name figures and labels that there are."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from holdfast.operate.gateway_metrics import ALL_METRICS
from holdfast.operate.metrics import prometheus_name
from holdfast.operate.node_metrics import NODE_METRICS

RULES = Path(__file__).parents[2] / "deploy" / "alerts.yaml"
# Beside those of the table, every figure may have these.
COMMON = {"worker", "quiver", "core_id", "instance"}


def test_alert_rules_use_figures_that_are_told() -> None:
    labels = {
        prometheus_name(one.name): {*one.labels, *COMMON} for one in (*ALL_METRICS, *NODE_METRICS)
    }
    groups = yaml.safe_load(RULES.read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        names = re.findall(r"\b(?:data_node|gateway|handoff|pipeline|quiver)_\w+", rule["expr"])
        assert names, rule
        assert {*names} <= {*labels}, rule
        told = set.intersection(*(labels[name] for name in names))
        grouped = {
            one for by in re.findall(r"by \((.*?)\)", rule["expr"]) for one in by.split(", ")
        }
        used = re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values()))
        assert grouped <= told, rule
        assert {*used} <= grouped, rule
        assert {"summary", "action"} == rule["annotations"].keys()
        assert rule["labels"]["severity"] in ("page", "ticket")
