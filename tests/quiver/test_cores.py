"""Several quivers under one root: shared caps, and what becomes of them when N changes."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path, PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.patience import APPEND_S, PATIENCE_S
from tests.quiver.machine import START_NS

from holdfast.errors import BadInput, CannotOpen, DirectoryLocked, Overloaded, QuiverClosed
from holdfast.quiver import (
    AppendConfig,
    Cores,
    LedgerConfig,
    Quiver,
    QuiverConfig,
    RetentionConfig,
    SegmentConfig,
    SubscriberOptions,
    TransactionConfig,
    WalConfig,
)
from holdfast.quiver.base.config import KB, MB
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.cores import CapClaim, fair_share, share_of
from holdfast.seam import Seam
from holdfast.seam.clock import JumpingClock
from holdfast.seam.disk import Disk
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.randomness import seeded_randomness
from holdfast.seam.simulated import SimulatedCrash, SimulatedDisk

ROOT = PurePath("/data")
SUBSCRIBER = "archive"
CONFIG = QuiverConfig(
    append=AppendConfig(timeout_s=PATIENCE_S),
    wal=WalConfig(file_size_bytes=256 * KB, max_size_bytes=16 * MB),
    segment=SegmentConfig(target_size_bytes=MB, max_open_duration_s=3600.0),
    retention=RetentionConfig(size_cap_bytes=64 * MB, tick_s=3600.0),
)


def with_retention(**options: object) -> QuiverConfig:
    """Return the configuration with other options of retention, and little patience."""
    retention = replace(CONFIG.retention, **options)  # type: ignore[arg-type]
    return replace(CONFIG, retention=retention, append=AppendConfig(timeout_s=APPEND_S))


class Rack:
    """A disk, and the processes that own the cores on it, one after another."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.cores: Cores | None = None
        self._starts = 0

    def start(
        self, count: int, config: QuiverConfig = CONFIG, faults: Iterable[Fault] = ()
    ) -> Cores:
        """Open the cores in a new process."""
        self._starts += 1
        disk: Disk = FaultyDisk(self.disk, faults, self.disk.die)
        seam = Seam(disk, JumpingClock(START_NS), seeded_randomness(self._starts))
        self.cores = Cores.open(ROOT, count, config, seam=seam)
        return self.cores

    def stop(self) -> None:
        """End the process as it should."""
        if self.cores is not None:
            self.cores.close()
            self.cores = None

    def crash(self, *, power: bool, randomness: random.Random | None = None) -> None:
        """End the process by kill -9, or by a power cut."""
        self.disk = self.disk.power_loss(randomness) if power else self.disk.kill()
        if self.cores is not None:
            with contextlib.suppress(SimulatedCrash):
                self.cores.close()
            self.cores = None

    def folders(self) -> list[str]:
        """Return the names in the root."""
        return [entry.name for entry in self.disk.list(ROOT)]


@pytest.fixture
def rack() -> Iterator[Rack]:
    """A rack with an empty disk; whatever runs in the end is killed."""
    made = Rack()
    yield made
    made.crash(power=False)


def feed(quivers: Iterable[Quiver], text: bytes = b"event") -> list[bytes]:
    """Append one event to each quiver, and return the events."""
    given_out = []
    for place, quiver in enumerate(quivers):
        payload = b"%s-%d" % (text, place)
        quiver.append_raw(payload)
        given_out.append(payload)
    return given_out


def register_everywhere(cores: Cores) -> None:
    for quiver in cores.sources():
        if SUBSCRIBER not in quiver.subscribers():
            quiver.register(SUBSCRIBER)


def drain(quiver: Quiver) -> list[bytes]:
    """Take and acknowledge everything that waits."""
    taken = []
    with quiver.lease(SUBSCRIBER) as lease:
        while (delivery := lease.poll()) is not None:
            taken += delivery.bundle.payloads
            delivery.ack()
    return taken


def started_with_data(rack: Rack) -> Cores:
    """Start two cores with a subscriber and one event each."""
    cores = rack.start(2)
    register_everywhere(cores)
    feed(cores)
    return cores


def caps(cores: Cores) -> list[int]:
    return [one.size_cap_bytes for one in cores.statistics()]


def used(cores: Cores) -> int:
    return sum(one.used_bytes for one in cores.statistics())


