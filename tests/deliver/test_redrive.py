"""Replays: to the destination that failed, one answer per letter, and never a letter lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.dead_letters.letters import invalid, open_office, poison
from tests.support.examples import examples

from holdfast.dead_letters.letter import Letter
from holdfast.dead_letters.queue import KEEPER, UNDELIVERED_DIR, DeadLetterQueue
from holdfast.dead_letters.stored import LetterId, LetterSelection, letters_in
from holdfast.deliver import redrive as redrive_module
from holdfast.deliver.exporter import ALL_DELIVERED, Answer, Failure, FailureClass, all_failed
from holdfast.deliver.judge import FILTERED
from holdfast.deliver.redrive import (
    Replayed,
    SendUnits,
    parse_request,
    redrive,
    replay_request,
    serve_replay,
)
from holdfast.errors import BadInput, NotAccepted
from holdfast.quiver import Outcome
from holdfast.seam.simulated import SimulatedDisk
from holdfast.signals.event import Event

MARQUEZ = LetterSelection(destination="marquez")


class Backend:
    """Takes events, or says what it is told to say."""

    def __init__(self, answers: dict[bytes, FailureClass] | None = None) -> None:
        self.answers = answers or {}
        self.taken: list[Event] = []

    async def send(self, events: Sequence[Event]) -> Answer:
        (event,) = events
        kind = self.answers.get(event.payload)
        if kind is not None:
            return all_failed(1, Failure(kind, f"it said {kind}", code="4xx"))
        self.taken.append(event)
        return ALL_DELIVERED

    @property
    def payloads(self) -> list[bytes]:
        return [event.payload for event in self.taken]


def filed(office: DeadLetterQueue) -> list[Letter]:
    return [one.letter for one in letters_in(office.undelivered_quiver, UNDELIVERED_DIR)]


def replay(
    office: DeadLetterQueue, backend: Backend, selection: LetterSelection = MARQUEZ
) -> Replayed:
    return asyncio.run(redrive(office, selection, backend.send))


@pytest.fixture
def office() -> Any:
    with open_office(SimulatedDisk()) as office:
        letters = [poison(n) for n in range(4)] + [poison(9, destination="datahub")]
        asyncio.run(office.undelivered(letters))
        yield office


def test_letters_are_looked_for_beside_the_event_loop(
    office: DeadLetterQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be a gigabyte of them, none of which is meant: receivers must not wait for that."""
    quiver, readers = office.undelivered_quiver, set()
    for name in ("bundle", "statistics", "waiting"):
        whole = getattr(quiver, name)

        def noted(*words: Any, whole: Callable[..., Any] = whole, **more: Any) -> Any:
            readers.add(threading.current_thread())
            return whole(*words, **more)

        monkeypatch.setattr(quiver, name, noted)
    assert replay(office, Backend()).delivered == 4
    assert readers
    assert threading.main_thread() not in readers


def test_letters_go_to_their_destination_and_are_resolved(office: DeadLetterQueue) -> None:
    backend = Backend()
    done = replay(office, backend)
    assert (done.delivered, done.next_seq, done.stopped_by) == (4, None, None)
    assert backend.payloads == [b'{"n":%d}' % n for n in range(4)]
    assert [letter.destination for letter in filed(office)] == ["datahub"]
    account = office.undelivered_quiver.balance(KEEPER)
    assert account.outcomes[Outcome.ACKED].events == 4
    assert account.holds
    assert replay(office, backend).letters == 0, "again is nothing"


def test_an_event_has_the_position_it_was_accepted_at(office: DeadLetterQueue) -> None:
    backend = Backend()
    replay(office, backend, replace(MARQUEZ, seqs=frozenset({2})))
    (event,) = backend.taken
    assert (event.quiver_id, event.position) == ("quiver", (2, 0))
    assert event.idempotency_key == poison(2).event().idempotency_key


