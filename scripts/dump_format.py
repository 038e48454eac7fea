"""Write the examples in docs/format with the code they describe.

    python scripts/dump_format.py

Run it after a change of a format; a test fails while a document and the code disagree. An example
stands between `<!-- generated: NAME -->` and `<!-- end -->`. A table that a test or an example
reads is announced by `<!-- table: NAME -->`.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import pyarrow as pa
from xxhash import xxh3_128_hexdigest

from holdfast.quiver import (
    ColumnExtractor,
    LedgerConfig,
    Position,
    Quiver,
    QuiverConfig,
    RetentionConfig,
    SegmentConfig,
    SubscriberOptions,
)
from holdfast.quiver.base import names
from holdfast.quiver.base.bundle import decode_arrow, encode_arrow
from holdfast.quiver.base.frame import HEADER_BYTES, STAGED, Frame, FrameKind
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.ledger import log as ledger_log
from holdfast.quiver.ledger.log import LineKind, decode_resolutions, read_ledger_file
from holdfast.quiver.ledger.recovery import recover_ledger
from holdfast.quiver.ledger.subscriber import Subscriber
from holdfast.quiver.log.wal import HEADER_BYTES as WAL_HEADER_BYTES
from holdfast.quiver.log.wal import decode_header, walk
from holdfast.seam import Seam
from holdfast.seam.clock import JumpingClock
from holdfast.seam.disk import Disk
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.randomness import seeded_randomness
from holdfast.seam.simulated import SimulatedDisk

DOCS = Path(__file__).parents[1] / "docs" / "format"
ROOT = PurePath("/data")
# 2026-01-02 03:04:05.678901 UTC.
NOW_NS = 1_767_323_045_678_901_000
CONFIG = QuiverConfig(
    segment=SegmentConfig(max_open_duration_s=3600.0),
    extractors={"events": ColumnExtractor("at")},
)

_GENERATED = re.compile(
    r"(<!-- generated: ([\w -]+?) -->\n```\w*\n)(.*?)(```\n<!-- end -->)", re.DOTALL
)
_TABLE = r"<!-- table: {} -->\n\n?((?:\|.*\n)+)"


# ------------------------------------------------------------------- the example


def open_quiver(disk: Disk) -> Quiver:
    """Open the example store: its clock stands still, its randomness is the same every time."""
    seam = Seam(disk, JumpingClock(NOW_NS), seeded_randomness(2026))
    return Quiver.open(ROOT, CONFIG, seam=seam)


def example_batch() -> pa.RecordBatch:
    """Return two events: one of now, one that claims to be of the year 2099."""
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    times = pa.array([now, now.replace(year=2099)], pa.timestamp("us", tz="UTC"))
    return pa.record_batch({"service": ["checkout", "cart"], "ms": [12.5, 3.1], "at": times})


@cache
def example_disk() -> SimulatedDisk:
    """Return what kill -9 left: one segment (seq 0 and 1), and a WAL file (seq 2 to 5)."""
    disk = SimulatedDisk()
    with open_quiver(disk) as quiver:
        quiver.append(example_batch())
        quiver.append_raw(b'{"run":1}', slot="lineage", producer="edge", epoch=6)
        quiver.flush()
        quiver.append_raw(
            [b'{"run":2}', b'{"run":3}'],
            slot="lineage",
            headers=[{"tenant": "a"}, None],
            producer="edge",
            epoch=7,
            watermark_ns=NOW_NS - 1_000_000_000,
        )
        with quiver.transaction() as transaction:
            transaction.append_raw(b"all", slot="lineage")
            transaction.append_raw(b"or none", slot="lineage")
        quiver.heartbeat("edge", NOW_NS)
        return disk.snapshot()


def wal_path(disk: Disk) -> PurePath:
    """Return the newest WAL file."""
    directory = ROOT / names.WAL_DIR
    return directory / disk.list(directory)[-1].name


def segment_path() -> PurePath:
    """Return the example's segment."""
    directory = ROOT / names.SEGMENTS_DIR
    return directory / example_disk().list(directory)[0].name


def wal_content() -> memoryview:
    """Return the bytes of the example's WAL file."""
    return memoryview(example_disk().read(wal_path(example_disk())))


