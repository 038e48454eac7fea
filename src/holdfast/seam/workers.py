"""Processes that do the work of a command beside the one that plans it.

One interpreter runs one thread of Python at a time. Threads that read, cut, hash and write small
files hand the interpreter to each other thousands of times a second, and a machine's second core is
of little use. Processes have an interpreter each.

    parent: plans, owns lease, progress and commit          worker: one task after the other
        task ──────────── pipe ───────────▶                 take ▶ work ▶ answer
        answer, error, sign of life ◀─ pipe ─

**They are forked by the command line alone, first of all**: before there is a thread, a connection
to a database or a client of an object store, none of which survives a fork (seam/process.py). What
a worker needs of these it opens itself, when it is told to begin. Where processes cannot be forked
so (a library, other systems than Linux), `fork_workers` gives None, and threads do the work.

**What can go wrong.** A worker whose parent is gone finds its pipe closed, when it waits for a task
or when it says that it is alive (`ALIVE_EVERY_S`), and ends. A worker that ends by itself, or is
silent for `SILENT_S` and then killed, has its tasks done by another one, once: what it had begun is
harmless, since everything it does may be repeated. A task whose second worker dies as well ends the
command, which then commits nothing. A parent that fails kills its workers before it returns.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import select
import signal
import struct
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol, Self

from holdfast import errors
from holdfast.errors import HoldfastError, StoreError
from holdfast.seam.process import bind_to_process

# One for each core, but two at least: the work of one that dies is done by another.
WORKERS_MIN = 2
WORKERS_MAX = 8
# Tasks that a worker has and did not answer yet: one under way, and the next.
TASKS_AHEAD = 2
# How often a task is tried.
ATTEMPTS_MAX = 2
# How often a worker that is busy says so, and how long it may say nothing.
ALIVE_EVERY_S = 1.0
SILENT_S = 300.0
# How long a worker that has nothing to do may take to end.
END_S = 10.0
# Freed memory that a worker keeps for its next blocks, and the largest block that it can be kept of
# (glibc knows no more): the next range takes as much as the last one.
KEPT_BYTES = 128 * 1024 * 1024
KEPT_BLOCK_BYTES = 32 * 1024 * 1024
# What they are called in mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# The longest that a parent waits in one go; time in which it was stopped itself counts no more.
_LOOK_S = 1.0
_READ_BYTES = 1 << 20

_LENGTH = struct.Struct("<Q")

Alive = Callable[[], None]
# What finishes a task, and returns its answer.
Finish = Callable[[], Any]


class TaskHandler(Protocol):
    """What a worker does, from when it is told to begin."""

    def take(self, task: Any, alive: Alive, *, again: bool) -> Finish:
        """Do a task, as far as nothing is waited for; `again`: another worker had begun it.

        What is returned is called before the answer goes out, and may wait: for a disk that syncs,
        while the next task is under way.
        """

    def close(self) -> None:
        """Let go of everything."""


@dataclass
class _PoolTask:
    data: bytes
    attempts: int = 0


@dataclass(eq=False)
class _ForkedWorker:
    pid: int
    tasks: int
    answers: int
    outgoing: bytearray = field(default_factory=bytearray)
    incoming: bytearray = field(default_factory=bytearray)
    tickets: deque[int] = field(default_factory=deque)
    silent_s: float = 0.0


def fork_workers(
    begin: Callable[[Any], TaskHandler], count: int | None = None, *, silent_s: float = SILENT_S
) -> WorkerPool | None:
    """Fork workers, each of which calls `begin` once it is told what with; None: use threads.

    For a command that has done nothing yet.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        return None
    cores = len(os.sched_getaffinity(0))
    workers: list[_ForkedWorker] = []
    for _ in range(count or max(WORKERS_MIN, min(WORKERS_MAX, cores))):
        task_end, task_start = os.pipe()
        answer_end, answer_start = os.pipe()
        pid = os.fork()
        if pid == 0:
            # Ends of pipes that are the parent's: while a copy is open here, nobody sees it close.
            for worker in workers:
                os.close(worker.tasks)
                os.close(worker.answers)
            os.close(task_start)
            os.close(answer_end)
            _serve(begin, task_end, answer_start)
        os.close(task_end)
        os.close(answer_start)
        os.set_blocking(task_start, False)
        os.set_blocking(answer_end, False)
        workers.append(_ForkedWorker(pid, task_start, answer_end))
    return WorkerPool(workers, silent_s)


