"""A Spark cluster whose driver, master and workers are hosts of their own, with one shared folder.

They reach each other by address only (loopback is each one's own), and see nothing of each other's
files but that folder. So whatever a driver serves to its executors has to be served to other hosts.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest
from tests.dataflow.cluster_functions import FAILING_EVERY
from tests.dataflow.hosts import Hosts, running_hosts, why_not

from holdfast.dataflow.driver.java import spark_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

PATIENCE_S = 800.0
ROWS = 200
WORKERS = ("worker-1", "worker-2")

FILE = """
pipelines:
  counts:
    watermark: {{max_delay: 5s, idle_after: 1h}}
    vertices:
      lines: {{source: {{files: in, columns_are: "key string, number bigint", event_time: at}}}}
      half:
        map:
          python: "tests.dataflow.cluster_functions:halved_the_second_time"
          returns: "key string, half double"
          retry: {{attempts: 1}}
          retry_lane: {{attempts: 3, interval: 1s}}
      tens:
        reduce:
          window: {{fixed: 10s}}
          key: key
          aggregate: {{n: count(*), total: sum(half)}}
      out: {{sink: {{files: "{out}"}}}}
    edges: [lines -> half, half -> tens, tens -> out]
"""


class Cluster:
    """A master and two workers, each on a host of its own."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts = hosts
        self.folder = folder
        self.shared = folder / "shared"
        root = Path(__file__).parents[2]
        home = Path(pyspark.__file__).parent
        self._environ = {
            **os.environ,
            **spark_environment(),
            "SPARK_HOME": str(home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-Dspark.master.rest.enabled=false",
            "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)]),
            "HOLDFAST_TEST_SHARED": str(self.shared),
        }
        self._spark_class = str(home / "bin" / "spark-class")
        self.master = ""

    def start(self) -> None:
        """Start the master, then the workers, and wait until it knows them."""
        self._launch("master", "master.Master", "--port", "7077")
        self.master = self._told("master", r"Starting Spark master at (spark://\S+)")
        for name in WORKERS:
            where = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / "own")]
            self._launch(name, "worker.Worker", *where, self.master)
        for name in WORKERS:
            self._told(name, r"Successfully registered with (master)")

    def _launch(self, host: str, kind: str, *arguments: str) -> None:
        where = ["--host", self.hosts.addresses[host], "--webui-port", "0"]
        command = [self._spark_class, f"org.apache.spark.deploy.{kind}", *where, *arguments]
        self.hosts.run(host, command, self._log(host), self._environ)

    def _told(self, host: str, pattern: str) -> str:
        give_up_s, text = time.monotonic() + PATIENCE_S, ""
        while time.monotonic() < give_up_s:
            text = self._log(host).read_text(errors="replace")
            if found := re.search(pattern, text):
                return found[1]
            assert not self.hosts.is_any_dead(), text[-4000:]
            time.sleep(0.1)
        raise AssertionError(f"{host} did not come up: {text[-4000:]}")

    def drain(self, text: str, state_dir: Path) -> tuple[int, str]:
        """Run a pipeline on the host of the driver; return how that ended, and what it said."""
        own = self.folder / "own"
        config = self.shared / "pipeline.yaml"
        config.write_text(text)
        small = ["spark.executor.memory=512m", "spark.executor.cores=1", "spark.cores.max=2"]
        environ = [
            f"PYTHONPATH={self._environ['PYTHONPATH']}",
            f"HOLDFAST_TEST_SHARED={self.shared}",
        ]
        conf = [*small, *(f"spark.executorEnv.{one}" for one in environ)]
        command = [
            *(sys.executable, "-m", "holdfast", "dataflow", "drain", str(own / "pipeline.yaml")),
            *("--close", "--json", "--master", self.master, "--state-dir", str(state_dir)),
            *(part for one in conf for part in ("--conf", one)),
        ]
        # What it reads is on its own host.
        prepared = f"cp {config} {self.shared}/in.ndjson . && mkdir in && mv in.ndjson in/ && "
        script = prepared + " ".join(f"'{part}'" for part in command)
        process = self.hosts.run("driver", ["sh", "-c", script], self._log("driver"), self._environ)
        code = process.wait(PATIENCE_S)
        self.hosts.forget(process)
        return code, self._log("driver").read_text(errors="replace")

    def executors(self) -> int:
        """Return on how many hosts executors were started."""
        return sum("Asked to launch executor" in self._log(one).read_text() for one in WORKERS)

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("hosts")
    (folder / "own").mkdir()
    (folder / "shared").mkdir()
    with running_hosts(("driver", "master", *WORKERS), folder / "own") as hosts:
        found = Cluster(hosts, folder)
        write_rows(found.shared / "in.ndjson", range(ROWS))
        found.start()
        yield found


def write_rows(path: Path, numbers: Sequence[int]) -> None:
    lines = [
        {"at": f"2026-05-01T10:00:{n // 10:02d}.{n % 10}Z", "key": "abc"[n % 3], "number": n}
        for n in numbers
    ]
    path.write_text("\n".join(map(json.dumps, lines)))


def test_a_cut_a_retry_lane_and_a_files_source_work_over_hosts(cluster: Cluster) -> None:
    out = cluster.shared / "out"
    code, told = cluster.drain(FILE.format(out=out), cluster.shared / "state")
    assert code == 0, told
    assert cluster.executors() == len(WORKERS)
    tables = [pq.read_table(path) for path in out.glob("part-*.parquet")]
    counted: Counter[tuple[str, str]] = Counter()
    for row in (row for table in tables for row in table.to_pylist()):
        counted[f"{row['window_start']:%S}", row["key"]] += row["n"]
    # Ten rows each second, also those that failed at first.
    expected = Counter((f"{n // 100 * 10:02d}", "abc"[n % 3]) for n in range(ROWS))
    assert counted == expected
    failed = {path.name for path in (cluster.shared / "failed").iterdir()}
    assert failed == {str(n) for n in range(0, ROWS, FAILING_EVERY)}


def test_a_state_directory_that_other_hosts_do_not_see_is_refused(cluster: Cluster) -> None:
    text = FILE.format(out=cluster.shared / "never")
    code, told = cluster.drain(text, cluster.folder / "own" / "state")
    assert code == 78
    assert f"does not see {cluster.folder}/own/state/counts as the driver does" in told
    assert not list((cluster.shared / "never").glob("part-*"))
