"""The state directory of a pipeline: who runs it, whether it is finished, and asking its driver.

    lock          held while a driver runs; has a name of its own for each
    closed        the pipeline was drained and closed: it is finished
    drain.json    a request to the driver to drain
    drained.json  the outcome of that

Nothing here needs Spark: a gateway and tools look without having it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from holdfast.errors import DirectoryLocked, PipelineFailed

# How often to look whether a driver that was asked has ended.
ASKED_POLL_S = 0.2
# For a driver to take up what it was asked: it may be starting its queries.
ASKED_PATIENCE_S = 300.0
# A process that looks whether a driver runs has the lock for a few milliseconds.
LOCK_PATIENCE_S = 1.0
_LOCK_POLL_S = 0.02


class DrainRequest(NamedTuple):
    """What a driver is asked for."""

    close: bool


class StateDir:
    """One pipeline's state directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # The name of the driver that locked it by this object.
        self._driver = ""

    # ---------------------------------------------------------------------- owner

    def lock(self) -> IO[bytes]:
        """Take it; its holder is the only driver until the file is closed."""
        give_up_s = time.monotonic() + LOCK_PATIENCE_S
        while (lock := self._try_lock()) is None:
            if time.monotonic() > give_up_s:
                raise DirectoryLocked(
                    "another driver runs this pipeline",
                    hint="stop it, or ask it with `holdfast dataflow drain`",
                    path=str(self.path),
                )
            time.sleep(_LOCK_POLL_S)
        self._driver = uuid.uuid4().hex
        lock.truncate(0)
        lock.write(self._driver.encode())
        lock.flush()
        return lock

    def _try_lock(self) -> IO[bytes] | None:
        """Return the lock if no other process has it; it ends with this process, at any rate."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = open(self.path / "lock", "ab")  # noqa: SIM115
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            return None
        return lock

    @property
    def is_running(self) -> bool:
        """Whether a driver runs here."""
        lock = self._try_lock()
        if lock is not None:
            lock.close()
        return lock is None

    @property
    def is_closed(self) -> bool:
        """Whether all windows are written, and nothing more is read."""
        return (self.path / "closed").exists()

    def close(self) -> None:
        """Say that it is finished."""
        (self.path / "closed").write_text("", "utf-8")

    # --------------------------------------------------------------------- asking

    def ask_to_drain(self, *, close: bool) -> bool:
        """Ask the driver that runs here to drain and end; False if there is none."""
        if not self.is_running:
            return False
        (self.path / "drained.json").unlink(missing_ok=True)
        # By its name: one that is started later has not been asked.
        driver = (self.path / "lock").read_text("utf-8")
        self._write("drain.json", {"close": close, "driver": driver})
        return True

    def asked(self) -> DrainRequest | None:
        """Return what this driver was asked for, once."""
        fields = self._read("drain.json")
        if fields is None or fields.get("driver") != self._driver:
            return None
        (self.path / "drain.json").unlink(missing_ok=True)
        return DrainRequest(bool(fields.get("close")))

    def report_drained(self, queries: Sequence[Mapping[str, Any]], error: str = "") -> None:
        """Record the outcome of draining, while the lock is still held."""
        self._write("drained.json", {"queries": list(queries), "error": error})

    def wait_drained(self, patience_s: float = ASKED_PATIENCE_S) -> list[dict[str, Any]]:
        """Wait until the driver that was asked has ended; return what its queries did.

        The timeout is for taking up the request; draining itself takes as long as it takes.
        """
        give_up_s = time.monotonic() + patience_s
        while self.is_running:
            if time.monotonic() > give_up_s and (self.path / "drain.json").exists():
                (self.path / "drain.json").unlink(missing_ok=True)
                raise PipelineFailed(
                    f"the driver did not accept the request to drain within {patience_s:g} s",
                    hint="its log says what it is doing; stop it if it hangs: no data is lost",
                    path=str(self.path),
                )
            time.sleep(ASKED_POLL_S)
        outcome = self._read("drained.json")
        if outcome is None or outcome["error"]:
            raise PipelineFailed(
                f"the driver did not drain: {outcome['error'] if outcome else 'it ended first'}",
                hint="no data is lost: ask again; its log says more",
                path=str(self.path),
            )
        queries: list[dict[str, Any]] = outcome["queries"]
        return queries

    def _write(self, name: str, fields: Mapping[str, Any]) -> None:
        """Replace a file as a whole: the process that reads it sees all of a request or none."""
        fresh = self.path / f"{name}.new"
        fresh.write_text(json.dumps(fields), "utf-8")
        os.replace(fresh, self.path / name)

    def _read(self, name: str) -> dict[str, Any] | None:
        with contextlib.suppress(OSError, ValueError):
            fields = json.loads((self.path / name).read_text("utf-8"))
            return fields if isinstance(fields, dict) else None
        return None