def example_frames() -> list[tuple[int, Frame]]:
    """Return the frames of the example's WAL file, each with its offset."""
    view = wal_content()
    frames = [item for item in walk(view, decode_header(view).salt) if isinstance(item, Frame)]
    starts = [WAL_HEADER_BYTES, *(frame.end for frame in frames)]
    return list(zip(starts, frames, strict=False))


# ------------------------------------------------------------------------- text


def xxd(data: bytes | memoryview, start: int = 0) -> str:
    """Return a hex dump; lines of zeros become one line with a star."""
    lines: list[str] = []
    for offset in range(0, len(data), 16):
        row = bytes(data[offset : offset + 16])
        if not any(row) and len(row) == 16 and offset and offset + 16 < len(data):  # noqa: PLR2004
            lines += [] if lines[-1] == "*" else ["*"]
            continue
        pairs = " ".join(row[at : at + 2].hex() for at in range(0, 16, 2))
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)  # noqa: PLR2004
        lines.append(f"{start + offset:08x}: {pairs:<39}  {text}")
    return "\n".join(lines)


def columns(rows: Iterable[Sequence[object]]) -> str:
    """Return rows of text with their cells under each other."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)
    return "\n".join(lines)


def table_rows(text: str, name: str) -> list[list[str]]:
    """Return the cells of a table of a document, without heading and without backquotes."""
    match = re.search(_TABLE.format(re.escape(name)), text)
    assert match is not None, f"no table {name}"
    rows = [line.strip("|").split("|") for line in match[1].splitlines()]
    return [[cell.strip().strip("`") for cell in row] for row in rows[2:]]


class Field(NamedTuple):
    """One row of a byte layout."""

    offset: int
    size: int
    kind: str
    name: str


_CODES = {"u8": "<B", "u16": "<H", "u32": "<I", "u64": "<Q", "i64": "<q"}


def layout(text: str, name: str) -> list[Field]:
    """Return the fields of fixed size of a layout table."""
    rows = table_rows(text, name)
    return [Field(int(r[0]), int(r[1]), r[2], r[3]) for r in rows if r[1].isdigit()]


def read_field(field: Field, data: bytes | memoryview) -> Any:
    """Return the value of a field as its layout says."""
    part = bytes(data[field.offset : field.offset + field.size])
    return struct.unpack(_CODES[field.kind], part)[0] if field.kind in _CODES else part


def fields_of(document: str, name: str, data: bytes | memoryview) -> str:
    """Return the fields of a layout table, read from real bytes."""
    rows = []
    for field in layout((DOCS / document).read_text(), name):
        value = read_field(field, data)
        part = bytes(data[field.offset : field.offset + field.size]).hex()
        shown = f"{value:,}" if isinstance(value, int) else ""
        rows.append((f"{field.offset:4}", part, field.name, shown.replace(",", "_")))
    return columns(rows)


# --------------------------------------------------------------------- examples


def tree() -> str:
    """Return the folders of the example after a start that found one damaged bundle."""
    disk, _ = damaged_start()
    notes = {
        names.FORMAT: "format version and quiver_id",
        names.LOCK: "held by the owning process",
        names.WAL_DIR: "write-ahead log: wal.md",
        names.LEDGER_DIR: "what became of every bundle: ledger.md",
        names.TRASH_DIR: "what is being deleted",
        names.SEGMENTS_DIR: "sealed segments: segment.md",
        names.QUARANTINE_DIR: "damaged bytes, and a note about each",
        names.MANIFEST: "summary of the segment, twice",
        names.BUNDLES: "one row per bundle",
    }
    rows = [(f"{ROOT.name}/", "", "")]

    def add(folder: PurePath, depth: int) -> None:
        entries = [(entry.name, entry.is_dir, entry.size_bytes) for entry in disk.list(folder)]
        if depth == 1:
            entries = sorted([*entries, (names.LOCK, False, 0)])
        for name, is_dir, size_bytes in entries:
            shown = "  " * depth + name + ("/" if is_dir else "")
            rows.append((shown, f"{size_bytes or ''}", notes.get(name, "")))
            if is_dir:
                add(folder / name, depth + 1)

    add(ROOT, 1)
    return columns(rows)


def frame_header() -> str:
    """Return the header of the example's first frame, field by field."""
    start, _ = example_frames()[0]
    return fields_of("frame.md", "frame header", wal_content()[start : start + HEADER_BYTES])


