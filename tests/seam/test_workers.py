"""Processes beside the one that plans: what becomes of tasks when they die, stop or fail."""

from __future__ import annotations

import os
import platform
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_S, SCALE, until

from holdfast.errors import DiskFull, StoreError
from holdfast.seam import workers
from holdfast.seam.workers import Alive, Finish, TaskHandler, WorkerPool, fork_workers


class Obedient:
    """Does what its task says."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def take(self, task: Any, alive: Alive, *, again: bool) -> Finish:
        alive()
        what, argument = task
        if what == "die" or (what == "die once" and not again):
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "stop" and not again:
            os.kill(os.getpid(), signal.SIGSTOP)
        if what == "long":
            while not os.path.exists(argument):
                alive()
                time.sleep(0.01)
        if what == "full":
            raise DiskFull("no room", hint="make some", path="/here")
        if what == "late":
            return lambda: 1 // 0
        return lambda: (self._given, argument, again)

    def close(self) -> None:
        pass


@contextmanager
def forked(
    monkeypatch: pytest.MonkeyPatch,
    begin: Callable[[Any], TaskHandler] = Obedient,
    silent_s: float = PATIENCE_S,
) -> Iterator[WorkerPool]:
    """Fork two workers, whatever threads the tests themselves have."""
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    pool = fork_workers(begin, 2, silent_s=silent_s)
    assert pool is not None
    pids = pool.pids
    with pool:
        yield pool
    assert not any(is_there(pid) for pid in pids), "a process was left"


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_answers_come_by_their_tickets(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a pipe holds goes both ways at once."""
    large = b"x" * 300_000
    with forked(monkeypatch) as pool:
        pool.begin(("given", 1))
        tickets = [pool.submit(("do", (number, large))) for number in range(20)]
        for number, ticket in reversed(list(enumerate(tickets))):
            assert pool.result(ticket) == (("given", 1), (number, large), False)


def test_the_tasks_of_one_that_dies_are_done_by_another_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with forked(monkeypatch) as pool:
        pool.begin(None)
        tickets = [
            pool.submit(("die once" if number == 3 else "do", number)) for number in range(9)
        ]
        answers = [pool.result(ticket) for ticket in tickets]
        assert [number for _, number, _ in answers] == list(range(9))
        assert answers[3][2], "it was told that another one had begun"
        assert len(pool.lost_pids) == 1


def test_others_are_answered_beside_a_long_task(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whoever waits for any answer hands out more, while the oldest is not there."""
    end = tmp_path / "end"
    with forked(monkeypatch) as pool:
        pool.begin(None)
        first, *others = [pool.submit(("long", str(end))), pool.submit(("do", 0))]
        # One may be behind the long task; all others are done beside it.
        for number in range(1, 10):
            others.append(pool.submit(("do", number)))
            while pool.unanswered > 3:
                pool.wait()
        assert not pool.is_answered(first)
        assert sum(map(pool.is_answered, others)) >= 8
        end.touch()
        assert [pool.result(ticket)[1] for ticket in others] == list(range(10))
        pool.result(first)
        pool.wait()  # for nothing


def test_whoever_waits_for_any_answer_hears_of_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with forked(monkeypatch) as pool:
        pool.begin(None)
        pool.submit(("full", 0))
        for _ in range(2):
            with pytest.raises(DiskFull, match="no room"):
                pool.wait()


def test_a_task_that_kills_two_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    with forked(monkeypatch) as pool:
        pool.begin(None)
        ticket = pool.submit(("die", 0))
        with pytest.raises(StoreError, match="killed by signal 9"):
            pool.result(ticket)


def test_one_that_is_stopped_is_waited_for_no_longer_than_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with forked(monkeypatch, silent_s=2.0 * SCALE) as pool:
        pool.begin(None)
        tickets = [pool.submit(("stop", 0)), pool.submit(("do", 1))]
        assert [pool.result(ticket)[1] for ticket in tickets] == [0, 1]
        assert len(pool.lost_pids) == 1


def test_errors_are_raised_here_as_they_were_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with forked(monkeypatch) as pool:
        pool.begin(None)
        with pytest.raises(DiskFull, match="no room") as full:
            pool.result(pool.submit(("full", 0)))
        assert (full.value.hint, full.value.path) == ("make some", "/here")
    with forked(monkeypatch) as pool:
        pool.begin(None)
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            pool.result(pool.submit(("late", 0)))


def test_one_that_is_idle_and_stopped_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "END_S", 0.1)
    with forked(monkeypatch) as pool:
        os.kill(pool.pids[0], signal.SIGSTOP)


PARENT = """
import os, signal, sys, time
from holdfast.seam.workers import fork_workers

class Busy:
    def __init__(self, given): pass
    def close(self): pass
    def take(self, task, alive, *, again):
        open(f"{task}/{os.getpid()}", "w").close()
        while True:
            alive()
            time.sleep(0.05)

pool = fork_workers(Busy, 2)
pool.begin(None)
pool.submit(sys.argv[1])
while not os.listdir(sys.argv[1]):
    pool._pump(0.1)
print(*pool.pids, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    """The one that is busy, and the one that waits."""
    ran = subprocess.run(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    pids = [int(word) for word in ran.stdout.split()]
    assert len(pids) == 2, ran.stderr
    until(lambda: not any(is_there(pid) for pid in pids), "their end")


class Hungry:
    """Takes the same memory for each task, and says how many new pages that was."""

    def __init__(self, given: Any) -> None:
        pass

    def take(self, task: Any, alive: Alive, *, again: bool) -> Finish:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [bytes(1_000_000).replace(b"\0", b"x") for _ in range(task)]
        taken = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        blocks.clear()
        return lambda: taken

    def close(self) -> None:
        pass


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has its own ways")
def test_freed_memory_is_kept_for_the_next_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to `KEPT_BYTES`; each page that is new has to be cleared by the system first."""
    blocks = workers.KEPT_BYTES // 4 // 1_000_000
    pages = blocks * 1_000_000 // resource.getpagesize()
    with forked(monkeypatch, Hungry) as pool:
        pool.begin(())
        taken = [pool.result(ticket) for ticket in [pool.submit(blocks) for _ in range(8)]]
    assert min(taken) < pages / 10
    assert sum(taken) < 4 * pages, "two workers, and each took new pages more than once or twice"


def test_beside_threads_nothing_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    assert fork_workers(Obedient) is None
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert fork_workers(Obedient) is None
