"""docs/format says what the code does: its examples, tables and snippets are compared with it."""

from __future__ import annotations

import re
from pathlib import Path, PurePath
from typing import Any

import pyarrow as pa
import pytest
from scripts import dump_format
from scripts.dump_format import DOCS, ROOT, layout, read_field, regenerated, table_rows
from xxhash import xxh3_64_intdigest

from holdfast.quiver import Quiver, QuiverConfig, SegmentConfig, TimeFlag
from holdfast.quiver.base import identity, names
from holdfast.quiver.base.bundle import ROWS_MAX, SLOTS_MAX, decode_arrow, encode_arrow, encode_raw
from holdfast.quiver.base.config import FILES_MAX
from holdfast.quiver.base.frame import (
    ALIGNMENT_BYTES,
    BODY_BYTES_MAX,
    HEADER_BYTES,
    MAGIC,
    NO_WATERMARK,
    STAGED,
    FrameKind,
    producer_part,
)
from holdfast.quiver.ledger import log as ledger_log
from holdfast.quiver.log import wal
from holdfast.quiver.log.wal import SEQ_BLOCK, decode_header
from holdfast.quiver.log.writer_state import EPOCH_MAX, NAME_BYTES_MAX
from holdfast.quiver.read.scan import ENVELOPE_SCHEMA
from holdfast.quiver.segments import manifest
from holdfast.quiver.segments.bundle_table import BUNDLE_SCHEMA
from holdfast.quiver.segments.rows import RAW_FIELDS
from holdfast.seam import Seam
from holdfast.seam.disk import Disk
from holdfast.seam.simulated import SimulatedDisk

PAGES = sorted(path.name for path in DOCS.glob("*.md"))
_SNIPPET = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)
_LINK = re.compile(r"\]\(([^)]*)\)")


def page(name: str) -> str:
    return (DOCS / name).read_text()


def first_column(name: str, table: str) -> list[str]:
    return [row[0] for row in table_rows(page(name), table)]


def named_numbers(name: str, table: str) -> dict[str, int]:
    return {row[1]: int(row[0]) for row in table_rows(page(name), table)}


def types(name: str, table: str) -> list[tuple[str, str]]:
    return [(row[0], row[1]) for row in table_rows(page(name), table)]


def schema_types(schema: pa.Schema) -> list[tuple[str, str]]:
    return [(field.name, str(field.type)) for field in schema]


def gaps(text: str, table: str) -> list[str]:
    """Return the fields of a layout that do not begin where the one before ends."""
    found, end = [], 0
    for field in layout(text, table):
        found += [] if field.offset == end else [field.name]
        end = field.offset + field.size
    return found


# ---------------------------------------------------------------------- examples


@pytest.mark.parametrize("name", PAGES)
def test_the_examples_are_what_the_code_writes(name: str) -> None:
    assert page(name) == regenerated(page(name)), "run: python scripts/dump_format.py"


def test_every_example_is_on_a_page() -> None:
    shown = {match for name in PAGES for match in re.findall(r"generated: (.+?) -->", page(name))}
    assert shown == set(dump_format.EXAMPLES)


def test_an_example_that_drifted_is_noticed() -> None:
    drifted = page("README.md").replace('{"version":1', '{"version":7')
    assert regenerated(drifted) == page("README.md") != drifted


# ----------------------------------------------------------------------- layouts


@pytest.mark.parametrize(
    ("name", "table", "size_bytes"),
    [
        ("frame.md", "frame header", HEADER_BYTES),
        ("frame.md", "producer part", 10),
        ("frame.md", "raw payload", 6),
        ("frame.md", "arrow slot", 26),
        ("wal.md", "wal header", 128),
        ("ledger.md", "ledger header", 56),
        ("ledger.md", "resolution", 57),
    ],
)
def test_a_layout_has_neither_gaps_nor_overlaps(name: str, table: str, size_bytes: int) -> None:
    assert gaps(page(name), table) == []
    last = layout(page(name), table)[-1]
    assert last.offset + last.size == size_bytes


