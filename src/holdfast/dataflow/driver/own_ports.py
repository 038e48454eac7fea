"""Fixed ports for what drivers serve, where a firewall stands between them and their executors.

gRPC shares a port with whoever else listens there, so a port is tried before it is given away, and
the runs of one process do not get the same.
"""

from __future__ import annotations

import threading

from holdfast.dataflow.driver.settings import PORTS_OF_A_RUN, PORTS_OF_A_SERVER
from holdfast.errors import BadConfig, PipelineFailed
from holdfast.remote import FlightSettings
from holdfast.remote.ports import require_free
from holdfast.remote.settings import split_address

_taken: set[int] = set()
_taking = threading.Lock()


class OwnPorts:
    """The ports of one run, until it ends; without a range any that are free."""

    def __init__(self, allowed: range) -> None:
        self._allowed = allowed
        self._mine: set[int] = set()

    def given_to(self, served: FlightSettings) -> FlightSettings:
        """Return the settings of one more server, with ports of its own."""
        if not self._allowed:
            return served
        host, _ = split_address(served.listen)
        ports = self._take(host)
        listen = f"[{host}]:{ports[0]}" if ":" in host else f"{host}:{ports[0]}"
        return served.model_copy(update={"listen": listen, "reader_port": ports[1]})

    def _take(self, host: str) -> list[int]:
        with _taking:
            free: list[int] = []
            for port in self._allowed:
                if port not in _taken and _is_free(host, port):
                    free.append(port)
                if len(free) == PORTS_OF_A_SERVER:
                    _taken.update(free)
                    self._mine.update(free)
                    return free
        named = f"{self._allowed[0]}-{self._allowed[-1]}"
        # Not a wrong setting: a driver before this one may still be ending.
        raise PipelineFailed(
            f"no {PORTS_OF_A_SERVER} of the ports {named} are free on {host}",
            hint=f"a pipeline needs {PORTS_OF_A_RUN}: name more, or end who has them",
        )

    def close(self) -> None:
        """Let others have them."""
        with _taking:
            _taken.difference_update(self._mine)
            self._mine.clear()


def _is_free(host: str, port: int) -> bool:
    try:
        require_free(host, port)
    except BadConfig:
        return False
    return True
