"""Prove the store: kill writers, readers, deleters and collectors while they work on one.

Once over a folder, and once over S3 if a server (moto's) is installed. Every other kill strikes at
a named point, the rest at random times. In the end every process is killed, the leases lapse, a
collector takes away what is garbage, and what is left is compared with the journals.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from holdfast.errors import CheckFailed
from holdfast.prove.runner import (
    RANDOM,
    ProofOptions,
    ProofProcesses,
    ProofRunner,
    free_ports,
    listens,
)
from holdfast.prove.store_checker import StoreVerdict, check_store
from holdfast.prove.store_victim import LEASE_S, SETTINGS, StoreTask
from holdfast.prove.victim import Death
from holdfast.store.gc.collector import Collector
from holdfast.store.gc.points import StorePoint
from holdfast.store.objects.local import ObjectPoint
from holdfast.store.store import Store

ROLES = {
    "writer-1": "writer",
    "writer-2": "writer",
    "reader": "reader",
    "deleter": "deleter",
    "collector-1": "collector",
    "collector-2": "collector",
}
# Which role reaches which points.
_WRITER_POINTS = (StorePoint.RESERVED, StorePoint.MARKED, StorePoint.PUBLISHING)
_DELETER_POINTS = (StorePoint.COMMIT_DELETING,)
_COLLECTOR_POINTS = (
    StorePoint.LEASES_EXPIRED,
    StorePoint.LEASE_RELEASED,
    StorePoint.REMOVING,
    StorePoint.DELETING,
    StorePoint.OBJECTS_DELETED,
    StorePoint.FORGOTTEN,
    StorePoint.SWEPT,
)
_WRITER_STEPS = (
    ObjectPoint.CREATE,
    ObjectPoint.WRITE,
    ObjectPoint.SYNC,
    ObjectPoint.LINK,
    ObjectPoint.DIR_SYNC,
)
_COLLECTOR_STEPS = (ObjectPoint.DELETE, ObjectPoint.DELETE_SYNC)
# How long a process may take to get to its point, and which of its next moments is struck.
POINT_SECONDS_MAX = 20.0
NTH_MAX = 5
POLL_SECONDS = 0.02
# The S3 server.
START_SECONDS_MAX = 60.0
BUCKET = "holdfast"


def sites_of(role: str, *, is_local: bool) -> list[str]:
    """Return the points that a role reaches."""
    points: dict[str, tuple[StorePoint, ...]] = {
        "writer": _WRITER_POINTS,
        "deleter": _DELETER_POINTS,
        "collector": _COLLECTOR_POINTS,
    }
    steps: dict[str, tuple[ObjectPoint, ...]] = {
        "writer": _WRITER_STEPS,
        "collector": _COLLECTOR_STEPS,
    }
    found = [str(point) for point in points.get(role, ())]
    return found + ([str(step) for step in steps.get(role, ())] if is_local else [])


class _Turns:
    """Every process once, in any order, and then again, so that a few kills strike every role.

    Drawn by chance alone, a dozen kills would often miss a role altogether, and say nothing of it.
    """

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._left: list[str] = []

    def next(self, names: list[str]) -> str:
        """Return whose turn it is."""
        if not self._left:
            self._left = self._dice.sample(names, len(names))
        return self._left.pop()


class StoreProver:
    """All processes over one store, which is in a folder or on S3."""

    def __init__(self, folder: Path, url: str, database: str | None, seed: int) -> None:
        self.last_step = f"{folder.name}: everything is collected and compared"
        self._processes = ProofProcesses(folder, seed)
        self._dice = self._processes.dice
        self._url, self._database, self._seed = url, database, seed
        self._at_random, self._at_points = _Turns(self._dice), _Turns(self._dice)
        self._is_local = "://" not in url
        Store.create(url, database=database, settings=SETTINGS).close()

    def start(self) -> None:
        """Start one process, or two, for every role."""
        for name in ROLES:
            self._start(name)

    def _start(self, name: str, death: Death | None = None) -> None:
        journals = str(self._processes.journals)
        task = StoreTask(ROLES[name], name, self._url, self._database, journals, self._seed)
        self._processes.start(name, "store_victim", task.argument(), death=death)

    def strike_at_random(self) -> str:
        """Kill one of them at a random time; return its role."""
        time.sleep(self._dice.uniform(0.1, 1.0))
        name = self._at_random.next(sorted(ROLES))
        self._processes.kill(name)
        self._start(name)
        return f"{RANDOM}: {ROLES[name]}"

    def strike_at_point(self) -> str | None:
        """Let one die at a named point; None if it did not reach it in time."""
        name = self._at_points.next([name for name, role in ROLES.items() if role != "reader"])
        point = self._dice.choice(sites_of(ROLES[name], is_local=self._is_local))
        self._processes.kill(name)
        self._start(name, Death.at(point, self._dice, NTH_MAX))
        is_reached = self._processes.dies(name, POINT_SECONDS_MAX)
        self._start(name)
        return point if is_reached else None

    def close(self) -> None:
        """Kill every process."""
        self._processes.close()

    def settle(self) -> StoreVerdict:
        """Kill every process, collect what is garbage, and compare.

        What is compared is a store that nobody uses and that was collected to its end: only then
        must everything that is there be referred to, and everything that is referred to be there.
        """
        self.close()
        # The dead still hold their leases.
        time.sleep(LEASE_S)
        patient = replace(SETTINGS, gc=replace(SETTINGS.gc, orphan_grace_s=0.0))
        with Store.open(self._url, database=self._database, settings=patient) as store:
            collector = Collector(store.references, store.objects)
            # A dead holder looks like a slow one: its lease ends when it was not renewed in time.
            while collector.collect().leases_lapsed:
                time.sleep(POLL_SECONDS)
            collector.sweep()
            return check_store(store, self._processes.journals)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set variables while a child is started.

    In this process, too: it opens the same store at the end, through the same libraries.
    """
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def prove_store(options: ProofOptions) -> dict[str, Any]:
    """Kill processes that work on a store, half of them over S3, and check what is left."""
    runner = ProofRunner(options)
    locations = ["folder", *(["s3"] if has_s3_server() else [])]
    verdicts: dict[str, StoreVerdict] = {}
    for number, location in enumerate(locations):
        share = options.kills // len(locations) + (number < options.kills % len(locations))
        with _new_location(options.directory, location) as (url, database):
            prover = StoreProver(options.directory / location, url, database, options.seed)
            seconds = options.seconds / len(locations)
            verdicts[location] = runner.run(prover, share, seconds)
    findings = {
        "missing": sum(v.missing_chunks + v.lost_commits for v in verdicts.values()),
        "leaked": sum(v.leaked_objects + v.leaked_rows for v in verdicts.values()),
        "places": {location: asdict(verdict) for location, verdict in verdicts.items()},
        "without_s3": "s3" not in locations,
    }
    return runner.report("store", all(verdict.ok for verdict in verdicts.values()), findings)


@contextlib.contextmanager
def _new_location(directory: Path, location: str) -> Iterator[tuple[str, str | None]]:
    """Give the url of a new store, and that of its database."""
    if location == "folder":
        yield str(directory / "store"), None
        return
    with running_s3(directory / "s3.log") as variables, _environment(variables):
        yield f"s3://{BUCKET}/store", f"sqlite:///{directory / 's3.sqlite'}"


def has_s3_server() -> bool:
    """Whether there is one to start."""
    return importlib.util.find_spec("moto") is not None


@contextlib.contextmanager
def running_s3(log: Path) -> Iterator[dict[str, str]]:
    """Start a server with one bucket, and give what its clients need in their environment."""
    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        _wait_for(port, log)
        create = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")
        urllib.request.urlopen(create, timeout=START_SECONDS_MAX).close()
        yield {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "prove",
            "AWS_SECRET_ACCESS_KEY": "prove",
            "AWS_REGION": "us-east-1",
        }
    finally:
        server.kill()
        server.wait()


def _wait_for(port: int, log: Path) -> None:
    give_up_s = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < give_up_s:
        if listens(port):
            return
        time.sleep(POLL_SECONDS)
    raise CheckFailed("the S3 server did not start", hint=f"see {log}")
