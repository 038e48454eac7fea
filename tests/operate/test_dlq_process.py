"""`holdfast dlq` and a real gateway: its process, its receiver, a backend, and kill -9."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner
from tests.patience import PATIENCE_S, until
from tests.signals.events import run_event
from tests.support.backend import HttpBackend

from holdfast.operate.cli import dlq as cmd_dlq

pytestmark = pytest.mark.slow


class Moody(HttpBackend):
    """Refuses the job `bad` until it is healed."""

    healed = False

    def status_for(self, event: dict[str, Any]) -> int:
        return 422 if event["job"]["name"] == "bad" and not self.healed else 200


@pytest.fixture
def backend() -> Iterator[Moody]:
    running = Moody()
    yield running
    running.close()


@pytest.fixture
def config(tmp_path: Path, backend: Moody) -> Path:
    path = tmp_path / "gateway.yaml"
    url = f"{backend.url}/api/v1/lineage"
    path.write_text(
        f"""
        data_dir: data
        admin: {{listen: null}}
        nodes:
          ingest:
            kind: receiver
            type: openlineage
            config: {{listen: "127.0.0.1:0"}}
            to: [marquez]
          marquez: {{kind: exporter, type: http, config: {{url: "{url}"}}}}
        """
    )
    return path


def named(name: str) -> bytes:
    return orjson.dumps(run_event(job={"namespace": "jobs", "name": name}))


def dlq(*arguments: object, stdin: bytes | None = None) -> Any:
    words = [*map(str, arguments), "--json"]
    result = CliRunner().invoke(cmd_dlq.command, words, input=stdin)
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.stdout)


def letters(config: Path) -> dict[str, str]:
    return {one["letter"]: one["reason"] for one in dlq("ls", config)["letters"]}


def start(config: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start a gateway; return it and the address of its receiver."""
    log = config.with_suffix(".log")
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "up", str(config)],
            stderr=file,
            stdout=file,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    try:
        until(lambda: " is ready" in log.read_text() or process.poll() is not None)
        found = re.search(r"listens on (http://[\d.:]+)", log.read_text())
        assert found is not None, log.read_text()
    except BaseException:
        process.kill()
        process.wait()
        raise
    return process, found[1]


def post(address: str, body: bytes) -> int:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/api/v1/lineage", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            status: int = answer.status
            return status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_letters_of_a_real_gateway_are_fixed_replayed_and_survive_a_kill(
    config: Path, backend: Moody
) -> None:
    process, address = start(config)
    try:
        for name in ("one", "bad", "two", "three"):
            assert post(address, named(name)) == 200
        assert post(address, b'{"job": {}}') == 400
        expected = {"rejected/0": "invalid", "undelivered/0": "permanent"}
        until(lambda: letters(config) == expected)
        assert backend.jobs == ["one", "two", "three"]

        dlq("fix", config, "rejected/0", "--file", "-", stdin=named("fixed"))
        until(lambda: "fixed" in backend.jobs)
        assert letters(config) == {"undelivered/0": "permanent"}

        again = dlq("replay", config, "--destination", "marquez")["to marquez"]
        assert (again["delivered"], again["filed_again"]) == (0, 1)
        (letter,) = dlq("ls", config)["letters"]
        assert letter["attempts"] == 2
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert len(letters(config)) == 1, "nothing runs, and it is still there"

    backend.healed = True
    process, address = start(config)
    try:
        assert dlq("replay", config, "--destination", "marquez")["to marquez"]["delivered"] == 1
        assert backend.jobs.count("bad") == 1
        assert letters(config) == {}
    finally:
        process.terminate()
        process.wait()
