"""`holdfast up`: a gateway as a process, from its signals to its last line.

    SIGTERM, SIGINT   stop: finish what is received and sent right now, within `drain`
    the same again    stop without draining; what is under way is sent again after the next start
    SIGHUP            read the file again, and apply what can be (graph/reload.py)

With several workers this is what each of them runs; their parent is in supervisor.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast import __version__
from holdfast.dataflow.driver.child import DriverChild
from holdfast.dataflow.driver.wire import DriverFigures, DriverOrders
from holdfast.errors import BadConfig, ConfigFinding, NotInstalled
from holdfast.extras import install_command
from holdfast.graph.control import gateway_verbs, on_loop
from holdfast.graph.loader import Loaded, load
from holdfast.graph.model import Graph
from holdfast.graph.reload import reload
from holdfast.graph.runtime import Gateway
from holdfast.operate import logs
from holdfast.operate.gateway_metrics import driver_records, gateway_records
from holdfast.operate.metrics import Sample
from holdfast.operate.monitoring import end, observed
from holdfast.operate.sd_notify import Notifier
from holdfast.operate.telemetry_metrics import telemetry_records
from holdfast.quiver.engine.control import ControlServer, Verbs, ask, serve
from holdfast.seam import Seam

if TYPE_CHECKING:
    from holdfast.operate.telemetry import OwnTelemetry

# How often `systemctl status` hears something, without a watchdog.
STATUS_S = 10.0

log = logging.getLogger("holdfast.operate")


def worker_directory(data_dir: Path, worker: int) -> Path:
    """Return where a worker listens to tools, when there are several."""
    return data_dir / f"worker-{worker:02d}"


def raise_open_files() -> None:
    """Let this process have as many open files as it may: many shells grant 1024 of far more.

    Every connection is one, and a receiver that has none left takes nothing; nor can the disk be
    written then.
    """
    try:
        import resource
    except ImportError:
        return  # there is no such limit on this system
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def log_warnings(loaded: Loaded) -> None:
    """Log what is odd about a configuration."""
    for found in loaded.warnings:
        log.warning("%s", _text(found))


def _text(found: ConfigFinding) -> str:
    where = f"{found.file}:{found.line}:{found.column}"
    return f"{where}: {found.message}" + (f"; {found.hint}" if found.hint else "")


class GatewayWatch:
    """A gateway as the admin port sees it, what it tells of itself, and the driver beside it."""

    def __init__(self, gateway: Gateway, driver: DriverChild | None = None) -> None:
        self._gateway = gateway
        self._driver = driver
        self.telemetry: OwnTelemetry | None = None

    @property
    def driver_figures(self) -> DriverFigures | None:
        """What the driver of the pipelines reported last."""
        return None if self._driver is None else self._driver.figures

    def verbs(self) -> Verbs:
        """Return what tools may ask for."""
        loop = asyncio.get_running_loop()
        return {**gateway_verbs(self._gateway, loop), "metrics": on_loop(loop, self._metrics)}

    async def _metrics(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return every figure, for the parent of several workers."""
        return {"records": [list(record) for record in await self.records()]}

    async def not_ready(self) -> Sequence[str]:
        """Return why senders should not be sent here."""
        return await self._gateway.not_ready()

    async def records(self) -> Sequence[Sample]:
        """Return every figure."""
        records = gateway_records(await self._gateway.statistics())
        if self.telemetry is not None:
            worker = str(self._gateway.worker)
            records += telemetry_records(self.telemetry.statistics(), worker)
        return (
            records if self._driver is None else [*records, *driver_records(self._driver.figures)]
        )


class Signals:
    """What the operator asked for, by signal.

    Set in handlers and looked at in the loop: a handler must do next to nothing, and a signal that
    comes during a start, a reload or a stop is then neither lost nor served in the middle of it.
    """

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self.reload = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ask_to_stop)
        loop.add_signal_handler(signal.SIGHUP, self.reload.set)

    def ask_to_stop(self) -> None:
        """Stop; if that was asked for already, without draining."""
        if self.stop.is_set():
            self.hurry.set()
        self.stop.set()

    async def next(self) -> str:
        """Return what is asked for next: `stop` or `reload`."""
        waits = {asyncio.ensure_future(e.wait()): e for e in (self.stop, self.reload)}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        # Stop wins if both came: a reload before the end would only delay it.
        if self.stop.is_set():
            return "stop"
        self.reload.clear()
        return "reload"


async def _done_or(task: asyncio.Task[None], event: asyncio.Event) -> None:
    """Wait until a task is done or an event is set, whatever is first."""
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


