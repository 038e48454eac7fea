"""A pipeline on a real standalone master, whose two workers reach the quivers over Flight only."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.dataflow.cluster import Cluster, Guard, command, running_cluster
from tests.dataflow.quivers import CONFIG, batch
from tests.support.sessions import run_apart

from holdfast.quiver import Outcome, Quiver
from holdfast.remote import FlightSettings, QuiverServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FILE = """
pipelines:
  counts:
    watermark: {{max_delay: 5s, idle_after: 1h}}
    vertices:
      # A task for each segment: both workers read.
      events: {{source: {{quiver: "{address}", read_limit: {{rows: 200}}, task_bytes: 1}}}}
      even:
        map:
          python: "tests.dataflow.cluster_functions:halved"
          returns: "key string, half double"
      tens:
        reduce:
          window: {{fixed: 10s}}
          key: key
          aggregate: {{n: count(*), total: sum(half)}}
          late: side_output
      out: {{sink: {{files: ./{name}}}}}
      late: {{sink: {{files: ./{name}-late}}}}
    edges: [events -> even, even -> tens, tens -> out, tens.late -> late]
"""
ROWS = 1000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str, dict[str, Quiver]]]:
    """Two quivers with the same rows in ten segments, at one server."""
    folder = tmp_path / "quivers"
    quivers = {name: Quiver.open(folder / name, CONFIG) for name in ("cluster", "local")}
    for quiver in quivers.values():
        for first in range(0, ROWS, 100):
            # Every hundred lags behind the one before by ten seconds at its end: none is late.
            rows = [(0.1 * n, "abc"[n % 3], n) for n in range(first, first + 100)]
            quiver.append(batch(rows))
            quiver.flush()
    with QuiverServer(quivers, FlightSettings(listen="127.0.0.1:0")) as server:
        yield folder, server.location, quivers
    for quiver in quivers.values():
        quiver.close()


def drain(folder: Path, name: str, master: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the pipeline to its end, in a process of its own, as a user would."""
    arguments = ["drain", str(folder / f"{name}.yaml"), "--close", "--json", "--master", master]
    state = ["--state-dir", str(folder / f"{name}-state")]
    return run_apart(command(*arguments, *state, *options))


def results(folder: Path) -> Counter[tuple[object, ...]]:
    tables = [pq.read_table(path) for path in folder.glob("part-*.parquet")]
    return Counter(tuple(row.values()) for table in tables for row in table.to_pylist())


def test_a_cluster_that_reads_over_flight_gives_the_same_results(
    cluster: Cluster, served: tuple[Path, str, dict[str, Quiver]], tmp_path: Path
) -> None:
    folder, location, quivers = served
    for name in quivers:
        text = FILE.format(address=f"{location}/{name}", name=name)
        (tmp_path / f"{name}.yaml").write_text(text)
    guard = Guard(tmp_path / "guard", folder)
    small = ["--conf", "spark.executor.memory=512m", "--conf", "spark.executor.cores=1"]
    ran = drain(tmp_path, "cluster", cluster.master, *small, *guard.settings)
    assert ran.returncode == 0, ran.stderr + cluster.log()
    assert cluster.executors() == 2
    # One on each worker at least: what they could not open they had from the server.
    assert guard.refused() >= 2
    assert drain(tmp_path, "local", "local[2]").returncode == 0
    found = results(tmp_path / "cluster")
    assert found == results(tmp_path / "local")
    assert len(found) == 30
    assert sum(row[3] for row in found) == ROWS  # type: ignore[misc]
    assert results(tmp_path / "cluster-late") == results(tmp_path / "local-late") == Counter()
    for quiver in quivers.values():
        (subscriber,) = quiver.subscribers()
        assert quiver.balance(subscriber).outcomes[Outcome.ACKED].events == ROWS
