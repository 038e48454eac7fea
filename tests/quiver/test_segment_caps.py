"""Caps in segments: what is dropped for a data node, and what is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.quiver.machine import Machine, quiet

from holdfast.errors import BadInput, DiskFull, HoldfastError, Overloaded
from holdfast.quiver import Outcome, Quiver, QuiverConfig, SubscriberOptions
from holdfast.quiver.base.config import MB, RetentionConfig
from holdfast.quiver.base.points import QuiverPoint
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.simulated import SimulatedDisk

COPIED = SubscriberOptions(max_segment_bytes=3 * MB, on_full="drop_copied")


def config(**retention: int) -> QuiverConfig:
    """Return a configuration whose keeper does nothing by itself."""
    limits = RetentionConfig(tick_s=3600.0, **retention)  # type: ignore[arg-type]
    return replace(quiet(), retention=limits, control=False)


def start(machine: Machine, used: QuiverConfig | None = None) -> Quiver:
    quiver = machine.start(used or config())
    quiver._engine.keeper.close()
    return quiver


def seal(quiver: Quiver, segments: int) -> None:
    for _ in range(segments):
        quiver.append_raw([b"x" * 900_000])
        quiver.flush()


def until_refused(quiver: Quiver) -> HoldfastError:
    """Seal segments until an append would have to wait; return why."""
    for _ in range(100):
        refusal = quiver.refusal(900_000)
        if refusal is not None:
            return refusal
        seal(quiver, 1)
    raise AssertionError("it is never refused")


def losses(quiver: Quiver, name: str = "node.a") -> list[tuple[int, int, Outcome]]:
    return quiver.subscriber(name).losses


def test_scenario_17_what_another_owner_holds_is_dropped_oldest_first() -> None:
    with Machine() as machine:
        quiver = start(machine)
        quiver.register("node.a", options=COPIED)
        quiver.tell_copied(lambda name, quiver_id, first_seq, end_seq: end_seq <= 3)
        seal(quiver, 5)
        quiver._engine.retention.tick()
        assert losses(quiver) == [(0, 2, Outcome.DROPPED)]
        assert [one.summary.first_seq for one in quiver.segments()] == [2, 3, 4]
        assert quiver.subscriber("node.a").counts[Outcome.DROPPED].bundles == 2


def test_scenario_17_the_last_copy_is_never_dropped_and_appends_wait() -> None:
    with Machine() as machine:
        quiver = start(machine)
        quiver.register("node.a", options=COPIED)
        refusal = until_refused(quiver)
        assert isinstance(refusal, Overloaded)
        assert "max_segment_bytes" in refusal.message
        assert losses(quiver) == []
        # As soon as somebody else holds the oldest, it goes on.
        quiver.tell_copied(lambda name, quiver_id, first_seq, end_seq: first_seq == 1)
        quiver.append_raw([b"more"])
        assert losses(quiver) == [(1, 2, Outcome.DROPPED)]


def test_scenario_17_block_and_drop_oldest_count_segments_too() -> None:
    with Machine() as machine:
        quiver = start(machine)
        quiver.register("node.a", options=replace(COPIED, on_full="drop_oldest"))
        seal(quiver, 5)
        quiver._engine.retention.tick()
        assert losses(quiver) == [(0, 2, Outcome.DROPPED)]
        quiver.register("node.b", options=replace(COPIED, on_full="block"))
        assert "'node.b' is more than" in until_refused(quiver).message


def test_a_ledger_that_cannot_be_written_keeps_what_was_to_be_dropped_and_ends_no_append() -> None:
    with Machine() as machine:
        failing = Fault(QuiverPoint.LEDGER_WRITE, FaultKind.EIO, nth=2, times=1000)
        disk = FaultyDisk(machine.disk, [failing], machine.disk.die)
        quiver = machine.start(config(), through=lambda _: disk)
        quiver._engine.keeper.close()
        quiver.register("node.a", options=replace(COPIED, on_full="drop_oldest"))
        seal(quiver, 5)
        assert losses(quiver) == []
        disk.heal()
        quiver.append_raw(b"more")
        assert losses(quiver) == [(0, 2, Outcome.DROPPED)]


def test_caps_count_what_segments_occupy_not_their_payload() -> None:
    with Machine() as machine:
        quiver = start(machine)
        quiver.register("node.a", options=replace(COPIED, max_segment_bytes=MB))
        for _ in range(60):
            quiver.append_raw([b"x"])
            quiver.flush()
            if losses(quiver):
                break
            quiver.tell_copied(lambda *_: True)
            quiver._engine.retention.tick()
        assert losses(quiver)
        # What is above the cap is the segment that was sealed last.
        assert sum(one.disk_bytes for one in quiver.segments()[:-1]) <= MB


def test_a_size_cap_drops_what_is_copied_and_else_refuses() -> None:
    with Machine() as machine:
        quiver = start(machine, config(size_cap_bytes=12 * MB))
        quiver.register("node.a", options=SubscriberOptions(on_full="drop_copied"))
        assert "size_cap_bytes" in until_refused(quiver).message
        assert losses(quiver) == []
        quiver.tell_copied(lambda *_: True)
        seal(quiver, 3)
        assert losses(quiver)[0][0] == 0


def test_a_segment_for_which_two_wait_goes_only_if_both_may_lose_it() -> None:
    with Machine() as machine:
        quiver = start(machine, config(size_cap_bytes=12 * MB))
        for name in ("node.a", "node.b"):
            quiver.register(name, options=SubscriberOptions(on_full="drop_copied"))
        quiver.tell_copied(lambda name, *_: name == "node.a")
        assert isinstance(until_refused(quiver), Overloaded)
        assert losses(quiver) == losses(quiver, "node.b") == []


def test_what_is_too_old_goes_only_if_it_is_copied() -> None:
    with Machine() as machine:
        quiver = start(machine)
        options = SubscriberOptions(max_age_s=60.0, on_full="drop_copied")
        quiver.register("node.a", options=options)
        seal(quiver, 1)
        summary = quiver.segments()[0].summary
        caps = quiver._engine.retention.segment_caps
        subscriber = quiver.subscriber("node.a")
        later_ns = summary.max_ingestion_ns + 61 * 10**9
        caps.enforce(subscriber, later_ns)
        assert "max_age_s" in (caps.beyond(subscriber, later_ns) or "")
        quiver.tell_copied(lambda *_: True)
        caps.enforce(subscriber, later_ns)
        assert caps.beyond(subscriber, later_ns) is None
        assert losses(quiver) == [(0, 1, Outcome.EXPIRED)]


def test_a_segment_that_is_on_its_way_is_not_dropped() -> None:
    with Machine() as machine:
        quiver = start(machine)
        reader = quiver.part_reader("node.a", options=COPIED)
        quiver.tell_copied(lambda *_: True)
        seal(quiver, 3)
        reader.pin(quiver.segments()[:1], 60.0, 3600.0)
        seal(quiver, 2)
        quiver._engine.retention.tick()
        assert losses(quiver) == [(1, 3, Outcome.DROPPED)]


def test_drop_oldest_makes_nobody_wait_for_what_is_on_its_way() -> None:
    with Machine() as machine:
        quiver = start(machine)
        options = replace(COPIED, on_full="drop_oldest")
        reader = quiver.part_reader("node.a", options=options)
        seal(quiver, 3)
        reader.pin(quiver.segments(), 60.0, 3600.0)
        seal(quiver, 1)
        reader.pin(quiver.segments(), 60.0, 3600.0)
        assert quiver.refusal() is None
        assert losses(quiver) == []


def test_options_survive_a_restart() -> None:
    machine = Machine()
    start(machine).register("node.a", options=COPIED)
    machine.kill()
    with machine:
        assert start(machine).subscriber("node.a").options == COPIED


def test_some_of_the_disk_is_left_to_others() -> None:
    with Machine(SimulatedDisk(64 * MB)) as machine:
        quiver = start(machine, config(min_free_bytes=50 * MB))
        quiver.register("node.a")
        assert isinstance(until_refused(quiver), DiskFull)
        assert machine.disk.free_bytes(quiver.directory) > 48 * MB


@pytest.mark.parametrize(
    "wrong",
    [
        {"on_full": "drop_copied", "max_bytes": 10 * MB},
        {"max_segment_bytes": 10 * MB, "max_bytes": 10 * MB},
        {"max_segment_bytes": 0},
        {"on_full": "drop"},
    ],
)
def test_impossible_options_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        SubscriberOptions(**wrong)  # type: ignore[arg-type]


def test_a_cap_below_one_segment_is_refused() -> None:
    with Machine() as machine, pytest.raises(BadInput, match="max_segment_bytes"):
        start(machine).register("node.a", options=SubscriberOptions(max_segment_bytes=1000))
