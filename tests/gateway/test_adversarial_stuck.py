"""Attempts to get an accepted event stuck for ever behind another, with real exporters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.deliver.stage import Stage

from holdfast.deliver.destination import DeliverySettings
from holdfast.deliver.exporters.python import Config, PythonExporter
from holdfast.deliver.settings import PoisonSettings
from holdfast.quiver import Outcome
from holdfast.signals.event import Event


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    stage = Stage(monkeypatch)
    yield stage
    stage.close()


@pytest.mark.parametrize("batch_events", [1, 3])
def test_an_event_that_a_function_cannot_handle_does_not_block_the_others_with_poison(
    stage: Stage, batch_events: int
) -> None:
    taken: list[bytes] = []

    async def deliver(events: list[Event]) -> None:
        for event in events:
            if event.payload == b"b":
                raise KeyError("what this event does not have")
        taken.extend(event.payload for event in events)

    behind = [b"%d" % number for number in range(12)]
    stage.append_each(b"a", b"b", *behind)
    config = Config(function="anywhere:deliver", max_batch_events=batch_events)
    poison = PoisonSettings(pairs=10, held_s=0)
    settings = DeliverySettings(retention_bytes=None, poison=poison)
    stage.deliver_all(settings, exporter=PythonExporter(deliver, config, "function"))
    assert list(dict.fromkeys(taken)) == [b"a", *behind]
    assert stage.events(Outcome.DEAD_LETTERED) == 1
    (letter,) = stage.letters.stored
    assert (letter.payload, letter.reason) == (b"b", "poison")
