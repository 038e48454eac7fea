"""Write a golden data directory: what this version leaves on disk, and what must be read from it.

    python scripts/make_golden.py tests/quiver/golden/v2

Every run writes the same bytes: time stands still, randomness is seeded, and every seal is asked
for. What was appended is written beside it as `expected.json`, so that a test compares what any
later program reads with what was put in, and not with what this one reads.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import pyarrow as pa

from holdfast.quiver import ColumnExtractor, Quiver, QuiverConfig, Receipt, SegmentConfig
from holdfast.quiver.base.points import QuiverPoint
from holdfast.seam import Seam
from holdfast.seam.clock import JumpingClock
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.randomness import seeded_randomness
from holdfast.seam.simulated import SimulatedDisk

ROOT = PurePath("/data")
# 2026-01-02 03:04:05.678901 UTC.
NOW_NS = 1_767_323_045_678_901_000
DAY_US = 86_400_000_000
CONFIG = QuiverConfig(
    # Few enough files that the rarer schemas of a segment share an opaque one.
    segment=SegmentConfig(max_open_duration_s=3600.0, max_files=4),
    extractors={"spans": ColumnExtractor("start")},
)
ALWAYS = 1_000_000

Slots = dict[str, pa.RecordBatch]


class Recorder:
    """Appends to a quiver and writes down what was appended."""

    def __init__(self, clock: JumpingClock) -> None:
        self.bundles: list[dict[str, Any]] = []
        self._clock = clock

    def note(self, receipt: Receipt, slots: Slots, **fields: Any) -> None:
        """Write down one bundle at the number it got."""
        rows = {name: plain(batch.to_pylist()) for name, batch in slots.items()}
        bundle = {
            "seq": receipt.seq,
            "ingestion_ns": self._clock.wall_ns(),
            "watermark_ns": None,
            "producer": None,
            "epoch": 0,
        }
        self.bundles.append(bundle | fields | {"slots": rows})

    def append(self, quiver: Quiver, slots: Slots, **options: Any) -> None:
        """Append one bundle of record batches."""
        self.note(quiver.append(slots, **options), slots, kind="ARROW", **options)

    def append_raw(
        self,
        quiver: Quiver,
        payloads: list[bytes],
        headers: list[dict[str, str] | None] | None = None,
        **options: Any,
    ) -> None:
        """Append one bundle of raw events."""
        receipt = quiver.append_raw(payloads, headers=headers, **options)
        slot = options.pop("slot", "events")
        self.note(receipt, {slot: raw_rows(payloads, headers)}, kind="RAW", **options)

    def heartbeat(self, quiver: Quiver, producer: str, watermark_ns: int) -> None:
        """Append one bundle without rows."""
        receipt = quiver.heartbeat(producer, watermark_ns)
        self.note(receipt, {}, kind="CONTROL", producer=producer, watermark_ns=watermark_ns)

    def transaction(self, quiver: Quiver, events: list[bytes], producer: str, epoch: int) -> None:
        """Append several bundles, all or none."""
        with quiver.transaction(producer=producer, epoch=epoch) as transaction:
            for event in events:
                transaction.append_raw(event)
        receipt = transaction.receipt
        assert receipt is not None
        for place, event in enumerate(events):
            own = receipt._replace(seq=receipt.seq + place)
            rows = {"events": raw_rows([event], None)}
            self.note(own, rows, kind="RAW", producer=producer, epoch=epoch)


def raw_rows(payloads: list[bytes], headers: list[dict[str, str] | None] | None) -> pa.RecordBatch:
    """Return raw events as the rows they become."""
    texts = [json.dumps(h) if h else None for h in headers or [None] * len(payloads)]
    return pa.record_batch({"payload": payloads, "headers": pa.array(texts, pa.string())})


def plain(value: Any) -> Any:
    """Return a value as JSON has it: bytes as hexadecimal digits, times as text."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    return value if value is None or isinstance(value, int | float | str) else str(value)


