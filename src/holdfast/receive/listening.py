"""Where to listen, and how a server of a receiver begins and ends: addresses, sockets, TLS.

HTTP and gRPC differ in what a connection does. What a port needs is the same: a socket for each
address of the host, a task that looks after deadlines and certificates, and an end in steps.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator

from holdfast.errors import BadConfig
from holdfast.settings import LocalPath, Secret, Settings
from holdfast.watched_files import WatchedFiles

PORT_MAX = 65535
# After the time to drain: for connections that are cut to be gone, and for what they ran to end.
CUT_GRACE_S = 2.0
# How often deadlines are looked at: a fraction of the shortest, within these bounds.
_SWEEP_MIN_S = 0.02
_SWEEP_MAX_S = 1.0
_SWEEPS_PER_TIMEOUT = 4
# How often a stopping server looks whether it is empty.
_STOP_CHECK_S = 0.01

log = logging.getLogger("holdfast.receive")


class Address(NamedTuple):
    """A host (a name, or an IP address without brackets) and a port; 0: any that is free."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str) -> Address:
    """Return the address that `127.0.0.1:5000`, `[::1]:5000`, `name:5000` or `:5000` means."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r} is not an address; write an IPv6 host as [::1]:5000")
    if not colon or not port.isdecimal() or int(port) > PORT_MAX:
        raise ValueError(f"{text!r} is not an address; write host:port")
    return Address(host or "0.0.0.0", int(port))


def _is_address(text: str) -> str:
    parse_address(text)
    return text


AddressText = Annotated[str, AfterValidator(_is_address)]


class ListenerTls(Settings):
    """TLS for a listening port. Paths are relative to the configuration file."""

    cert_file: LocalPath
    """The certificate, with its chain, as PEM."""
    key_file: LocalPath
    """Its private key, as PEM."""
    key_password: Secret | None = None
    """The password of the key, if it has one."""
    client_ca_file: LocalPath | None = None
    """Authorities (PEM) of client certificates; if given, every client must present one."""
    min_version: Literal["1.2", "1.3"] = "1.2"
    """The oldest version of TLS that is spoken."""


# The first descriptor that a service manager hands over (sd_listen_fds).
_FIRST_HANDED_OVER = 3


def handed_over(family: int, address: Sequence[Any]) -> socket.socket | None:
    """Return a socket that the service manager listens on already at this address, if it does.

    systemd keeps such a socket open while a service restarts (deploy/holdfast.socket): connections
    of that time wait in its queue and are taken by the next process, and none is refused. What is
    returned is a duplicate, so that a server may close it and open it again.
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return None  # meant for another process, perhaps our parent
    count = os.environ.get("LISTEN_FDS", "0")
    for descriptor in range(_FIRST_HANDED_OVER, _FIRST_HANDED_OVER + int(count)):
        found = socket.socket(fileno=os.dup(descriptor))
        if found.family == family and found.getsockname()[:2] == tuple(address[:2]):
            return found
        found.close()
    return None


async def bind_sockets(listen: Address, *, backlog: int, reuse_port: bool) -> list[socket.socket]:
    """Listen on every address of a host (`localhost` may have two), or raise `BadConfig`."""
    loop = asyncio.get_running_loop()
    bound: list[socket.socket] = []
    try:
        found = await loop.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            inherited = handed_over(family, address)
            if inherited is not None:
                inherited.setblocking(False)
                bound.append(inherited)
                continue
            listening = socket.socket(family, kind, protocol)
            bound.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if reuse_port:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                # IPv4 has a socket of its own here. Without this, the socket for `::` would take
                # IPv4 as well, and the second bind would find the port in use.
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.setblocking(False)
            listening.bind(address)
            listening.listen(backlog)
    except (OSError, UnicodeError) as error:
        for listening in bound:
            listening.close()
        raise BadConfig(
            f"cannot listen on {listen}: {getattr(error, 'strerror', None) or error}",
            hint="is another gateway running? `ss -ltnp` lists who listens; set another `listen`",
        ) from error
    return bound


def url_of(listening: socket.socket, scheme: str) -> str:
    """Return where a bound socket is reached, such as `http://127.0.0.1:5000`."""
    host, port = listening.getsockname()[:2]
    return f"{scheme}://{Address(host, port)}"


