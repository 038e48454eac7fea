"""Heavy events are checked in another process: same verdicts, bounded, and started by need."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import orjson
import pytest
from tests.patience import until_async
from tests.signals.events import run_event

from holdfast.receive import child as child_module
from holdfast.receive.checks import HEAVY_BYTES, HEAVY_VALUES, Checks
from holdfast.receive.responses import Refused
from holdfast.signals.openlineage.json_text import MAX_VALUES
from holdfast.signals.openlineage.names import names_of
from holdfast.signals.openlineage.validation import ValidationSettings, Validator

LIGHT = orjson.dumps(run_event())
GOOD = {"_producer": "https://example.com/", "_schemaURL": "https://example.com/"}
OWN = {"_producer": "https://example.com/", "_schemaURL": "https://example.com/", "v": [1] * 30_000}


def with_facets(facets: object) -> bytes:
    event = run_event()
    event["run"]["facets"] = facets
    return orjson.dumps(event)


HEAVY = with_facets({"own": OWN})
BAD = with_facets({f"f{number}": 1 for number in range(HEAVY_VALUES + 1)})
LONG = with_facets({"own": {**GOOD, "text": "x" * HEAVY_BYTES}})


def run(play: Callable[[Checks], Awaitable[None]]) -> Checks:
    checks = Checks(ValidationSettings(), Path())

    async def main() -> None:
        try:
            await play(checks)
        finally:
            await checks.close()

    asyncio.run(main())
    return checks


@contextlib.contextmanager
def held_back(checks: Checks) -> Iterator[None]:
    """Keep the child from answering, so that what it is asked for stays under way."""
    child = checks.child.process
    assert child is not None
    child.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(signal.SIGCONT)


def test_nothing_is_started_for_ordinary_events() -> None:
    async def play(checks: Checks) -> None:
        assert (await checks.check(LIGHT)).verdict.ok
        assert (await checks.check(with_facets({"own": {**GOOD, "v": [1] * 5000}}))).verdict.ok

    assert run(play).child.started == 0


@pytest.mark.parametrize("raw", [HEAVY, BAD, LONG], ids=["heavy", "bad", "long"])
def test_the_verdict_is_the_same_as_here(raw: bytes) -> None:
    async def play(checks: Checks) -> None:
        verdict, names = await checks.check(raw, with_names=True)
        document, expected = Validator().parse_and_check(raw)
        assert verdict == expected
        if verdict.ok:
            assert names == names_of(raw, document)

    assert run(play).child.started == 1


def test_one_child_serves_many_and_others_have_their_turn_meanwhile() -> None:
    async def play(checks: Checks) -> None:
        await checks.check(HEAVY)
        with held_back(checks):
            raws = (HEAVY, BAD, HEAVY, BAD)
            checking = [asyncio.create_task(checks.check(raw)) for raw in raws]
            for _ in range(1000):
                await asyncio.sleep(0)
            assert not any(one.done() for one in checking), "the work is done elsewhere"
        found = await asyncio.gather(*checking)
        assert [one.verdict.ok for one in found] == [True, False, True, False]

    assert run(play).child.started == 1


def test_an_event_of_too_many_values_is_refused_by_counting() -> None:
    facets = b",".join(b'"f%d":1' % number for number in range(1_500_000))
    raw = LIGHT[:-1] + b',"x":{' + facets + b"}}"

    async def play(checks: Checks) -> None:
        verdict, _ = await checks.check(raw)
        (problem,) = verdict.errors
        assert problem.rule == "values"
        assert str(MAX_VALUES) in problem.message

    assert run(play).child.started == 0
    assert Validator().parse_and_check(raw)[1].errors[0].rule == "values"


def test_a_child_that_dies_costs_one_request_and_is_started_again() -> None:
    async def play(checks: Checks) -> None:
        await checks.check(HEAVY)
        child = checks.child.process
        assert child is not None
        child.kill()
        await child.wait()
        assert (await checks.check(HEAVY)).verdict.ok
        again = checks.child.process
        assert again is not None
        # Held back, or it may have answered before it dies.
        with held_back(checks):
            checking = asyncio.create_task(checks.check(HEAVY))
            await until_async(checks.child.one_by_one.locked)
            again.kill()
            with pytest.raises(Refused) as refused:
                await checking
        assert refused.value.answer.status == 503
        assert (await checks.check(HEAVY)).verdict.ok

    assert run(play).child.started == 3


def test_a_check_that_takes_too_long_is_a_503_and_the_next_one_is_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(checks: Checks) -> None:
        # In a context of its own: to undo all would take back the time that the others have, too.
        with monkeypatch.context() as patch:
            patch.setattr(child_module, "CHECK_TIMEOUT_S", 0.0)
            with pytest.raises(Refused) as refused:
                await checks.check(HEAVY)
        assert refused.value.answer.status == 503
        assert b"retry-after" in dict(refused.value.answer.headers)
        assert (await checks.check(HEAVY)).verdict.ok

    run(play)


def test_a_sender_that_goes_away_does_not_leave_its_answer_to_the_next() -> None:
    async def play(checks: Checks) -> None:
        assert not (await checks.check(BAD)).verdict.ok
        with held_back(checks):
            checking = asyncio.create_task(checks.check(BAD))
            await until_async(checks.child.one_by_one.locked)
            checking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await checking
        assert (await checks.check(HEAVY)).verdict.ok

    run(play)


def test_a_child_that_has_nothing_to_do_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "IDLE_S", 0.0)

    async def play(checks: Checks) -> None:
        await checks.check(HEAVY)
        await until_async(lambda: checks.child.process is None)
        assert (await checks.check(HEAVY)).verdict.ok

    assert run(play).child.started == 2
