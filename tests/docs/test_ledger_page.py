"""docs/format/ledger.md says what the code does: layouts, numbers, fields and verbs."""

from __future__ import annotations

import ast
import json
from dataclasses import fields
from pathlib import Path

from scripts import dump_format
from scripts.dump_format import DOCS, layout, read_field, table_rows
from xxhash import xxh3_64_intdigest

from holdfast.quiver import Outcome, SubscriberOptions
from holdfast.quiver.base.frame import NO_WATERMARK, Frame
from holdfast.quiver.keep.retention import REASONS
from holdfast.quiver.ledger import log as ledger_log
from holdfast.quiver.ledger.ledger import LedgerState
from holdfast.quiver.ledger.log import LineKind, decode_resolutions
from holdfast.quiver.ledger.subscriber import LOSSES_MAX, Subscriber

QUIVER = Path(dump_format.__file__).parents[1] / "src" / "holdfast" / "quiver"
PAGE = (DOCS / "ledger.md").read_text()


def first_column(table: str) -> list[str]:
    return [row[0] for row in table_rows(PAGE, table)]


def example_lines() -> list[Frame]:
    contents = dump_format.ledger_contents(dump_format.ledger_disk())
    return [frame for content in contents for _, frame in dump_format.ledger_lines(content)]


def example_changes() -> list[dict[str, object]]:
    changes = [frame for frame in example_lines() if frame.kind == LineKind.CHANGE]
    return [json.loads(bytes(frame.payload)) for frame in changes]


def verbs_written(source: str) -> set[str]:
    """Return the verbs that calls of `….change("verb", …)` write."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return {
        call.args[0].value
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr == "change"
        and call.args
        and isinstance(call.args[0], ast.Constant)
        and isinstance(call.args[0].value, str)
    }


def test_the_header_reads_as_the_page_says() -> None:
    for content in dump_format.ledger_contents(dump_format.ledger_disk()):
        for copy in (content.view[:4096], content.view[4096:8192]):
            read = {field.name: read_field(field, copy) for field in layout(PAGE, "ledger header")}
            assert read.pop("magic") == b"HFLDGR\r\n"
            assert read.pop("version") == ledger_log.VERSION
            assert read.pop("header_bytes") == 8192
            assert read.pop("reserved") == 0
            assert read.pop("quiver_id").hex() == content.header.quiver_id.replace("-", "")
            assert read == {name: getattr(content.header, name) for name in read}
            assert int.from_bytes(copy[4088:], "little") == xxh3_64_intdigest(copy[:4088])


def test_an_outcome_reads_as_the_page_says() -> None:
    for frame in (one for one in example_lines() if one.kind == LineKind.RESOLUTIONS):
        position = 0
        for line in decode_resolutions(frame.payload):
            part = frame.payload[position:]
            read = {field.name: read_field(field, part) for field in layout(PAGE, "resolution")}
            name_end = 57 + read["name_bytes"]
            position += name_end + read["reason_bytes"]
            assert bytes(part[57:name_end]).decode() == line.subscriber
            assert bytes(part[name_end : name_end + read["reason_bytes"]]).decode() == line.reason
            assert (read["time_ns"], read["generation"]) == (line.time_ns, line.generation)
            assert (read["start_seq"], read["start_row"]) == line.start
            assert (read["end_seq"], read["end_row"]) == line.end
            assert (read["bundles"], read["events"]) == line.counts
            assert read["outcome"] == line.outcome
        assert position == len(frame.payload)


def test_the_fields_of_a_frame_are_used_as_the_page_says() -> None:
    for content in dump_format.ledger_contents(dump_format.ledger_disk()):
        lines = 0
        for place, (start, frame) in enumerate(dump_format.ledger_lines(content)):
            assert (frame.kind == LineKind.CHECKPOINT) == (place == 0)
            is_appended_later = frame.seq == 0 and b'"continued"' in bytes(frame.payload)
            assert frame.seq == lines or is_appended_later
            assert frame.synced_through <= start
            unused = (frame.flags, frame.producer, frame.epoch, frame.events, *frame.before)
            assert unused == (0, None, 0, 0, 0, 0)
            assert frame.watermark_ns == NO_WATERMARK
            if frame.kind == LineKind.RESOLUTIONS:
                outcomes = list(decode_resolutions(frame.payload))
                assert frame.ingestion_ns == outcomes[0].time_ns
                lines += len(outcomes)
            else:
                lines += place > 0


def test_numbers_on_disk_have_the_names_the_page_gives() -> None:
    kinds = {row[1]: int(row[0]) for row in table_rows(PAGE, "ledger kinds")}
    assert kinds == {kind.name: kind.value for kind in LineKind}
    outcomes = {row[1]: int(row[0]) for row in table_rows(PAGE, "outcomes")}
    assert outcomes == {outcome.name: outcome.value for outcome in Outcome}


def test_a_checkpoint_has_the_fields_the_page_lists() -> None:
    assert first_column("checkpoint") == list(LedgerState({}).to_fields())
    assert first_column("subscriber") == [field.name for field in fields(Subscriber)]
    for content in dump_format.ledger_contents(dump_format.ledger_disk()):
        checkpoint = content.checkpoint
        assert checkpoint is not None
        assert list(checkpoint) == first_column("checkpoint")
        for subscriber in checkpoint["subscribers"]:
            assert sorted(subscriber) == sorted(first_column("subscriber"))
    assert f"at most {LOSSES_MAX}" in PAGE


def test_the_page_lists_every_verb_with_its_fields_and_the_example_has_them_all() -> None:
    written = set[str]().union(*(verbs_written(p.read_text()) for p in QUIVER.rglob("*.py")))
    listed = {row[0]: row[1].replace("`", "") for row in table_rows(PAGE, "verbs")}
    assert set(listed) == written | {ledger_log.CONTINUED}
    shown: dict[str, str] = {}
    for change in example_changes():
        more = [name for name in change if name not in ("verb", "name")]
        shown[str(change["verb"])] = ", ".join(more)
    assert listed == shown


def test_a_verb_that_is_not_listed_is_found() -> None:
    assert verbs_written('ledger.change("applaud", name, loudness=11)') == {"applaud"}
    assert verbs_written("ledger.change(verb, name)") == set()


def test_options_and_reasons_are_all_named() -> None:
    row = next(row for row in table_rows(PAGE, "verbs") if row[0] == "options")
    assert all(field.name in row[2] for field in fields(SubscriberOptions))
    row = next(row for row in table_rows(PAGE, "verbs") if row[0] == "deleted")
    assert all(reason in row[2] for reason in REASONS)
