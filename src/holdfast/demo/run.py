"""The demo: a gateway between clients of OpenLineage and OpenTelemetry, backends, and Spark.

No configuration, no network but the loopback, a temporary folder. One backend, one data node and
the collector of traces die and return, the gateway itself is killed and restarted, and in the end
the journals of the clients and of all backends are compared with each other, with the ledger, with
the folders of the data nodes, and with what a pipeline counted. Without Spark or Java it runs
without the pipeline, without the extra `otel` without traces.
"""

from __future__ import annotations

import http.client
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import yaml

from holdfast.demo import telemetry
from holdfast.demo.results import PIPELINES, Counting, Keeping, Kept, PipelineView, can_keep
from holdfast.errors import CheckFailed
from holdfast.graph.loader import load
from holdfast.graph.paths import plan
from holdfast.prove.handoff_checker import NodeFolders
from holdfast.prove.journal import UNKNOWN, whole_lines
from holdfast.prove.lineage import run_name_of
from holdfast.prove.runner import free_ports
from holdfast.quiver import Balance, Bundle, Quiver

STEADY, FLAKY = "backend-a", "backend-b"
# Data nodes: each gets everything.
NODES = ("node-a", "node-b")
FLAKY_NODE = NODES[1]
REFRESH_S = 0.1
READY_SECONDS_MAX = 120.0
CATCH_UP_SECONDS_MAX = 120.0
SPARK_SECONDS_MAX = 180.0


@dataclass
class DemoView:
    """What is shown at one moment."""

    step: str = "starting"
    # The admin port of the gateway: its console, and /metrics.
    address: str = ""
    client: str = ""
    accepted: int = 0
    accepted_per_s: float = 0.0
    # By backend: different events that arrived.
    delivered: dict[str, int] = field(default_factory=dict)
    # By data node: events in its parts.
    copied: dict[str, int] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    kills: int = 0
    # Spans: who sends them (empty: it runs without), how many were accepted, and arrived.
    tracer: str = ""
    spans_accepted: int = 0
    spans_delivered: int = 0
    # None: it runs without.
    pipeline: PipelineView | None = None


@dataclass
class DemoReport:
    """How it ended."""

    client: str
    kills: int
    accepted: int
    delivered: dict[str, int]
    # By backend: events that arrived more than once, because they were in flight at a kill.
    repeated: dict[str, int]
    lost: int
    out_of_order: int
    # Arrived although the client got no answer: a kill cut it off.
    unanswered: int
    accounts: list[Balance]
    # By data node: events in its folders, as often as they are there.
    copied: dict[str, int] = field(default_factory=dict)
    # By the pipeline, in windows and late; None: it ran without.
    counted: int | None = None
    # By the pipeline, in windows.
    in_windows: int | None = None
    # What became of the store; None: it ran without.
    kept: Kept | None = None
    # And of the spans.
    spans: telemetry.SpansReport | None = None

    @property
    def is_kept(self) -> bool:
        """Whether the store has what was counted, and gave back what was deleted."""
        if self.kept is None:
            return True
        return self.kept.ok and (self.in_windows or 0) == self.kept.counted

    @property
    def stored(self) -> int:
        """Events in the ledger: what a client sent twice is there twice."""
        return max((one.accepted.events for one in self.accounts), default=0)

    @property
    def ok(self) -> bool:
        """Whether everything accepted arrived everywhere, in order, and the ledger agrees."""
        books = all(one.holds and one.pending.events == 0 for one in self.accounts)
        is_counted = self.counted in (None, self.stored)
        is_copied = all(events == self.stored for events in self.copied.values())
        sound = self.lost == 0 and self.out_of_order == 0 and books and is_counted and self.is_kept
        is_traced = self.spans is None or self.spans.ok
        return sound and is_copied and is_traced and len(self.accounts) > 0


