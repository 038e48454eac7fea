"""A real process that owns a quiver: does what the test tells it, and can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from tests.patience import PATIENCE_S

from holdfast.quiver import Quiver, QuiverConfig, RetentionConfig, SegmentConfig
from holdfast.seam import Seam
from holdfast.seam.disk import RealDisk
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk, die_for_real

# Nothing happens by timer.
CONFIG = QuiverConfig(
    segment=SegmentConfig(max_open_duration_s=3600.0),
    retention=RetentionConfig(tick_s=3600.0),
)


class Owner:
    """The child process, seen from the test."""

    def __init__(self, root: Path, *, dies_at: str | None = None, nth: int = 1) -> None:
        command = [sys.executable, "-W", "error", __file__, str(root), dies_at or "", str(nth)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.pid: int = self._child.pid
        assert self._answer() == "open"

    def do(self, expression: str) -> Any:
        """Evaluate an expression in the child, where `quiver` is the quiver."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(expression) + "\n")
        self._child.stdin.flush()
        return self._answer()

    def kill(self) -> None:
        """End the child by kill -9."""
        self._child.send_signal(signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        """Wait until the child has ended; return its exit code."""
        code = self._child.wait(PATIENCE_S)
        for pipe in (self._child.stdin, self._child.stdout):
            assert pipe is not None
            pipe.close()
        return code

    def close(self) -> None:
        """Let the child close the quiver and end."""
        if self._child.returncode is None:
            self.do("quiver.close()")
            self.kill()

    def _answer(self) -> Any:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        assert line, "the owner ended"
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child.returncode is None:
            self.kill()


def main() -> None:
    """Be the child."""
    root, dies_at, nth = sys.argv[1:]
    faults = [Fault(dies_at, FaultKind.KILL_BEFORE, int(nth))] if dies_at else []
    seam = Seam(FaultyDisk(RealDisk(), faults, die_for_real))
    known: dict[str, Any] = {"quiver": Quiver.open(root, CONFIG, seam=seam)}
    sys.stdout.write('"open"\n')
    sys.stdout.flush()
    for line in sys.stdin:
        value = eval(json.loads(line), known)
        sys.stdout.write(json.dumps(value, default=str) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