@pytest.mark.parametrize("kind", [FailureClass.PERMANENT, FailureClass.TOO_LARGE])
def test_what_is_refused_for_good_is_filed_anew_with_one_attempt_more(
    office: DeadLetterQueue, kind: FailureClass
) -> None:
    backend = Backend({b'{"n":1}': kind})
    done = replay(office, backend)
    assert (done.delivered, done.filed_again) == (3, 1)
    assert backend.payloads == [b'{"n":%d}' % n for n in (0, 2, 3)]
    (letter,) = [one for one in filed(office) if one.destination == "marquez"]
    assert (letter.payload, letter.reason, letter.attempts) == (b'{"n":1}', kind, 6)
    assert letter.problems == ({"rule": "4xx", "message": f"it said {kind}"},)
    assert letter.position == "quiver/1/0"
    outcomes = office.undelivered_quiver.balance(KEEPER).outcomes
    assert outcomes[Outcome.DEAD_LETTERED].events == 1


@pytest.mark.parametrize("kind", [FailureClass.TRANSIENT, FailureClass.AUTH])
def test_no_answer_about_a_letter_ends_the_replay_and_leaves_the_rest(
    office: DeadLetterQueue, kind: FailureClass
) -> None:
    backend = Backend({b'{"n":2}': kind})
    done = replay(office, backend)
    assert done.delivered == 2
    assert done.stopped_by == f"{kind}: it said {kind}"
    assert done.next_seq is None
    left = [letter for letter in filed(office) if letter.destination == "marquez"]
    assert [(letter.payload, letter.attempts) for letter in left] == [
        (b'{"n":2}', 5),
        (b'{"n":3}', 5),
    ]


def test_what_processors_keep_from_the_destination_is_filtered(office: DeadLetterQueue) -> None:
    backend = Backend()

    async def send(events: Sequence[Event]) -> Answer:
        if events[0].payload == b'{"n":0}':
            return all_failed(1, Failure(FailureClass.PERMANENT, "a filter", code=FILTERED))
        return await backend.send(events)

    done = asyncio.run(redrive(office, MARQUEZ, send))
    assert (done.filtered, done.delivered) == (1, 3)
    assert backend.payloads == [b'{"n":%d}' % n for n in (1, 2, 3)]
    outcomes = office.undelivered_quiver.balance(KEEPER).outcomes
    assert outcomes[Outcome.FILTERED].events == 1


def test_letters_filed_meanwhile_wait_for_the_next_replay(office: DeadLetterQueue) -> None:
    class Busy(Backend):
        async def send(self, events: Sequence[Event]) -> Answer:
            if len(self.taken) == 0:
                await office.undelivered([poison(50)])
            return await super().send(events)

    backend = Busy()
    assert replay(office, backend).delivered == 4
    assert b'{"n":50}' not in backend.payloads
    assert replay(office, Backend()).delivered == 1


def test_a_long_replay_takes_turns(
    office: DeadLetterQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redrive_module, "TURN_LETTERS", 3)
    backend = Backend({b'{"n":1}': FailureClass.PERMANENT})
    first = replay(office, backend)
    assert (first.letters, first.next_seq) == (3, 3)
    rest = replace(MARQUEZ, from_seq=first.next_seq or 0, end_seq=first.end_seq)
    second = replay(office, backend, rest)
    assert (second.letters, second.next_seq) == (1, None), "what was filed anew is not tried again"


def test_a_turn_ends_by_time(office: DeadLetterQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redrive_module, "TURN_S", -1.0)
    done = replay(office, Backend())
    assert (done.letters, done.next_seq) == (0, 0)


def test_two_replays_at_once_send_nothing_twice(office: DeadLetterQueue) -> None:
    backend = Backend()

    async def both() -> tuple[Replayed, Replayed]:
        one, other = (redrive(office, MARQUEZ, backend.send) for _ in range(2))
        return await asyncio.gather(one, other)

    done = asyncio.run(both())
    assert sorted(one.delivered for one in done) == [0, 4]
    assert len(backend.taken) == 4


