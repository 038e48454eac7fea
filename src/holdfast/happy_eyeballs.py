"""Connecting to a host that has several addresses, of which some may not answer (RFC 8305).

A name server that does not answer holds the thread that asks for many seconds, longer than anybody
waits for it. The loop has few threads for that, which all destinations share: one whose name server
is away would hold up the others. So each question has a thread of its own, that nobody waits for at
the end, and whoever asks the same meanwhile waits for the same answer. A number is no question.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any

from holdfast.own_thread import in_thread

# How much longer the next address of a host waits for the one before.
HEAD_START_S = 0.25

_AddressInfo = tuple[int, int, int, str, Any]


class NameLookup:
    """Asks for the addresses of names, the same one once at a time."""

    def __init__(self) -> None:
        self._asking: dict[tuple[str, int], asyncio.Future[Sequence[_AddressInfo]]] = {}

    async def addresses(self, host: str, port: int) -> Sequence[_AddressInfo]:
        """Return the addresses of a host, or raise `gaierror`."""
        if _is_number(host):
            # `::1` is there also where no other address is of its kind.
            flags = socket.AI_NUMERICHOST
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
        asking = self._asking.get((host, port))
        if asking is None:
            asking = asyncio.ensure_future(
                in_thread(f"addresses of {host}", partial(_ask, host, port))
            )
            self._asking[host, port] = asking
            asking.add_done_callback(partial(self._asked, (host, port)))
        return await asyncio.shield(asking)

    def _asked(self, question: tuple[str, int], asking: asyncio.Future[Any]) -> None:
        del self._asking[question]
        if not asking.cancelled():
            asking.exception()  # perhaps nobody waits any more


def _ask(host: str, port: int) -> Sequence[_AddressInfo]:
    try:
        # No addresses of a kind that this machine has none of.
        flags = socket.AI_ADDRCONFIG
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError as error:  # no name that could be asked for
        raise socket.gaierror(socket.EAI_NONAME, "not a name") from error


async def connected_socket(
    lookup: NameLookup, host: str, port: int, untaken_s: float
) -> socket.socket:
    """Connect to the first address of a host that takes us (RFC 8305, "happy eyeballs")."""
    loop = asyncio.get_running_loop()
    found = await lookup.addresses(host, port)
    connect = partial(_connect_to, untaken_s=untaken_s)
    waiting = _by_turns(found)
    if len(waiting) == 1:
        return await connect(waiting[0])
    running: set[asyncio.Task[socket.socket]] = set()
    refusals: list[BaseException] = []
    try:
        while waiting or running:
            if waiting:
                running.add(loop.create_task(connect(waiting.pop(0))))
            done, _ = await asyncio.wait(
                running,
                timeout=HEAD_START_S if waiting else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task in done:
                running.discard(task)
                refusal = task.exception()
                if refusal is None:
                    return task.result()
                refusals.append(refusal)
    finally:
        for task in running:
            task.cancel()
            task.add_done_callback(_close_unused)
    raise refusals[0] if refusals else socket.gaierror(socket.EAI_NONAME, "no address")


def refuse_if_no_name(name: str) -> None:
    """Raise OSError for what no certificate can be for: that TLS says only to the event loop."""
    try:
        if name and not name.startswith("."):
            name.encode("idna")
            return
    except UnicodeError:
        pass
    raise socket.gaierror(socket.EAI_NONAME, "not a name")


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _by_turns(found: Sequence[_AddressInfo]) -> list[_AddressInfo]:
    """Return addresses with their families in turns, beginning with the first."""
    families = [one[0] for one in found]
    return sorted(
        found,
        key=lambda one: (
            [other for other in found if other[0] == one[0]].index(one),
            families.index(one[0]),
        ),
    )


async def _connect_to(info: _AddressInfo, untaken_s: float) -> socket.socket:
    """Connect a socket that the kernel gives up if its bytes are not taken for so long.

    One that is closed while a backend does not read would stay until it does.
    """
    family, kind, protocol, _, address = info
    made = socket.socket(family, kind, protocol)
    try:
        made.setblocking(False)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            longest_ms = math.ceil(untaken_s * 1000)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, longest_ms)
        await asyncio.get_running_loop().sock_connect(made, address)
    except BaseException:
        made.close()
        raise
    return made


def _close_unused(task: asyncio.Task[socket.socket]) -> None:
    """Close what another address was faster than."""
    if not task.cancelled() and task.exception() is None:
        task.result().close()
