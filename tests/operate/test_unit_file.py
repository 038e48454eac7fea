"""deploy/holdfast.service: what it starts exists, and it knows our exit codes and signals."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S

from holdfast.errors import BadConfig
from holdfast.graph.model import GraphFile
from holdfast.operate.cli import COMMANDS

UNIT = Path(__file__).parents[2] / "deploy" / "holdfast.service"


@pytest.fixture(scope="module")
def service() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return parser["Service"]


def test_it_checks_and_starts_with_commands_that_exist(service: configparser.SectionProxy) -> None:
    for key, command in (("ExecStartPre", "validate"), ("ExecStart", "up")):
        words = service[key].split()
        assert words[:2] == ["/opt/holdfast/bin/holdfast", command]
        assert words[1] in COMMANDS
        assert words[2] == "/etc/holdfast/holdfast.yaml"


def test_it_speaks_our_protocol(service: configparser.SectionProxy) -> None:
    # Not notify-reload, which older systems (252) do not know.
    assert service["Type"] == "notify"
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert int(service["WatchdogSec"]) > 0
    assert service["RestartPreventExitStatus"] == str(BadConfig.exit_code)
    drain_s = GraphFile.model_fields["drain"].default
    assert int(service["TimeoutStopSec"]) >= drain_s + 10


def test_it_gives_away_what_it_does_not_need(service: configparser.SectionProxy) -> None:
    for key in ("NoNewPrivileges", "PrivateTmp", "ProtectHome", "RestrictSUIDSGID"):
        assert service[key] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["StateDirectory"] == "holdfast"
    assert service["CapabilityBoundingSet"] == ""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_can_read_it(tmp_path: Path) -> None:
    copy = tmp_path / "holdfast.service"
    text = UNIT.read_text().replace("User=holdfast\nGroup=holdfast\n", "")
    copy.write_text(text.replace("/opt/holdfast/bin/holdfast", sys.executable))
    command = ["systemd-analyze", "verify", "--man=no", str(copy)]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    wrong = [line for line in result.stderr.splitlines() if "holdfast.service" in line]
    assert wrong == []


def test_the_ports_that_systemd_holds_are_those_of_the_example() -> None:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.read(UNIT.with_suffix(".socket"))
    example = (UNIT.parents[1] / "examples" / "openlineage.yaml").read_text()
    assert f"listen: {parser['Socket']['ListenStream']}" in example
