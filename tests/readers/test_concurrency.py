"""Many producers and readers at once: no deadlock, nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Self

import pytest
from tests.patience import PATIENCE_S
from tests.quiver.machine import Machine, quiet
from tests.readers.setting import (
    StillMachine,
    append,
    check_books,
    drain,
    keep,
    must_plan,
    must_poll,
    sealed,
)

from holdfast.errors import Fenced, NotAccepted, UnknownSubscriber
from holdfast.quiver import (
    Cursor,
    Lease,
    LeaseOptions,
    LedgerConfig,
    Outcome,
    Quiver,
    QuiverConfig,
    RetentionConfig,
    SubscriberOptions,
)
from holdfast.quiver.base.config import KB, MB

THOROUGH = os.environ.get("HOLDFAST_THOROUGH") == "1"
BUNDLES = 2_000 if THOROUGH else 200
PRODUCERS = 3


def busy(retention: RetentionConfig | None = None) -> QuiverConfig:
    """Return a configuration under which everything that has a timer happens all the time."""
    return replace(
        quiet(timeout_s=PATIENCE_S, max_open_duration_s=0.02),
        ledger=LedgerConfig(flush_interval_s=0.002, rotate_bytes=64 * KB),
        retention=replace(retention or RetentionConfig(), tick_s=0.002),
    )


class Crew:
    """Threads that end together; the first failure of any of them is raised."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []

    def hire(self, work: Callable[[], None]) -> threading.Thread:
        """Let a thread do some work."""

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self._failures.append(error)
                self.done.set()

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in self._threads), "a deadlock"
        if self._failures:
            raise self._failures[0]

    def wait(self, threads: list[threading.Thread]) -> None:
        """Wait until some of them are done, or any of them failed."""
        for thread in threads:
            thread.join(PATIENCE_S)


def produce(quiver: Quiver, count: int, size_bytes: int = 50) -> None:
    for place in range(count):
        quiver.append_raw([b"x" * size_bytes, b"%d" % place])


def consume(lease: Lease, crew: Crew, seen: Counter[int], lock: threading.Lock) -> None:
    """Acknowledge until there is nothing left after the end."""
    while True:
        ended = crew.done.is_set()
        delivery = lease.poll(timeout_s=0.05)
        if delivery is None:
            if ended:
                return
        elif delivery.seq % 7 == 0 and delivery.attempt == 1:
            delivery.nack(retry_after_s=0.001)
        elif delivery.ack():
            with lock:
                seen[delivery.seq] += 1


def commit_all(cursor: Cursor, crew: Crew, seen: Counter[int]) -> None:
    while True:
        ended = crew.done.is_set()
        planned = cursor.plan(max_events=20, wait_s=0.05)
        if planned is None:
            if ended:
                return
            continue
        seen.update(bundle.seq for bundle in cursor.read(planned))
        cursor.commit(planned)


def test_readers_of_all_sorts_and_producers_at_once() -> None:
    with Machine() as machine:
        quiver = machine.start(busy())
        fifo, newest = Counter[int](), Counter[int]()
        ranges, lock = Counter[int](), threading.Lock()
        one = quiver.lease("fifo", leasing=LeaseOptions(max_in_flight=8))
        two = quiver.lease("newest", leasing=LeaseOptions(order="newest_first", max_in_flight=8))
        three = quiver.cursor("cursor")
        with Crew() as crew:
            producers = [crew.hire(lambda: produce(quiver, BUNDLES)) for _ in range(PRODUCERS)]
            for _ in range(2):
                crew.hire(lambda: consume(one, crew, fifo, lock))
                crew.hire(lambda: consume(two, crew, newest, lock))
            crew.hire(lambda: commit_all(three, crew, ranges))

            def look() -> None:
                while not crew.done.is_set():
                    for name in ("fifo", "newest", "cursor"):
                        assert quiver.balance(name).holds
                    quiver.statistics()

            def come_and_go() -> None:
                while not crew.done.is_set():
                    quiver.register("guest", options=SubscriberOptions(on_full="drop_oldest"))
                    with quiver.lease("guest") as guest:
                        guest.poll()
                    quiver.unregister("guest")

            crew.hire(look)
            crew.hire(come_and_go)
            crew.wait(producers)
        everything = Counter(range(PRODUCERS * BUNDLES))
        assert fifo == newest == ranges == everything
        for balance in check_books(quiver).values():
            assert balance.outcomes[Outcome.ACKED] == balance.accepted
        assert quiver.statistics().last_keeper_error is None


def test_producers_are_throttled_and_never_stuck_while_readers_are_slow() -> None:
    """A full quiver: the writer makes room itself, while the keeper does, while readers ack."""
    retention = RetentionConfig(size_cap_bytes=4 * MB)
    with Machine() as machine:
        quiver = machine.start(busy(retention))
        seen, lock = Counter[int](), threading.Lock()
        capped = SubscriberOptions(max_bytes=MB, on_full="drop_oldest")
        quiver.register("dead", options=capped)
        lease = quiver.lease("alive", options=SubscriberOptions(max_bytes=MB))
        with Crew() as crew:
            count = BUNDLES // 4
            producers = [
                crew.hire(lambda: produce(quiver, count, 60 * KB)) for _ in range(PRODUCERS)
            ]
            for _ in range(2):
                crew.hire(lambda: consume(lease, crew, seen, lock))
            crew.wait(producers)
        assert seen == Counter(range(PRODUCERS * count))
        balances = check_books(quiver)
        assert balances["alive"].outcomes[Outcome.ACKED] == balances["alive"].accepted
        assert balances["dead"].outcomes[Outcome.DROPPED].bundles > 0


