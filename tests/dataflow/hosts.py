"""Hosts of a small network on this machine: namespaces of their own for network, mounts, processes.

    hub ── a bridge
     ├── a host: 10.213.7.1, a loopback of its own, and a folder where others have theirs
     └── …

Root only. A host lives as long as its processes: whoever ends the first of them ends all others,
and the mounts go with them. The names of the networks are the only thing that has to be removed.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

STOP_PATIENCE_S = 60.0
_NETWORK = "10.213.7"
_TOOLS = ("ip", "unshare", "mount")


def why_not() -> str:
    """Return why there can be no hosts here; "" if there can."""
    if os.geteuid() != 0:
        return "namespaces need root"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"namespaces need {', '.join(missing)}"
    name = f"hf-{uuid.uuid4().hex[:6]}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if tried.returncode:
        return "this machine lets nobody make network namespaces"
    _ip("netns", "del", name)
    return ""


class Hosts:
    """Hosts that reach each other, and nothing else."""

    def __init__(self, own_folder: Path) -> None:
        # A path where each host has a folder that no other one sees.
        self._own_folder = own_folder
        self._prefix = f"hf-{uuid.uuid4().hex[:6]}"
        self._networks: list[str] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self.addresses: dict[str, str] = {}

    def start(self, names: Sequence[str]) -> None:
        """Make the network."""
        hub = self._network("hub")
        _ip("-n", hub, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", hub, "link", "set", "bridge0", "up")
        for number, name in enumerate(names, 1):
            host, address = self._network(name), f"{_NETWORK}.{number}"
            ends = ["eth0", "netns", host, "type", "veth", "peer", "name", f"port{number}"]
            _ip("link", "add", *ends, "netns", hub)
            _ip("-n", hub, "link", "set", f"port{number}", "master", "bridge0", "up")
            _ip("-n", host, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _ip("-n", host, "link", "set", device, "up")
            self.addresses[name] = address

    def _network(self, name: str) -> str:
        full = f"{self._prefix}-{name}"
        _ip("netns", "add", full)
        self._networks.append(full)
        return full

    def run(
        self, host: str, command: Sequence[str], log: Path, environ: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start a process on a host; its folder is empty."""
        own = shlex.quote(str(self._own_folder))
        inside = f"mount -t tmpfs tmpfs {own} && cd {own} && exec {shlex.join(command)}"
        spaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        with log.open("wb") as file:
            process = subprocess.Popen(
                ["ip", "netns", "exec", f"{self._prefix}-{host}", *spaces, "sh", "-c", inside],
                stdout=file,
                stderr=file,
                env={**environ, "SPARK_LOCAL_IP": self.addresses[host]},
            )
        self._processes.append(process)
        return process

    def forget(self, process: subprocess.Popen[bytes]) -> None:
        """Look no more after a process that has ended."""
        self._processes.remove(process)

    def is_any_dead(self) -> bool:
        """Whether a process has ended."""
        return any(process.poll() is not None for process in self._processes)

    def stop(self) -> None:
        """End everything, and remove the networks."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait(STOP_PATIENCE_S)
        for name in self._networks:
            subprocess.run(["ip", "netns", "del", name], check=False)


@contextlib.contextmanager
def running_hosts(names: Sequence[str], own_folder: Path) -> Iterator[Hosts]:
    """Have hosts for a while."""
    hosts = Hosts(own_folder)
    try:
        hosts.start(names)
        yield hosts
    finally:
        hosts.stop()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
