"""The clients of a proof: a process of its own, whose threads post events and note what they hear.

Run as `python -m holdfast.prove.lineage_clients PORT JOURNAL_DIR COUNT`; it ends after SIGTERM, or
when its parent is gone. It is never killed. What was not answered is not sent again: a second copy
would be the client's doing, and hide one of the gateway's.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from holdfast.prove.journal import ProofJournal
from holdfast.prove.lineage import event_of

PATH = "/api/v1/lineage"
TIMEOUT_S = 30.0
# A gateway that is being restarted is asked again after so long.
PAUSE_S = 0.02
BATCH_EVENTS = 5
_BATCH_EVERY = 7
_OK, _BAD_REQUEST = 200, 400


class LineageClient(threading.Thread):
    """Posts one event, or a small batch, after the other."""

    def __init__(self, port: int, directory: Path, number: int, stop: threading.Event) -> None:
        super().__init__(name=f"client-{number}")
        self._port = port
        self._stop_asked = stop
        self._number = number
        self._journal = ProofJournal(directory / f"{number}.journal")
        self._connection: http.client.HTTPConnection | None = None

    def run(self) -> None:
        """Post until told to stop."""
        count = 0
        while not self._stop_asked.is_set():
            count += 1
            events = BATCH_EVENTS if count % _BATCH_EVERY == 0 else 1
            name = f"{self._number}-{count}"
            self._post(name, [event_of(f"{name}.{place}") for place in range(events)])
        self._close()
        self._journal.close()

    def _post(self, name: str, events: list[bytes]) -> None:
        self._journal.sent(name, len(events))
        try:
            status, answer = self._exchange(events)
        except ConnectionRefusedError:
            self._journal.refused(name, "no", "refused")
            self._pause()
        except (OSError, http.client.HTTPException) as error:
            self._journal.refused(name, "maybe", type(error).__name__)
            self._pause()
        else:
            if status == _OK:
                self._journal.answered(name, int(answer["position"].split("/")[1]))
            elif status == _BAD_REQUEST:
                self._journal.refused(name, "no", str(status))
            else:
                why = str(answer.get("message")).partition("\n")[0]
                self._journal.refused(name, "maybe", f"{status} {why}")
                self._pause()

    def _exchange(self, events: list[bytes]) -> tuple[int, dict[str, str]]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(
                "127.0.0.1", self._port, timeout=TIMEOUT_S
            )
        path, body = PATH, events[0]
        if len(events) > 1:
            path, body = f"{PATH}/batch", b"[" + b",".join(events) + b"]"
        headers = {"Content-Type": "application/json"}
        self._connection.request("POST", path, body, headers)
        response = self._connection.getresponse()
        return response.status, json.loads(response.read() or b"{}")

    def _pause(self) -> None:
        self._close()
        self._stop_asked.wait(PAUSE_S)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def main(
    port: int, directory: Path, count: int, client: type[LineageClient] = LineageClient
) -> None:
    """Run all clients until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    clients = [client(port, directory, number, stop) for number in range(count)]
    for one in clients:
        one.start()
    parent = os.getppid()
    while not stop.is_set():
        time.sleep(0.1)
        if os.getppid() != parent:
            stop.set()
    for one in clients:
        one.join()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
