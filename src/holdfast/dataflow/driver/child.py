"""The gateway's side of the driver process: starts it, starts it again, reads it, and ends it.

The process leads a session of its own, so that a Ctrl-C is not for it, and so that everything it
started can be found when it has ended (`end_session`): its Java process, and the workers which that
one started. None of them leaves the session; Spark's Python workers have a process group of their
own, but not a session. So nothing is left behind, whichever process was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace

from holdfast.dataflow.driver.settings import SparkSettings
from holdfast.dataflow.driver.wire import DriverFigures, DriverOrders, decode_figures
from holdfast.errors import HoldfastError

# A longer line of its log is cut.
LINE_BYTES_MAX = 256 * 1024
# A stop that hurries still lets the driver acknowledge its last batch.
HURRY_S = 2.0
# How often to check whether the driver runs.
POLL_S = 0.1
# A driver reports every second, but not while its Spark starts, which may take long on a cluster.
# One that is silent for longer than this hangs, and is replaced.
SILENCE_PATIENCE_S = 1800.0
# For it to write down what its threads do.
STACKS_PATIENCE_S = 1.0
# For what is left in the pipes of a driver that has ended.
PIPES_PATIENCE_S = 10.0
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
# What Java and Spark say at every start.
_USUAL = (
    "WARNING: ",
    "Setting default log level",
    "To adjust logging level",
    "Using Spark's",
    "WARN NativeCodeLoader",
)

log = logging.getLogger("holdfast.pipelines")


class DriverChild:
    """Keeps one driver process going until it is stopped."""

    def __init__(
        self,
        settings: SparkSettings,
        orders: Callable[[], Awaitable[DriverOrders]],
        command: Sequence[str],
    ) -> None:
        self._command = command
        self._settings = settings
        self._orders = orders
        self._figures = DriverFigures()
        self._process: Process | None = None
        # When it last reported, by the clock of the loop.
        self._reported_s = 0.0
        self._stopping = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; nothing waits for Spark."""
        self._keeping = asyncio.create_task(self._keep())

    @property
    def figures(self) -> DriverFigures:
        """What it reported last."""
        process = self._process
        is_running = process is not None and process.returncode is None
        return replace(self._figures, is_running=is_running)

    async def stop(self, patience_s: float) -> None:
        """End it: orderly within a time, then with everything it started."""
        self._stopping.set()
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        if self._keeping is None:
            return
        try:
            await asyncio.wait([self._keeping], timeout=max(patience_s, HURRY_S))
        finally:
            if not self._keeping.done() and self._process is not None:
                log.warning("the driver of the pipelines did not end: killing it")
                end_session(self._process.pid)
        await asyncio.wait([self._keeping])

    # ------------------------------------------------------------------ keeping

    async def _keep(self) -> None:
        """Start the process whenever it ends, after a pause that doubles, until it is stopped.

        Exit code 0 means that all pipelines have ended for good. Anything else is worth a restart,
        even if it could not be started at all: disk space or memory may be free again in a minute.
        """
        loop = asyncio.get_running_loop()
        pause_s = self._settings.restart_min
        while not self._stopping.is_set():
            began_s = loop.time()
            try:
                code = await self._live()
            except (OSError, HoldfastError) as error:
                log.error("the driver of the pipelines could not be started: %s", error)
                code = -1
            if self._stopping.is_set():
                return
            if code == 0:
                log.info("all pipelines have ended")
                return
            if loop.time() - began_s >= self._settings.restart_max:
                pause_s = self._settings.restart_min
            log.error("the driver of pipelines exited with %d; restarting in %g s", code, pause_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
            pause_s = min(2 * pause_s, self._settings.restart_max)

    async def _live(self) -> int:
        """Start the process, and read it to its end."""
        orders = await self._ordered()
        if orders is None:
            return 0
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
        self._process = process
        self._figures = replace(self._figures, starts_total=self._figures.starts_total + 1)
        try:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.write(orders.encode())
                await process.stdin.drain()
            if self._stopping.is_set():
                process.terminate()
            reading = asyncio.gather(self._read_figures(process), self._read_log(process))
            code = await self._ended(process)
            # Whatever is left of its session would keep the pipes open.
            end_session(process.pid)
            await _read_out(reading)
            return code
        finally:
            end_session(process.pid)
            # All three pipes. One that another process holds would stay open here, too, and asyncio
            # has no public name for closing it.
            process._transport.close()  # type: ignore[attr-defined]

    async def _ended(self, process: Process) -> int:
        """Return how a process ended; kill one that has fallen silent.

        `Process.wait` waits for its pipes, too, and Java may hold those.
        """
        loop = asyncio.get_running_loop()
        self._reported_s = loop.time()
        while process.returncode is None:
            await asyncio.sleep(POLL_S)
            if loop.time() - self._reported_s > SILENCE_PATIENCE_S:
                log.error(
                    "the driver of the pipelines has reported nothing for %g s: killing it",
                    SILENCE_PATIENCE_S,
                )
                await self._ask_for_stacks(process)
                end_session(process.pid)
                self._reported_s = loop.time()
        return process.returncode

    async def _ask_for_stacks(self, process: Process) -> None:
        """Let it write down in its log what it does, if it still can."""
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGUSR2)
        await asyncio.sleep(STACKS_PATIENCE_S)

    async def _ordered(self) -> DriverOrders | None:
        """Return the orders, when they are known; None if it is to stop before."""
        asking = asyncio.ensure_future(self._orders())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait([asking, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not asking.done():
            asking.cancel()
            return None
        return await asking

    async def _read_figures(self, process: Process) -> None:
        """Take in what the driver reports; any line shows that it is alive, even an unknown one."""
        assert process.stdout is not None
        async for line in _lines(process.stdout):
            self._reported_s = asyncio.get_running_loop().time()
            with contextlib.suppress(ValueError, TypeError, KeyError):
                self._figures = replace(self._figures, pipelines=decode_figures(line))

    async def _read_log(self, process: Process) -> None:
        """Log what the driver logs, with its own severity."""
        assert process.stderr is not None
        async for line in _lines(process.stderr):
            level, message = _parsed_log(line)
            if message:
                log.log(level, "%s", message)


async def _read_out(reading: asyncio.Future[tuple[None, None]]) -> None:
    """Read what is left in the pipes; a process that left the session may keep them open."""
    _, late = await asyncio.wait([reading], timeout=PIPES_PATIENCE_S)
    if late:
        log.warning("a process that a pipeline started still holds the driver's output")
        reading.cancel()
        await asyncio.wait([reading])


def _parsed_log(line: bytes) -> tuple[int, str]:
    """Return severity and text of a line: ours are JSON, those of Java and Spark are not."""
    text = line.decode("utf-8", "replace").strip()
    try:
        fields = json.loads(text)
        return _LEVELS.get(fields["level"], logging.INFO), str(fields["message"])
    except (ValueError, TypeError, KeyError):
        is_usual = any(usual in text for usual in _USUAL)
        return (logging.DEBUG if is_usual else logging.INFO), text and f"spark: {text}"


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield lines, the beginning of those that are too long."""
    waiting = b""
    while chunk := await stream.read(64 * 1024):
        *whole, waiting = (waiting + chunk).split(b"\n")
        for line in whole:
            yield line
        waiting = waiting[:LINE_BYTES_MAX]
    if waiting:
        yield waiting


def end_session(session: int) -> int:
    """Kill every process of a session but the own one, also those whose parent is gone."""
    mine, killed = os.getpid(), 0
    for pid in _processes():
        if pid != mine and _session_of(pid) == session:
            try:
                os.kill(pid, signal.SIGKILL)
                killed += 1
            except (ProcessLookupError, PermissionError):
                continue
    return killed


def end_own_session() -> None:
    """Kill everything that this process started, if it leads a session."""
    if os.getsid(0) == os.getpid():
        end_session(os.getpid())


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except FileNotFoundError:
        return []  # not Linux: the Java process ends with its standard input


def _session_of(pid: int) -> int | None:
    """Return the session of a process; None if it has ended, or is another user's."""
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None
