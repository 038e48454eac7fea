"""The clients of a proof of pipelines: they post what happens now, and at times something invalid.

Run as `python -m holdfast.prove.dataflow_clients PORT JOURNAL_DIR COUNT`; like lineage_clients.py,
but slower, because the machine runs Spark beside them, and with the time of day in every event.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

from holdfast.prove.lineage import event_of
from holdfast.prove.lineage_clients import BATCH_EVENTS, LineageClient, main

# Between two posts of a client.
PACE_S = 0.03
_BATCH_EVERY, _INVALID_EVERY = 7, 11
# An event without a run.
INVALID = b'{"eventType": "COMPLETE", "job": {"namespace": "prove", "name": "invalid"}}'


class PacedClient(LineageClient):
    """Posts one event, or a small batch, or something invalid, after the other."""

    def run(self) -> None:
        """Post until told to stop."""
        count = 0
        while not self._stop_asked.wait(PACE_S):
            count += 1
            name = f"{self._number}-{count}"
            if count % _INVALID_EVERY == 0:
                self._post(name, [INVALID])
                continue
            events = BATCH_EVENTS if count % _BATCH_EVERY == 0 else 1
            now = datetime.now(UTC)
            self._post(name, [event_of(f"{name}.{place}", now) for place in range(events)])
        self._close()
        self._journal.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), PacedClient)