def test_the_frame_header_reads_as_the_page_says() -> None:
    view = dump_format.wal_content()
    salt = decode_header(view).salt
    for start, frame in dump_format.example_frames():
        header = view[start : start + HEADER_BYTES]
        read = {f.name: read_field(f, header) for f in layout(page("frame.md"), "frame header")}
        body = view[start + HEADER_BYTES :][: read["body_bytes"]]
        assert read.pop("magic") == MAGIC ^ salt == int.from_bytes(b"HFFRAME1", "little") ^ salt
        assert read.pop("header_sum") == xxh3_64_intdigest(header[:-8], salt ^ start)
        assert read.pop("body_sum") == xxh3_64_intdigest(body, salt)
        assert read.pop("body_bytes") == read.pop("extra_bytes") + len(frame.payload)
        before = {
            "bundles_before": frame.before.bundles,
            "events_before": frame.before.events,
        }
        assert read == {key: getattr(frame, key, before.get(key)) for key in read}


def test_the_wal_header_reads_as_the_page_says() -> None:
    view = dump_format.wal_content()
    header = decode_header(view)
    for copy in (view[:4096], view[4096:8192]):
        read = {f.name: read_field(f, copy) for f in layout(page("wal.md"), "wal header")}
        assert read.pop("magic") == b"HFWAL\r\n\x1a"
        assert read.pop("header_bytes") == wal.HEADER_BYTES == 8192
        assert read.pop("version") == wal.VERSION
        assert read.pop("reserved") == 0
        assert read.pop("quiver_id").hex() == header.quiver_id.replace("-", "")
        expected = {
            "previous_bundles": header.previous_holds.bundles,
            "previous_events": header.previous_holds.events,
            "accepted_bundles": header.accepted_before.bundles,
            "accepted_events": header.accepted_before.events,
        }
        assert read == {key: getattr(header, key, expected.get(key)) for key in read}
        assert int.from_bytes(copy[4088:], "little") == xxh3_64_intdigest(copy[:4088])


def test_the_producer_part_reads_as_the_page_says() -> None:
    part = producer_part("édge", 7)
    epoch, name_bytes = (read_field(f, part) for f in layout(page("frame.md"), "producer part"))
    assert (epoch, part[10 : 10 + name_bytes].decode()) == (7, "édge")
    assert len(part) % ALIGNMENT_BYTES == 0


def test_the_raw_payload_reads_as_the_page_says() -> None:
    payload = bytes(encode_raw("s", [b"one", b"two!"], [None, {"a": "b"}], 1000).payload)
    events, name_bytes = (read_field(f, payload) for f in layout(page("frame.md"), "raw payload"))
    lengths = payload[6 + name_bytes : 6 + name_bytes + 8 * events]
    assert lengths.hex(" ", 4) == "03000000 04000000 00000000 0a000000"
    assert payload == payload[:6] + b"s" + lengths + b"one" + b"two!" + b'{"a": "b"}'


def test_the_arrow_payload_reads_as_the_page_says() -> None:
    slots = {"a": pa.record_batch({"n": [1]}), "bb": pa.record_batch({"m": [2, 3]})}
    payload = memoryview(encode_arrow(slots, 10_000).payload).cast("B")
    position = len(payload) - 4 - int.from_bytes(payload[-4:], "little")
    for slot in decode_arrow(payload):
        entry = payload[position:]
        read = {f.name: read_field(f, entry) for f in layout(page("frame.md"), "arrow slot")}
        position += 26 + read["name_bytes"]
        assert bytes(entry[26 : 26 + read["name_bytes"]]).decode() == slot.name
        stream = payload[read["start"] : read["start"] + read["size"]]
        assert read["size"] % ALIGNMENT_BYTES == 0
        assert (pa.ipc.open_stream(stream).read_next_batch(), read["rows"]) == (
            slots[slot.name],
            slot.rows,
        )
    assert position == len(payload) - 4


def test_a_gap_in_a_layout_is_noticed() -> None:
    text = page("frame.md").replace("| 16 | 8 | u64 | `seq`", "| 17 | 8 | u64 | `seq`")
    assert gaps(text, "frame header") == ["seq", "ingestion_ns"]


# --------------------------------------------------------------- names and numbers


def test_numbers_on_disk_have_the_names_the_pages_give() -> None:
    assert named_numbers("frame.md", "kinds") == {kind.name: kind.value for kind in FrameKind}
    assert named_numbers("frame.md", "flags") == {"STAGED": STAGED}
    assert named_numbers("segment.md", "time flags") == {f.name: f.value for f in TimeFlag}
    assert NO_WATERMARK == -(2**63)


