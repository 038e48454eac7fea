"""Sends without a task of their own: they come back in time, and only what is late is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest
from tests.patience import PATIENCE_S

from holdfast.deliver.exporter import ALL_DELIVERED, Answer
from holdfast.deliver.sending import LoopTimer, Sender, TimeLimit
from holdfast.quiver import Position
from holdfast.signals.event import Event

EVENT = Event("q", Position(1), "events", b"{}", {}, 0)


class Slow:
    """Answers when it is told to, and remembers who called it."""

    ends_when_cancelled = True
    max_batch_events = 1
    max_batch_bytes = 1000

    def __init__(self) -> None:
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[Any] | None = None

    async def start(self) -> None:
        """Nothing."""

    async def send(self, events: Sequence[Event]) -> Answer:
        self.task = asyncio.current_task()
        return await asyncio.shield(self.answer)

    async def close(self) -> None:
        """Nothing."""


def run(play: Any) -> None:
    asyncio.run(asyncio.wait_for(play(), PATIENCE_S))


def test_an_exporter_that_ends_when_cancelled_is_called_by_the_task_that_sends() -> None:
    async def play() -> None:
        exporter = Slow()
        exporter.answer.set_result(ALL_DELIVERED)
        sender = Sender("backend", exporter, LoopTimer(), PATIENCE_S)
        assert await sender.send([EVENT]) is ALL_DELIVERED
        assert exporter.task is asyncio.current_task()

    run(play)


def test_a_send_that_takes_too_long_is_a_failure_and_its_task_goes_on() -> None:
    async def play() -> None:
        exporter = Slow()
        sender = Sender("backend", exporter, LoopTimer(), 0.01)
        failure = (await sender.send([EVENT])).failed[0]
        assert (failure.code, failure.maybe_delivered) == ("timeout", True)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        exporter.answer.set_result(ALL_DELIVERED)
        assert await sender.send([EVENT]) is ALL_DELIVERED

    run(play)


@pytest.mark.parametrize("limit_s", [0.01, PATIENCE_S])
def test_a_send_that_somebody_else_cancels_is_cancelled_late_or_not(limit_s: float) -> None:
    async def play() -> None:
        sender = Sender("backend", Slow(), LoopTimer(), limit_s)
        sending = asyncio.create_task(sender.send([EVENT]))
        await asyncio.sleep(0)
        # At the moment at which it is late, too: the loop is not asked in between.
        sending.get_loop().call_later(limit_s if limit_s < 1 else 0.0, sending.cancel)
        await asyncio.wait({sending})
        assert sending.cancelled()

    run(play)


def test_one_that_is_late_does_not_end_one_that_began_later() -> None:
    async def play() -> None:
        limit = TimeLimit(0.05)
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def work() -> str:
            return await asyncio.shield(done)

        first = asyncio.create_task(limit.keep(work()))
        await asyncio.sleep(0.04)
        second = asyncio.create_task(limit.keep(work()))
        await asyncio.wait({first})
        assert isinstance(first.exception(), TimeoutError)
        done.set_result("in time")
        # On a machine that stood still meanwhile the second one is late as well.
        await asyncio.wait({second})
        assert second.exception() is not None or second.result() == "in time"

    run(play)


def test_whoever_is_in_time_leaves_the_timer_alone() -> None:
    async def play() -> None:
        limit, loop = TimeLimit(PATIENCE_S), asyncio.get_running_loop()
        with patch.object(loop, "call_at", wraps=loop.call_at) as call_at:
            for number in range(5):
                assert await limit.keep(asyncio.sleep(0, number)) == number
        # Those of the sleeps are none: a sleep of no time needs no timer.
        assert call_at.call_count == 1

    run(play)
