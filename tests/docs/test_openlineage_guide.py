"""The guide to protected lineage: what it says to type is typed, what it configures is loaded.

Comments that a reader does not see say what is to be done with the block that follows:

    run            typed into one shell, together with all others, in a folder of its own
    file: NAME     written to that file first
    merge          added to gateway.yaml, which must then be sound
    client: …      given to OpenLineage's own client, or to what reads it
    alerts         Prometheus' rules: every metric in them exists
    check: syntax  not run, because it changes the machine

and what must be seen after it: `shows: TEXT`; `wait: COMMAND` waits until a command succeeds.
"""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from openlineage.client import OpenLineageClient
from openlineage.client.transport import get_default_factory
from openlineage.client.transport.http import HttpTransport
from tests.patience import PATIENCE_S
from tests.ports import free_port

from holdfast.graph.loader import load
from holdfast.operate.gateway_metrics import ALL_METRICS

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide" / "openlineage.md"
URL = "http://127.0.0.1:5000"
_BLOCK = re.compile(
    r"(?:<!-- (?P<mark>[^>]*) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)```\n"
    r"(?P<after>(?:<!-- (?:shows|wait): [^\n]* -->\n)*)",
    re.DOTALL,
)
_AFTER = re.compile(r"<!-- (shows|wait): (.*) -->")


@dataclass
class Block:
    """A snippet, and what is to be done with it."""

    mark: str
    language: str
    text: str
    shows: list[str] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)


def blocks(guide: Path = GUIDE) -> Iterator[Block]:
    for found in _BLOCK.finditer(guide.read_text()):
        after = _AFTER.findall(found["after"])
        yield Block(
            found["mark"] or "",
            found["language"],
            found["text"],
            [text for kind, text in after if kind == "shows"],
            [text for kind, text in after if kind == "wait"],
        )


def marked(mark: str) -> list[Block]:
    found = [block for block in blocks() if block.mark.partition(":")[0] == mark]
    assert found, mark
    return found


def the_client(which: str) -> Block:
    (found,) = [block for block in blocks() if block.mark == f"client: {which}"]
    return found


def test_something_is_done_with_every_block() -> None:
    assert GUIDE.read_text().count("```") == 2 * len(list(blocks()))
    known = ("run", "file", "merge", "client", "alerts", "check")
    for block in blocks():
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
    typed = [block for block in marked("run") if block.mark == "run" or shutil.which("curl")]
    outputs = run_in_bash(tmp_path, [script_of(here(b.text), b.waits) for b in typed])
    logs = "".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert len(outputs) == len(typed), f"{outputs[-1:]}\n{logs}"
    for block, output in zip(typed, outputs, strict=True):
        for text in block.shows:
            assert text in output, f"{text!r} is not in\n{output}\n{logs}"
    types = re.findall(r" (\w+) my-team/orders_daily run ", (tmp_path / "backend.out").read_text())
    assert types[:2] == ["START", "COMPLETE"]
    assert logs.count("marquez: fails, transient connect") >= 1


def script_of(text: str, waits: list[str]) -> str:
    """Return what is typed, and what is waited for afterwards."""
    return text + "".join(f"until {wait}; do sleep 0.1; done\n" for wait in waits)


def run_in_bash(folder: Path, scripts: list[str]) -> list[str]:
    """Type scripts into one shell; return what each of them printed."""
    end = "=== end of a block ==="
    whole = "".join(f"{script}echo '{end}'\n" for script in scripts)
    script = folder / "typed.sh"
    script.write_text(f"set -e\n{whole}kill $GATEWAY $BACKEND\nwait $GATEWAY $BACKEND\n")
    output = folder / "typed.out"
    tools = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "COLUMNS": "200"}
    with output.open("wb") as file:
        shell = subprocess.Popen(
            ["bash", str(script)],
            cwd=folder,
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,
        )
        try:
            shell.wait(PATIENCE_S)
        finally:
            # What it left in the background, if anything, is in its group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    return output.read_text().split(f"{end}\n")[:-1]


@pytest.mark.parametrize("block", marked("check") + marked("run"), ids=lambda b: b.text[:20])
def test_commands_can_be_read_by_a_shell(block: Block) -> None:
    subprocess.run(["bash", "-n"], input=block.text.encode(), check=True)


def test_commands_that_are_not_run_name_what_exists() -> None:
    text = "".join(block.text for block in marked("check"))
    for path in re.findall(r" (deploy/[\w.]+)", text):
        assert (ROOT / path).is_file(), path
    (extra,) = re.findall(r"'\.\[(\w+)\]'", text)
    assert f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text()


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