def test_readers_that_fence_each_other_off_deliver_everything_between_them() -> None:
    with Machine() as machine:
        quiver = machine.start(busy())
        quiver.register("one")
        seen, lock = Counter[int](), threading.Lock()

        def take_over() -> None:
            lease = quiver.lease("one")
            while True:
                ended = crew.done.is_set()
                try:
                    delivery = lease.poll(timeout_s=0.01)
                    if delivery is None and ended:
                        return
                    if delivery is not None and delivery.ack():
                        with lock:
                            seen[delivery.seq] += 1
                            if seen.total() % 20 == 0:
                                lease = quiver.lease("one")
                except Fenced:
                    if ended:
                        return
                    lease = quiver.lease("one")

        with Crew() as crew:
            producers = [crew.hire(lambda: produce(quiver, BUNDLES)) for _ in range(2)]
            for _ in range(3):
                crew.hire(take_over)
            crew.wait(producers)
        list(drain(quiver.lease("one")))
        assert all(times == 1 for times in seen.values()), "acknowledged twice"
        balance = check_books(quiver)["one"]
        assert balance.outcomes[Outcome.ACKED] == balance.accepted


def test_coroutines_and_threads_read_and_write_side_by_side() -> None:
    with Machine() as machine:
        quiver = machine.start(busy())
        lease, cursor = quiver.lease("lease"), quiver.cursor("cursor")
        count = BUNDLES

        async def write() -> None:
            await asyncio.gather(*(quiver.append_raw_async(b"x") for _ in range(count)))

        async def read() -> int:
            found = 0
            async for delivery in lease:
                found += delivery.ack()
                if found == 2 * count:
                    return found
            return found

        async def plan() -> int:
            events = 0
            while events < 3 * count:
                planned = await cursor.plan_async(max_events=50, wait_s=PATIENCE_S)
                assert planned is not None
                cursor.commit(planned)
                events += planned.events
            return events

        async def main() -> tuple[int, int]:
            reading = asyncio.gather(read(), plan())
            await write()
            return await asyncio.wait_for(reading, PATIENCE_S)

        with Crew() as crew:
            crew.hire(lambda: produce(quiver, count // 2))  # two events each
            crew.hire(lambda: produce(quiver, count // 2))
            assert tuple(asyncio.run(main())) == (2 * count, 3 * count)
        check_books(quiver)


def test_closing_in_the_middle_of_everything_lets_everybody_go() -> None:
    with Machine() as machine:
        quiver = machine.start(busy())
        lease, cursor = quiver.lease("lease"), quiver.cursor("cursor")
        with Crew() as crew:

            def write() -> None:
                with pytest.raises(NotAccepted):
                    produce(quiver, 10**9)

            def read() -> None:
                for delivery in lease:
                    try:
                        delivery.ack()
                    except Fenced:
                        return

            def plan() -> None:
                with pytest.raises((Fenced, NotAccepted)):
                    commit_all(cursor, Crew(), Counter())

            for work in (write, write, read, read, plan):
                crew.hire(work)
            while quiver.statistics().writer.events < 200:
                pass
            machine.stop()
        quiver = machine.start()
        check_books(quiver)


# ------------------------------------------------------------------------ lock order


class WatchedLock:
    """Remembers which locks a thread held when it took this one."""

    def __init__(self, name: str, edges: set[tuple[str, str]], held: threading.local) -> None:
        self.name = name
        self._edges = edges
        self._held = held
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        names: list[str] = getattr(self._held, "names", [])
        self._edges.update((name, self.name) for name in names if name != self.name)
        self._held.names = [*names, self.name]
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._held.names = self._held.names[:-1]
        self._lock.release()


# As in the head of engine.py: a lock is taken only while holding locks to the left of it.
ORDER = ("retention", "lease", "ledger", "readable", "catalog")


def test_locks_are_taken_in_one_order_only(monkeypatch: pytest.MonkeyPatch) -> None:
    edges: set[tuple[str, str]] = set()
    held = threading.local()
    with StillMachine() as still:
        quiver = still.start()
        engine = quiver._engine
        for owner, attribute, name in (
            (engine.retention, "_lock", "retention"),
            (engine.ledger, "lock", "ledger"),
            (engine.readable, "_lock", "readable"),
            (engine.catalog, "_lock", "catalog"),
        ):
            monkeypatch.setattr(owner, attribute, WatchedLock(name, edges, held))
        options = SubscriberOptions(max_bytes=MB, max_age_s=60.0, on_full="drop_oldest")
        lease = quiver.lease("lease", options=options)
        monkeypatch.setattr(lease, "_lock", WatchedLock("lease", edges, held))
        cursor = quiver.cursor("cursor", options=SubscriberOptions(max_bytes=4 * MB))
        quiver.register("late", options=options)
        sealed(quiver, 2, bundles=2)
        append(quiver, 6, size_bytes=240 * KB)
        first = must_poll(lease)
        assert first.extend()
        first.nack()
        keep(quiver)
        planned = must_plan(cursor, 3)
        list(cursor.read(planned))
        cursor.commit(planned)
        list(drain(lease))
        still.clock.pass_time(61)
        quiver.unregister("late")
        keep(quiver)
        quiver.replay("lease", 5, 7)
        check_books(quiver)
        quiver.statistics()
        with pytest.raises(UnknownSubscriber):
            quiver.balance("late")
        lease.close()
    assert {("retention", "lease"), ("retention", "ledger"), ("lease", "ledger")} <= edges
    wrong = [(one, two) for one, two in edges if ORDER.index(one) > ORDER.index(two)]
    assert wrong == []
