"""Who the data nodes are while a gateway runs: a file that is watched, and a name in DNS.

Both are looked at again and again, and compared with what they said before; nothing is missed
because an event was. Neither may take a data node away by failing:

- A file that cannot be read, is wrong or is empty changes nothing, and that is told. A name that is
  missing in a sound one is gone, as it is from the configuration: orphaned, and its data kept.
- DNS of a headless service lists the addresses of nodes that are ready now. One that is not in it
  is just away. And an address says nothing of who is there: the node itself is asked, and is called
  after its id (`dns-<id>`), so that it is the same node at whatever address it comes back. It is
  known from then on, until it is forgotten; also over a restart, before DNS has answered.
"""

from __future__ import annotations

import contextlib
import logging
import re
import socket
from collections.abc import Callable, Sequence
from pathlib import PurePath

import yaml
from pydantic import TypeAdapter, ValidationError

from holdfast.errors import BadConfig, HoldfastError
from holdfast.handoff.membership import Membership
from holdfast.handoff.settings import NODES_MAX, Config, NodeAddresses
from holdfast.remote.settings import split_address
from holdfast.replica.transport import Transport
from holdfast.seam.disk import Disk

# A line for each of the most data nodes that there may be needs less.
FILE_BYTES_MAX = 256 * 1024
_DNS_NAME = re.compile(r"dns-[0-9A-Za-z-]{1,50}")

log = logging.getLogger("holdfast.handoff")

# Names to addresses; None: it is known, and nobody knows where it is now.
Addresses = dict[str, str | None]
ResolveHost = Callable[[str], Sequence[str]]


def is_dns_name(name: str) -> bool:
    """Whether a data node that DNS names may be called so."""
    return _DNS_NAME.fullmatch(name) is not None


def resolve_host(host: str) -> Sequence[str]:
    """Return the addresses that a name has now, each once and in order."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return sorted({str(address[0]) for *_, address in found})


class NodeSources:
    """All places that say who the data nodes are. One thread uses it at a time."""

    def __init__(
        self,
        config: Config,
        base_dir: PurePath,
        disk: Disk,
        connect: Callable[[str], Transport],
        resolve: ResolveHost = resolve_host,
    ) -> None:
        """Read the file, which has to be sound by now."""
        self.config = config
        self._disk = disk
        self._connect = connect
        self._resolve = resolve
        self._file = None if config.nodes_file is None else base_dir / config.nodes_file
        self._in_file: dict[str, str] = {}
        self._in_dns: dict[str, str] = {}
        self._told: dict[str, str] = {}
        if self._file is not None:
            self._in_file = self._read(self._file)

    @property
    def is_changing(self) -> bool:
        """Whether there is anything to look at again."""
        return self._file is not None or self.config.nodes_dns is not None

    def known(self, membership: Membership) -> Addresses:
        """Return who they are by the last look; the configuration comes before the file."""
        found: Addresses = {}
        if self.config.nodes_dns is not None:
            met = {name: None for name in membership.bound if is_dns_name(name)}
            found = {**met, **self._in_dns}
        found |= self._in_file
        found |= self.config.nodes
        # Those that an operator added are there already.
        most = NODES_MAX - len(membership.added.keys() - found.keys())
        if len(found) > most:
            self._tell("number", f"there are {len(found)} data nodes; {most} are used")
            found = dict(sorted(found.items())[:most])
        return found

    def look(self, membership: Membership) -> Addresses:
        """Look again at all of them; takes as long as DNS and the nodes behind it do."""
        if self._file is not None:
            try:
                self._in_file = self._read(self._file)
                self._told.pop("file", None)
            except BadConfig as error:
                self._tell("file", f"{error}; the data nodes stay as they were")
        if self.config.nodes_dns is not None:
            self._look_up(self.config.nodes_dns, membership)
        return self.known(membership)

    # --------------------------------------------------------------------- file

    def _read(self, path: PurePath) -> dict[str, str]:
        try:
            if self._disk.file_bytes(path) > FILE_BYTES_MAX:
                raise ValueError(f"it has more than {FILE_BYTES_MAX} bytes")
            tree = yaml.safe_load(self._disk.read(path))
            found = _ADDRESSES.validate_python({} if tree is None else tree)
            if not found:
                raise ValueError("it names no data node")
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"] if part != "[key]")
            raise _wrong_file(
                path, f"{where}: {first['msg']}" if where else first["msg"]
            ) from error
        except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
            raise _wrong_file(path, getattr(error, "strerror", None) or str(error)) from error
        return found

    # ---------------------------------------------------------------------- DNS

    def _look_up(self, service: str, membership: Membership) -> None:
        """Ask DNS for addresses, and who answers there for its id."""
        host, port = split_address(service)
        try:
            addresses = self._resolve(host)
        except OSError as error:
            self._tell("dns", f"{host} cannot be looked up: {error}; data nodes stay as they were")
            return
        self._told.pop("dns", None)
        # Those that were forgotten since are not known any more, unless they are still listed.
        self._in_dns = {n: a for n, a in self._in_dns.items() if n in membership.bound}
        named = {**membership.added, **self._in_file, **self.config.nodes}
        # A data node that has a name already, and was not met yet, is not found once more.
        unmet = [one for name, one in named.items() if membership.is_unmet(name)]
        own_ids = {self._node_id_at(where) for where in unmet}
        for address in addresses[:NODES_MAX]:
            where = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
            node_id = None if where in named.values() else self._node_id_at(where)
            if node_id is None or node_id in own_ids:
                continue
            name = membership.name_of(node_id) or f"dns-{node_id}"
            if not is_dns_name(name):
                continue  # it has a name of the configuration, or an id that cannot be one
            self._in_dns = {n: a for n, a in self._in_dns.items() if a != where}
            self._in_dns[name] = where

    def _node_id_at(self, address: str) -> str | None:
        """Return the id of the data node at an address; None: it does not answer now."""
        try:
            with contextlib.closing(self._connect(address)) as transport:
                return transport.health().node_id
        except HoldfastError as error:
            log.debug("no data node answers at %s: %s", address, error)
            return None

    def _tell(self, place: str, problem: str) -> None:
        """Log a problem once, until it is another one."""
        if self._told.get(place) != problem:
            self._told[place] = problem
            log.warning("%s", problem)


_ADDRESSES: TypeAdapter[dict[str, str]] = TypeAdapter(NodeAddresses)


def _wrong_file(path: PurePath, problem: str) -> BadConfig:
    return BadConfig(
        f"the file of data nodes cannot be used: {problem}",
        hint="write names and addresses, as `nodes` has them: `a: 10.0.0.1:8816`",
        path=str(path),
    )
