"""Quivers whose housekeeping happens when a test asks for it, and not by timer."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from tests.quiver.machine import START_NS, Machine, quiet
from tests.support.clock import SteppingClock

from holdfast.quiver import (
    AckLevel,
    Cursor,
    Lease,
    LeasedBundle,
    LedgerConfig,
    Quiver,
    QuiverConfig,
    Range,
    RetentionConfig,
    SegmentConfig,
)
from holdfast.quiver.base.config import MB
from holdfast.quiver.engine.balance import Balance
from holdfast.seam.disk import Disk
from holdfast.seam.faulty import Fault
from holdfast.seam.simulated import SimulatedDisk

# A timer that is set to this does nothing during a test.
NEVER_S = 24 * 3600.0


def calm(
    retention: RetentionConfig | None = None,
    *,
    level: AckLevel = AckLevel.FSYNCED,
    timeout_s: float = 60.0,
    rotate_bytes: int = 8 * MB,
    retain_bytes: int = 64 * MB,
) -> QuiverConfig:
    """Return a configuration under which nothing happens by timer."""
    return replace(
        quiet(level, timeout_s=timeout_s),
        segment=SegmentConfig(
            target_size_bytes=MB,
            max_open_duration_s=NEVER_S,
            retry_min_s=0.001,
            retry_max_s=0.01,
        ),
        ledger=LedgerConfig(
            flush_interval_s=NEVER_S, rotate_bytes=rotate_bytes, retain_bytes=retain_bytes
        ),
        retention=replace(retention or RetentionConfig(), tick_s=NEVER_S),
    )


class StillMachine(Machine):
    """A machine on which the keeper rests."""

    answers_all = False

    def __init__(self, disk: SimulatedDisk | None = None) -> None:
        super().__init__(disk)
        self.clock: SteppingClock = SteppingClock(START_NS)

    def start(
        self,
        config: QuiverConfig | None = None,
        *,
        faults: Iterable[Fault] = (),
        through: Callable[[SimulatedDisk], Disk] | None = None,
        expected_id: str | None = None,
    ) -> Quiver:
        """Open the quiver in a new process, and send its keeper to sleep for good."""
        quiver = super().start(
            config or calm(), faults=faults, through=through, expected_id=expected_id
        )
        quiver._engine.keeper.close()
        return quiver

    def restart(
        self, config: QuiverConfig | None = None, *, seed: int | None = None, power: bool = False
    ) -> Quiver:
        """Kill the process, or cut the power, and open again."""
        if power:
            self.cut_power(None if seed is None else random.Random(seed))
        else:
            self.kill()
        return self.start(config)


def keep(quiver: Quiver) -> None:
    """Do the keeper's work once."""
    quiver._engine.ledger.sync_if_due()
    quiver._engine.retention.tick()


def append(quiver: Quiver, count: int, events: int = 1, size_bytes: int = 10) -> list[int]:
    """Append raw bundles of some events each; return their seqs."""
    return [
        quiver.append_raw([b"%d" % place + b"x" * size_bytes for place in range(events)]).seq
        for _ in range(count)
    ]


def sealed(quiver: Quiver, segments: int, bundles: int = 1, size_bytes: int = 10) -> list[int]:
    """Seal segments of some bundles each; return all seqs."""
    seqs = []
    for _ in range(segments):
        seqs += append(quiver, bundles, size_bytes=size_bytes)
        quiver.flush()
    return seqs


def must_poll(lease: Lease) -> LeasedBundle:
    """Return the next delivery; there must be one."""
    delivery = lease.poll()
    assert delivery is not None
    return delivery


def must_plan(cursor: Cursor, max_events: int = 100_000) -> Range:
    """Return the next range; there must be one."""
    planned = cursor.plan(max_events=max_events)
    assert planned is not None
    return planned


def drain(lease: Lease) -> Iterator[int]:
    """Acknowledge everything there is; yield the seqs."""
    while (delivery := lease.poll()) is not None:
        assert delivery.ack()
        yield delivery.seq


def check_books(quiver: Quiver) -> dict[str, Balance]:
    """Return all balances, each of which must hold."""
    balances = {name: quiver.balance(name) for name in quiver.subscribers()}
    for balance in balances.values():
        assert balance.holds, balance
    return balances