class GatewayProcess:
    """One gateway, until a signal stops it."""

    def __init__(self, loaded: Loaded, *, worker: int | None = None) -> None:
        self._loaded = loaded
        self._worker = worker
        self._gateway = Gateway(loaded.graph, Seam(), worker=worker or 0)
        # With several workers the parent has it.
        self._driver = driver_of(loaded, self._orders) if worker is None else None
        self._notifier = Notifier({} if worker is not None else None)
        self._watched = watched = GatewayWatch(self._gateway, self._driver)
        watched.telemetry = telemetry_of(
            loaded.graph, worker, watched.records if worker is None else None
        )

    async def run(self) -> None:
        """Start, serve, stop."""
        signals = Signals()
        async with contextlib.AsyncExitStack() as held:
            if self._watched.telemetry is not None:
                await held.enter_async_context(self._watched.telemetry.sending())
            verbs = self._watched.verbs()
            if self._worker is None:
                port = await held.enter_async_context(observed(self._loaded, self._watched))
                verbs = {**verbs, "console": port.console}
            else:
                held.push_async_callback(end, asyncio.create_task(_follow_parent(signals)))
            if not await self._start(signals):
                return
            # However this ends: nothing stays open.
            # The orderly stop is `_stop` below, within `drain`; this one is for errors and does
            # nothing after it.
            held.push_async_callback(self._gateway.stop, 0.0)
            if self._driver is not None:
                self._driver.start()
                held.push_async_callback(self._driver.stop, 0.0)
            control = self._listen_to_tools(verbs)
            if control is not None:
                held.callback(control.close)
            # After everything is imported and open, before the first request: what exists now
            # stays for as long as the process lives.
            leave_alone_what_is_here()
            self._notifier.ready(await self._status())
            log.info("holdfast %s is ready, process %d", __version__, os.getpid())
            if self._notifier.is_heard:
                held.push_async_callback(end, asyncio.create_task(self._tell_status()))
            while await signals.next() == "reload":
                await self._reload()
            await self._stop(signals)

    async def _start(self, signals: Signals) -> bool:
        """Start the gateway; False if a signal stopped it before.

        A start may take long, since it replays the log. It runs in a task so that a signal is
        heard meanwhile; cancelling it cannot interrupt a read from disk, so there is a way out for
        a second signal.
        """
        starting = asyncio.create_task(self._gateway.start())
        await _done_or(starting, signals.stop)
        if starting.done():
            await starting
            return True
        log.info("stopping once stored events are replayed; a second signal stops without waiting")
        starting.cancel()
        await _done_or(starting, signals.hurry)
        if not starting.done():
            # A replay changes nothing: the next start does it again.
            logging.shutdown()
            os._exit(0)
        return False

    def _listen_to_tools(self, verbs: Verbs) -> ControlServer | None:
        """Serve the control socket; of several workers each has one, in its own directory."""
        directory = self._loaded.graph.data_dir
        if self._worker is not None:
            directory = worker_directory(directory, self._worker)
        directory.mkdir(parents=True, exist_ok=True)
        return serve(PurePath(directory), verbs, Seam().clock)

    async def _orders(self) -> DriverOrders:
        url = lineage_url(self._loaded.graph, self._gateway.addresses)
        return DriverOrders(self._loaded.document.file, self._gateway.access, url)

    async def _tell_status(self) -> None:
        while True:
            await asyncio.sleep(self._notifier.watchdog_s or STATUS_S)
            self._notifier.alive(await self._status())

    async def _status(self) -> str:
        lag = await self._gateway.lag_events()
        waiting = ", ".join(f"{count} events wait for {name}" for name, count in lag.items())
        return f"{self._gateway.state}; {waiting or 'no destinations'}"

    async def _reload(self) -> None:
        """Read the file again, and apply what can be applied without a restart.

        A file that is wrong changes nothing: the gateway keeps running with the one it has.
        """
        self._notifier.reloading()
        try:
            flags = self._loaded.flags
            loaded = await asyncio.to_thread(load, self._loaded.document.file, flags=flags)
        except BadConfig as error:
            log.error("not reloaded: %s", error.message)
            for found in error.findings:
                log.error("%s", _text(found))
        else:
            log_warnings(loaded)
            logs.set_level(loaded.graph.settings.logging)
            report = await reload(self._gateway, loaded.graph)
            for what in report.applied:
                log.info("reloaded: %s", what)
            for what in report.needs_restart:
                log.warning("not reloaded, needs a restart: %s", what)
        self._notifier.ready(await self._status())

    async def _stop(self, signals: Signals) -> None:
        """Stop gateway and driver together, within `drain`; a second signal ends the wait."""
        self._notifier.stopping("stopping")
        drain_s = self._gateway.graph.settings.drain
        log.info("stopping, within %g s", drain_s)
        others = [] if self._driver is None else [self._driver.stop(drain_s)]
        stopping = asyncio.create_task(self._gateway.stop(others=others))
        await _done_or(stopping, signals.hurry)
        if not stopping.done():
            log.warning("stopping without draining")
            # What is under way is cut off. It is in the quiver, without an outcome, and is sent
            # again.
            stopping.cancel()
        await asyncio.wait([stopping])
        log.info("stopped; %s", _what_is_left(self._gateway.left_events))


