"""A function of the user's own: sync or async, well behaved or not."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest
from pydantic import ValidationError
from tests.deliver.exporters.sending import context, event, events, send, send_one, with_exporter
from tests.patience import PATIENCE_S, until, until_async

from holdfast.deliver.exporter import Answer, Exporter, Failure, FailureClass
from holdfast.deliver.exporters import python
from holdfast.deliver.exporters.python import NotAuthorized, Permanent, Retry, TooLarge
from holdfast.errors import BadConfig
from holdfast.signals.event import Event

HERE = __name__
SEEN: list[list[Event]] = []
THREADS: list[threading.Thread] = []
LET_GO = threading.Event()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    SEEN.clear()
    THREADS.clear()
    LET_GO.clear()
    yield
    LET_GO.set()


def take(given: list[Event]) -> None:
    THREADS.append(threading.current_thread())
    SEEN.append(given)


async def take_async(given: list[Event]) -> None:
    await asyncio.sleep(0)
    take(given)


class Taker:
    async def __call__(self, given: list[Event]) -> None:
        take(given)

    def method(self, given: list[Event]) -> None:
        take(given)


TAKER = Taker()


def later(given: list[Event]) -> Any:
    return take_async(given)


def stick(given: list[Event]) -> None:
    LET_GO.wait(PATIENCE_S)


async def stick_async(given: list[Event]) -> None:
    await asyncio.Event().wait()


def leave(given: list[Event]) -> None:
    sys.exit(3)


async def cancel(given: list[Event]) -> None:
    raise asyncio.CancelledError


RAISED: list[Exception] = []


def raise_it(given: list[Event]) -> None:
    raise RAISED[0]


RETURNED: list[Any] = []


def return_it(given: list[Event]) -> Any:
    return RETURNED[0]


def exporter(name: str, **config: Any) -> Exporter:
    return python.make(python.Config(function=f"{HERE}:{name}", **config), context())


@pytest.mark.parametrize(
    ("name", "in_thread"),
    [
        ("take", True),
        ("TAKER.method", True),
        ("take_async", False),
        ("TAKER", False),
        ("later", False),
    ],
)
def test_it_is_given_the_events(name: str, in_thread: bool) -> None:
    batch = events(3)
    assert send(exporter(name, max_batch_events=5), batch) == [Answer()]
    assert [batch] == SEEN
    assert (THREADS[0] is not threading.current_thread()) is in_thread


def test_one_event_at_a_time_unless_told_otherwise() -> None:
    assert exporter("take").max_batch_events == 1
    assert exporter("take", max_batch_events=7).max_batch_events == 7


@pytest.mark.parametrize(
    ("error", "kind", "after_s"),
    [
        (Retry("busy", after_s=30), FailureClass.TRANSIENT, 30),
        (Retry(), FailureClass.TRANSIENT, None),
        (Permanent("not for us"), FailureClass.PERMANENT, None),
        (TooLarge("big"), FailureClass.TOO_LARGE, None),
        (NotAuthorized("key"), FailureClass.AUTH, None),
        (KeyError("PAYLOAD TEXT"), FailureClass.TRANSIENT, None),
        (TimeoutError("PAYLOAD TEXT"), FailureClass.TRANSIENT, None),
    ],
)
def test_what_it_may_raise(error: Exception, kind: FailureClass, after_s: float | None) -> None:
    RAISED[:] = [error]
    failure = send_one(exporter("raise_it"))
    assert failure is not None
    assert (failure.kind, failure.retry_after_s) == (kind, after_s)
    assert "PAYLOAD" not in repr(failure)
    if str(error) and kind is not FailureClass.TRANSIENT:
        assert str(error) in failure.reason
    (several,) = send(exporter("raise_it", max_batch_events=3), events(3))
    assert set(several.failed) == {0, 1, 2}


def test_reasons_are_bounded_and_safe_for_a_log() -> None:
    RAISED[:] = [Permanent("x\n\x1b[2J" + "y" * 5000)]
    failure = send_one(exporter("raise_it"))
    assert failure is not None
    assert failure.reason.isprintable()
    assert len(failure.reason) < 400


def test_it_may_answer_by_event() -> None:
    mixed = Answer({1: Failure(FailureClass.PERMANENT, "no")})
    RETURNED[:] = [mixed]
    assert send(exporter("return_it", max_batch_events=2), events(2)) == [mixed]


@pytest.mark.parametrize("returned", [True, "ok", Answer({7: Failure(FailureClass.AUTH, "x")})])
def test_what_it_may_not_return(returned: Any) -> None:
    RETURNED[:] = [returned]
    failure = send_one(exporter("return_it"))
    assert failure is not None
    assert (failure.kind, failure.code) == (FailureClass.TRANSIENT, "bad_return")


@pytest.mark.parametrize("name", ["leave", "cancel"])
def test_it_cannot_end_the_gateway(name: str) -> None:
    failure = send_one(exporter(name))
    assert failure is not None
    assert failure.kind is FailureClass.TRANSIENT


@pytest.mark.parametrize("name", ["stick", "stick_async"])
def test_a_call_that_does_not_return_is_given_up(name: str) -> None:
    failure = send_one(exporter(name, timeout="50ms"))
    assert failure is not None
    assert (failure.kind, failure.code) == (FailureClass.TRANSIENT, "timeout")
    assert failure.maybe_delivered


def test_threads_that_do_not_end_are_bounded() -> None:
    def stuck() -> int:
        return sum(thread.name == "exporter backend" for thread in threading.enumerate())

    async def use(started: Exporter) -> None:
        codes = [(await started.send([event()])).failed[0].code for _ in range(5)]
        assert codes == ["timeout", "timeout", "busy", "busy", "busy"]
        assert stuck() == 2
        LET_GO.set()
        await asyncio.to_thread(until, lambda: stuck() == 0)

        async def is_taken() -> bool:
            return await started.send([event()]) == Answer()

        await until_async(is_taken)

    with_exporter(exporter("stick", timeout="50ms", max_running=2), use)


def test_a_cancelled_send_is_cancelled() -> None:
    async def use(started: Exporter) -> None:
        task = asyncio.create_task(started.send([event()]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with_exporter(exporter("stick_async"), use)


def test_a_stuck_function_does_not_keep_the_process(tmp_path: Any) -> None:
    (tmp_path / "stuck.py").write_text("import time\ndef f(events): time.sleep(600)\n")
    program = """
        import asyncio
        from tests.deliver.exporters.sending import context, event, send_one
        from holdfast.deliver.exporters import python
        made = python.make(python.Config(function="stuck:f", timeout=0.05), context())
        print(send_one(made).code)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={"PYTHONPATH": f"{tmp_path}:."},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert result.stdout == "timeout\n"


def test_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = EntryPoint("mine", f"{HERE}:take", python.ENTRY_POINTS)

    def entry_points(group: str, name: str) -> EntryPoints:
        return EntryPoints([mine]).select(group=group, name=name)

    monkeypatch.setattr(python, "entry_points", entry_points)
    assert send_one(python.make(python.Config(entry_point="mine"), context())) is None
    assert len(SEEN) == 1
    with pytest.raises(BadConfig, match="no installed package"):
        python.make(python.Config(entry_point="other"), context())


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("no_such_module_at_all:f", "ModuleNotFoundError"),
        (f"{HERE}:nothing", "AttributeError"),
        (f"{HERE}:SEEN", "not callable"),
    ],
)
def test_a_function_that_is_not_there(function: str, why: str) -> None:
    with pytest.raises(BadConfig, match=why):
        python.make(python.Config(function=function), context())


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"function": "a.b"},
        {"function": ":f"},
        {"function": "a:"},
        {"function": "a:b", "entry_point": "c"},
    ],
)
def test_what_cannot_be_meant(config: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        python.Config.model_validate(config)