def test_a_full_office_keeps_the_letter_that_could_not_be_filed_anew(
    office: DeadLetterQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(letters: Sequence[Letter]) -> None:
        raise NotAccepted("full", hint="purge")

    before = filed(office)
    monkeypatch.setattr(office, "undelivered", full)
    with pytest.raises(NotAccepted):
        replay(office, Backend({b'{"n":0}': FailureClass.PERMANENT}))
    assert filed(office) == before


def test_a_letter_without_a_position_is_left(office: DeadLetterQueue) -> None:
    asyncio.run(office.undelivered([replace(poison(7), position=None)]))
    done = replay(office, Backend())
    assert (done.delivered, done.skipped) == (4, 1)
    assert filed(office)[-1].payload == b'{"n":7}'


# ------------------------------------------------------------------------ asking


SELECTIONS = st.builds(
    LetterSelection,
    destination=st.text(max_size=10),
    reason=st.none() | st.text(max_size=10),
    since_ns=st.none() | st.integers(0, 2**62),
    before_ns=st.none() | st.integers(0, 2**62),
    seqs=st.frozensets(st.integers(0, 2**62), max_size=5),
    from_seq=st.integers(0, 2**62),
    end_seq=st.none() | st.integers(0, 2**62),
)


@given(selection=SELECTIONS)
def test_a_request_says_what_was_meant(selection: LetterSelection) -> None:
    assert parse_request({"verb": "dlq_replay", **replay_request(selection)}) == selection


@pytest.mark.parametrize(
    "request_fields",
    [
        {},
        {"destination": 3},
        {"destination": "a", "seqs": 3},
        {"destination": "a", "seqs": ["x"]},
        {"destination": "a", "reason": 3},
        {"destination": "a", "from_seq": -1},
        {"destination": "a", "end_seq": True},
        {"destination": "a", "since_ns": 1 << 70},
    ],
)
def test_a_request_that_makes_no_sense_is_refused(request_fields: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        parse_request(request_fields)


def test_serving_a_request(office: DeadLetterQueue) -> None:
    backend = Backend()
    sender_to: Callable[[str], SendUnits | None] = {"marquez": backend.send}.get
    request = replay_request(MARQUEZ)
    told = asyncio.run(serve_replay(office, request, sender_to))
    assert told["delivered"] == 4
    assert Replayed(**told).letters == 4
    with pytest.raises(BadInput, match="no destination"):
        asyncio.run(serve_replay(office, {"destination": "nobody"}, sender_to))


# ------------------------------------------------------------------------ looking


@settings(max_examples=examples(30))
@given(data=st.data())
def test_a_selection_finds_what_fits_it(data: st.DataObject) -> None:
    reasons, names = st.sampled_from(["poison", "permanent"]), st.sampled_from(["a", "b"])
    kinds = data.draw(st.lists(st.tuples(reasons, names), max_size=8))
    chosen = LetterSelection(
        destination=data.draw(st.none() | names),
        reason=data.draw(st.none() | reasons),
        seqs=data.draw(st.frozensets(st.integers(0, 8), max_size=3)),
        from_seq=data.draw(st.integers(0, 4)),
        end_seq=data.draw(st.none() | st.integers(0, 9)),
    )
    letters = [poison(n, name, reason=reason) for n, (reason, name) in enumerate(kinds)]
    with open_office(SimulatedDisk()) as office:
        asyncio.run(office.undelivered(letters))
        found = list(letters_in(office.undelivered_quiver, UNDELIVERED_DIR, chosen))
    assert [one.id.seq for one in found] == [
        seq
        for seq, (reason, name) in enumerate(kinds)
        if chosen.destination in (None, name)
        and chosen.reason in (None, reason)
        and (not chosen.seqs or seq in chosen.seqs)
        and seq >= chosen.from_seq
        and (chosen.end_seq is None or seq < chosen.end_seq)
    ]


def test_a_selection_by_time(office: DeadLetterQueue) -> None:
    (first, *_) = letters_in(office.undelivered_quiver, UNDELIVERED_DIR)
    since = LetterSelection(since_ns=first.filed_ns)
    before = LetterSelection(before_ns=first.filed_ns)
    assert len(list(letters_in(office.undelivered_quiver, UNDELIVERED_DIR, since))) == 5
    assert list(letters_in(office.undelivered_quiver, UNDELIVERED_DIR, before)) == []


@pytest.mark.parametrize("text", ["", "12", "rejected", "rejected/", "rejected/x", "lost/3", "/3"])
def test_a_name_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        LetterId.parse(text)


def test_a_name_is_written_as_it_is_read() -> None:
    assert str(LetterId.parse("rejected/12")) == "rejected/12"
    assert invalid().destination is None
