"""The office: durable before it answers, within its bounds, and nothing undelivered is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path, PurePath
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.dead_letters.letters import LETTERS, MB, invalid, open_office, payloads, poison
from tests.patience import APPEND_S, PATIENCE_S, until
from tests.support.disk import GatedDisk
from tests.support.examples import examples

from holdfast.dead_letters import queue as queue_module
from holdfast.dead_letters.letter import Letter
from holdfast.dead_letters.queue import KEEPER, DeadLetterQueue, DeadLettersSettings
from holdfast.errors import DirectoryLocked, NotAccepted
from holdfast.quiver import Outcome
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.simulated import SimulatedCrash, SimulatedDisk
from holdfast.signals.event import events_of

UNLIMITED = {"events_per_s": 1e9, "bytes_per_s": 1 << 40}


def reject(office: DeadLetterQueue, *letters: Letter) -> bool:
    return asyncio.run(office.reject(letters))


def undelivered(office: DeadLetterQueue, *letters: Letter) -> None:
    asyncio.run(office.undelivered(letters))


# ---------------------------------------------------------------------- durable


@settings(max_examples=examples(15))
@given(letters=st.lists(LETTERS, min_size=1, max_size=5))
def test_what_is_filed_is_there_after_a_power_cut(letters: list[Letter]) -> None:
    disk = SimulatedDisk()
    office = open_office(disk)
    assert reject(office, *letters)
    undelivered(office, *letters)
    survivor = disk.power_loss()
    with contextlib.suppress(SimulatedCrash):
        office.close()
    with open_office(survivor) as office:
        for quiver in (office.rejected, office.undelivered_quiver):
            assert payloads(quiver) == [letter.payload for letter in letters]
            found = []
            for seq in quiver.waiting(KEEPER):
                bundle = quiver.bundle(seq)
                assert bundle is not None
                found += [Letter.from_event(event) for event in events_of(bundle, "q")]
            assert [letter.attempts for letter in found] == [one.attempts for one in letters]


def test_a_letter_is_a_bundle_of_its_own_however_many_come_at_once() -> None:
    with open_office(SimulatedDisk(), rejected=UNLIMITED) as office:
        assert reject(office, *(invalid(b"%d" % number) for number in range(2500)))
        assert len(office.rejected.waiting(KEEPER, limit=5000)) == 2500
        assert office.statistics().rejected.events == 2500


def test_nothing_is_nothing() -> None:
    with open_office(SimulatedDisk()) as office:
        assert reject(office)
        undelivered(office)
        told = office.statistics()
    assert told.rejected.events == told.undelivered.events == 0
    assert told.rejected.oldest_age_s is None


def test_one_process_owns_the_office() -> None:
    disk = SimulatedDisk()
    with open_office(disk), pytest.raises(DirectoryLocked):
        open_office(disk)
    with open_office(disk) as office:
        assert reject(office, invalid())


def test_an_office_that_opens_by_half_is_closed_again() -> None:
    disk = SimulatedDisk()
    with open_office(disk) as office:
        office.rejected.close()
        with pytest.raises(DirectoryLocked):
            open_office(disk)
    with open_office(disk):
        pass


# ------------------------------------------------------------------------ bounds


def test_over_the_rate_letters_are_counted_and_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    # Three at once, and the next one in a quarter of an hour.
    slow = {"events_per_s": 0.001, "burst_s": 3000}
    with open_office(SimulatedDisk(), rejected=slow) as office, caplog.at_level(logging.WARNING):
        assert reject(office, invalid(b"1"), invalid(b"2"))
        assert not reject(office, invalid(b"3"), invalid(b"4"))
        assert not reject(office, invalid(b"5"))
        assert payloads(office.rejected) == [b"1", b"2", b"3"]
        assert office.statistics().rejected.refused == {"rate": 2}
        undelivered(office, *(poison(n) for n in range(10)))
        assert office.statistics().undelivered.events == 10, "its own, and without a rate"
    told = [record for record in caplog.records if "not kept" in record.message]
    assert len(told) == 1, "a flood is told of now and then"


def test_a_rejected_event_that_is_too_large_is_counted_and_not_kept() -> None:
    small = {"max_letter_bytes": 1000}
    with open_office(SimulatedDisk(), rejected=small) as office:
        assert not reject(office, invalid(b"x" * 1001), invalid(b"y" * 1000))
        assert payloads(office.rejected) == [b"y" * 1000]
        assert office.statistics().rejected.refused == {"too_large": 1}


def test_an_undelivered_event_that_is_too_large_stalls_its_destination() -> None:
    with open_office(SimulatedDisk(), undelivered={"max_letter_bytes": 1000}) as office:
        with pytest.raises(NotAccepted, match="largest that dead letters keep") as caught:
            undelivered(office, poison(payload=b"x" * MB))
        assert caught.value.stored == "no"
        assert "max_letter_size" in caught.value.hint


def test_the_largest_event_fits_with_all_that_is_said_about_it() -> None:
    bounds = {"max_letter_bytes": 4 * MB, "max_bytes": 32 * MB}
    problems = ({"message": "m" * 10_000},) * 100
    with open_office(SimulatedDisk(), rejected=bounds, undelivered=bounds) as office:
        assert reject(office, invalid(b"x" * 4 * MB, problems=problems))
        undelivered(office, poison(payload=b"x" * 4 * MB, problems=problems))


def test_the_largest_letter_follows_the_cap_unless_it_is_said() -> None:
    settings = DeadLettersSettings.model_validate({"rejected": {"max_bytes": "64MB"}})
    assert settings.rejected.largest_bytes == 8 * MB
    assert settings.undelivered.largest_bytes == 64 * MB
    assert DeadLettersSettings().rejected.largest_bytes == 16 * MB


def test_at_its_cap_the_oldest_rejected_letters_go_and_are_counted() -> None:
    disk = SimulatedDisk()
    bounds = {**UNLIMITED, "max_bytes": 32 * MB, "timeout_s": PATIENCE_S}
    with open_office(disk, rejected=bounds) as office:
        for number in range(80):
            assert reject(office, invalid(b"%03d" % number + b"x" * (MB // 2)))
        kept = [payload[:3] for payload in payloads(office.rejected)]
        told = office.statistics().rejected
        assert disk.used_bytes(PurePath("/office/rejected")) <= 32 * MB
        assert office.rejected.balance(KEEPER).holds
    assert kept == [b"%03d" % number for number in range(80 - len(kept), 80)]
    assert told.dropped == 80 - len(kept) > 0
    assert told.events == len(kept) > 0
    assert told.filed == {("", "invalid"): 80}


def test_rejected_letters_go_by_age(tmp_path: Path) -> None:
    with open_office(directory=tmp_path, rejected={"max_age_s": "1ms"}) as office:
        assert reject(office, invalid())
        office.rejected.flush()
        until(lambda: office.statistics().rejected.expired == 1)
        assert office.statistics().rejected.events == 0


def test_full_of_undelivered_letters_it_refuses_and_loses_none() -> None:
    bounds = {"max_bytes": 32 * MB, "max_letter_bytes": MB, "timeout_s": APPEND_S}
    with open_office(SimulatedDisk(), undelivered=bounds) as office:
        filed = 0
        while takes(office, poison(filed, payload=b"x" * MB)):
            filed += 1
            assert filed < 64, "the cap does not hold"
        waiting = office.undelivered_quiver.waiting(KEEPER)
        assert len(waiting) == filed > 10
        told = office.statistics().undelivered
        assert (told.dropped, told.events, told.refused) == (0, filed, {"store": 1})
        assert reject(office, invalid()), "the other store is not concerned"
        # What an operator gives up makes room again.
        office.undelivered_quiver.resolve(KEEPER, waiting, Outcome.GIVEN_UP, "purged")
        again = poison(99, payload=b"x" * MB)
        until(lambda: takes(office, again))


def takes(office: DeadLetterQueue, letter: Letter) -> bool:
    try:
        undelivered(office, letter)
    except NotAccepted:
        return False
    return True


def test_while_the_disk_stalls_only_so_many_wait_for_it() -> None:
    disk = SimulatedDisk()
    with open_office(disk):
        pass
    gated = GatedDisk(disk, "wal.sync")
    gated.gate.set()
    with open_office(gated, rejected={"timeout_s": PATIENCE_S}) as office:
        gated.gate.clear()

        async def flood() -> list[bool]:
            waiting = [asyncio.ensure_future(office.reject([invalid()])) for _ in range(70)]
            _, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            assert len(pending) >= queue_module.WAITING_MAX
            gated.gate.set()
            return await asyncio.gather(*waiting)

        kept = asyncio.run(flood())
        assert (kept.count(True), kept.count(False)) == (64, 6)
        assert office.statistics().rejected.refused == {"busy": 6}
        assert reject(office, invalid()), "and then as before"


@pytest.mark.parametrize("kind", [FaultKind.ENOSPC, FaultKind.EIO])
def test_a_disk_that_fails_refuses_and_is_counted(kind: FaultKind) -> None:
    disk = SimulatedDisk()
    faults = [Fault("wal.write", kind, times=1_000_000)]
    quick = {"timeout_s": 0.5}
    with open_office(disk, rejected=quick, undelivered=quick):
        pass
    faulty = FaultyDisk(disk, faults, disk.die)
    with open_office(faulty, rejected=quick, undelivered=quick) as office:
        assert not reject(office, invalid(), invalid())
        with pytest.raises(NotAccepted):
            undelivered(office, poison())
        told = office.statistics()
    assert told.rejected.refused == {"store": 2}
    assert told.undelivered.refused == {"store": 1}
    assert told.rejected.filed == {}


@pytest.mark.parametrize(
    "bounds",
    [
        {"max_bytes": MB},
        {"max_bytes": 64 * MB, "max_letter_bytes": 9 * MB},
        {"max_letter_bytes": 0},
        {"timeout_s": 0},
        {"typo": 1},
    ],
)
@pytest.mark.parametrize("store", ["rejected", "undelivered"])
def test_bounds_that_cannot_work_are_refused(store: str, bounds: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        DeadLettersSettings.model_validate({store: bounds})


# ------------------------------------------------------------------------ keeping


def test_letters_stay_when_a_handler_has_seen_them() -> None:
    with open_office(SimulatedDisk()) as office:
        with office.rejected.lease("log") as handler:
            assert reject(office, invalid(b"1"))
            delivery = handler.poll(timeout_s=PATIENCE_S)
            assert delivery is not None
            delivery.ack()
            office.rejected.flush()
        assert payloads(office.rejected) == [b"1"]
        assert office.statistics().rejected.events == 1


def test_resolved_letters_leave_the_count_and_the_disk() -> None:
    with open_office(SimulatedDisk()) as office:
        assert reject(office, invalid(b"1"), invalid(b"2"))
        office.rejected.flush()
        office.rejected.resolve(KEEPER, [0], Outcome.ACKED, "fixed")
        told = office.statistics().rejected
        assert (told.events, told.resolved) == (1, 1)
        office.rejected.resolve(KEEPER, [1], Outcome.GIVEN_UP, "purged")
        until(lambda: not office.rejected.segments())
        assert office.statistics().rejected.resolved == 2


def test_handlers_that_are_no_longer_configured_hold_nothing_back() -> None:
    with open_office(SimulatedDisk()) as office:
        for name in ("log", "old"):
            office.rejected.register(name)
        office.keep_only(["log"])
        assert set(office.rejected.subscribers()) == {KEEPER, "log"}


def test_a_keeper_that_was_dropped_comes_back() -> None:
    disk = SimulatedDisk()
    with open_office(disk) as office:
        assert reject(office, invalid())
        office.rejected.unregister(KEEPER)
        assert office.statistics().rejected.events == 1
        office.rejected.unregister(KEEPER)
    with open_office(disk) as office:
        assert office.statistics().rejected.events == 1


def test_counts_are_by_destination_and_reason_and_bounded() -> None:
    with open_office(SimulatedDisk()) as office:
        undelivered(office, poison(1), poison(2, destination="datahub", reason="permanent"))
        assert office.statistics().undelivered.filed == {
            ("marquez", "poison"): 1,
            ("datahub", "permanent"): 1,
        }
        undelivered(office, *(poison(n, reason=f"odd{n}") for n in range(500)))
        filed = office.statistics().undelivered.filed
    assert len(filed) <= queue_module.LABELS_MAX + 1
    assert sum(filed.values()) == 502
    assert filed["other", "other"] > 0
