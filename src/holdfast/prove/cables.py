"""Data nodes in network namespaces of their own, each behind a cable that can be pulled.

What a pulled cable does cannot be had on one loopback: nobody refuses a connection, nobody ends
one, and what was sent is neither delivered nor returned. A cable is a pair of virtual interfaces,
and it is pulled at the node's end. Everything is removed again, whatever happened.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from holdfast.errors import BadInput
from holdfast.seam.owners import is_root

# The network for benchmarks of devices (RFC 2544): nobody routes it.
_NETWORK = "198.18"


def check_partitions() -> None:
    """Refuse where no cable can be made."""
    if sys.platform != "linux" or not is_root() or shutil.which("ip") is None:
        raise BadInput(
            "network namespaces can only be made by root, on Linux, with `ip` of iproute2",
            hint="run it as root, or leave --partitions out",
        )


@contextmanager
def cables(names: Sequence[str]) -> Iterator[Cables]:
    """Make a namespace and a cable for each name, and remove them in the end."""
    check_partitions()
    made = Cables(names)
    try:
        made.lay()
        yield made
    finally:
        made.remove()


class Cables:
    """One cable for each name."""

    def __init__(self, names: Sequence[str]) -> None:
        # By the process: two proofs at once have different ones.
        pid = os.getpid()
        self._subnet = f"{_NETWORK}.{pid % 256}"
        self._numbers = {name: number for number, name in enumerate(names)}
        self._devices = {name: f"hf{pid}{number}" for name, number in self._numbers.items()}

    def host(self, name: str) -> str:
        """Return the address at the far end."""
        return f"{self._subnet}.{4 * self._numbers[name] + 2}"

    def inside(self, name: str) -> tuple[str, ...]:
        """Return what a command line begins with, if it is to run at the far end."""
        return ("ip", "netns", "exec", self._devices[name])

    def pull(self, name: str) -> None:
        """Let nothing through any more, and tell nobody."""
        self._far_end(name, "link", "set", "far", "down")

    def plug(self, name: str) -> None:
        """Let everything through again."""
        self._far_end(name, "link", "set", "far", "up")

    def lay(self) -> None:
        """Make all of them."""
        for name, device in self._devices.items():
            near = f"{self._subnet}.{4 * self._numbers[name] + 1}/30"
            _run("ip", "netns", "add", device)
            _run("ip", "link", "add", device, "type", "veth", "peer", "far", "netns", device)
            _run("ip", "address", "add", near, "dev", device)
            _run("ip", "link", "set", device, "up")
            self._far_end(name, "address", "add", f"{self.host(name)}/30", "dev", "far")
            self._far_end(name, "link", "set", "lo", "up")
            self.plug(name)

    def remove(self) -> None:
        """Remove what was made; what is inside a namespace ends with it."""
        for device in self._devices.values():
            for command in (("link", "delete", device), ("netns", "delete", device)):
                subprocess.run(("ip", *command), check=False, capture_output=True)

    def _far_end(self, name: str, *words: str) -> None:
        _run("ip", "-netns", self._devices[name], *words)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise BadInput(
            f"`{' '.join(command)}` failed: {done.stderr.strip()}",
            hint="leave --partitions out where virtual interfaces cannot be made",
        )
