"""Drives workers and probers with threads: two for each data node, each with its own connection.

All decisions are the state machines'. A thread asks one for a call under the sender's lock, makes
the call without it, and hands back the result. So a node that hangs costs its own two threads some
time, and nobody else any.

To a quiver every append is news, and to a sender only sealed segments are. So one more thread looks
for news of the quiver now and then, and wakes the others: without it, each append would.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable

from holdfast.errors import HoldfastError, OwnerGone
from holdfast.handoff.calls import NodeCall, Result
from holdfast.handoff.prober import Prober
from holdfast.handoff.sender import Handoff
from holdfast.handoff.worker import Worker
from holdfast.quiver.log.wakeup import Wakeup
from holdfast.replica.transport import Transport
from holdfast.seam.clock import Clock

# Whatever a task waits for, it looks again after this time.
IDLE_S = 5.0
# How often it is looked for news of the quiver: so much later than it is sealed a part may go.
NEWS_EVERY_S = 0.05
# How soon a stop notices that it is to hurry.
HURRY_S = 0.1

log = logging.getLogger("holdfast.handoff")


class HandoffDriver:
    """The threads of a sender."""

    def __init__(self, handoff: Handoff, clock: Clock, connect: Callable[[str], Transport]) -> None:
        self._handoff = handoff
        self._clock = clock
        self._connect = connect
        self._arrivals = handoff.quiver.arrivals
        self._news = Wakeup()
        self._watch = threading.Thread(target=self._pass_on, name="handoff-news", daemon=True)
        self._closing = threading.Event()
        self._is_hurried = False
        # By name: how often its address changed.
        self._moves: Counter[str] = Counter()
        self._threads: dict[Worker | Prober, threading.Thread] = {}

    def refresh(self) -> None:
        """Start what is missing, after the first configuration and every other one."""
        with self._handoff.lock:
            tasks: list[tuple[str, Worker | Prober]] = [*self._handoff.workers.items()]
            tasks += self._handoff.probers.items()
            self._threads = {one: t for one, t in self._threads.items() if t.is_alive()}
            for name, task in tasks:
                if task not in self._threads:
                    kind = "worker" if isinstance(task, Worker) else "prober"
                    thread = self._threads[task] = threading.Thread(
                        target=self._run, args=(name, task), name=f"{kind}-{name}", daemon=True
                    )
                    thread.start()
        self._handoff.filter_orphans()
        self._news.notify()
        if not self._watch.is_alive():
            self._watch.start()

    def reconnect(self, name: str) -> None:
        """Let a node's threads connect again after what they are at: it has another address."""
        self._moves[name] += 1
        self._news.notify()

    def close(self, grace_s: float = 10.0) -> None:
        """Begin nothing any more, and wait a while for what is under way.

        A put cannot be cancelled. One that is still under way is answered to nobody: the part is
        offered again at the next start, and the node says that it has it. Called again without
        patience, it ends a wait that is under way.
        """
        self._is_hurried |= grace_s <= 0
        self._closing.set()
        self._arrivals.notify()
        self._news.notify()
        deadline_s = self._clock.monotonic_s() + grace_s
        started = [self._watch] if self._watch.ident is not None else []
        for thread in [*self._threads.values(), *started]:
            while thread.is_alive() and not self._is_hurried:
                left_s = deadline_s - self._clock.monotonic_s()
                if left_s <= 0:
                    break
                thread.join(min(left_s, HURRY_S))
        self._handoff.close()

    def _run(self, name: str, task: Worker | Prober) -> None:
        try:
            while not self._is_over(task):
                moves = self._moves[name]
                try:
                    transport = self._connect(name)
                except HoldfastError as error:
                    # A file of ours is missing, or nobody knows its address: that may be mended.
                    self._turn_in_vain(task, error)
                    self._closing.wait(IDLE_S)
                    continue
                with contextlib.closing(transport):
                    while not self._is_over(task) and self._moves[name] == moves:
                        try:
                            self._turn(task, transport)
                        except (HoldfastError, OSError) as error:
                            # The ledger could not be written, say: that may be mended, too.
                            log.warning("data node %r: %s; it is tried again", name, error)
                            self._closing.wait(IDLE_S)
        except Exception:
            log.exception("the thread of data node %r ended; its parts wait", name)

    def _is_over(self, task: Worker | Prober) -> bool:
        return self._closing.is_set() or task.is_over

    def _turn_in_vain(self, task: Worker | Prober, error: HoldfastError) -> None:
        """Let a task fail that has no connection; what its node does not own is still resolved."""
        with self._handoff.lock:
            call = task.begin()
            if call is not None:
                task.end(call, error)  # type: ignore[arg-type]

    def _turn(self, task: Worker | Prober, transport: Transport) -> None:
        """Make one call, or wait until there is one to make."""
        seen = self._news.version
        with self._handoff.lock:
            call = task.begin()
            due_s = task.due_s()
        if call is None:
            patience_s = due_s - self._clock.monotonic_s()
            self._news.wait(seen, min(max(patience_s, 0.001), IDLE_S))
            return
        result = _made(call, transport)
        with self._handoff.lock:
            task.end(call, result)  # type: ignore[arg-type]
        if isinstance(task, Prober):
            self._handoff.filter_orphans()
        # A permit may be free, or a node be up.
        self._news.notify()

    def _pass_on(self) -> None:
        """Wake the others when there is news of the quiver."""
        seen = -1
        while not self._closing.is_set():
            version = self._arrivals.wait(seen, IDLE_S)
            if version != seen:
                self._news.notify()
            seen = version
            self._closing.wait(NEWS_EVERY_S)


def _made(call: NodeCall, transport: Transport) -> Result:
    """Make a call; whatever goes wrong with it is its result."""
    try:
        return call.run(transport)
    except HoldfastError as error:
        return error
    except Exception as error:
        log.exception("a call to a data node failed in a way that nobody foresaw")
        return OwnerGone(f"{type(error).__name__}: {error}", hint="see the log")
