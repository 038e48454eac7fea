"""Several workers: one parent that starts them, restarts them, and speaks for all of them.

Every worker is a whole gateway in a process of its own, on the same ports (the kernel spreads
connections over them) and with a quiver of its own. The parent serves the admin port and the
control socket by asking the workers over theirs. A worker that exits is restarted after a pause
that grows; one that reports a wrong configuration stops them all. A worker stops when its parent is
gone: the parent holds the other end of its standard input.

The parent does no work of its own that could fail: it holds no quiver, no connection and no event.
So it hardly ever has a reason to die, and a worker that does takes nothing with it but its share
of the connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from holdfast import __version__
from holdfast.dataflow.driver.child import DriverChild
from holdfast.dataflow.driver.wire import Access, DriverFigures, DriverOrders
from holdfast.deliver.redrive import VERB as REPLAY_VERB
from holdfast.errors import BadConfig, BadInput, HoldfastError
from holdfast.graph.control import REPLAY_ANSWER_S, SKIP_ANSWER_S, SKIP_VERB
from holdfast.graph.loader import Loaded
from holdfast.graph.serving import ACCESS_VERB
from holdfast.handoff.control import ANSWER_S as HANDOFF_ANSWER_S
from holdfast.handoff.control import VERB as HANDOFF_VERB
from holdfast.operate.gateway_metrics import driver_records
from holdfast.operate.metrics import Sample
from holdfast.operate.monitoring import end, observed
from holdfast.operate.sd_notify import Notifier
from holdfast.operate.telemetry_metrics import telemetry_records
from holdfast.operate.up import (
    STATUS_S,
    Signals,
    driver_of,
    lineage_url,
    telemetry_of,
    worker_directory,
)
from holdfast.quiver.engine.control import Verbs, ask, serve
from holdfast.seam.clock import RealClock

if TYPE_CHECKING:
    from holdfast.operate.telemetry import OwnTelemetry

# Before a worker that exited is restarted: doubles from the first to the second, and is the first
# again for one that ran this long.
RESTART_MIN_S = 0.5
RESTART_MAX_S = 30.0
STEADY_S = 60.0
# How long workers have, beyond `drain`, before they are killed.
GRACE_S = 10.0
# How long one worker may take to answer, and how often the parent asks whether all are ready.
ANSWER_S = 15.0
POLL_S = 0.2

log = logging.getLogger("holdfast.operate")


class Workers:
    """The workers as tools and the admin port see them: one gateway."""

    def __init__(self, data_dir: Path, count: int) -> None:
        self._directories = [PurePath(worker_directory(data_dir, n)) for n in range(count)]
        # What runs pipelines over the quivers of all workers.
        self.driver: DriverChild | None = None
        # What the parent tells of itself.
        self.telemetry: OwnTelemetry | None = None

    @property
    def driver_figures(self) -> DriverFigures | None:
        """What the driver of the pipelines reported last."""
        return None if self.driver is None else self.driver.figures

    def ask_one(
        self, worker: int, verb: str, *, timeout_s: float = ANSWER_S, **fields: Any
    ) -> dict[str, Any]:
        """Ask one worker; raises what it answers, or that it is not there."""
        answer = ask(self._directories[worker], verb, timeout_s=timeout_s, **fields)
        if answer is None:
            raise BadInput(f"worker {worker} is not running", hint="try again in a moment")
        return answer

    def ask_all(self, verb: str, **fields: Any) -> list[dict[str, Any]]:
        """Ask every worker."""
        return [self.ask_one(n, verb, **fields) for n in range(len(self._directories))]

    async def not_ready(self) -> Sequence[str]:
        """Return why senders should not be sent here: one worker is enough to be one."""
        return await asyncio.to_thread(self._not_ready)

    def _not_ready(self) -> list[str]:
        """Ask each worker; one that does not answer is a reason, too.

        All must be ready: the kernel spreads connections over the workers without asking which of
        them can take one.
        """
        reasons = []
        for number in range(len(self._directories)):
            try:
                found = self.ask_one(number, "status")["reasons"]
            except HoldfastError as error:
                found = [error.message]
            reasons += [f"worker {number}: {reason}" for reason in found]
        return reasons

    async def records(self) -> Sequence[Sample]:
        """Return every figure of all workers that answer, and of the driver beside them."""
        records = await asyncio.to_thread(self._records)
        if self.telemetry is not None:
            records += telemetry_records(self.telemetry.statistics(), "parent")
        return records if self.driver is None else [*records, *driver_records(self.driver.figures)]

    def _records(self) -> list[Sample]:
        """Return the figures of the workers that answer: one that restarts hides no others."""
        found: list[Sample] = []
        for number in range(len(self._directories)):
            with contextlib.suppress(HoldfastError):
                answers = self.ask_one(number, "metrics")["records"]
                found += [Sample(*record) for record in answers]
        return found

    def verbs(self) -> Verbs:
        """Return what the parent does on request: ask the workers."""
        return {
            "ping": lambda request: {"process": os.getpid(), "workers": len(self._directories)},
            "status": self._status,
            "metrics": lambda request: {"records": [list(record) for record in self._records()]},
            "pause": lambda request: self._to_all("pause", request),
            "resume": lambda request: self._to_all("resume", request),
            SKIP_VERB: lambda request: self._to_one(SKIP_VERB, request, SKIP_ANSWER_S),
            "tap": self._tap,
            ACCESS_VERB: self._access,
            REPLAY_VERB: lambda request: self._to_one(REPLAY_VERB, request, REPLAY_ANSWER_S),
            HANDOFF_VERB: self._handoff,
        }

    def access(self) -> Access | None:
        """Return how the quivers of all workers are reached; None if they are not served."""
        answers = [one["access"] for one in self.ask_all(ACCESS_VERB)]
        found = [Access.from_fields(one) for one in answers if one is not None]
        return functools.reduce(Access.joined, found) if found else None

    def _access(self, request: dict[str, Any]) -> dict[str, Any]:
        access = self.access()
        return {"access": None if access is None else access.to_fields()}

    def _to_all(self, verb: str, request: dict[str, Any]) -> dict[str, Any]:
        self.ask_all(verb, **_fields(request))
        return {}

    def _status(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer with the state of every worker that can be asked."""
        reasons = self._not_ready()
        workers = []
        for number in range(len(self._directories)):
            with contextlib.suppress(HoldfastError):
                workers.append(self.ask_one(number, "status"))
        return {
            "process": os.getpid(),
            "ready": not reasons,
            "reasons": reasons,
            "workers": workers,
        }

    def _tap(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return what passed since the last call in all workers; `next` has a position for each."""
        fields = _fields(request)
        after = fields.pop("after", None) or {}
        if not isinstance(after, dict):
            raise BadInput("`after` is not what a tap gave", hint="send `next` of the last answer")
        answers = {
            str(number): self.ask_one(number, "tap", after=after.get(str(number), 0), **fields)
            for number in range(len(self._directories))
        }
        events = [
            {"worker": int(n), **event} for n, one in answers.items() for event in one["events"]
        ]
        return {
            "passed": sum(one["passed"] for one in answers.values()),
            "events": events,
            "next": {number: one["next"] for number, one in answers.items()},
        }

    def _handoff(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the records of one worker's senders, or of all; a rate is divided among them."""
        fields = _fields(request)
        count = len(self._directories)
        workers = [self._chosen(fields.pop("worker"))] if "worker" in fields else range(count)
        if fields.get("action") == "rate" and isinstance(fields.get("bytes_s"), int | float):
            fields["bytes_s"] /= count
        answers = {
            number: self.ask_one(number, HANDOFF_VERB, timeout_s=HANDOFF_ANSWER_S, **fields)
            for number in workers
        }
        return {
            "records": [
                {"worker": n, **record} for n, one in answers.items() for record in one["records"]
            ],
            "left_out": sum(one["left_out"] for one in answers.values()),
        }

    def _to_one(self, verb: str, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Ask the worker that `worker` names: its events and dead letters are nowhere else."""
        fields = _fields(request)
        worker = self._chosen(fields.pop("worker", 0))
        return self.ask_one(worker, verb, timeout_s=timeout_s, **fields)

    def _chosen(self, worker: object) -> int:
        if not isinstance(worker, int) or not 0 <= worker < len(self._directories):
            hint = f"use 0 to {len(self._directories) - 1}"
            raise BadInput(f"there is no worker {worker!r}"[:200], hint=hint)
        return worker


def _fields(request: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in request.items() if name not in ("verb", "timeout_s")}


class Supervisor:
    """The parent of all workers."""

    def __init__(self, loaded: Loaded, options: Sequence[str] = ()) -> None:
        """Run the workers of a graph; `options` are given to each of them, too."""
        self._loaded = loaded
        self._options = options
        self._count = loaded.graph.settings.workers
        self._workers = Workers(loaded.graph.data_dir, self._count)
        self._driver = self._workers.driver = driver_of(loaded, self._orders)
        # Metrics of all workers, and what the parent logs; what workers log they send themselves.
        self._telemetry = self._workers.telemetry = telemetry_of(
            loaded.graph, None, self._workers.records
        )
        self._processes: dict[int, Process] = {}
        self._notifier = Notifier()
        # Set when all workers were, once.
        self._are_ready = asyncio.Event()
        self._failure: int | None = None

    async def run(self) -> None:
        """Start the workers, and restart those that exit, until a signal asks to stop."""
        signals = Signals()
        for number in range(self._count):
            directory = worker_directory(self._loaded.graph.data_dir, number)
            directory.mkdir(parents=True, exist_ok=True)
        async with contextlib.AsyncExitStack() as held:
            if self._telemetry is not None:
                await held.enter_async_context(self._telemetry.sending())
            port = await held.enter_async_context(observed(self._loaded, self._workers))
            root = PurePath(self._loaded.graph.data_dir)
            verbs = {**self._workers.verbs(), "console": port.console}
            control = serve(root, verbs, RealClock())
            if control is not None:
                held.callback(control.close)
            keepers = [asyncio.create_task(self._keep(n, signals)) for n in range(self._count)]
            telling = asyncio.create_task(self._tell_status())
            held.push_async_callback(end, telling)
            if self._driver is not None:
                self._driver.start()
                held.push_async_callback(self._driver.stop, 0.0)
            while await signals.next() == "reload":
                self._notifier.reloading()
                self._send(signal.SIGHUP)
                self._notifier.ready(f"{self._count} workers")
            await self._stop(signals, keepers)
        if self._failure is not None:
            raise BadConfig("a worker could not start", hint="its own lines in the log say why")

    async def _orders(self) -> DriverOrders:
        """Return the orders of the driver, when all workers can be asked.

        The driver is started with addresses of every worker's quiver, so it has to wait for all of
        them once.
        """
        await self._are_ready.wait()
        access = await asyncio.to_thread(self._workers.access)
        addresses = await asyncio.to_thread(self._workers.ask_one, 0, "status")
        url = lineage_url(self._loaded.graph, addresses["addresses"])
        return DriverOrders(self._loaded.document.file, access, url)

    async def _keep(self, number: int, signals: Signals) -> None:
        """Run one worker, again and again."""
        loop = asyncio.get_running_loop()
        pause_s = RESTART_MIN_S
        while not signals.stop.is_set():
            started_s = loop.time()
            process = self._processes[number] = await self._spawn(number)
            code = await process.wait()
            if process.stdin is not None:
                process.stdin.close()
            if signals.stop.is_set():
                return
            # Restarting does not help, and the others read the same file: better an error that a
            # service manager sees than workers that come and go.
            if code == BadConfig.exit_code:
                self._failure = code
                signals.ask_to_stop()
                return
            if loop.time() - started_s >= STEADY_S:
                pause_s = RESTART_MIN_S
            log.error("worker %d exited with %d; restarting it in %g s", number, code, pause_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await signals.stop.wait()
            # A worker that dies young may do so because of what is on its disk. Restarting it at
            # once, for ever, would keep a core busy and fill the log.
            pause_s = min(2 * pause_s, RESTART_MAX_S)

    async def _spawn(self, number: int) -> Process:
        """Start a worker. Its standard input is a pipe, which ends when the parent dies.

        The parent alone talks to systemd, so that the worker does not get its socket.
        """
        environment = {n: value for n, value in os.environ.items() if n != "NOTIFY_SOCKET"}
        if self._telemetry is not None:
            environment[self._telemetry.INSTANCE_VARIABLE] = self._telemetry.instance_id
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "holdfast",
            "up",
            self._loaded.document.file,
            "--worker",
            str(number),
            *self._options,
            stdin=PIPE,
            env=environment,
        )

    async def _tell_status(self) -> None:
        """Report readiness once, when all workers have it, and then the status at an interval."""
        while reasons := await self._workers.not_ready():
            log.debug("not ready: %s", "; ".join(reasons))
            await asyncio.sleep(POLL_S)
        self._are_ready.set()
        self._notifier.ready(f"{self._count} workers")
        log.info("holdfast %s is ready, process %d", __version__, os.getpid())
        while True:
            await asyncio.sleep(self._notifier.watchdog_s or STATUS_S)
            reasons = await self._workers.not_ready()
            self._notifier.alive("; ".join(reasons) or f"{self._count} workers")

    async def _stop(self, signals: Signals, keepers: Sequence[asyncio.Task[None]]) -> None:
        """Stop the driver, then the workers; kill those that do not end in time.

        The workers get `drain` and a grace period. A second signal is passed on to them: they stop
        without draining then.
        """
        self._notifier.stopping("stopping")
        # First, with a share of the time: batches under way still need the workers' quivers to
        # commit.
        await self._stop_driver(signals)
        self._send(signal.SIGTERM)
        hurrying = asyncio.create_task(signals.hurry.wait())
        everyone = asyncio.ensure_future(_finished(keepers))
        timeout_s = self._loaded.graph.settings.drain + GRACE_S
        await asyncio.wait(
            [everyone, hurrying], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        if not everyone.done() and signals.hurry.is_set():
            self._send(signal.SIGTERM)  # the second one: without draining
            await asyncio.wait([everyone], timeout=GRACE_S)
        if not everyone.done():
            log.error("a worker does not stop; killing it")
            self._send(signal.SIGKILL)
            await everyone
        hurrying.cancel()

    async def _stop_driver(self, signals: Signals) -> None:
        """Stop what reads the workers' quivers before they go."""
        if self._driver is None:
            return
        stopping = asyncio.create_task(self._driver.stop(self._loaded.graph.settings.drain))
        hurrying = asyncio.create_task(signals.hurry.wait())
        await asyncio.wait([stopping, hurrying], return_when=asyncio.FIRST_COMPLETED)
        hurrying.cancel()
        if not stopping.done():
            await self._driver.stop(0.0)
        await stopping

    def _send(self, number: signal.Signals) -> None:
        """Send a signal to every worker that runs."""
        for process in self._processes.values():
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(number)


async def _finished(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)