class GrowingJournal:
    """The names in one file of a process that is still writing it.

    Processes tell of themselves by files alone: a file survives the kill of its writer, and what is
    in it was true before the kill.
    """

    def __init__(self, directory: Path, pattern: str) -> None:
        self._directory, self._pattern = directory, pattern

    def names(self) -> list[str]:
        """Return the last word of every line, in order."""
        paths = sorted(self._directory.glob(self._pattern))
        return [line.rpartition(" ")[2] for path in paths for line in whole_lines(path)]


class DemoRun:
    """One run of the demo, step by step."""

    def __init__(
        self,
        directory: Path,
        show: Callable[[DemoView], None],
        seconds_per_step: float,
        *,
        counts: bool,
    ) -> None:
        """`counts`: with a pipeline on Spark."""
        self.view = DemoView(pipeline=PipelineView() if counts else None)
        self._directory = directory
        self._show = show
        self._seconds_per_step = seconds_per_step
        self._port, self._admin, self._otlp_port, self._collector_port, *ports = free_ports(
            6 + len(NODES)
        )
        self.view.address = f"http://127.0.0.1:{self._admin}"
        self._ports = dict(zip((STEADY, FLAKY), ports, strict=False))
        self._node_ports = dict(zip(NODES, ports[2:], strict=True))
        self._traces = telemetry.can_trace()
        self._folders = NodeFolders(run_names_of)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._lives = 0
        self._config = directory / "gateway.yaml"
        self._config.write_text(self._graph_file())
        self._accepted = GrowingJournal(directory, "client.journal")
        self._spans = GrowingJournal(directory, "spans.journal")
        self._collected = GrowingJournal(directory, f"*.{telemetry.COLLECTOR}")
        self._arrived = {name: GrowingJournal(directory, f"*.{name}") for name in self._ports}
        self._counting = Counting(directory, self._config, self._admin)
        self._keeping = Keeping(directory) if can_keep() else None

    def watch(self, show: Callable[[DemoView], None]) -> None:
        """Show what follows somewhere else."""
        self._show = show

    def run(self) -> DemoReport:
        """Take all steps, and compare.

        The clients never stop sending. Whoever dies, dies under load, and comes back to a backlog.
        """
        try:
            self._show(self.view)
            self._begin()
            self._wait_for_spark("Spark starts, too")
            self._step("everything is up")
            self._kill(FLAKY)
            self._kill(FLAKY_NODE)
            victims = [FLAKY, FLAKY_NODE]
            if self._traces:
                self._kill(telemetry.COLLECTOR)
                victims.append(f"the {telemetry.COLLECTOR}")
            flaky = " and ".join((", ".join(victims[:-1]), victims[-1]))
            driver = " and Spark's driver" if self._kill_driver() else ""
            self._step(f"{flaky}{driver} are dead (kill -9); what they miss waits for them")
            self._kill("gateway")
            # Whoever watches should see it dead: clients get no answer, and keep what they have.
            self._step("the gateway is dead, too (kill -9); the clients try again and again")
            self._start_gateway()
            self._step("the gateway is back, and has everything that it had accepted")
            self._start_backend(FLAKY)
            self._start_node(FLAKY_NODE)
            self._start_collector()
            self._step(f"{flaky} are back, and catch up")
            self._wait_for_spark(
                "the driver of the pipeline went with the gateway, and starts again"
            )
            self._count_on()
            self._stop("client")
            if self._traces:
                self._stop("tracer")
            self._wait_until_delivered()
            self._close_pipeline()
            self._stop("gateway")
            self.view.step = "a commit is deleted, and collected"
            self._show(self.view)
            return self._compare()
        finally:
            for child in self._children.values():
                child.kill()
                child.wait()

    def run_on(self) -> None:
        """Start everything again on what is there, and wait until somebody ends it (Ctrl-C)."""
        try:
            self.view.step = "everything runs; Ctrl-C ends it"
            self._begin(fresh=False)
            while True:
                self._look()
                time.sleep(REFRESH_S)
        except KeyboardInterrupt:
            self.view.step = "ended"
        finally:
            for child in self._children.values():
                child.kill()
                child.wait()

    # --------------------------------------------------------------- processes

    def _graph_file(self) -> str:
        """Return the configuration that everybody who tries a gateway would write."""
        exporters = {
            name: {
                "kind": "exporter",
                "type": "http",
                "config": {"url": f"http://127.0.0.1:{port}"},
                "delivery": {"retry_max": "500ms"},
            }
            for name, port in self._ports.items()
        }
        addresses = {name: f"127.0.0.1:{port}" for name, port in self._node_ports.items()}
        copies = {"nodes": addresses, "probe_interval": "500ms"}
        exporters["copies"] = {"kind": "exporter", "type": "nodes", "config": copies}
        listen = {"listen": f"127.0.0.1:{self._port}"}
        nodes = {
            "lineage": {
                "kind": "receiver",
                "type": "openlineage",
                "config": listen,
                "to": ["buffer"],
            },
            "buffer": {
                "kind": "processor",
                "type": "quiver",
                # Sealed soon, so that one sees parts arrive.
                "config": {"segment": {"max_open_duration": "1s"}},
                "to": list(exporters),
            },
            **exporters,
        }
        if self._traces:
            nodes |= telemetry.nodes(self._otlp_port, self._collector_port)
        admin = {"listen": f"127.0.0.1:{self._admin}"}
        whole = {"data_dir": "data", "admin": admin, "nodes": nodes}
        if self.view.pipeline is not None:
            whole["pipelines"] = PIPELINES
        return yaml.safe_dump(whole)

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self._directory / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=log
            )
        self._children[name] = child
        self.view.dead.discard(name)
        return child

    def _begin(self, *, fresh: bool = True) -> None:
        """Start everything, receivers before senders, so that nothing is refused at first."""
        if self._keeping is not None and fresh:
            self._keeping.create()
        for name in NODES:
            self._start_node(name)
        for name in self._ports:
            self._start_backend(name)
        self._start_collector()
        self._start_gateway()
        for name in NODES:
            self._wait_for_word(name)
        url, journal = f"http://127.0.0.1:{self._port}", str(self._directory / "client.journal")
        client = self._start("client", "holdfast.demo.producer", url, journal)
        assert client.stdout is not None
        self.view.client = client.stdout.readline().decode().strip()
        if self._traces:
            target, journal = f"127.0.0.1:{self._otlp_port}", str(self._directory / "spans.journal")
            tracer = self._start("tracer", telemetry.__name__, "client", target, journal)
            assert tracer.stdout is not None
            self.view.tracer = tracer.stdout.readline().decode().strip()

    def _start_backend(self, name: str) -> None:
        self._lives += 1
        journal = str(self._directory / f"{self._lives:02d}.{name}")
        port = str(self._ports[name])
        self._start(name, "holdfast.prove.lineage", "backend", port, journal, "run")
        self._wait_for_word(name)

    def _start_collector(self) -> None:
        if not self._traces:
            return
        self._lives += 1
        name = telemetry.COLLECTOR
        journal = str(self._directory / f"{self._lives:02d}.{name}")
        port = str(self._collector_port)
        self._start(name, telemetry.__name__, "collector", port, journal)
        self._wait_for_word(name)

    def _start_node(self, name: str) -> None:
        """Start a data node; nobody has to wait for it, what it misses is kept."""
        listen = f"127.0.0.1:{self._node_ports[name]}"
        data = str(self._directory / name)
        self._start(name, "holdfast", "node", "--data", data, "--listen", listen, "--min-free", "0")

    def _wait_for_word(self, name: str) -> None:
        """Wait for the first line of a process: it listens."""
        output = self._children[name].stdout
        assert output is not None, "BUG: nobody listens to it"
        if not output.readline():
            raise CheckFailed(f"{name} ended at its start", hint="run `holdfast doctor`")

    def _start_gateway(self) -> None:
        """Start the gateway, and wait until it says that it is ready."""
        child = self._start("gateway", "holdfast", "up", str(self._config))
        deadline_s = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline_s:
            if child.poll() == -signal.SIGKILL:  # by whoever watches
                self.view.kills += 1
                child = self._start("gateway", "holdfast", "up", str(self._config))
            elif child.poll() is not None:
                break
            elif self._is_ready():
                return
            self._show(self.view)
            time.sleep(REFRESH_S / 4)
        log = (self._directory / "gateway.log").read_text(errors="replace")[-2000:]
        raise CheckFailed(f"the gateway did not start: {log}", hint="run `holdfast doctor`")

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._admin, timeout=5)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == http.HTTPStatus.OK
        except OSError:
            return False
        finally:
            connection.close()

    def _kill(self, name: str) -> None:
        self._children[name].kill()
        self._children[name].wait()
        self.view.dead.add(name)
        self.view.kills += 1

    def _kill_driver(self) -> bool:
        """Kill the process in which the gateway runs Spark, if it can be found."""
        if self.view.pipeline is None:
            return False
        process_id = driver_of(self._children["gateway"].pid)
        if process_id is None:
            return False
        os.kill(process_id, signal.SIGKILL)
        self.view.kills += 1
        self.view.pipeline.state = "killed"
        return True

    def _stop(self, name: str) -> None:
        child = self._children[name]
        child.send_signal(signal.SIGTERM)
        code = child.wait(READY_SECONDS_MAX)
        if code not in (0, -signal.SIGTERM):
            log = (self._directory / f"{name}.log").read_text(errors="replace")[-2000:]
            raise CheckFailed(f"{name} ended with {code}: {log}", hint="run `holdfast doctor`")

    # --------------------------------------------------------------------- spark

    def _wait_for_spark(self, step: str) -> None:
        """Wait until the pipeline runs."""
        self._wait_for_pipeline(step, lambda pipeline: pipeline.state == "running")

    def _count_on(self) -> None:
        """Let Spark be seen at work."""
        self._wait_for_pipeline(
            "Spark continues where it was", lambda pipeline: pipeline.watermark is not None
        )
        if self.view.pipeline is not None:
            self._step("Spark counts; its windows follow the watermark")

    def _wait_for_pipeline(self, step: str, is_seen: Callable[[PipelineView], bool]) -> None:
        """Wait for something; if that takes too long, the demo continues without it."""
        self.view.step = step
        deadline_s = time.monotonic() + SPARK_SECONDS_MAX
        pipeline = self.view.pipeline
        while pipeline is not None and not is_seen(pipeline):
            if time.monotonic() > deadline_s:
                return
            self._look()
            time.sleep(REFRESH_S)

    def _close_pipeline(self) -> None:
        if self.view.pipeline is None:
            return
        self.view.step = "drain --close: all windows are written"
        self._look()
        self._counting.close()

    # -------------------------------------------------------------------- steps

    def _step(self, title: str) -> None:
        self.view.step = title
        until_s = time.monotonic() + self._seconds_per_step
        while time.monotonic() < until_s:
            self._look()
            time.sleep(REFRESH_S)

    def _replace_killed(self) -> None:
        """Start again what whoever watches has killed, as a supervisor would."""
        starts: dict[str, Callable[[], None]] = {
            "gateway": self._start_gateway,
            telemetry.COLLECTOR: self._start_collector,
            **{name: partial(self._start_backend, name) for name in self._ports},
            **{name: partial(self._start_node, name) for name in NODES},
        }
        for name, start in starts.items():
            child = self._children.get(name)
            gone = child is not None and child.poll() == -signal.SIGKILL
            if gone and name not in self.view.dead:
                self.view.kills += 1
                start()

    def _look(self) -> None:
        """Take in what all journals say at this moment, and show it."""
        self._replace_killed()
        before = self.view.accepted
        self.view.accepted = len(self._accepted.names())
        self.view.accepted_per_s = (self.view.accepted - before) / REFRESH_S
        self.view.delivered = {
            name: len(set(journal.names())) for name, journal in self._arrived.items()
        }
        self.view.copied = {name: len(self._copied(name)) for name in NODES}
        self.view.spans_accepted = len(self._spans.names())
        self.view.spans_delivered = len(set(self._collected.names()))
        if self.view.pipeline is not None:
            self._counting.look(self.view.pipeline)
        self._show(self.view)

    def _copied(self, node: str) -> list[str]:
        """Return the names of all events in the parts of a data node."""
        parts = self._folders.parts(self._directory / node)
        return [name for part in parts if not isinstance(part, str) for _, name in part.events]

    def _wait_until_delivered(self) -> None:
        """Wait until everybody has all that was accepted; what is missing then is lost."""
        self.view.step = "the clients have stopped; the rest arrives"
        accepted, spans = set(self._accepted.names()), set(self._spans.names())
        deadline_s = time.monotonic() + CATCH_UP_SECONDS_MAX
        while time.monotonic() < deadline_s:
            self._look()
            arrived = [journal.names() for journal in self._arrived.values()]
            are_collected = spans <= set(self._collected.names())
            everywhere = (*arrived, *map(self._copied, NODES))
            if are_collected and all(accepted <= set(names) for names in everywhere):
                return
            time.sleep(REFRESH_S)

    def _compare(self) -> DemoReport:
        """Compare the journals of the client and of both backends, the ledger, and the results."""
        accepted = self._accepted.names()
        arrived = {name: journal.names() for name, journal in self._arrived.items()}
        different = {name: list(dict.fromkeys(names)) for name, names in arrived.items()}
        accounts = self._accounts()
        return DemoReport(
            client=self.view.client,
            kills=self.view.kills,
            accepted=len(accepted),
            delivered={name: len(names) for name, names in different.items()},
            repeated={name: len(arrived[name]) - len(different[name]) for name in arrived},
            lost=sum(len(set(accepted) - set(names)) for names in arrived.values()),
            out_of_order=sum(_out_of_order(accepted, names) for names in different.values()),
            unanswered=len(set(different[STEADY]) - set(accepted)),
            accounts=accounts["buffer"],
            copied={name: len(self._copied(name)) for name in NODES},
            counted=None if self.view.pipeline is None else self._counting.counted(),
            in_windows=None if self.view.pipeline is None else self._counting.in_windows(),
            kept=None if self._keeping is None else self._keeping.finish(),
            spans=self._compare_spans(*accounts[telemetry.QUIVER]) if self._traces else None,
        )

    def _accounts(self) -> dict[str, list[Balance]]:
        """Return what the ledger says of every subscriber, by quiver."""
        found = {}
        for one in plan(load(self._config).graph):
            (core,) = one.directory.glob("core-*")
            with Quiver.open(core) as quiver:
                found[one.name] = [quiver.balance(name) for name in quiver.subscribers()]
        return found

    def _compare_spans(self, account: Balance) -> telemetry.SpansReport:
        accepted, arrived = self._spans.names(), self._collected.names()
        return telemetry.SpansReport(
            client=self.view.tracer,
            accepted=len(accepted),
            delivered=len(set(arrived)),
            lost=len(set(accepted) - set(arrived)),
            repeated=len(arrived) - len(set(arrived)),
            account=account,
        )


def driver_of(gateway: int, processes: Path = Path("/proc")) -> int | None:
    """Return the process that runs the pipelines of a gateway; None where nobody can say."""
    for process in processes.glob("[0-9]*"):
        try:
            # The second word is the name in brackets, which may have spaces in it.
            parent = process.joinpath("stat").read_text().rpartition(")")[2].split()[1]
            words = process.joinpath("cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it ended just now
        if int(parent) == gateway and b"holdfast.operate.driver_main" in words:
            return int(process.name)
    return None


def run_names_of(bundle: Bundle) -> list[str]:
    """Return the names of a bundle's events, as the client wrote them down."""
    return [
        run_name_of(payload) or UNKNOWN
        for batch in bundle.slots.values()
        for payload in batch.column("payload").to_pylist()
    ]


def _out_of_order(accepted: list[str], arrived: list[str]) -> int:
    """Return how many events arrived before one that was accepted earlier."""
    places = {name: place for place, name in enumerate(accepted)}
    order = [places[name] for name in arrived if name in places]
    return sum(later < earlier for earlier, later in itertools.pairwise(order))