def _what_is_left(events: dict[str, int] | None) -> str:
    """Say how many events each destination has not got; None: they were not counted."""
    if events is None:
        return "what waits is kept for the next start"
    left = ", ".join(f"{name} {count}" for name, count in events.items() if count)
    return f"kept for the next start: {left}" if left else "nothing waits"


async def _follow_parent(signals: Signals) -> None:
    """Stop when the parent is gone: it holds the other end of our standard input."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    with contextlib.suppress(OSError):
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        await reader.read()
        log.warning("the parent process is gone")
        signals.ask_to_stop()


# Containers beyond those that were freed, between two collections; older generations are
# collected every 10th and 100th time, as Python does.
NEW_CONTAINERS = 10_000
SWITCH_S = 0.001
# Of the C library's allocator (mallopt), and from which size on a block is its own mapping.
_M_MMAP_THRESHOLD = -3
OWN_BLOCK_BYTES = 1024 * 1024
# By which an operator chooses Arrow's allocator.
_ARROW_POOL = "ARROW_DEFAULT_MEMORY_POOL"


def suit_a_gateway() -> None:
    """Set how Python collects and switches threads, and where memory goes; before it starts.

    Python looks for cycles whenever there are 700 containers more than were freed, and now and
    then goes through every object of the process. A gateway keeps what it accepted until it is
    sealed, so that this took a seventh of its time, nearly all of it spent on modules that never
    change. A thread that works keeps the interpreter for 5 ms from one that has a packet to read:
    while a segment is sealed, that is the latency of every request.

    glibc learns from large blocks that are freed to keep such blocks, in a heap for each thread:
    after sixteen requests of 4 MB a gateway would keep 150 MB that it never needs again. From
    `OWN_BLOCK_BYTES` on, memory goes back to the system at once. Arrow's own allocator (mimalloc)
    keeps what it had, too: 40 MB after such requests, and 90 MB at their peak. So Arrow takes its
    memory from the C library, like everybody else.
    """
    gc.set_threshold(NEW_CONTAINERS, 10, 10)
    sys.setswitchinterval(SWITCH_S)
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, OWN_BLOCK_BYTES)
    if _ARROW_POOL not in os.environ:
        pa.set_memory_pool(pa.system_memory_pool())


def leave_alone_what_is_here() -> None:
    """Look for garbage once, then never again at what is left: modules, settings, schemas.

    What only the start needed goes back to the system: it lies between what stays, so that the C
    library would keep it.
    """
    gc.collect()
    gc.freeze()
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


# What runs Spark beside a gateway.
DRIVER = (sys.executable, "-m", "holdfast.operate.driver_main")


def driver_of(loaded: Loaded, orders: Callable[[], Awaitable[DriverOrders]]) -> DriverChild | None:
    """Return the driver of a file's pipelines; None if nothing is to be run."""
    settings = loaded.graph.settings
    if not settings.pipelines or not settings.spark.run:
        return None
    if find_spec("pyspark") is None:
        instead = "run them elsewhere with `spark: {run: false}`"
        raise NotInstalled(
            "the file has pipelines, and Spark is not installed",
            hint=f"{install_command('spark')}, or {instead}",
            path=loaded.document.file,
        )
    return DriverChild(settings.spark, orders, DRIVER)


def telemetry_of(
    graph: Graph, worker: int | None, records: Callable[[], Awaitable[Sequence[Sample]]] | None
) -> OwnTelemetry | None:
    """Return what sends our own telemetry; None if nothing is to be sent."""
    if graph.telemetry is None:
        return None
    # Only now: it brings protobuf.
    from holdfast.operate.telemetry import OwnTelemetry

    return OwnTelemetry(graph, worker=worker, records=records)


def lineage_url(graph: Graph, addresses: Mapping[str, Sequence[str]]) -> str | None:
    """Return where the gateway itself takes lineage, if it does."""
    for node in graph.of_kind("receiver"):
        if node.component.type == "openlineage" and addresses.get(node.name):
            return addresses[node.name][0]
    return None


def gateway_lineage_url(config: str) -> str | None:
    """Return where the gateway of a file takes lineage, if it runs."""
    graph = load(config).graph
    status = ask(PurePath(graph.data_dir), "status")
    if status is None:
        return None
    # With several workers their parent answers; they share their ports.
    one = status["workers"][0] if status.get("workers") else status
    return lineage_url(graph, one["addresses"])