def test_the_versions_are_those_the_code_writes() -> None:
    versions = {row[0]: int(row[2]) for row in table_rows(page("README.md"), "versions")}
    written = {
        "FORMAT": identity.VERSION,
        "WAL file": wal.RECYCLED_VERSION,
        "manifest": manifest.VERSION,
        "ledger file": ledger_log.VERSION,
    }
    assert versions == written


def test_the_limits_are_those_of_the_code() -> None:
    limits = {row[0]: int(row[1]) for row in table_rows(page("README.md"), "limits")}
    longest_slot = max(n for n in range(200) if names.SLOT_PATTERN.fullmatch("x" * n))
    assert limits == {
        "BODY_BYTES_MAX": BODY_BYTES_MAX,
        "SLOTS_MAX": SLOTS_MAX,
        "ROWS_MAX": ROWS_MAX,
        "SLOT_NAME_MAX": longest_slot,
        "NAME_BYTES_MAX": NAME_BYTES_MAX,
        "EPOCH_MAX": EPOCH_MAX,
        "FILES_MAX": FILES_MAX,
        "SEQ_BLOCK": SEQ_BLOCK,
    }


@pytest.mark.parametrize(
    ("table", "record"),
    [
        ("summary", manifest.Summary),
        ("file", manifest.FileSummary),
        ("batch", manifest.BatchSummary),
        ("producer", manifest.ProducerSummary),
    ],
)
def test_the_manifest_has_the_fields_the_page_lists(table: str, record: type[Any]) -> None:
    assert first_column("segment.md", table) == list(record._fields)


def test_format_has_the_fields_the_page_lists() -> None:
    listed = first_column("README.md", "format")
    assert listed == ["version", *identity.QuiverIdentity._fields]


def test_columns_have_the_types_the_page_gives() -> None:
    assert types("segment.md", "envelope") == schema_types(ENVELOPE_SCHEMA)
    assert types("segment.md", "bundles") == schema_types(BUNDLE_SCHEMA)
    assert types("segment.md", "raw columns") == schema_types(pa.schema(RAW_FIELDS))


def test_an_opaque_file_has_the_columns_and_metadata_the_page_gives() -> None:
    disk = SimulatedDisk()
    config = QuiverConfig(segment=SegmentConfig(max_files=2))
    with Quiver.open(ROOT, config, seam=Seam(disk)) as quiver:
        for column in ("a", "b", "c"):
            quiver.append(pa.record_batch({column: [1]}))
    (folder,) = disk.list(ROOT / names.SEGMENTS_DIR)
    path = ROOT / names.SEGMENTS_DIR / folder.name / names.data_file(1, "opaque")
    schema = pa.ipc.open_file(disk.read(path)).schema
    expected = types("segment.md", "envelope") + types("segment.md", "opaque columns")
    assert schema_types(schema) == expected
    assert [key.decode() for key in schema.metadata] == first_column("segment.md", "metadata")


# --------------------------------------------------------------- snippets and links


def write_out(disk: Disk, source: PurePath, target: Path) -> None:
    target.mkdir()
    for entry in disk.list(source):
        if entry.is_dir:
            write_out(disk, source / entry.name, target / entry.name)
        else:
            (target / entry.name).write_bytes(disk.read(source / entry.name))


@pytest.mark.parametrize(
    ("code", "output"), _SNIPPET.findall(page("segment.md")), ids=lambda text: text.splitlines()[0]
)
def test_a_snippet_runs_as_printed(
    code: str,
    output: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_out(dump_format.example_disk(), ROOT, tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "segment.md", "exec"), {})
    assert capsys.readouterr().out == output


def test_all_snippets_are_found() -> None:
    readers = ("polars", "duckdb", "pandas", "xxhash")
    snippets = [code for code, _ in _SNIPPET.findall(page("segment.md"))]
    assert len(snippets) == page("segment.md").count("```python") == len(readers)
    assert all(reader in code for reader, code in zip(readers, snippets, strict=True))


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    for link in _LINK.findall(page(name)):
        target, _, anchor = link.partition("#")
        text = page(target or name)
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
        assert not anchor or anchor in anchors, link
