"""A gateway that writes into a bucket and is killed: the objects hold what was accepted, once."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import obstore
import pytest
import yaml
from obstore.store import S3Store
from tests.graph.lineage import run_event
from tests.patience import PATIENCE_S, until
from tests.ports import free_port

from holdfast.deliver.context import DeliveryPoint
from holdfast.deliver.exporters.file_places import FilesPoint
from holdfast.prove.store import BUCKET, running_s3
from holdfast.prove.victim import Death

POINTS = [
    *(FilesPoint.SENDING, FilesPoint.SENT, DeliveryPoint.SENT, DeliveryPoint.COMMITTED),
    *("files.journal.create", "files.journal.sync", "files.journal.unlink"),
    *("files.publish.create", "files.publish.write", "files.publish.unlink"),
]


class Client:
    """Posts one event after the other, and never one of them twice."""

    def __init__(self, port: int) -> None:
        self.accepted: list[str] = []
        self.in_doubt: list[str] = []
        self._port = port
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            self._post(f"event-{number}")

    def _post(self, name: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        body, headers = json.dumps(run_event(job=name)), {"Content-Type": "application/json"}
        try:
            connection.request("POST", "/api/v1/lineage", body, headers)
            status = connection.getresponse().status
            (self.accepted if status in (200, 201) else self.in_doubt).append(name)
        except (OSError, http.client.HTTPException):
            self.in_doubt.append(name)
            self._stop.wait(0.02)
        finally:
            connection.close()


def graph(folder: Path, port: int) -> Path:
    config = {
        "directory": f"s3://{BUCKET}/lineage",
        "partition_by": "hour",
        "max_file_events": 25,
        "max_file_age": "200ms",
        # The rest is in the environment.
        "bucket": {"allow_http": True},
    }
    tree = {
        "data_dir": str(folder / "data"),
        "drain": "20s",
        "nodes": {
            "lineage": {
                "kind": "receiver",
                "type": "openlineage",
                "config": {"listen": f"127.0.0.1:{port}"},
                "to": ["lake"],
            },
            "lake": {
                "kind": "exporter",
                "type": "files",
                "config": config,
                "delivery": {"retry_max": "100ms"},
            },
        },
    }
    path = folder / "gateway.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def jobs_in(variables: dict[str, str]) -> list[str]:
    store = S3Store(
        BUCKET,
        prefix="lineage",
        config={
            "endpoint": variables["AWS_ENDPOINT_URL"],
            "access_key_id": "prove",
            "secret_access_key": "prove",
            "region": "us-east-1",
        },
        client_options={"allow_http": True},
    )
    keys = [one["path"] for one in obstore.list(store).collect()]
    return [
        json.loads(line)["job"]["name"]
        for key in sorted(keys)
        if key.endswith(".ndjson")
        for line in bytes(obstore.get(store, key).bytes()).splitlines()
    ]


def run_until_it_dies(command: list[str], env: dict[str, str], log: Any, for_s: float) -> None:
    """Start the gateway, and kill it unless it does so itself in time."""
    gateway = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=env)
    assert gateway.stdout is not None
    try:
        gateway.stdout.readline()
        with contextlib.suppress(subprocess.TimeoutExpired):
            gateway.wait(for_s)
    finally:
        gateway.kill()
        gateway.wait()
        gateway.stdout.close()


@pytest.mark.slow
def test_objects_hold_what_was_accepted_whatever_is_killed(tmp_path: Path) -> None:
    seed = int(os.environ.get("HOLDFAST_SEED", random.randrange(2**32)))
    dice = random.Random(seed)
    port = free_port()
    command = [sys.executable, "-m", "holdfast.prove.gateway_victim", "run"]
    command.append(str(graph(tmp_path, port)))
    with running_s3(tmp_path / "s3.log") as variables, (tmp_path / "gateway.log").open("wb") as log:
        env = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(sys.path)}
        client = Client(port)
        try:
            for point in POINTS:
                death = Death.at(point, dice, 3).argument()
                run_until_it_dies([*command, death], env, log, for_s=10.0)
                run_until_it_dies(command, env, log, for_s=dice.uniform(0.1, 1.5))
        finally:
            client.stop()
        # The last one gets all the time it wants.
        gateway = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=env)
        try:
            assert gateway.stdout is not None
            assert gateway.stdout.readline() == b"ready\n"
            until(lambda: set(client.accepted) <= set(jobs_in(variables)), f"objects (seed {seed})")
            gateway.stdout.close()
            gateway.send_signal(signal.SIGTERM)
            gateway.wait(PATIENCE_S)
        finally:
            gateway.kill()
            gateway.wait()
        found = jobs_in(variables)
    assert len(client.accepted) > len(POINTS), (tmp_path / "gateway.log").read_text()
    assert len(found) == len(set(found)), f"twice, seed {seed}"
    assert set(found) <= {*client.accepted, *client.in_doubt}
    assert set(client.accepted) <= set(found), f"missing, seed {seed}"
