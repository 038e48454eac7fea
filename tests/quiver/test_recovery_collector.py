"""Recovery pauses Python's cycle collector, and leaves it as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from tests.quiver.machine import Machine

from holdfast.quiver.log import recovery
from holdfast.quiver.log.replay import Replay


@pytest.fixture
def collector_restored() -> Iterator[None]:
    was_enabled = gc.isenabled()
    yield
    if was_enabled:
        gc.enable()
    else:
        gc.disable()


@pytest.mark.usefixtures("collector_restored")
@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_the_collector_is_off_during_a_replay_and_then_as_before(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, enabled: bool, fails: bool
) -> None:
    seen = []

    class Watched(Replay):
        def walk_all(self, *arguments: object) -> object:  # type: ignore[override]
            seen.append(gc.isenabled())
            if fails:
                raise ZeroDivisionError
            return super().walk_all(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(recovery, "Replay", Watched)
    (gc.enable if enabled else gc.disable)()
    if fails:
        with pytest.raises(ZeroDivisionError):
            machine.start()
    else:
        machine.start()
    assert seen == [False]
    assert gc.isenabled() is enabled