def frame_dump() -> str:
    """Return the bytes of the example's first frame."""
    start, frame = example_frames()[0]
    return xxd(wal_content()[start : frame.end], start)


def frame_salt() -> str:
    """Return the salt of the example's WAL file."""
    return f"salt = {decode_header(wal_content()).salt:#018x}"


def producer_part() -> str:
    """Return the producer part of the example's first frame, field by field."""
    return fields_of("frame.md", "producer part", wal_content()[WAL_HEADER_BYTES + HEADER_BYTES :])


def arrow_payload() -> str:
    """Return where the parts of an Arrow payload are, and the bytes of its table."""
    slots = {"spans": pa.record_batch({"n": [1]}), "links": pa.record_batch({"m": [2, 3]})}
    payload = memoryview(encode_arrow(slots, 1 << 20).payload).cast("B")
    rows, end = [], 0
    for slot in decode_arrow(payload):
        end += len(slot.stream)
        rows.append((f"{end - len(slot.stream)}..{end - 1}", f"IPC stream of slot {slot.name!r}"))
    rows.append((f"{end}..{len(payload) - 1}", "table, and its length in the last four bytes:"))
    return columns(rows) + "\n\n" + xxd(payload[end:], end)


def wal_header() -> str:
    """Return the header of the example's WAL file, field by field."""
    return fields_of("wal.md", "wal header", wal_content()[:4096])


def wal_dump() -> str:
    """Return the bytes of the header, both copies."""
    return xxd(wal_content()[:WAL_HEADER_BYTES])


def wal_frames() -> str:
    """Return the frames of the example's WAL file."""
    rows: list[Sequence[object]] = [
        ("offset", "bytes", "kind", "flags", "seq", "synced_through", "producer", "payload")
    ]
    for start, frame in example_frames():
        kind, flags = FrameKind(frame.kind).name, "STAGED" if frame.flags & STAGED else "-"
        name, payload = frame.producer or "-", f"{len(frame.payload)} bytes"
        sizes = frame.end - start, kind, flags, frame.seq, frame.synced_through
        rows.append((start, *sizes, name, payload))
    return columns(rows)


def _with_torn_tail(disk: SimulatedDisk) -> None:
    path = wal_path(disk)
    start, _ = example_frames()[0]
    content = disk.read(path)
    disk.put(path, content + content[start : start + 40])


def _with_flipped_bit(disk: SimulatedDisk) -> None:
    start, frame = example_frames()[1]
    disk.overwrite(wal_path(disk), start + HEADER_BYTES, bytes([frame.payload[0] ^ 1]))


def damaged_start() -> tuple[SimulatedDisk, Quiver]:
    """Return a disk after a start that found one damaged bundle."""
    disk = example_disk().snapshot()
    _with_flipped_bit(disk)
    # What is sound is sealed at once, apart from the hole; the example is the moment before.
    unsealed = Fault(QuiverPoint.SEAL_MAKE_DIR, FaultKind.EIO, times=1_000_000)
    with open_quiver(FaultyDisk(disk, [unsealed], disk.die)) as quiver:
        return disk.snapshot(), quiver


def recoveries() -> str:
    """Return what recovery reports for the example's WAL file in several states."""
    cases: dict[str, Callable[[SimulatedDisk], None]] = {
        "as it is": lambda disk: None,
        "half a frame behind it": _with_torn_tail,
        "one bit flipped in seq 3": _with_flipped_bit,
        "closed before": lambda disk: open_quiver(disk).close(),
        "wal/ emptied": lambda disk: disk.unlink(wal_path(disk), "example"),
    }
    rows: list[Sequence[object]] = [
        ("the file", "replayed", "torn bytes", "damaged", "next seq", "quiver_id")
    ]
    for name, change in cases.items():
        disk = example_disk().snapshot()
        change(disk)
        with open_quiver(disk) as quiver:
            found = quiver.recovery
            lost = ", ".join(f"seq {d.first_seq}" for d in found.damages) or "-"
            identity = "new" if found.new_identity else "kept"
            next_seq = quiver.statistics().next_seq
        rows.append((name, found.replayed_bundles, found.torn_bytes, lost, next_seq, identity))
    return columns(rows)


