"""Connecting to a host that has several addresses, of which some may not answer (RFC 8305)."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import math
import socket
from collections.abc import Sequence
from typing import Any

# How much longer the next address of a host waits for the one before.
HEAD_START_S = 0.25

_AddressInfo = tuple[int, int, int, str, Any]


async def connected_socket(host: str, port: int, untaken_s: float) -> socket.socket:
    """Connect to the first address of a host that takes us (RFC 8305, "happy eyeballs")."""
    loop = asyncio.get_running_loop()
    # Of a name, no addresses of a kind that this machine has none of. A number is meant: `::1` is
    # there also where no other address is of its kind.
    flags = 0 if _is_number(host) else socket.AI_ADDRCONFIG
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError as error:  # no name that could be asked for
        raise socket.gaierror(socket.EAI_NONAME, "not a name") from error
    connect = functools.partial(_connect_to, untaken_s=untaken_s)
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
