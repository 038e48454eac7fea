"""Wake-ups: none is lost, whoever begins to wait when."""

from __future__ import annotations

import asyncio
import threading

from tests.patience import PATIENCE_S

from holdfast.quiver.log.wakeup import Wakeup


def test_news_that_came_before_the_waiting_began_is_not_waited_for() -> None:
    signal = Wakeup()
    seen = signal.version
    signal.notify()
    assert signal.wait(seen, PATIENCE_S) == seen + 1
    assert asyncio.run(signal.wait_async(seen, PATIENCE_S)) == seen + 1


def test_without_news_waiting_ends_with_its_time() -> None:
    signal = Wakeup()
    assert signal.wait(signal.version, 0.01) == 0
    assert signal.wait(signal.version, 0.0) == 0
    assert asyncio.run(signal.wait_async(signal.version, 0.01)) == 0
    assert asyncio.run(signal.wait_async(signal.version, 0.0)) == 0


def test_every_waiting_thread_and_every_loop_is_woken() -> None:
    signal = Wakeup()
    woken: list[int] = []
    ready = threading.Barrier(6)

    def thread() -> None:
        ready.wait(PATIENCE_S)
        woken.append(signal.wait(0, PATIENCE_S))

    async def two() -> None:
        waits = [asyncio.create_task(signal.wait_async(0, PATIENCE_S)) for _ in range(2)]
        await asyncio.sleep(0)
        ready.wait(PATIENCE_S)
        woken.extend(await asyncio.gather(*waits))

    threads = [threading.Thread(target=thread) for _ in range(3)]
    threads += [threading.Thread(target=lambda: asyncio.run(two())) for _ in range(2)]
    for one in threads:
        one.start()
    ready.wait(PATIENCE_S)
    signal.notify()
    for one in threads:
        one.join(PATIENCE_S)
    assert woken == [1] * 7


def test_no_news_is_lost_between_looking_and_waiting() -> None:
    """A reader looks, finds nothing, and waits; the data may come in between."""
    signal, produced, consumed = Wakeup(), 0, 0
    rounds = 2_000

    def produce() -> None:
        nonlocal produced
        for _ in range(rounds):
            produced += 1
            signal.notify()

    producer = threading.Thread(target=produce)
    producer.start()
    while consumed < rounds:
        seen = signal.version
        if produced > consumed:
            consumed = produced
        else:
            assert signal.wait(seen, PATIENCE_S) > seen, "it slept through the news"
    producer.join(PATIENCE_S)


def test_a_loop_that_was_closed_while_it_waited_harms_nobody() -> None:
    signal = Wakeup()
    loop = asyncio.new_event_loop()
    task = loop.create_task(signal.wait_async(0, PATIENCE_S))
    loop.run_until_complete(asyncio.sleep(0))
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
    signal.notify()
    assert signal.version == 1


def test_whoever_gives_up_waiting_is_forgotten() -> None:
    signal = Wakeup()

    async def give_up() -> None:
        for _ in range(3):
            await signal.wait_async(0, 0.001)
        task = asyncio.create_task(signal.wait_async(0, PATIENCE_S))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(give_up())
    assert signal._loops == []


def test_a_cancellation_that_meets_the_news_is_not_forgotten() -> None:
    async def run() -> bool:
        signal = Wakeup()
        task = asyncio.create_task(signal.wait_async(signal.version, PATIENCE_S))
        await asyncio.sleep(0)
        signal.notify()
        asyncio.get_running_loop().call_soon(task.cancel)
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio.run(run())