def quarantine_note() -> str:
    """Return the note beside the quarantined bytes of the example."""
    disk, quiver = damaged_start()
    (damage,) = quiver.recovery.damages
    path = ROOT / names.QUARANTINE_DIR / f"{damage.source}@{damage.offset}.1.json"
    assert json.loads(disk.read(path)) == asdict(damage)
    return disk.read(path).decode()


def format_file() -> str:
    """Return the example's FORMAT."""
    return example_disk().read(ROOT / names.FORMAT).decode().rstrip()


def manifest_line() -> bytes:
    """Return the summary in the example's manifest."""
    return example_disk().read(segment_path() / names.MANIFEST).split(b"\n")[0]


def manifest_text() -> str:
    """Return the summary in the example's manifest, laid out for reading."""
    text = json.dumps(json.loads(manifest_line()), indent=1)
    # Innermost objects fit on a line.
    return re.sub(r"\{[^{}]*\}", lambda match: re.sub(r"\s*\n\s*", " ", match[0]), text)


def manifest_dump() -> str:
    """Return the bytes around the end of the first copy."""
    data = example_disk().read(segment_path() / names.MANIFEST)
    line, checksum = data.split(b"\n")[:2]
    half = len(data) // 2
    rows = [
        ("0", "one line of JSON", f"{len(line):,} bytes, then a newline"),
        (f"{len(line) + 1:,}", "its xxh3-64", checksum.decode() + ", then a newline"),
        (f"{len(line) + len(checksum) + 2:,}", "newlines", f"up to {half:,}"),
        (f"{half:,}", "the same again", f"up to {len(data):,}"),
    ]
    return columns(rows)


def _arrow_file(name: str) -> pa.Table:
    return pa.ipc.open_file(pa.py_buffer(example_disk().read(segment_path() / name))).read_all()


def _shown(table: pa.Table) -> str:
    rows = [[_cell(column[place]) for column in table.columns] for place in range(table.num_rows)]
    return columns([table.schema.names, *rows])


def _cell(scalar: pa.Scalar) -> str:
    value = scalar.as_py()
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f").rstrip("0").rstrip(".")
    if isinstance(value, list):
        return " ".join(str(tuple(item.values())) for item in value)
    return "-" if value is None else str(value)


def fingerprint() -> str:
    """Return the text that the fingerprint of the example's first file is the hash of."""
    (events, _) = json.loads(manifest_line())["files"]
    columns = list(_arrow_file(events["name"]).schema)[-events["own_columns"] :]
    told = [[column.name, str(column.type), column.nullable] for column in columns]
    text = json.dumps(told, separators=(",", ":"), ensure_ascii=False)
    assert xxh3_128_hexdigest(text.encode()) == events["schema_fingerprint"]
    return text


def events_rows() -> str:
    """Return the rows of the example's Arrow slot."""
    return _shown(_arrow_file("000-events.arrow"))


def lineage_rows() -> str:
    """Return the rows of the example's raw slot."""
    return _shown(_arrow_file("001-lineage.arrow"))


def bundle_rows() -> str:
    """Return the example's bundle table."""
    return _shown(_arrow_file(names.BUNDLES))


# ------------------------------------------------------------------- the ledger

LEDGER = ROOT / names.LEDGER_DIR
# Nothing by timer, so that the example is the same every time.
LEDGER_CONFIG = replace(
    CONFIG,
    ledger=LedgerConfig(flush_interval_s=3600.0),
    retention=RetentionConfig(
        tick_s=3600.0, steady_state_headroom_bytes=1 << 40, orphan_ttl_s=7 * 86_400.0
    ),
)


class StandingClock:
    """A clock by which no time passes at all: ages are in the ledger, too."""

    def wall_ns(self) -> int:
        return NOW_NS

    def monotonic_s(self) -> float:
        return 0.0


def open_with_readers(disk: Disk, config: QuiverConfig = LEDGER_CONFIG) -> Quiver:
    """Open the store of the ledger's example."""
    return Quiver.open(ROOT, config, seam=Seam(disk, StandingClock(), seeded_randomness(2027)))


@cache
def ledger_disk() -> SimulatedDisk:
    """Return a store whose ledger has a line of every kind, in two files, after kill -9."""
    disk = SimulatedDisk()
    with open_with_readers(disk) as quiver:
        quiver.register("archive")
        for events in ([b"a", b"b"], [b"c"], [b"d"], [b"e"]):
            quiver.append_raw(events, producer="edge", epoch=quiver.statistics().next_seq + 1)
        _read_as_archive(quiver)
        _read_as_stats(quiver)
        quiver.unregister("stats", reason="no longer needed")
    with open_with_readers(disk, CONFIG) as quiver:
        quiver._engine.retention.tick()
        return disk.snapshot()


