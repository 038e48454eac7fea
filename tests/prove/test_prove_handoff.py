"""`holdfast prove handoff`: short runs of the real thing, and the cables that it pulls."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest
from click.testing import CliRunner
from tests.patience import PATIENCE_S

from holdfast.errors import BadInput
from holdfast.operate.cli.cmd_prove import command
from holdfast.prove.cables import cables, check_partitions

ECHO = """
import socket, sys
with socket.create_server((sys.argv[1], 4000)) as server:
    print("ready", flush=True)
    connection, _ = server.accept()
    while data := connection.recv(1):
        connection.sendall(data)
"""


def test_partitions_are_for_handoff_alone() -> None:
    result = CliRunner().invoke(command, ["gateway", "--partitions"])
    assert isinstance(result.exception, BadInput)
    assert "only handoff" in str(result.exception.hint)


def require_cables() -> None:
    try:
        check_partitions()
        with cables(["x"]):
            pass
    except BadInput as error:
        pytest.skip(f"no virtual interfaces here: {error}")


def test_a_pulled_cable_is_silent_and_goes_on_where_it_was() -> None:
    require_cables()
    with cables(["x", "y"]) as wires:
        line = [*wires.inside("y"), sys.executable, "-c", ECHO, wires.host("y")]
        with subprocess.Popen(line, stdout=subprocess.PIPE) as server:
            try:
                assert server.stdout is not None
                assert server.stdout.readline() == b"ready\n"
                with socket.create_connection((wires.host("y"), 4000), PATIENCE_S) as client:
                    client.sendall(b"1")
                    assert client.recv(1) == b"1"
                    wires.pull("y")
                    client.sendall(b"2")
                    client.settimeout(0.3)
                    with pytest.raises(TimeoutError):
                        client.recv(1)
                    wires.plug("y")
                    client.settimeout(PATIENCE_S)
                    assert client.recv(1) == b"2"
            finally:
                server.kill()
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert f"hf{os.getpid()}" not in left.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("more", [[], ["--partitions"]])
def test_every_owner_has_everything_once_whoever_was_killed(more: list[str]) -> None:
    if more:
        require_cables()
    line = [sys.executable, "-m", "holdfast", "prove", "handoff", "--kills", "4", "--json", *more]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["ok"]
    assert (found["lost"], found["applied_twice"], found["kills"]) == (0, 0, 4)
    assert found["accepted"] > 0
