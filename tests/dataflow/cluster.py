"""A real standalone Spark: a master and two workers, each a process of its own on loopback.

Beside them, what makes sure that workers read over Flight: every Python process of a query gets a
`sitecustomize` that refuses to open anything below a folder, and notes that it did.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.patience import SPARK_PATIENCE_S

from holdfast.dataflow.driver.java import spark_environment

WORKERS = 2
STOP_PATIENCE_S = 20.0
# On these machines; an executor has one core and half a gigabyte.
_MEMORY = "1g"

_GUARD = """
import os
import sys

FORBIDDEN, NOTES = {forbidden!r}, {notes!r}


def guard(event, arguments):
    if event != "open" or not isinstance(arguments[0], str):
        return
    if os.path.abspath(arguments[0]).startswith(FORBIDDEN):
        os.makedirs(os.path.join(NOTES, str(os.getpid())), exist_ok=True)
        raise PermissionError(13, "may not be read", arguments[0])


sys.addaudithook(guard)
"""


class Cluster:
    """A master that two workers have registered with."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master = ""

    def start(self) -> None:
        """Start the master, then the workers, and wait until it knows them."""
        self._launch("master", "master.Master")
        self.master = self._told("master", r"Starting Spark master at (spark://\S+)")
        for number in range(WORKERS):
            work_dir = self._folder / f"work-{number}"
            work_dir.mkdir()
            options = ["--cores", "1", "--memory", _MEMORY, "--work-dir", str(work_dir)]
            self._launch(f"worker-{number}", "worker.Worker", *options, self.master)
        for number in range(WORKERS):
            self._told(f"worker-{number}", r"Successfully registered with (master)")

    def _launch(self, name: str, kind: str, *arguments: str) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        environ = {**os.environ, **spark_environment(), "SPARK_HOME": str(home)}
        environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
        # Its port would be fixed.
        environ["SPARK_DAEMON_JAVA_OPTS"] = "-Dspark.master.rest.enabled=false"
        where = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
        with open(self._folder / f"{name}.log", "wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [*command, *where, *arguments],
                    cwd=self._folder,
                    env=environ,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _told(self, name: str, pattern: str) -> str:
        """Wait until a process has logged something; return what was asked for of it."""
        give_up_s, text = time.monotonic() + SPARK_PATIENCE_S, ""
        while time.monotonic() < give_up_s:
            text = (self._folder / f"{name}.log").read_text(errors="replace")
            if found := re.search(pattern, text):
                return found[1]
            assert all(one.poll() is None for one in self._processes), text[-4000:]
            time.sleep(0.1)
        raise AssertionError(f"{name} did not come up: {text[-4000:]}")

    def executors(self) -> int:
        """Return on how many workers executors were started."""
        logs = [(self._folder / f"worker-{n}.log").read_text() for n in range(WORKERS)]
        return sum("Asked to launch executor" in log for log in logs)

    def log(self) -> str:
        """Return the end of what everybody logged, executors included."""
        paths = [*self._folder.glob("*.log"), *self._folder.glob("work-*/*/*/stderr")]
        return "\n".join(f"== {path}\n{path.read_text(errors='replace')[-2000:]}" for path in paths)

    def stop(self) -> None:
        """End everybody: workers end their executors, or all of them are killed."""
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self._processes):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_PATIENCE_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Have a cluster for a while."""
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


class Guard:
    """Lets no Python process of a query open anything below a folder, as if it were another user.

    Whoever runs the tests may be root, whom file modes do not stop.
    """

    def __init__(self, folder: Path, forbidden: Path) -> None:
        self._notes = folder / "notes"
        self._notes.mkdir(parents=True)
        code = _GUARD.format(forbidden=f"{forbidden}/", notes=str(self._notes))
        (folder / "sitecustomize.py").write_text(code)
        root = Path(__file__).parents[2]
        paths = [str(folder), str(root / "src"), str(root)]
        self.settings = ["--conf", f"spark.executorEnv.PYTHONPATH={os.pathsep.join(paths)}"]

    def refused(self) -> int:
        """Return how many processes tried to."""
        return len(list(self._notes.iterdir()))


def command(*arguments: str) -> list[str]:
    """Return a command line of `holdfast dataflow`."""
    return [sys.executable, "-m", "holdfast", "dataflow", *arguments]
