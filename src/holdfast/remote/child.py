"""The owner's side of the serving process: starts it, starts it again, and ends it.

A thread waits for the process. When it ends unasked (a crash, the kernel's memory killer) it is
started again, after a pause that doubles with every failure and starts over once the process has
lived for the longest pause. It gets its old port if that is still free, so that most clients need
not ask for it again.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from dataclasses import replace

from holdfast.errors import OwnerGone
from holdfast.remote.orders import ServedQuivers
from holdfast.seam.clock import Clock

# For a machine that is busy with something else; the process is then started again.
START_PATIENCE_S = 60.0
# After its stdin was closed; then it is killed.
STOP_PATIENCE_S = 5.0

log = logging.getLogger("holdfast.remote")


class ReaderProcess:
    """Keeps one serving process alive."""

    def __init__(
        self, orders: ServedQuivers, clock: Clock, restart_min_s: float, restart_max_s: float
    ) -> None:
        self._orders = orders
        self._wanted_port = orders.port
        self._clock = clock
        self._restart_min_s = restart_min_s
        self._restart_max_s = restart_max_s
        self._changed = threading.Condition()
        self._process: subprocess.Popen[bytes] | None = None
        self._port: int | None = None
        self._stopping = False
        self.starts = 0
        self._thread = threading.Thread(target=self._run, name="flight-reader", daemon=True)

    @property
    def pid(self) -> int | None:
        """The process that serves now, if there is one."""
        process = self._process
        return None if process is None else process.pid

    def start(self) -> None:
        """Start it, and wait until it serves."""
        self._thread.start()
        self.port()

    def port(self, patience_s: float = START_PATIENCE_S) -> int:
        """Return where it serves; waits while it is being started."""
        deadline_s = self._clock.monotonic_s() + patience_s
        with self._changed:
            while self._port is None and not self._stopping:
                remaining_s = deadline_s - self._clock.monotonic_s()
                if remaining_s <= 0:
                    break
                self._changed.wait(remaining_s)
            if self._port is None:
                raise OwnerGone(
                    "the process that serves sealed data is not running",
                    hint="it is started again by itself; the owner's log tells why it ended",
                )
            return self._port

    def stop(self) -> None:
        """End it for good."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.close()  # it sees that, and ends
        if self._thread.is_alive():
            self._thread.join()

    # ------------------------------------------------------------------- thread

    def _run(self) -> None:
        pause_s = self._restart_min_s
        while not self._stopping:
            began_s = self._clock.monotonic_s()
            self._live()
            if self._clock.monotonic_s() - began_s >= self._restart_max_s:
                pause_s = self._restart_min_s
            with self._changed:
                if not self._stopping:
                    self._changed.wait(pause_s)
            pause_s = min(2 * pause_s, self._restart_max_s)

    def _live(self) -> None:
        """Start the process and wait for its end."""
        command = [sys.executable, "-m", "holdfast.remote.reader_process"]
        with self._changed:
            if self._stopping:
                return
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe)
            self._process = process
            self.starts += 1
        try:
            self._instruct(process)
            status = self._wait(process)
        finally:
            with self._changed:
                self._process, self._port = None, None
            with process:  # closes its pipes
                process.kill()
        if not self._stopping:
            log.warning("the process that serves sealed data ended with status %s", status)

    def _instruct(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        overdue = threading.Timer(START_PATIENCE_S, process.kill)
        overdue.start()
        try:
            process.stdin.write(self._orders.encode())
            process.stdin.flush()
            line = process.stdout.readline()
        except (OSError, ValueError):
            line = b""  # it ended at once, or we are stopping
        finally:
            overdue.cancel()
        if not line:
            # Perhaps somebody else took the port meanwhile.
            self._orders = replace(self._orders, port=self._wanted_port)
            return
        with self._changed:
            self._port = int(line)
            self._orders = replace(self._orders, port=self._port)
            self._changed.notify_all()

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        while True:
            try:
                return process.wait(STOP_PATIENCE_S)
            except subprocess.TimeoutExpired:
                if self._stopping:
                    process.kill()
