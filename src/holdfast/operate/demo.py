"""The demo: clients append, readers read, everybody is killed, nothing is lost.

No configuration, no network: a temporary folder, one process at a time, real kill -9. One of the
two readers is dead for a whole life and catches up in the next.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.errors import CheckFailed
from holdfast.prove.checker import Verdict
from holdfast.prove.quiver import drain_and_check
from holdfast.prove.readers import CURSOR, LEASE
from holdfast.prove.victim import Task
from holdfast.quiver import Balance

CLIENTS = 8
KILLS = 3
# In this life one of the readers is not there.
LIFE_WITHOUT_LEASE = 2
SECONDS_PER_LIFE = 2.0
START_SECONDS_MAX = 30.0
REFRESH_SECONDS = 0.1


@dataclass
class Scene:
    """What the audience sees at one moment."""

    life: int = 0
    state: str = "starting"
    answered: int = 0
    answered_per_s: float = 0.0
    kills: int = 0
    # By subscriber: bundles it acknowledged.
    acknowledged: dict[str, int] = field(default_factory=dict)
    dead_readers: tuple[str, ...] = ()


class LineCounter:
    """Counts facts in journals as they grow."""

    def __init__(self, directory: Path, pattern: str, fact: bytes) -> None:
        self._directory = directory
        self._pattern = pattern
        self._fact = fact
        self._offsets: dict[Path, int] = {}
        self._bundles = 0

    def update(self) -> int:
        """Read what is new and return the count of all bundles told of."""
        for path in self._directory.glob(self._pattern):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                text = file.read()
            whole = text.rfind(b"\n") + 1
            self._offsets[path] = self._offsets.get(path, 0) + whole
            for line in text[:whole].splitlines():
                if line.startswith(self._fact):
                    self._bundles += 3 if b"-transaction" in line else 1
        return self._bundles


class Play:
    """One performance."""

    def __init__(self, directory: Path, show: Callable[[Scene], None], seed: int) -> None:
        self.scene = Scene()
        self._directory = directory
        self._journals = directory / "journals"
        self._journals.mkdir(parents=True)
        self._show = show
        self._dice = random.Random(seed)
        self._answers = LineCounter(self._journals, "*.journal", b"A ")
        self._readers = {
            name: LineCounter(self._journals, f"*.{name}", b"K ") for name in (CURSOR, LEASE)
        }

    def run(self) -> tuple[Verdict, list[Balance]]:
        """Play all lives; return the checker's verdict and the subscribers' accounts."""
        for life in range(1, KILLS + 2):
            self.scene.life = life
            self.scene.dead_readers = (LEASE,) if life == LIFE_WITHOUT_LEASE else ()
            self._live(last=life == KILLS + 1)
        self._tell("reading what is left, and checking every answer")
        result = drain_and_check(self._task(KILLS + 2, 0.0))
        self._tell("done")
        return result

    def _task(self, life: int, seconds: float) -> Task:
        readers = tuple(n for n in (CURSOR, LEASE) if n not in self.scene.dead_readers)
        return Task(
            quiver_dir=str(self._directory / "quiver"),
            journal_dir=str(self._journals),
            incarnation=life,
            clients=CLIENTS,
            seconds=seconds,
            seed=self._dice.getrandbits(32),
            readers=readers,
        )

    def _live(self, *, last: bool) -> None:
        """Run one process: to its end if it is the last, else until it is killed."""
        self._tell("opening" if self.scene.life == 1 else "recovering")
        task = self._task(self.scene.life, SECONDS_PER_LIFE if last else START_SECONDS_MAX)
        process = subprocess.Popen(task.command(), stdout=subprocess.PIPE)
        assert process.stdout is not None
        try:
            if not process.stdout.readline():
                raise CheckFailed("the process ended at its start", hint="run `holdfast doctor`")
            self._watch(process, last)
            if not last:
                process.kill()
                self.scene.kills += 1
                self._tell("killed (kill -9)")
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    def _watch(self, process: subprocess.Popen[bytes], last: bool) -> None:
        self.scene.state = "under load"
        until_s = time.monotonic() + SECONDS_PER_LIFE * self._dice.uniform(0.6, 1.2)
        while process.poll() is None and (last or time.monotonic() < until_s):
            before = self.scene.answered
            time.sleep(REFRESH_SECONDS)
            self._count()
            self.scene.answered_per_s = (self.scene.answered - before) / REFRESH_SECONDS
            self._show(self.scene)

    def _count(self) -> None:
        self.scene.answered = self._answers.update()
        self.scene.acknowledged = {name: c.update() for name, c in self._readers.items()}

    def _tell(self, state: str) -> None:
        self._count()
        self.scene.state = state
        self._show(self.scene)