def spans(*names: str, start_us: int = 0) -> pa.RecordBatch:
    """Return rows with an event time in a column, and with a dictionary."""
    starts = [NOW_NS // 1000 - start_us - n for n in range(len(names))]
    return pa.record_batch(
        {
            "name": pa.array(names).dictionary_encode(),
            "start": pa.array(starts, pa.timestamp("us", tz="UTC")),
            "tags": [[{"k": name, "v": n}] for n, name in enumerate(names)],
        }
    )


def first_segment(quiver: Quiver, note: Recorder) -> None:
    """Append raw events, dictionaries and a bundle of several slots, and seal them."""
    note.append_raw(quiver, [b"\x00\xff raw", b""], [{"content-type": "text/plain"}, None])
    note.append(quiver, {"spans": spans("get", "put", "get")}, producer="edge-1", epoch=3)
    note.append(quiver, {"spans": spans("del", start_us=DAY_US), "attrs": numbers(1, None, 3)})
    note.heartbeat(quiver, "edge-1", NOW_NS - 5)
    quiver.flush()


def second_segment(quiver: Quiver, note: Recorder) -> None:
    """Append more schemas than a segment has files, and seal them."""
    for n in range(6):
        rows = pa.record_batch({f"column_{n}": [n, n + 1], "always": ["a", "b"]})
        note.append(quiver, {"drift": rows})
    note.append_raw(quiver, [b"in another slot"], slot="other", producer="edge-2", epoch=1)
    note.transaction(quiver, [b"all", b"or none"], "edge-2", 2)
    quiver.flush()


def unsealed(quiver: Quiver, note: Recorder) -> None:
    """Append a bundle of every kind that stays in the WAL."""
    note.append_raw(quiver, [b"unsealed"], [{"k": "v"}])
    note.append(quiver, {"spans": spans("late")}, producer="edge-1", epoch=4, watermark_ns=NOW_NS)
    note.heartbeat(quiver, "edge-3", -1)
    note.transaction(quiver, [b"one", b"two", b"three"], "edge-3", 9)


def numbers(*values: int | None) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(values, pa.int32())})


def build() -> tuple[SimulatedDisk, dict[str, Any]]:
    """Return a disk as two processes left it, the second by kill -9, and what they appended."""
    disk, clock = SimulatedDisk(), JumpingClock(NOW_NS)
    note, randomness = Recorder(clock), seeded_randomness(2026)
    # Two seals work; the one at close fails, and leaves its bundles and a clean end in the WAL.
    two_seals = Fault(QuiverPoint.SEAL_MAKE_DIR, FaultKind.EIO, nth=3, times=ALWAYS)
    seam = Seam(FaultyDisk(disk, [two_seals], disk.die), clock, randomness)
    with Quiver.open(ROOT, CONFIG, seam=seam) as quiver:
        for append in (first_segment, second_segment, unsealed):
            append(quiver, note)
            clock.jump(60)
    no_seal = Fault(QuiverPoint.SEAL_MAKE_DIR, FaultKind.EIO, times=ALWAYS)
    seam = Seam(FaultyDisk(disk, [no_seal], disk.die), clock, randomness)
    with Quiver.open(ROOT, CONFIG, seam=seam) as quiver:
        note.append_raw(quiver, [b"after a restart"], producer="edge-2", epoch=3)
        expected = {"quiver_id": quiver.quiver_id, "bundles": note.bundles}
        return disk.snapshot(), expected


def files_of(disk: SimulatedDisk, folder: PurePath = ROOT) -> Iterator[tuple[PurePath, bytes]]:
    """Yield every file below a folder, with its content."""
    for entry in disk.list(folder):
        path = folder / entry.name
        if entry.is_dir:
            yield from files_of(disk, path)
        else:
            yield path.relative_to(ROOT), disk.read(path)


def main() -> None:
    """Write the directory named on the command line."""
    target = Path(sys.argv[1])
    disk, expected = build()
    shutil.rmtree(target / "data", ignore_errors=True)
    for path, content in files_of(disk):
        (target / "data" / path).parent.mkdir(parents=True, exist_ok=True)
        (target / "data" / path).write_bytes(content)
    (target / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
