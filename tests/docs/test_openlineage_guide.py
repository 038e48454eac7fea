"""The guide to protected lineage: what it says to type is typed, what it configures is loaded.

Its marks, besides those of every guide that is run (tests/support/guide.py):

    merge          added to gateway.yaml, which must then be sound
    client: …      given to OpenLineage's own client, or to what reads it
    alerts         Prometheus' rules: every metric in them exists
    check: syntax  not run, because it changes the machine
"""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from openlineage.client import OpenLineageClient
from openlineage.client.transport import get_default_factory
from openlineage.client.transport.http import HttpTransport
from tests.ports import free_port
from tests.support.guide import Block, blocks, logs_in, typed

from holdfast.graph.loader import load
from holdfast.operate.gateway_metrics import ALL_METRICS

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide" / "openlineage.md"
URL = "http://127.0.0.1:5000"


def marked(mark: str) -> list[Block]:
    found = [block for block in blocks(GUIDE) if block.mark.partition(":")[0] == mark]
    assert found, mark
    return found


def the_client(which: str) -> Block:
    (found,) = [block for block in blocks(GUIDE) if block.mark == f"client: {which}"]
    return found


def test_something_is_done_with_every_block() -> None:
    assert GUIDE.read_text().count("```") == 2 * len(list(blocks(GUIDE)))
    known = ("run", "file", "merge", "client", "alerts", "check")
    for block in blocks(GUIDE):
        wanted = () if block.language == "text" else known
        assert block.mark.partition(":")[0] in wanted or block.language == "text", block.text
        assert not (block.shows or block.waits) or block.mark.startswith("run"), block.text


# ------------------------------------------------------------------------- typed and run


@pytest.mark.slow
def test_the_story_is_true(tmp_path: Path) -> None:
    ports = {port: str(free_port()) for port in ("5000", "5001", "8480")}

    def here(text: str) -> str:
        return re.sub(r"127\.0\.0\.1:(5000|5001|8480)", lambda m: f"127.0.0.1:{ports[m[1]]}", text)

    for block in marked("file"):
        text = here(block.text)
        if block.mark == "file: gateway.yaml":
            # Its defaults are ports that others may have.
            listen = f"    config: {{listen: 127.0.0.1:{ports['5000']}}}\n    to: [marquez]"
            assert "to: [marquez]" in text
            text = text.replace("    to: [marquez]", listen)
            text += f"admin: {{listen: 127.0.0.1:{ports['8480']}}}\n"
        (tmp_path / block.mark.partition(": ")[2]).write_text(text)
    steps = [block for block in marked("run") if block.mark == "run" or shutil.which("curl")]
    # At the end they write what they still have.
    ended = "kill $GATEWAY $BACKEND; wait $GATEWAY $BACKEND\n"
    with typed(tmp_path, [*(here(block.script()) for block in steps), ended]) as outputs:
        logs = logs_in(tmp_path)
    assert len(outputs) == len(steps) + 1, f"{outputs[-1:]}\n{logs}"
    for block, output in zip(steps, outputs, strict=False):
        for text in block.shows:
            assert text in output, f"{text!r} is not in\n{output}\n{logs}"
    types = re.findall(r" (\w+) my-team/orders_daily run ", (tmp_path / "backend.out").read_text())
    assert types[:2] == ["START", "COMPLETE"]
    assert logs.count("marquez: fails, transient connect") >= 1


@pytest.mark.parametrize("block", marked("check") + marked("run"), ids=lambda b: b.text[:20])
def test_commands_can_be_read_by_a_shell(block: Block) -> None:
    subprocess.run(["bash", "-n"], input=block.text.encode(), check=True)


def test_commands_that_are_not_run_name_what_exists() -> None:
    text = "".join(block.text for block in marked("check"))
    for path in re.findall(r" (deploy/[\w.]+)", text):
        assert (ROOT / path).is_file(), path
    extras = re.findall(r"'\.\[(\w+)\]'", text)
    project = (ROOT / "pyproject.toml").read_text()
    assert extras
    assert [extra for extra in extras if f"\n{extra} = [" not in project] == []


