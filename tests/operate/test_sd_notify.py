"""What systemd hears, on a real socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.operate.sd_notify import Notifier


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(30)
        yield listening


def heard(manager: socket.socket) -> list[str]:
    return manager.recv(4096).decode().split("\n")


def test_everything_is_said_in_one_datagram_each(manager: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname()})
    notifier.ready("all\nwell")
    assert heard(manager) == ["READY=1", "STATUS=all well"]
    notifier.alive("x" * 1000)
    watchdog, status = heard(manager)
    assert watchdog == "WATCHDOG=1"
    assert len(status) < 300
    notifier.stopping("bye")
    assert heard(manager) == ["STOPPING=1", "STATUS=bye"]
    notifier.reloading()
    reloading, moment = heard(manager)
    assert reloading == "RELOADING=1"
    assert moment.removeprefix("MONOTONIC_USEC=").isdecimal()


def test_a_name_in_the_abstract_namespace_is_understood() -> None:
    name = f"holdfast-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("\0" + name)
        listening.settimeout(30)
        Notifier({"NOTIFY_SOCKET": f"@{name}"}).ready("x")
        assert heard(listening)[0] == "READY=1"


@pytest.mark.parametrize("path", ["", "/nowhere/at/all", "x" * 500, "a\0b"])
def test_without_a_manager_nothing_happens(path: str) -> None:
    Notifier({"NOTIFY_SOCKET": path}).ready("x")
    Notifier({}).stopping("x")


@pytest.mark.parametrize(
    ("variables", "every_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "60000000"}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
    ],
)
def test_the_watchdog_is_fed_twice_as_often_as_it_asks(
    variables: dict[str, str], every_s: float | None
) -> None:
    assert Notifier(variables).watchdog_s == every_s
