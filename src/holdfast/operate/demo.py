"""The demo: clients append under load, the process is killed again and again, nothing is lost.

No configuration, no network: a temporary folder, one process at a time, real kill -9.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import CheckFailed
from holdfast.prove.checker import Verdict, check
from holdfast.prove.victim import CONFIG, Task

CLIENTS = 16
KILLS = 3
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


class AnswerCounter:
    """Counts the answers in the clients' journals as they grow."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._offsets: dict[Path, int] = {}
        self.answers = 0

    def update(self) -> int:
        """Read what is new and return the count of all answers."""
        for path in self._directory.glob("*.journal"):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                text = file.read()
            whole = text.rfind(b"\n") + 1
            self._offsets[path] = self._offsets.get(path, 0) + whole
            self.answers += sum(1 for line in text[:whole].splitlines() if line.startswith(b"A"))
        return self.answers


def play(directory: Path, show: Callable[[Scene], None], seed: int) -> tuple[Scene, Verdict]:
    """Run the whole demo and return its last scene and the checker's verdict."""
    journal_dir = directory / "journals"
    journal_dir.mkdir(parents=True)
    dice, scene, counter = random.Random(seed), Scene(), AnswerCounter(journal_dir)
    for life in range(KILLS + 1):
        last = life == KILLS
        scene.life = life + 1
        seconds = SECONDS_PER_LIFE if last else START_SECONDS_MAX
        task = Task(
            str(directory / "quiver"),
            str(journal_dir),
            life,
            CLIENTS,
            seconds,
            dice.getrandbits(32),
        )
        _live(task, scene, counter, show, last, dice)
    scene.state = "checking every answer against the disk"
    show(scene)
    verdict = check(journal_dir, directory / "quiver", CONFIG)
    scene.state = "done"
    show(scene)
    return scene, verdict


def _live(
    task: Task,
    scene: Scene,
    counter: AnswerCounter,
    show: Callable[[Scene], None],
    last: bool,
    dice: random.Random,
) -> None:
    """Run one process: to its end if it is the last, else until it is killed."""
    scene.state = "opening" if task.incarnation == 0 else "recovering"
    show(scene)
    process = subprocess.Popen(task.command(), stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise CheckFailed("the process ended at its start", hint="run `holdfast doctor`")
        scene.state = "appending under load"
        until_s = time.monotonic() + SECONDS_PER_LIFE * dice.uniform(0.6, 1.2)
        while process.poll() is None and (last or time.monotonic() < until_s):
            before = scene.answered
            time.sleep(REFRESH_SECONDS)
            scene.answered = counter.update()
            scene.answered_per_s = (scene.answered - before) / REFRESH_SECONDS
            show(scene)
        if not last:
            process.kill()
            scene.kills += 1
            scene.state = "killed (kill -9)"
            show(scene)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