# ---------------------------------------------------------------------------- configured


def merged(base: Any, more: Any) -> Any:
    if isinstance(base, dict) and isinstance(more, dict):
        keys = [*base, *(key for key in more if key not in base)]
        return {k: merged(base[k], more[k]) if k in base and k in more else {**base, **more}[k]
                for k in keys}  # fmt: skip
    return more


@pytest.mark.parametrize("block", marked("merge"), ids=lambda block: block.text[:40])
def test_what_is_added_to_the_file_is_sound(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATAHUB_TOKEN", "a-token-of-datahub")
    monkeypatch.setenv("AIRFLOW_LINEAGE_TOKEN", "a-token-of-airflow")
    (base,) = [block for block in marked("file") if block.mark == "file: gateway.yaml"]
    whole = merged(yaml.safe_load(base.text), yaml.safe_load(block.text))
    path = tmp_path / "gateway.yaml"
    path.write_text(yaml.safe_dump(whole))
    assert load(path).warnings == ()


def test_the_limits_are_none_by_default_and_drop_where_they_are_set() -> None:
    (block,) = [block for block in marked("merge") if "by default none" in block.text]
    said = yaml.safe_load(block.text)["nodes"]["marquez"]["delivery"]
    (base,) = [block for block in marked("file") if block.mark == "file: gateway.yaml"]
    path = ROOT / "examples" / "openlineage.yaml"
    delivery = load(path).graph.nodes["marquez"].delivery
    assert delivery is not None
    defaults = type(delivery)()
    assert base.text.count("delivery") == 0
    assert (defaults.retention_time_s, defaults.retention_bytes) == (None, None)
    assert defaults.when_full == "block"
    said.pop("on_full")
    assert type(delivery).model_validate(said).when_full == "drop_oldest"


def test_alerts_are_about_metrics_that_exist() -> None:
    names = {metric.name.replace(".", "_") for metric in ALL_METRICS}
    (block,) = marked("alerts")
    rules = yaml.safe_load(block.text)["groups"][0]["rules"]
    for rule in rules:
        (name,) = re.findall(r"gateway_\w+", rule["expr"])
        assert name in names, name
    states = re.findall(r'state=~"([\w|]+)"', block.text)[0].split("|")
    assert set(states) == {"auth_failed", "stalled"}


# ------------------------------------------------------------------------------- clients


def test_the_environment_of_a_client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    name, _, url = the_client("environment").text.removeprefix("export ").strip().partition("=")
    monkeypatch.setenv(name, url)
    client = OpenLineageClient()
    assert isinstance(client.transport, HttpTransport)
    assert client.transport.url == URL
    client.close()


@pytest.mark.parametrize("which", ["file", "token"])
def test_the_file_of_a_client(which: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "openlineage.yml").write_text(the_client(which).text)
    client = OpenLineageClient()
    assert isinstance(client.transport, HttpTransport)
    if which == "token":
        assert client.transport.config.auth.get_bearer() == "Bearer the-token"
    else:
        assert client.transport.url == URL
    client.close()


def test_the_settings_of_airflow() -> None:
    parser = configparser.ConfigParser()
    parser.read_string(the_client("airflow").text)
    text = the_client("airflow environment").text
    found = re.fullmatch(r"export AIRFLOW__OPENLINEAGE__TRANSPORT='(.*)'\n", text)
    assert found is not None
    for value in (parser["openlineage"]["transport"], found[1]):
        transport = get_default_factory().create(json.loads(value))
        assert isinstance(transport, HttpTransport)
        assert transport.url == URL
        assert transport.endpoint == "api/v1/lineage"


def test_the_settings_of_spark() -> None:
    text = the_client("spark").text
    settings = dict(re.findall(r"--conf (\S+)=(\S+)", text))
    # The client for Java adds its default path to an address without one.
    assert settings["spark.openlineage.transport.url"] == URL
    assert settings["spark.openlineage.transport.type"] == "http"
    subprocess.run(["bash", "-n"], input=text.encode(), check=True)