def _read_as_archive(quiver: Quiver) -> None:
    """Acknowledge, reject, filter; change the subscriber's options; replay one bundle."""
    with quiver.lease("archive") as lease:
        first, second = lease.poll(), lease.poll()
        assert first is not None
        assert second is not None
        first.ack()
        second.nack(reason="503 from the archive")
        second = lease.poll()
        assert second is not None
        second.reject("malformed")
    options = SubscriberOptions(max_bytes=64 << 20, on_full="drop_oldest", max_attempts=5)
    quiver.set_options("archive", options)
    quiver.replay("archive", 1, 2)
    with quiver.lease("archive") as lease:
        while (delivery := lease.poll()) is not None:
            delivery.ack()


def _read_as_stats(quiver: Quiver) -> None:
    """Pause and resume; plan a range, and commit half of its first bundle."""
    cursor = quiver.cursor("stats")
    cursor.pause()
    cursor.resume()
    planned = cursor.plan(max_events=3)
    assert planned is not None
    cursor.commit(planned, through=Position(0, 1))
    cursor.accept_losses()
    cursor.close()


def ledger_contents(disk: Disk) -> list[ledger_log.LedgerContent]:
    """Return the ledger's files, oldest first."""
    return [read_ledger_file(disk, LEDGER / entry.name) for entry in disk.list(LEDGER)]


def ledger_lines(content: ledger_log.LedgerContent) -> list[tuple[int, Frame]]:
    """Return the frames of a ledger file, each with its offset."""
    frames = [item for item in content.items if isinstance(item, Frame)]
    starts = [WAL_HEADER_BYTES, *(frame.end for frame in frames)]
    return list(zip(starts, frames, strict=False))


def ledger_header() -> str:
    """Return the header of the example's first ledger file, field by field."""
    return fields_of("ledger.md", "ledger header", ledger_contents(ledger_disk())[0].view[:4096])


def _partial_line() -> tuple[int, Frame, ledger_log.LedgerContent]:
    content = ledger_contents(ledger_disk())[0]
    for start, frame in ledger_lines(content):
        if frame.kind == LineKind.RESOLUTIONS:
            (line,) = decode_resolutions(frame.payload)
            if line.end.row:
                return start, frame, content
    raise AssertionError("the example has no line that stops inside a bundle")


def ledger_line_dump() -> str:
    """Return the bytes of one frame with an outcome."""
    start, frame, content = _partial_line()
    return xxd(content.view[start : frame.end], start)


def ledger_line() -> str:
    """Return the outcome in it, field by field."""
    _, frame, _ = _partial_line()
    return fields_of("ledger.md", "resolution", frame.payload)


def _told(frame: Frame) -> str:
    """Return what a line of the ledger says, shortened where it repeats a checkpoint."""
    if frame.kind == LineKind.CHECKPOINT:
        return "…"
    if frame.kind == LineKind.CHANGE:
        change = json.loads(bytes(frame.payload))
        if "state" in change:
            change["state"] = "…"
        told = {key: value for key, value in change.items() if value != ""}
        return json.dumps(told, ensure_ascii=False)
    return "; ".join(
        f"{line.subscriber} generation {line.generation}: {line.start.seq}.{line.start.row} to "
        f"{line.end.seq}.{line.end.row} {line.outcome.name} {line.counts.bundles}/"
        f"{line.counts.events} {line.reason}".rstrip()
        for line in decode_resolutions(frame.payload)
    )


def ledger_frames() -> str:
    """Return all lines of the example's ledger."""
    rows: list[Sequence[object]] = [("file", "offset", "kind", "lines", "synced_through", "says")]
    for content in ledger_contents(ledger_disk()):
        for start, frame in ledger_lines(content):
            kind, number = LineKind(frame.kind).name, content.header.number
            rows.append((number, start, kind, frame.seq, frame.synced_through, _told(frame)))
    return columns(rows)


