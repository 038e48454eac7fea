"""Tools that look, beside an owner that appends, seals, deletes and rotates all the time."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.quiver.owner import CONFIG

from holdfast.quiver import Quiver
from holdfast.quiver.base.config import KB, LedgerConfig, RetentionConfig, SegmentConfig, WalConfig
from holdfast.quiver.tools.explain import explain, search
from holdfast.quiver.tools.fsck import fsck
from holdfast.quiver.tools.history import LineFilter, lines
from holdfast.quiver.tools.inspect import QuiverFinding, inspect
from holdfast.quiver.tools.scrub import scrub
from holdfast.seam import Seam

# Segments that come and go while a tool looks again and again.
SEGMENTS = 20

# Everything happens as often as it can.
BUSY = replace(
    CONFIG,
    wal=WalConfig(file_size_bytes=64 * KB),
    segment=SegmentConfig(max_open_duration_s=0.01),
    ledger=LedgerConfig(rotate_bytes=64 * KB, retain_bytes=256 * KB),
    retention=RetentionConfig(tick_s=0.01),
)


@contextmanager
def at_work(quiver: Quiver) -> Iterator[None]:
    """Append and read in threads; whatever fails in them fails the test."""
    stop, failures = threading.Event(), []

    def until_stopped(act: Callable[[], object]) -> None:
        try:
            while not stop.is_set():
                act()
        except BaseException as error:
            failures.append(error)

    def read(name: str) -> None:
        with quiver.lease(name) as deliveries:

            def acknowledge() -> None:
                delivery = deliveries.poll(timeout_s=0.01)
                if delivery is not None:
                    delivery.ack()

            until_stopped(acknowledge)

    work = [
        threading.Thread(
            target=until_stopped, args=[lambda: quiver.append_raw([b"event" * 100, b"more"])]
        ),
        *(threading.Thread(target=read, args=[name]) for name in ("archive", "metrics")),
    ]
    for thread in work:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in work:
            thread.join()
    assert failures == []


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Quiver]:
    """A busy quiver."""
    with Quiver.open(tmp_path / "data", BUSY) as quiver:
        quiver.register("archive")
        quiver.register("metrics")
        with at_work(quiver):
            yield quiver


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


def rounds(quiver: Quiver) -> Iterator[int]:
    """Count until enough segments were made and deleted."""
    for number in itertools.count():
        yield number
        if quiver.statistics().retention.evictions.get("processed", 0) >= SEGMENTS:
            return


def test_fsck_raises_no_false_alarm(busy: Quiver, root: Path) -> None:
    found: list[QuiverFinding] = []
    for _ in rounds(busy):
        found += fsck(Seam(), root).findings
    assert found == []


def test_scrub_raises_no_false_alarm(busy: Quiver, root: Path) -> None:
    found: list[QuiverFinding] = []
    for _ in rounds(busy):
        found += scrub(Seam().disk, root, lambda _: None).findings
    assert found == []


def test_stories_are_told(busy: Quiver, root: Path) -> None:
    disk = Seam().disk
    told = 0
    for _ in rounds(busy):
        inventory = inspect(disk, root)
        story = explain(disk, inventory, max(0, inventory.last_seq))
        assert {fate.subscriber for fate in story.subscribers} == {"archive", "metrics"}
        told += sum(1 for _ in lines(disk, inventory, LineFilter()))
        next(search(inventory, "event"), None)
    assert told > 0