class WorkerPool:
    """The parent's side: tasks go out, answers come back by their tickets."""

    def __init__(self, workers: list[_ForkedWorker], silent_s: float) -> None:
        self._workers = workers
        self._silent_s = silent_s
        self._tasks: dict[int, _PoolTask] = {}
        self._waiting: deque[int] = deque()
        self._answers: dict[int, Any] = {}
        self._next = 0
        self._failure: BaseException | None = None
        # Of workers that ended before their tasks were done.
        self.lost_pids: list[int] = []
        bind_to_process(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """The workers that are there."""
        return [worker.pid for worker in self._workers]

    @property
    def ahead(self) -> int:
        """How many tasks keep all workers busy."""
        return TASKS_AHEAD * len(self._workers)

    def begin(self, given: Any) -> None:
        """Tell all workers what they work with; before any task."""
        message = _framed((-1, False, marshal.dumps(given)))
        for worker in self._workers:
            worker.outgoing += message

    def submit(self, task: Any) -> int:
        """Hand out a task; return its ticket."""
        ticket, self._next = self._next, self._next + 1
        self._tasks[ticket] = _PoolTask(marshal.dumps(task))
        self._waiting.append(ticket)
        self._hand_out()
        self._pump(0.0)
        return ticket

    def result(self, ticket: int) -> Any:
        """Wait for the answer to a task, or raise what went wrong; each is taken once."""
        while ticket not in self._answers:
            if self._failure is not None:
                raise self._failure
            self._pump(_LOOK_S)
        return self._answers.pop(ticket)

    @property
    def unanswered(self) -> int:
        """How many tasks are waiting or under way."""
        return len(self._tasks)

    def is_answered(self, ticket: int) -> bool:
        """Whether the answer to a task is there, and `result` does not wait."""
        return ticket in self._answers

    def wait(self) -> None:
        """Wait until a task is answered, or raise what went wrong; whichever task comes first.

        Who waits for the oldest instead lets the other workers run out of tasks beside a long one.
        """
        before = self.unanswered
        while self._failure is None and before and self.unanswered == before:
            self._pump(_LOOK_S)
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End all workers: those with nothing to do in peace, others at once."""
        is_done = not self._tasks and self._failure is None
        for worker in self._workers:
            os.close(worker.tasks)
        for worker in self._workers:
            if not is_done or not _has_ended(worker.answers):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGKILL)
            os.close(worker.answers)
            os.waitpid(worker.pid, 0)
        self._workers = []

    def _hand_out(self) -> None:
        for worker in self._workers:
            while self._waiting and len(worker.tickets) < TASKS_AHEAD:
                ticket = self._waiting.popleft()
                task = self._tasks[ticket]
                task.attempts += 1
                worker.outgoing += _framed((ticket, task.attempts > 1, task.data))
                if not worker.tickets:
                    worker.silent_s = 0.0
                worker.tickets.append(ticket)

    def _pump(self, wait_s: float) -> None:
        """Send and take what can be; wait for something to happen, but not for long."""
        poll = select.poll()
        by_descriptor: dict[int, _ForkedWorker] = {}
        for worker in self._workers:
            by_descriptor[worker.answers] = worker
            poll.register(worker.answers, select.POLLIN)
            if worker.outgoing:
                by_descriptor[worker.tasks] = worker
                poll.register(worker.tasks, select.POLLOUT)
        began_s = time.monotonic()
        ready = poll.poll(wait_s * 1000)
        waited_s = min(time.monotonic() - began_s, wait_s)
        for worker in self._workers:
            worker.silent_s += waited_s
        for descriptor, _ in ready:
            worker = by_descriptor[descriptor]
            if worker not in self._workers:
                continue
            if descriptor == worker.tasks:
                _send(worker)
            elif not self._take(worker):
                self._lose(worker)
        for worker in list(self._workers):
            if worker.tickets and worker.silent_s > self._silent_s:
                os.kill(worker.pid, signal.SIGKILL)
                self._lose(worker)
        self._hand_out()

    def _take(self, worker: _ForkedWorker) -> bool:
        """Take what a worker has said; False: it has ended."""
        try:
            data = os.read(worker.answers, _READ_BYTES)
        except BlockingIOError:
            return True
        if not data:
            return False
        worker.silent_s = 0.0
        worker.incoming += data
        for kind, ticket, value in _frames(worker.incoming):
            if kind == "alive":
                continue
            worker.tickets.remove(ticket)
            del self._tasks[ticket]
            if kind == "done":
                self._answers[ticket] = value
            elif self._failure is None:
                self._failure = _error_of(value)
        return True

    def _lose(self, worker: _ForkedWorker) -> None:
        """Have the tasks of a worker that has ended done by others, unless that was tried."""
        self._workers.remove(worker)
        os.close(worker.tasks)
        os.close(worker.answers)
        _, status = os.waitpid(worker.pid, 0)
        self.lost_pids.append(worker.pid)
        for ticket in worker.tickets:
            if self._tasks[ticket].attempts >= ATTEMPTS_MAX:
                self._fail(status)
        self._waiting.extendleft(reversed(worker.tickets))
        if not self._workers:
            self._fail(status)

    def _fail(self, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        if self._failure is None:
            self._failure = StoreError(
                f"a process that this command started {how}, and so did the one in its place",
                hint="Look into the system's log for what killed it, such as a lack of memory; "
                "then run the command again: what is stored already is not stored twice.",
            )


def _send(worker: _ForkedWorker) -> None:
    try:
        sent = os.write(worker.tasks, worker.outgoing)
    except BlockingIOError:
        return
    except BrokenPipeError:
        worker.outgoing.clear()  # it has ended, which its answers show
        return
    del worker.outgoing[:sent]


def _has_ended(answers: int) -> bool:
    """Wait for a worker that is to end; False if it does not."""
    poll = select.poll()
    poll.register(answers, select.POLLIN)
    deadline_s = time.monotonic() + END_S
    while (left_s := deadline_s - time.monotonic()) > 0:
        if poll.poll(left_s * 1000) and not os.read(answers, _READ_BYTES):
            return True
    return False


def _framed(message: Any) -> bytes:
    data = marshal.dumps(message)
    return _LENGTH.pack(len(data)) + data


def _frames(incoming: bytearray) -> Iterator[Any]:
    """Take the whole messages out of what has come."""
    while len(incoming) >= _LENGTH.size:
        (size,) = _LENGTH.unpack_from(incoming)
        end = _LENGTH.size + size
        if len(incoming) < end:
            return
        message = marshal.loads(incoming[_LENGTH.size : end])
        del incoming[:end]
        yield message


def _error_of(value: tuple[str, tuple[Any, ...], dict[str, Any]]) -> BaseException:
    """Return a worker's error as the parent raises it."""
    name, arguments, known = value
    kind = getattr(errors, name, None)
    if kind is None:
        # A bug, with the stack that it had over there.
        return RuntimeError(f"in a worker: {arguments[0]}")
    error: HoldfastError = kind.__new__(kind, *arguments)
    error.args = arguments
    vars(error).update(known)
    return error


# ------------------------------------------------------------------- the worker's side


def _serve(begin: Callable[[Any], TaskHandler], tasks: int, answers: int) -> NoReturn:
    """Do tasks until the pipe closes; never return into what the parent was doing."""
    code = 1
    try:
        # Ctrl-C goes to all processes of a terminal. The parent decides what becomes of it, and
        # its end is ours.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _WorkerLoop(begin, tasks, answers).run()
        code = 0
    except BrokenPipeError:
        pass  # the parent is gone
    finally:
        os._exit(code)


def _keep_memory() -> None:
    """Keep freed blocks for the next ones: each page from the system is cleared first.

    By itself, the C library gives large blocks back at once; a quarter to a third of all the pages
    that a worker asked for were such that it had just given away.
    """
    import ctypes  # by workers that have something to do, while the parent does other things

    with contextlib.suppress(OSError, AttributeError):  # another C library
        library = ctypes.CDLL(None)
        library.mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        library.mallopt(_M_MMAP_THRESHOLD, KEPT_BLOCK_BYTES)


class _WorkerLoop:
    def __init__(self, begin: Callable[[Any], TaskHandler], tasks: int, answers: int) -> None:
        self._begin = begin
        self._tasks = tasks
        self._answers = answers
        self._said_s = 0.0

    def run(self) -> None:
        handler: TaskHandler | None = None
        given: Any = None
        waiting: tuple[int, Finish] | None = None
        while True:
            # An answer that waits for the disk goes out when the next task was done meanwhile, or
            # when there is none.
            if waiting is not None and not select.select([self._tasks], [], [], 0)[0]:
                self._finish(*waiting)
                waiting = None
            message = self._next_message()
            if message is None:
                break
            ticket, again, data = message
            if ticket < 0:
                given = marshal.loads(data)
                continue
            try:
                if handler is None:
                    _keep_memory()
                    handler = self._begin(given)
                finish = handler.take(marshal.loads(data), self._alive, again=again)
            except BrokenPipeError:
                raise
            except BaseException as error:
                self._fail(ticket, error)
                continue
            if waiting is not None:
                self._finish(*waiting)
            waiting = ticket, finish
        if handler is not None:
            handler.close()

    def _finish(self, ticket: int, finish: Finish) -> None:
        try:
            answer = finish()
        except BaseException as error:
            self._fail(ticket, error)
        else:
            self._say(("done", ticket, answer))

    def _fail(self, ticket: int, error: BaseException) -> None:
        if isinstance(error, HoldfastError):
            known = {name: value for name, value in vars(error).items() if _is_plain(value)}
            self._say(
                ("failed", ticket, (type(error).__name__, tuple(map(str, error.args)), known))
            )
        else:
            told = "".join(traceback.format_exception(error))
            self._say(("failed", ticket, ("", (told,), {})))

    def _alive(self) -> None:
        now_s = time.monotonic()
        if now_s - self._said_s >= ALIVE_EVERY_S:
            self._say(("alive", -1, None))

    def _say(self, message: Any) -> None:
        self._said_s = time.monotonic()
        data = memoryview(_framed(message))
        while data:
            data = data[os.write(self._answers, data) :]

    def _next_message(self) -> Any:
        head = self._read(_LENGTH.size)
        return None if head is None else marshal.loads(self._read(_LENGTH.unpack(head)[0]) or b"")

    def _read(self, size: int) -> bytes | None:
        """Read so many bytes; None if the pipe is closed."""
        found = bytearray()
        while len(found) < size:
            data = os.read(self._tasks, min(_READ_BYTES, size - len(found)))
            if not data:
                return None
            found += data
        return bytes(found)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | int | float | bytes)
