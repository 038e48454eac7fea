"""A Flight server for quivers: two processes that look like one.

    clients ──plan, commit, statement, append──▶ owner (OwnerService, threads of the gateway)
       │                                            │ names of segments
       └──tickets─────────────────────────────▶ reader (ReaderService, a process of its own)
                                                    │ reads segment files

Sending rows is work for Python, and much of it; in the owner's interpreter every batch for a Spark
task would be a pause for somebody who waits for an acknowledgement. So the owner answers only what
needs it, and a child serves the bulk. The child knows directories and tokens, nothing else; it may
be killed at any time, and is started again. What that costs a client is its call, which it repeats.

Stop the server before its quivers are closed: then whoever waits gets no answer, and knows that the
server went; a reader of a closed quiver would be answered that it was fenced off.

A thread of the owner waits for the child (`ReaderProcess`). When it ends unasked (a crash, the
kernel's memory killer) it is started again, after a pause that doubles with every failure and
starts over once the process has lived for the longest pause. It gets its old port if that is still
free, so that most clients need not ask for it again.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Self

import pyarrow as pa

from holdfast.errors import BadConfig, OwnerGone
from holdfast.quiver import Quiver
from holdfast.remote.owner import OwnerService
from holdfast.remote.reader import CallerToken, Gate, Secrets, ServedQuivers, location, require_free
from holdfast.remote.settings import FlightSettings, is_loopback, split_address
from holdfast.seam import Seam
from holdfast.seam.clock import Clock
from holdfast.seam.process import bind_to_process

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
        # Waits until the child listens: a client that is told where to read must find somebody
        # there.
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
                    hint="it is restarted automatically; the owner's log says why it ended",
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
            # Secrets go through the pipe, and neither through arguments nor the environment, which
            # other users of the machine can see.
            process.stdin.write(self._orders.encode())
            process.stdin.flush()
            line = process.stdout.readline()
        except (OSError, ValueError):
            line = b""  # it ended at once, or we are stopping
        finally:
            overdue.cancel()
        if not line:
            # Perhaps somebody else took the port meanwhile.
            # Back to the configured port (or any): the one it had last may be taken by now.
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


_KEY_BYTES = 32


class ServerStatistics(NamedTuple):
    """A moment's picture of the owner's side of a server. Totals count since it was made."""

    calls: int
    calls_total: int
    # For want of a token or of room.
    refused_total: int
    # Subscribers.
    attached: int
    # The reading process; more than one: it ended unasked.
    reader_starts_total: int


class QuiverServer:
    """Serves quivers, by name, until it is stopped."""

    def __init__(
        self,
        quivers: Mapping[str, Quiver],
        settings: FlightSettings | None = None,
        *,
        base_dir: Path | None = None,
        seam: Seam | None = None,
    ) -> None:
        """Do not listen yet."""
        self._settings = settings or FlightSettings()
        self._quivers = dict(quivers)
        self._seam = seam or Seam()
        self._host, self._port = split_address(self._settings.listen)
        self._secrets = secrets_of(self._settings, base_dir or Path())
        require_protected(self._settings, self._secrets)
        key = self._seam.randomness.randbytes(_KEY_BYTES)
        self._gate = Gate(self._secrets.credentials, self._settings.max_calls, key)
        self._service: OwnerService | None = None
        orders = ServedQuivers(
            directories={name: str(quiver.directory) for name, quiver in quivers.items()},
            host=self._host,
            port=self._settings.reader_port,
            max_calls=self._settings.max_calls,
            message_bytes=self._settings.read_message,
            secrets=self._secrets,
        )
        restarts = self._settings.restart_min, self._settings.restart_max
        self.reader = ReaderProcess(orders, self._seam.clock, *restarts)
        bind_to_process(self)

    def start(self) -> None:
        """Listen, and start the reading process."""
        require_free(self._host, self._port)
        try:
            self._service = OwnerService(
                self._quivers,
                self._settings,
                (self._host, self._port),
                self._gate,
                self._secrets,
                self._reader_location,
                self._seam.clock,
            )
        except pa.ArrowException as error:
            raise BadConfig(
                f"{self._settings.listen} cannot be served",
                hint="do certificate and key in tls belong together?",
            ) from error
        try:
            self.reader.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all calls, and the reading process."""
        if self._service is not None:
            self._service.stop()
            self._service = None
        self.reader.stop()

    @property
    def location(self) -> str:
        """Where it answers, as clients write it."""
        assert self._service is not None, "it is not started"
        return self._at(self._service.port)

    def statistics(self) -> ServerStatistics:
        """Return a snapshot."""
        service = self._service
        return ServerStatistics(
            calls=self._gate.calls,
            calls_total=self._gate.calls_total,
            refused_total=self._gate.refused_total,
            attached=0 if service is None else service.attached,
            reader_starts_total=self.reader.starts,
        )

    def _reader_location(self) -> str:
        return self._at(self.reader.port(patience_s=self._settings.max_wait))

    def _at(self, port: int) -> str:
        host = self._settings.advertise_host or self._host
        return location(host, port, encrypted=self._secrets.certificate is not None)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def require_protected(settings: FlightSettings, secrets: Secrets) -> None:
    """Refuse to listen to the world without knowing who calls.

    Loopback, a token or a client certificate: one of them. There is no setting that opens the port
    to everybody, so nobody can set it by mistake.
    """
    host, _ = split_address(settings.listen)
    if not (secrets.credentials or secrets.client_ca or is_loopback(host)):
        raise BadConfig(
            f"anybody who reaches {settings.listen} could read and append",
            hint="set tokens, or tls.client_ca_file, or listen on 127.0.0.1",
        )


def secrets_of(settings: FlightSettings, base_dir: Path) -> Secrets:
    """Return who may call, and the keys of TLS, read from their files."""
    credentials = tuple(
        CallerToken(one.name, one.token.get_secret_value(), one.rights) for one in settings.tokens
    )
    tls = settings.tls
    if tls is None:
        return Secrets(credentials)
    ca_file = tls.client_ca_file
    return Secrets(
        credentials,
        (_read("cert_file", base_dir / tls.cert_file), _read("key_file", base_dir / tls.key_file)),
        None if ca_file is None else _read("client_ca_file", base_dir / ca_file),
    )


def _read(option: str, path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError) as error:
        raise BadConfig(
            f"tls.{option} cannot be read", hint="it must be a PEM file", path=str(path)
        ) from error