def ledger_checkpoint() -> str:
    """Return the checkpoint that the example's second file begins with, laid out for reading."""
    text = json.dumps(ledger_contents(ledger_disk())[1].checkpoint, indent=1)
    # Innermost lists and objects fit on a line.
    return re.sub(r"[\[{][^\[\]{}]*[\]}]", lambda match: re.sub(r"\s*\n\s*", " ", match[0]), text)


def _ledger_path(disk: Disk, place: int) -> PurePath:
    return LEDGER / disk.list(LEDGER)[place].name


def _flip(disk: SimulatedDisk, path: PurePath, offset: int) -> None:
    disk.overwrite(path, offset, bytes([disk.read(path)[offset] ^ 1]))


def _with_torn_line(disk: SimulatedDisk) -> None:
    path = _ledger_path(disk, -1)
    content = disk.read(path)
    disk.put(path, content + content[WAL_HEADER_BYTES : WAL_HEADER_BYTES + 40])


def _in_the_middle(disk: SimulatedDisk) -> None:
    _remove_newest(disk)
    content = ledger_contents(disk)[0]
    start = next(s for s, frame in ledger_lines(content) if frame.kind == LineKind.RESOLUTIONS)
    _flip(disk, content.path, start + HEADER_BYTES)


def _in_the_checkpoint(disk: SimulatedDisk) -> None:
    _flip(disk, _ledger_path(disk, -1), WAL_HEADER_BYTES + HEADER_BYTES)


def _remove_newest(disk: SimulatedDisk) -> None:
    disk.unlink(_ledger_path(disk, -1), "example")


def _remove_all(disk: SimulatedDisk) -> None:
    while disk.list(LEDGER):
        _remove_newest(disk)


def ledger_recoveries() -> str:
    """Return what is read back from the example's ledger in several states."""
    cases: dict[str, Callable[[SimulatedDisk], None]] = {
        "as it is": lambda disk: None,
        "half a line behind it": _with_torn_line,
        "newest file missing": _remove_newest,
        "and one bit of a line flipped": _in_the_middle,
        "newest checkpoint damaged": _in_the_checkpoint,
        "no files": _remove_all,
    }
    rows: list[Sequence[object]] = [
        ("the ledger", "lines", "torn", "damaged", "subscribers", "waits from", "outcomes")
    ]
    for name, change in cases.items():
        disk = ledger_disk().snapshot()
        change(disk)
        own_id = ledger_contents(ledger_disk())[0].header.quiver_id
        found = recover_ledger(disk, LEDGER, {own_id})
        sizes = found.replayed_lines, found.torn_bytes, found.damaged_bytes
        readers = list(found.state.subscribers.values())
        known = ", ".join(reader.name for reader in readers) or "-"
        waits = ", ".join(f"seq {reader.high_water_seq}" for reader in readers) or "-"
        rows.append((name, *sizes, known, waits, _shown_counts(readers)))
    return columns(rows)


def _shown_counts(readers: Sequence[Subscriber]) -> str:
    counts = [(name, totals) for one in readers for name, totals in one.counts.items()]
    return ", ".join(f"{totals.events} {name.name}" for name, totals in counts) or "-"


EXAMPLES: dict[str, Callable[[], str]] = {
    "tree": tree,
    "format": format_file,
    "quarantine note": quarantine_note,
    "salt": frame_salt,
    "frame dump": frame_dump,
    "frame header": frame_header,
    "producer part": producer_part,
    "arrow payload": arrow_payload,
    "wal dump": wal_dump,
    "wal header": wal_header,
    "wal frames": wal_frames,
    "recoveries": recoveries,
    "manifest": manifest_text,
    "manifest bytes": manifest_dump,
    "fingerprint": fingerprint,
    "events rows": events_rows,
    "lineage rows": lineage_rows,
    "bundle rows": bundle_rows,
    "ledger header": ledger_header,
    "ledger line dump": ledger_line_dump,
    "ledger line": ledger_line,
    "ledger frames": ledger_frames,
    "ledger checkpoint": ledger_checkpoint,
    "ledger recoveries": ledger_recoveries,
}


def regenerated(text: str) -> str:
    """Return a document with every example written anew."""
    return _GENERATED.sub(lambda m: f"{m[1]}{EXAMPLES[m[2]]()}\n{m[4]}", text)


def main() -> None:
    """Rewrite all documents in place."""
    for path in sorted(DOCS.glob("*.md")):
        path.write_text(regenerated(path.read_text()))


if __name__ == "__main__":
    main()
