"""A cap of a few MB works: the ledger does not eat the room that it frees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.quiver.machine import Machine, quiet

from holdfast.errors import Overloaded
from holdfast.quiver import (
    AppendConfig,
    LedgerConfig,
    Quiver,
    QuiverConfig,
    RetentionConfig,
    SegmentConfig,
    WalConfig,
)
from holdfast.quiver.base.config import KB, MB


def small(size_cap_bytes: int = 4 * MB, ledger: LedgerConfig | None = None) -> QuiverConfig:
    """Return a configuration for a small device."""
    retention = RetentionConfig(size_cap_bytes=size_cap_bytes, tick_s=0.05)
    return replace(quiet(), retention=retention, ledger=ledger or LedgerConfig())


def deliver(quiver: Quiver, reason: str) -> None:
    """Append an event, hand it out and reject it for a reason."""
    quiver.append_raw(b"event")
    with quiver.lease("archive") as lease:
        delivery = lease.poll()
        assert delivery is not None
        delivery.reject(reason)


def test_a_cap_of_four_mb_is_not_filled_by_the_account_of_what_was_read(machine: Machine) -> None:
    quiver = machine.start(small())
    quiver.register("archive")
    for _ in range(120):
        deliver(quiver, "x" * 60_000)
    # Seven MB of reasons went through the ledger.
    assert quiver.statistics().subscribers[0].outcomes["dead_lettered"].bundles == 120
    quiver._engine.ledger.sync_if_due()
    assert quiver.statistics().ledger_bytes < MB


def test_the_ledger_has_its_configured_bounds_under_a_large_cap() -> None:
    chosen = LedgerConfig(rotate_bytes=MB, retain_bytes=2 * MB)
    assert chosen.within(1024 * MB) == chosen
    assert chosen.within(4 * MB) == LedgerConfig(rotate_bytes=256 * KB, retain_bytes=512 * KB)


def test_a_checkpoint_larger_than_a_file_is_not_written_again_at_every_sync(
    machine: Machine,
) -> None:
    ledger = LedgerConfig(rotate_bytes=64 * KB, flush_interval_s=0.0)
    quiver = machine.start(small(64 * MB, ledger))
    for number in range(300):
        quiver.register(f"subscriber-{number}")
    machine.stop()
    quiver = machine.start(small(64 * MB, ledger))
    assert quiver.statistics().ledger_bytes > 64 * KB
    before = len(machine.disk.list(quiver._engine.root / "ledger"))
    for _ in range(20):
        quiver.append_raw(b"event")
        with quiver.lease("subscriber-0") as lease:
            delivery = lease.poll()
            assert delivery is not None
            delivery.ack()
        quiver._engine.ledger.sync_if_due()
    assert len(machine.disk.list(quiver._engine.root / "ledger")) <= before + 1


@pytest.mark.parametrize("event_bytes", [300, 1_000, 5_000, 100_000])
def test_a_full_quiver_is_within_its_cap_with_the_blocks_of_its_last_seal(
    tmp_path: Path, event_bytes: int
) -> None:
    config = QuiverConfig(
        append=AppendConfig(max_pending_bytes=MB, timeout_s=0.2),
        wal=WalConfig(file_size_bytes=MB // 4, max_size_bytes=2 * MB),
        segment=SegmentConfig(target_size_bytes=MB),
        retention=RetentionConfig(size_cap_bytes=4 * MB),
    )
    with Quiver.open(tmp_path / "full", config) as quiver:
        quiver.register("dead")
        full = False
        while not full:
            try:
                quiver.append_raw(bytes(event_bytes))
            except Overloaded:
                full = True
        quiver.flush()
        assert quiver._engine.retention.look_at_disk() <= 4 * MB
        assert quiver.statistics().used_bytes <= 4 * MB
