"""A bundle with a damaged slot is not sent, unless the rest is asked for; then it says so."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pyarrow as pa
import pytest
from tests.deliver.backend import BAD
from tests.deliver.stage import Stage

from holdfast.deliver.context import DeliveryPoint
from holdfast.deliver.destination import DeliverySettings
from holdfast.deliver.exporter import Answer, all_failed
from holdfast.quiver import Outcome
from holdfast.seam.simulated import SimulatedCrash
from holdfast.signals import registry
from holdfast.signals.event import ArrowData
from holdfast.signals.signal import Form, Signal

SPANS = pa.record_batch({"id": [0, 1]})
ATTRIBUTES = pa.record_batch({"parent": [0, 0, 1]})
SEND_REST = DeliverySettings(on_damage="send_rest")


class Taker:
    """An exporter that takes, or refuses, bundles of record batches."""

    max_batch_events = 10
    max_batch_bytes = 1 << 20

    def __init__(self) -> None:
        self.taken: list[ArrowData] = []
        self.refuses = False

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def send(self, units: Sequence[ArrowData]) -> Answer:
        if self.refuses:
            return all_failed(len(units), BAD)
        self.taken += units
        return Answer()


def takes_everything(signal: Signal) -> None:
    return None


def append_damaged(stage: Stage, damaged_slot: str) -> None:
    """Have a sound bundle, and one that has lost a slot."""
    quiver = stage.quiver
    quiver.append({"spans": SPANS, "attributes": ATTRIBUTES})
    quiver.flush()
    quiver.append({"spans": SPANS, "attributes": ATTRIBUTES})
    quiver.flush()
    segment = quiver.segments()[-1]
    (file,) = (file for file in segment.summary.files if file.slot == damaged_slot)
    for batch in file.batches:
        stage.machine.flip(segment.path / file.name, 8 * (batch.offset + batch.length // 2))


def delivered(stage: Stage, settings: DeliverySettings, backend: Taker) -> list[ArrowData]:
    stage.deliver_all(settings, exporter=backend, refusal_of=takes_everything)
    return backend.taken


def test_a_bundle_with_a_damaged_slot_is_not_sent(stage: Stage) -> None:
    append_damaged(stage, "attributes")
    (sent,) = delivered(stage, DeliverySettings(), Taker())
    assert sent.position.seq == 0
    assert stage.outcomes() == {Outcome.ACKED: (1, 5), Outcome.DAMAGED: (1, 5)}


def test_the_rest_is_sent_with_a_mark_where_that_is_wanted(stage: Stage) -> None:
    append_damaged(stage, "attributes")
    whole, rest = delivered(stage, SEND_REST, Taker())
    assert (whole.damaged_slots, rest.damaged_slots) == ((), ("attributes",))
    assert dict(rest.slots) == {"spans": SPANS}
    assert rest.rows == 5, "all that the ledger knows of it"
    # It arrived, and is a loss all the same.
    assert stage.outcomes() == {Outcome.ACKED: (1, 5), Outcome.DAMAGED: (1, 5)}


def test_what_means_nothing_without_its_root_is_not_sent(stage: Stage) -> None:
    append_damaged(stage, "spans")
    signal = Signal(
        "toy-traces", Form.ARROW, lambda kind, slots: "spans" in slots, roots=frozenset({"spans"})
    )
    registry.register(signal)
    (sent,) = delivered(stage, SEND_REST, Taker())
    assert sent.position.seq == 0
    assert stage.outcomes() == {Outcome.ACKED: (1, 5), Outcome.DAMAGED: (1, 5)}


def test_a_dead_letter_of_the_rest_keeps_the_mark(stage: Stage) -> None:
    append_damaged(stage, "attributes")
    backend = Taker()
    backend.refuses = True
    assert delivered(stage, SEND_REST, backend) == []
    assert stage.outcomes() == {Outcome.DEAD_LETTERED: (2, 10)}
    whole, rest = (letter.event() for letter in stage.letters.stored)
    assert isinstance(whole, ArrowData)
    assert isinstance(rest, ArrowData)
    assert (whole.damaged_slots, rest.damaged_slots) == ((), ("attributes",))
    assert rest.slots == {"spans": SPANS}


def test_a_crash_before_the_outcome_is_written_sends_the_rest_again(stage: Stage) -> None:
    append_damaged(stage, "attributes")
    backend = Taker()

    def kill(point: str) -> None:
        if point == DeliveryPoint.SENT:
            stage.machine.disk.kill()
            raise SimulatedCrash

    async def until_killed() -> None:
        destination = stage.make(SEND_REST, exporter=backend, refusal_of=takes_everything)
        task = asyncio.get_running_loop().create_task(destination.run())
        await stage.timer.until(task.done)
        task.result()

    stage.reached = kill
    with pytest.raises(SimulatedCrash):
        asyncio.run(until_killed())
    stage.kill()
    stage.reached = lambda point: None
    sent = delivered(stage, SEND_REST, backend)
    assert [unit.position.seq for unit in sent] == [0, 1, 0, 1]
    assert sent[-1].damaged_slots == ("attributes",)
    assert stage.outcomes() == {Outcome.ACKED: (1, 5), Outcome.DAMAGED: (1, 5)}
