"""What is in deploy/ fits together and to the code, as far as one sees without a cluster."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from scripts import dashboard
from tests.patience import PATIENCE_S

from holdfast.graph.loader import load
from holdfast.operate.cli import COMMANDS
from holdfast.operate.gateway_metrics import ALL_METRICS
from holdfast.operate.metrics import prometheus_name
from holdfast.operate.node_metrics import NODE_METRICS

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm"
# Where `make setup-deploy` and `make setup-peers` put them, or where they are installed.
BUILT = str(DEPLOY.parent / "build" / "deploy")
HELM, PROMTOOL = (
    shutil.which(name) or shutil.which(name, path=BUILT) for name in ("helm", "promtool")
)


def values() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return found


def schema() -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(json.loads((CHART / "values.schema.json").read_text()))


def test_the_dashboard_is_what_the_script_writes_and_shows_figures_that_there_are() -> None:
    assert dashboard.FILE.read_text() == dashboard.text()
    known = {prometheus_name(one.name) for one in (*ALL_METRICS, *NODE_METRICS)}
    queries = [q for row in dashboard.ROWS.values() for one in row for q in one.queries.values()]
    for query in queries:
        names = re.findall(r"\b(?:data_node|gateway|handoff|pipeline|quiver)_\w+", query)
        assert names, query
        assert {*names} <= known, query
    shown = dashboard.dashboard()["panels"]
    assert len({one["id"] for one in shown}) == len(shown)


def test_the_values_of_the_chart_fit_their_schema_and_wrong_ones_do_not() -> None:
    assert list(schema().iter_errors(values())) == []
    wrong = [("dataNodes", "replicas", -1), ("gateway", "storage", "much"), ("image", "tga", "1")]
    for part, key, value in wrong:
        changed = values()
        changed[part][key] = value
        assert not schema().is_valid(changed), key


def test_the_graph_files_of_container_and_chart_are_valid(tmp_path: Path) -> None:
    assert load(DEPLOY / "container.yaml").warnings == ()
    config = tmp_path / "holdfast.yaml"
    config.write_text(yaml.safe_dump(values()["config"]))
    assert load(config).warnings == ()


def test_templates_use_values_that_there_are() -> None:
    known = values()
    for path in (CHART / "templates").iterdir():
        text = path.read_text()
        for name in re.findall(r"\.Values\.([\w.]+)", text):
            found: Any = known
            for key in name.split("."):
                assert key in found, f"{path.name}: {name}"
                found = found[key]
    defined = set(re.findall(r'define "([\w.]+)"', (CHART / "templates/_helpers.tpl").read_text()))
    templates = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    assert set(re.findall(r'include "([\w.]+)"', templates)) <= defined


def test_the_container_is_not_root_and_starts_commands_that_exist() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    assert re.findall(r"^USER (\d+)$", text, re.MULTILINE) == ["10001"]
    (command,) = re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE)
    words = json.loads(command)
    assert words[0] in COMMANDS
    assert f"COPY deploy/container.yaml {words[1]}" in text
    for source in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE):
        for name in source.split():
            assert (DEPLOY.parent / name).exists(), name


def test_the_console_that_compose_names_is_served() -> None:
    assert "8480   the gateway (console," in (DEPLOY / "compose.yaml").read_text()
    assert load(DEPLOY / "container.yaml").graph.settings.admin.has_console


def test_compose_mounts_and_builds_what_is_there() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for service in services.values():
        assert set(service.get("depends_on", [])) <= services.keys()
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert not source.startswith(".") or (DEPLOY / source).is_file(), source
        # Nothing is reached from outside of the machine.
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        assert "image" not in service or not service["image"].endswith(":latest")
    scraped = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())["scrape_configs"]
    assert scraped[0]["static_configs"][0]["targets"] == ["holdfast:8480"]


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool: make setup-peers")
def test_promtool_takes_the_rules() -> None:
    assert PROMTOOL is not None
    command = [PROMTOOL, "check", "rules", str(DEPLOY / "alerts.yaml")]
    subprocess.run(command, check=True, timeout=PATIENCE_S, capture_output=True)


@pytest.mark.skipif(HELM is None, reason="needs helm: make setup-deploy")
@pytest.mark.parametrize("replicas", [0, 3])
def test_the_chart_renders_a_graph_file_whose_data_nodes_are_made_from_their_number(
    replicas: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = rendered(f"dataNodes.replicas={replicas}")
    (config,) = [one for one in documents if one["kind"] == "ConfigMap"]
    text = config["data"]["holdfast.yaml"]
    nodes = yaml.safe_load(text)["nodes"]
    found = nodes.get("copies", {"config": {"nodes": {}}})["config"]["nodes"]
    assert len(found) == replicas
    file = tmp_path / "holdfast.yaml"
    file.write_text(text)
    monkeypatch.setenv("NODE_TOKEN", "secret")
    assert load(file).warnings == ()
    # A data node is called by the name that its pod and the service in front of it have.
    services = {one["metadata"]["name"] for one in documents if one["kind"] == "Service"}
    sets = {one["metadata"]["name"]: one for one in documents if one["kind"] == "StatefulSet"}
    for address in found.values():
        pod, service, *_ = address.split(".")
        owner = sets[pod.rpartition("-")[0]]
        assert service == owner["spec"]["serviceName"]
        assert service in services


@pytest.mark.skipif(HELM is None, reason="needs helm: make setup-deploy")
@pytest.mark.parametrize("replicas", [0, 3])
def test_what_may_be_switched_on_in_the_chart_speaks_of_pods_and_services_that_there_are(
    replicas: int,
) -> None:
    switches = ("serviceMonitor.enabled=true", "prometheusRule.enabled=true")
    documents = rendered(f"dataNodes.replicas={replicas}", *switches)
    component = "app.kubernetes.io/component"
    pods = {
        one["spec"]["template"]["metadata"]["labels"][component]
        for one in documents
        if one["kind"] == "StatefulSet"
    }
    (monitor,) = [one for one in documents if one["kind"] == "ServiceMonitor"]
    (choice,) = monitor["spec"]["selector"]["matchExpressions"]
    scraped = {
        port["name"]
        for one in documents
        if one["kind"] == "Service" and one["metadata"]["labels"].get(component) in choice["values"]
        for port in one["spec"]["ports"]
    }
    wanted = {"admin", "http"} if replicas else {"admin"}
    assert {one["port"] for one in monitor["spec"]["endpoints"]} & scraped == wanted
    budgets = [one for one in documents if one["kind"] == "PodDisruptionBudget"]
    assert {one["spec"]["selector"]["matchLabels"][component] for one in budgets} <= pods
    assert len(budgets) == bool(replicas)
    (rule,) = [one for one in documents if one["kind"] == "PrometheusRule"]
    assert rule["spec"] == yaml.safe_load((DEPLOY / "alerts.yaml").read_text())


def rendered(*changes: str) -> list[Any]:
    """Return what helm makes of the chart with these values."""
    assert HELM is not None
    subprocess.run([HELM, "lint", str(CHART)], check=True, timeout=PATIENCE_S)
    # A helm that is built from its module believes in a Kubernetes of 2020 unless it is told.
    command = [HELM, "template", "hold", str(CHART), "--kube-version", "1.30.0"]
    made = subprocess.run(
        [*command, *(word for change in changes for word in ("--set", change))],
        check=True,
        timeout=PATIENCE_S,
        capture_output=True,
        text=True,
    )
    return [one for one in yaml.safe_load_all(made.stdout) if one]