class RotatingTls:
    """The TLS of a port, which follows its files: new connections see what is in them now.

    A context cannot be replaced in a server that listens, so the first one stays, and asks for the
    newest at the start of each handshake.
    """

    def __init__(self, tls: ListenerTls, base_dir: Path, protocols: tuple[str, ...] = ()) -> None:
        """Read the files, or raise `BadConfig`. `protocols` are offered by ALPN."""
        self._tls = tls
        self._base_dir = base_dir
        self._protocols = protocols
        names = (tls.cert_file, tls.key_file, tls.client_ca_file)
        self._files = WatchedFiles(base_dir / name for name in names if name is not None)
        self.context = self._newest = self._load()
        self.context.sni_callback = self._choose

    def refresh(self) -> None:
        """Look whether the files have changed; what cannot be read changes nothing."""
        if not self._files.have_changed():
            return
        try:
            self._newest = self._load()
        except BadConfig as error:
            log.warning("the certificates are not changed: %s", error)
        else:
            log.info("certificates were read again: %s", self._files.paths[0])

    def _load(self) -> ssl.SSLContext:
        context = server_context(self._tls, self._base_dir)
        if self._protocols:
            context.set_alpn_protocols(list(self._protocols))
        return context

    def _choose(
        self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: ssl.SSLContext
    ) -> None:
        connection.context = self._newest


class ListeningPort:
    """The sockets of one server, and the task that looks after its connections."""

    def __init__(
        self, listen: str, tls: ListenerTls | None, *, backlog: int, reuse_port: bool
    ) -> None:
        """Do not listen yet."""
        self._listen = parse_address(listen)
        self._tls = tls
        self._backlog = backlog
        self._reuse_port = reuse_port
        self._servers: list[asyncio.Server] = []
        self._sweep: asyncio.Task[None] | None = None
        self.addresses: list[str] = []

    async def open(
        self,
        connection: Callable[[], asyncio.BaseProtocol],
        scheme: str,
        base_dir: Path,
        *,
        alpn: tuple[str, ...] = (),
        handshake_timeout_s: float,
        sweep: Callable[[float], None],
        shortest_timeout_s: float,
    ) -> None:
        """Listen on all addresses of the host; from then on `sweep` is called with the time.

        Deadlines are not timers of their own: a connection would set and cancel several for every
        request. Looked at in turns they are late by a fraction of the shortest, which is nothing.
        """
        loop = asyncio.get_running_loop()
        rotating = RotatingTls(self._tls, base_dir, alpn) if self._tls else None
        for listening in await bind_sockets(
            self._listen, backlog=self._backlog, reuse_port=self._reuse_port
        ):
            self._servers.append(
                await loop.create_server(
                    connection,
                    sock=listening,
                    backlog=self._backlog,
                    ssl=rotating.context if rotating else None,
                    ssl_handshake_timeout=handshake_timeout_s if rotating else None,
                )
            )
            self.addresses.append(url_of(listening, f"{scheme}s" if rotating else scheme))
        pause_s = min(max(shortest_timeout_s / _SWEEPS_PER_TIMEOUT, _SWEEP_MIN_S), _SWEEP_MAX_S)
        self._sweep = asyncio.create_task(_keep_sweeping(pause_s, rotating, sweep))

    def refuse_new(self) -> None:
        """Take no new connections."""
        for server in self._servers:
            server.close()

    async def close(self) -> None:
        """Let go of everything; connections must be gone, or are waited for."""
        if self._sweep is not None:
            self._sweep.cancel()
            await asyncio.wait([self._sweep])
        for server in self._servers:
            await server.wait_closed()
        self._servers = []
        self.addresses = []


async def _keep_sweeping(
    pause_s: float, rotating: RotatingTls | None, sweep: Callable[[float], None]
) -> None:
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(pause_s)
        if rotating is not None:
            rotating.refresh()
        sweep(loop.time())


async def until_empty(is_empty: Callable[[], bool], timeout_s: float) -> None:
    """Wait until a server that stops has nothing left, or the time is up."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    while not is_empty():
        if loop.time() >= deadline_s:
            return
        await asyncio.sleep(_STOP_CHECK_S)


def server_context(tls: ListenerTls, base_dir: Path) -> ssl.SSLContext:
    """Return the TLS context of a server, or raise `BadConfig`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    versions = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
    context.minimum_version = versions[tls.min_version]
    password = tls.key_password.get_secret_value() if tls.key_password else ""
    option = "tls.cert_file"
    try:
        # A password that is always given: without one OpenSSL would ask the terminal.
        cert_file, key_file = str(base_dir / tls.cert_file), str(base_dir / tls.key_file)
        context.load_cert_chain(cert_file, key_file, password=lambda: password)
        if tls.client_ca_file is not None:
            option = "tls.client_ca_file"
            context.load_verify_locations(str(base_dir / tls.client_ca_file))
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:
        raise BadConfig(
            f"TLS cannot be set up: {error}",
            hint=f"check {option} (PEM), its key and password, and that the gateway may read them",
        ) from error
    return context