def fill(quiver: Quiver, size_bytes: int) -> None:
    """Append so much, in pieces that fit."""
    for _ in range(size_bytes // (512 * KB)):
        quiver.append_raw(bytes(512 * KB))
    quiver.flush()


# ---------------------------------------------------------------------- using them


def test_every_core_is_a_quiver_of_its_own_in_a_folder_of_its_own(rack: Rack) -> None:
    cores = rack.start(3)
    assert rack.folders() == ["core-00", "core-01", "core-02", "trash"]
    assert len(cores) == len(list(cores)) == len({quiver.quiver_id for quiver in cores}) == 3
    assert cores[2] is list(cores)[2]
    assert cores.adopted == {}
    assert cores[0].append_raw(b"a").seq == cores[1].append_raw(b"b").seq == 0


def test_there_is_no_core_beyond_the_number_asked_for(rack: Rack) -> None:
    cores = rack.start(2)
    for wrong in (2, -1):
        with pytest.raises(IndexError):
            cores[wrong]


def test_statistics_tell_number_adoption_and_how_full_each_core_is(rack: Rack) -> None:
    rack.start(3)
    rack.stop()
    told = rack.start(2).statistics()
    assert [(one.core_id, one.adopted) for one in told] == [(0, False), (1, False), (2, True)]
    for one in told:
        assert one.cap_fraction == one.used_bytes / one.size_cap_bytes > 0


def test_closing_twice_is_fine_and_lets_go_of_everything(rack: Rack) -> None:
    with rack.start(2) as cores:
        cores[0].append_raw(b"event")
    cores.close()
    with pytest.raises(QuiverClosed):
        cores[0].append_raw(b"too late")
    assert len(rack.start(3)) == 3


# --------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("count", [0, -1, 1001, True, 1.5, "2", None])
def test_a_number_of_cores_that_is_none_is_refused_before_anything_is_made(
    rack: Rack, count: int
) -> None:
    with pytest.raises(BadInput, match="cores"):
        rack.start(count)
    assert rack.disk.list(PurePath("/")) == []


def test_more_cores_than_the_cap_has_room_for_are_refused(rack: Rack) -> None:
    assert len(rack.start(16)) == 16
    rack.stop()
    with pytest.raises(BadInput, match=r"divided by 17 cores is .* less than four segments"):
        rack.start(17)


def test_two_processes_cannot_share_a_root_whatever_their_numbers(rack: Rack) -> None:
    rack.start(2)
    for count in (1, 2, 4):
        with pytest.raises(DirectoryLocked):
            Cores.open(ROOT, count, CONFIG, seam=Seam(rack.disk))
    assert rack.folders() == ["core-00", "core-01", "trash"]


def test_a_core_that_somebody_opened_alone_is_not_shared_either(rack: Rack) -> None:
    rack.start(2)
    rack.stop()
    with Quiver.open(ROOT / "core-01", CONFIG, seam=Seam(rack.disk)):
        with pytest.raises(DirectoryLocked):
            rack.start(2)
        # The root and the core that had been opened were let go of.
        with Quiver.open(ROOT / "core-00", CONFIG, seam=Seam(rack.disk)):
            pass
    assert len(rack.start(2)) == 2


def test_a_quiver_is_not_taken_for_a_root(rack: Rack) -> None:
    with Quiver.open(ROOT, CONFIG, seam=Seam(rack.disk)):
        pass
    with pytest.raises(CannotOpen, match="is a quiver itself"):
        rack.start(2)


def test_a_root_is_not_taken_for_a_quiver(rack: Rack) -> None:
    rack.start(2)
    rack.stop()
    with pytest.raises(CannotOpen, match="a root of several"):
        Quiver.open(ROOT, CONFIG, seam=Seam(rack.disk))
    assert rack.folders() == ["core-00", "core-01", "trash"]


def test_foreign_names_in_the_root_are_left_alone(rack: Rack) -> None:
    rack.start(1)
    rack.stop()
    for name in ("core-1", "core-007", "core-x", "notes"):
        rack.disk.make_dir(ROOT / name, "test")
    assert rack.start(1).adopted == {}
    assert {"core-1", "core-007", "core-x", "notes"} < set(rack.folders())


def test_a_disk_that_takes_nothing_is_told_as_such(rack: Rack) -> None:
    rack.disk.read_only = True
    with pytest.raises(CannotOpen, match="read-only"):
        rack.start(2)
    rack.disk.read_only = False
    assert len(rack.start(2)) == 2


# ------------------------------------------------------------------------------- caps


def test_what_bounds_the_whole_is_divided_and_what_shapes_one_is_not() -> None:
    whole = QuiverConfig(
        append=AppendConfig(max_pending_bytes=80),
        wal=WalConfig(file_size_bytes=MB, max_size_bytes=40 * MB),
        ledger=LedgerConfig(retain_bytes=400),
        transactions=TransactionConfig(max_staged_bytes=84),
        retention=RetentionConfig(
            size_cap_bytes=4000, reserve_bytes=404, steady_state_headroom_bytes=408, max_segments=44
        ),
    )
    part = share_of(whole, 4)
    assert part == replace(
        whole,
        append=AppendConfig(max_pending_bytes=20),
        wal=WalConfig(file_size_bytes=MB, max_size_bytes=10 * MB),
        ledger=LedgerConfig(retain_bytes=100),
        transactions=TransactionConfig(max_staged_bytes=21),
        retention=RetentionConfig(
            size_cap_bytes=1000, reserve_bytes=101, steady_state_headroom_bytes=102, max_segments=11
        ),
    )


def test_small_bounds_divided_stay_usable() -> None:
    whole = QuiverConfig(
        wal=WalConfig(file_size_bytes=MB, max_size_bytes=2 * MB),
        retention=RetentionConfig(max_segments=3),
    )
    part = share_of(whole, 8)
    assert (part.wal.file_size_bytes, part.wal.max_size_bytes) == (256 * KB, 256 * KB)
    assert part.retention.max_segments == 1
    assert part.retention.reserve_bytes is None


def test_each_core_has_its_part_of_the_size_cap(rack: Rack) -> None:
    for count in (4, 3, 1):
        cores = rack.start(count)
        cores.sweep()
        active = [one for one in cores.statistics() if not one.adopted]
        assert {one.size_cap_bytes for one in active} == {64 * MB // count}
        rack.stop()


def test_an_adopted_core_is_counted_in_the_budget_until_it_is_gone(rack: Rack) -> None:
    cores = rack.start(2)
    register_everywhere(cores)
    fill(cores[1], 4 * MB)
    rack.stop()
    cores = rack.start(1)
    held_bytes = cores.statistics()[1].used_bytes
    assert held_bytes > 4 * MB
    assert caps(cores) == [64 * MB - held_bytes, 64 * MB]
    drain(cores.adopted[1])
    cores.sweep()
    assert caps(cores) == [64 * MB]


def test_when_the_number_grows_a_full_core_waits_and_the_whole_cap_still_holds(rack: Rack) -> None:
    config = with_retention()
    cores = rack.start(1, config)
    register_everywhere(cores)
    # Far more than a quarter; the rest is enough for what empty cores need themselves.
    fill(cores[0], 56 * MB)
    rack.stop()
    cores = rack.start(4, config)
    held_bytes = cores.statistics()[0].used_bytes
    assert held_bytes > 16 * MB
    assert set(caps(cores)) == {(64 * MB - held_bytes) // 3}
    with pytest.raises(Overloaded, match="size_cap_bytes"):
        cores[0].append_raw(b"event")
    for quiver in list(cores)[1:]:
        with pytest.raises(Overloaded):
            fill(quiver, 64 * MB)
        cores.sweep()
    # Files and folders themselves cost some blocks, whatever is in them.
    assert used(cores) <= 64 * MB + 64 * KB
    drain(cores[0])
    wait_until_removed(cores[0])
    cores.sweep()
    assert cores[0].append_raw(b"room again").seq > 0


def wait_until_removed(quiver: Quiver) -> None:
    """Let retention take what nobody needs."""
    quiver._engine.retention.tick()
    assert quiver.segments() == ()


def test_with_drop_oldest_a_core_shrinks_to_its_new_part_and_says_what_it_dropped(
    rack: Rack,
) -> None:
    config = with_retention(size_cap_policy="drop_oldest")
    cores = rack.start(1, config)
    register_everywhere(cores)
    fill(cores[0], 40 * MB)
    rack.stop()
    cores = rack.start(4, config)
    assert set(caps(cores)) == {16 * MB}
    cores[0]._engine.retention.tick()
    told = cores.statistics()[0]
    assert told.used_bytes <= 16 * MB
    assert told.subscribers[0].outcomes["dropped"].bundles > 0
    assert cores[0].balance(SUBSCRIBER).holds


def test_with_backpressure_an_adopted_core_drops_nothing_to_make_room(rack: Rack) -> None:
    cores = rack.start(2)
    for quiver in cores:
        quiver.register(SUBSCRIBER, options=SubscriberOptions(on_full="drop_oldest"))
    fill(cores[1], 8 * MB)
    rack.stop()
    cores = rack.start(1, replace(CONFIG, retention=with_retention().retention))
    cores.sweep()
    cores.adopted[1]._engine.retention.tick()
    assert cores.adopted[1].balance(SUBSCRIBER).pending.bundles == 16


@st.composite
def budgets(draw: st.DrawFn) -> tuple[int, list[CapClaim]]:
    least = draw(st.lists(st.integers(0, 1000), min_size=1, max_size=8))
    claims = [CapClaim(low, low + draw(st.integers(0, 2000))) for low in least]
    return draw(st.integers(0, 5000)), claims


@given(budgets())
def test_shares_never_exceed_the_cap_and_waste_nothing(budget: tuple[int, list[CapClaim]]) -> None:
    cap, claims = budget
    share = fair_share(cap, claims)

    def taken(share: int) -> int:
        return sum(max(least, min(share, most)) for least, most in claims)

    assert 0 <= share <= cap
    assert taken(share) <= max(cap, taken(0))
    assert share == cap or taken(share + 1) > cap


# --------------------------------------------------------------------------- adoption


@pytest.mark.parametrize("end", ["stop", "kill", "power", "torn power"])
def test_four_two_four_one_cores_with_data_and_crashes_lose_and_repeat_nothing(
    rack: Rack, end: str
) -> None:
    randomness = random.Random(4241)
    sent: list[bytes] = []
    taken: Counter[bytes] = Counter()
    for life, count in enumerate((4, 2, 4, 1)):
        cores = rack.start(count)
        assert set(cores.adopted) == set(range(count, 4 if life else 0))
        register_everywhere(cores)
        sent += feed(cores, b"life%d" % life)
        # Some readers are a life behind: their data is still there when the number changed.
        for quiver in cores.sources():
            assert quiver.balance(SUBSCRIBER).holds
            if randomness.random() < 0.4:
                taken.update(drain(quiver))
                quiver._engine.ledger.sync()
        sent += feed(cores, b"more%d" % life)
        if end == "stop":
            rack.stop()
        else:
            torn = randomness if end == "torn power" else None
            rack.crash(power=end != "kill", randomness=torn)
    cores = rack.start(1)
    assert set(cores.adopted) == {1, 2, 3}
    for quiver in cores.sources():
        taken.update(drain(quiver))
        assert quiver.balance(SUBSCRIBER).holds
        assert quiver.balance(SUBSCRIBER).pending.bundles == 0
    assert taken == Counter(sent)
    cores.sweep()
    assert cores.adopted == {}
    assert rack.folders() == ["core-00", "trash"]
    assert rack.disk.list(ROOT / "trash") == []


def test_an_adopted_core_takes_no_appends_of_any_kind(rack: Rack) -> None:
    started_with_data(rack)
    rack.stop()
    adopted = rack.start(1).adopted[1]
    attempts: list[Callable[[], object]] = [
        lambda: adopted.append_raw(b"event"),
        lambda: asyncio.run(adopted.append_raw_async(b"event")),
        adopted.intake,
        lambda: adopted.heartbeat("edge", 1),
        adopted.transaction,
    ]
    for attempt in attempts:
        with pytest.raises(QuiverClosed, match="adopted"):
            attempt()
    assert adopted.balance(SUBSCRIBER).accepted.bundles == 1


def test_subscribers_of_an_adopted_core_go_on_where_they_were(rack: Rack) -> None:
    cores = rack.start(2)
    for number in range(3):
        cores[1].append_raw(b"%d" % number)
    with cores[1].lease(SUBSCRIBER) as lease:
        delivery = lease.poll()
        assert delivery is not None
        delivery.ack()
    rack.stop()
    cores = rack.start(1)
    assert drain(cores.adopted[1]) == [b"1", b"2"]


def test_an_adopted_core_becomes_ordinary_again_when_the_number_grows(rack: Rack) -> None:
    cores = started_with_data(rack)
    identity = cores[1].quiver_id
    rack.stop()
    rack.start(1)
    rack.stop()
    cores = rack.start(2)
    assert (cores.adopted, cores[1].quiver_id) == ({}, identity)
    assert cores[1].append_raw(b"more").seq == 1
    assert drain(cores[1]) == [b"event-1", b"more"]


def test_a_removed_core_comes_back_as_another_quiver(rack: Rack) -> None:
    identity = rack.start(2)[1].quiver_id
    rack.stop()
    rack.start(1).sweep()
    rack.stop()
    assert rack.start(2)[1].quiver_id != identity


def test_an_adopted_core_that_nobody_is_registered_to_read_stays(rack: Rack) -> None:
    feed(rack.start(2))
    rack.stop()
    cores = rack.start(1)
    cores.sweep()
    assert set(cores.adopted) == {1}
    register_everywhere(cores)
    drain(cores.adopted[1])
    cores.sweep()
    assert cores.adopted == {}


def test_one_slow_subscriber_keeps_an_adopted_core(rack: Rack) -> None:
    started_with_data(rack)[1].register("slow")
    rack.stop()
    cores = rack.start(1)
    drain(cores.adopted[1])
    cores.sweep()
    assert set(cores.adopted) == {1}
    cores.adopted[1].unregister("slow")
    cores.sweep()
    assert cores.adopted == {}


def test_an_empty_adopted_core_goes_at_once(rack: Rack) -> None:
    rack.start(4)
    rack.stop()
    cores = rack.start(1)
    cores.sweep()
    assert rack.folders() == ["core-00", "trash"]


def test_quarantined_bytes_keep_an_adopted_core_until_somebody_took_them_away(rack: Rack) -> None:
    register_everywhere(rack.start(2))
    rack.stop()
    rack.disk.put(ROOT / "core-01" / "wal" / "garbage", b"what is this")
    cores = rack.start(1)
    cores.sweep()
    assert set(cores.adopted) == {1}
    quarantine = ROOT / "core-01" / "quarantine"
    for entry in rack.disk.list(quarantine):
        rack.disk.unlink(quarantine / entry.name, "test")
    cores.sweep()
    assert cores.adopted == {}


def test_whoever_waits_at_an_adopted_core_is_told_when_it_goes(rack: Rack) -> None:
    started_with_data(rack)
    rack.stop()
    cores = rack.start(1)
    lease = cores.adopted[1].lease(SUBSCRIBER)
    for delivery in lease:
        delivery.ack()
        cores.sweep()
    assert cores.adopted == {}
    assert lease.poll() is None


def test_drained_cores_go_by_themselves(rack: Rack) -> None:
    started_with_data(rack)
    rack.stop()
    cores = rack.start(1, with_retention(tick_s=0.01))
    drain(cores.adopted[1])
    give_up_s = time.monotonic() + PATIENCE_S
    while cores.adopted and time.monotonic() < give_up_s:
        time.sleep(0.01)
    assert cores.adopted == {}


@pytest.mark.parametrize(
    "at", [QuiverPoint.TRASH_MOVE, QuiverPoint.TRASH_SYNC_DIR, QuiverPoint.TRASH_UNLINK]
)
@pytest.mark.parametrize("kind", [FaultKind.KILL_BEFORE, FaultKind.KILL_AFTER])
@pytest.mark.parametrize("power", [False, True])
def test_a_crash_while_a_drained_core_is_removed_is_made_good(
    rack: Rack, at: QuiverPoint, kind: FaultKind, power: bool
) -> None:
    cores = started_with_data(rack)
    drain(cores[1])
    rack.stop()
    cores = rack.start(1, faults=[Fault(at, kind)])
    with pytest.raises(SimulatedCrash):
        cores.sweep()
    rack.crash(power=power)
    cores = rack.start(1)
    cores.sweep()
    assert cores.adopted == {}
    assert rack.folders() == ["core-00", "trash"]
    assert drain(cores[0]) == [b"event-0"]


def test_a_removal_that_the_disk_refuses_is_made_good_later(rack: Rack) -> None:
    rack.start(2)
    rack.stop()
    cores = rack.start(1, faults=[Fault(QuiverPoint.TRASH_MOVE, FaultKind.EIO)])
    cores.sweep()
    # It is still there, and counts.
    assert rack.folders() == ["core-00", "core-01", "trash"]
    assert caps(cores)[0] < 64 * MB
    cores.sweep()
    assert rack.folders() == ["core-00", "trash"]
    assert caps(cores) == [64 * MB]


def test_on_a_real_disk_too_a_drained_core_leaves_nothing_behind(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with Cores.open(root, 3) as cores:
        register_everywhere(cores)
        feed(cores)
    with Cores.open(root, 1) as cores:
        with pytest.raises(DirectoryLocked):
            Cores.open(root, 3)
        for quiver in cores.adopted.values():
            drain(quiver)
        cores.sweep()
        assert sorted(path.name for path in root.iterdir()) == ["LOCK", "core-00", "trash"]
        assert list((root / "trash").iterdir()) == []
        assert cores[0].balance(SUBSCRIBER).pending.bundles == 1
