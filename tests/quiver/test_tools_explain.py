"""explain and the ledger's history: what became of a bundle, for whom, when and why."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from tests.quiver.machine import ROOT, SEGMENTS, START_NS, Machine, quiet
from tests.quiver.reading import acknowledge, reject

from holdfast.quiver import Outcome, Position, QuiverConfig, RetentionConfig
from holdfast.quiver.base.config import MB, LedgerConfig
from holdfast.quiver.tools.explain import RESOLVED_EARLIER, BundleExplanation, Fate, explain, search
from holdfast.quiver.tools.history import Line, LineFilter, lines
from holdfast.quiver.tools.inspect import inspect


def config(retention: RetentionConfig | None = None) -> QuiverConfig:
    still = RetentionConfig(tick_s=3600.0)
    return replace(quiet(), retention=retention or still, ledger=LedgerConfig())


def story(machine: Machine, seq: int) -> BundleExplanation:
    return explain(machine.disk, inspect(machine.disk, ROOT), seq)


def fate(machine: Machine, seq: int, subscriber: str) -> Fate:
    (found,) = [f for f in story(machine, seq).subscribers if f.subscriber == subscriber]
    return found


def history(machine: Machine, wanted: LineFilter | None = None) -> list[Line]:
    return list(lines(machine.disk, inspect(machine.disk, ROOT), wanted or LineFilter()))


# Where it is.


def test_a_bundle_in_the_log_is_found_with_its_receipt(machine: Machine) -> None:
    quiver = machine.start(config())
    quiver.append_raw(b"other")
    quiver.append_raw([b"one", b"two"], slot="lineage", producer="etl", epoch=7, watermark_ns=5)
    told = story(machine, 1)
    assert told.place.startswith("in the write-ahead log, not sealed yet (wal/0000000000000001.wal")
    assert told.receipt == {
        "accepted_ns": START_NS,
        "kind": "raw",
        "events": 2,
        "slots": {"lineage": 2},
        "producer": "etl",
        "epoch": 7,
        "watermark_ns": 5,
        "damage": None,
        "payload_bytes": 35,
    }
    assert told.quiver_id == quiver.quiver_id


def test_a_sealed_bundle_is_found_with_the_same_receipt(machine: Machine) -> None:
    quiver = machine.start(config())
    quiver.append_raw([b"one", b"two"], producer="etl", epoch=7)
    before = story(machine, 0)
    quiver.flush()
    told = story(machine, 0)
    assert told.place == "in segment 1 (segments/0000000000000001-0-0-1-2)"
    assert told.receipt == before.receipt


def test_a_deleted_bundle_tells_when_and_why(machine: Machine) -> None:
    quiver = machine.start(config())
    quiver.register("archive")
    quiver.append_raw(b"event")
    quiver.flush()
    acknowledge(quiver, "archive")
    quiver._engine.retention.tick()
    assert quiver.segments() == ()
    told = story(machine, 0)
    assert told.place == "gone: it was in segment 1, which everyone had resolved"
    machine.stop()
    machine.start(config())
    assert story(machine, 0).place == told.place
    assert story(machine, 1).place == "nowhere: the newest bundle is 0"
    assert told.receipt is None
    assert told.subscribers[0].state == "acked"


def test_numbers_that_no_bundle_has_are_told_apart(machine: Machine) -> None:
    quiver = machine.start(config())
    quiver.append_raw(b"0")
    machine.kill()
    quiver = machine.start(config())
    last = quiver.append_raw(b"next").seq
    assert story(machine, 5).place.startswith("nowhere: the number was skipped")
    assert story(machine, last + 1).place == f"nowhere: the newest bundle is {last}"
    quiver.flush()
    assert "goes over it" in story(machine, 5).place


def test_damage_is_told(machine: Machine) -> None:
    quiver = machine.start(config())
    for number in range(3):
        quiver.append_raw(b"%d" % number)
    machine.kill()
    machine.flip(machine.wal_paths()[0], 8 * (8192 + 85))
    assert story(machine, 0).place.startswith("lost: 0000000000000001.wal: the body")
    machine.start(config())
    machine.stop()
    assert story(machine, 0).place.startswith("lost: 0000000000000001.wal: the body")


def test_a_damaged_batch_is_told_with_the_receipt(machine: Machine) -> None:
    machine.start(config()).append_raw(b"event")
    machine.stop()
    (folder,) = machine.disk.list(SEGMENTS)
    machine.flip(SEGMENTS / folder.name / "000-events.arrow", 8 * 700)
    receipt = story(machine, 0).receipt
    assert receipt is not None
    assert "record batch 0" in receipt["damage"]


def test_a_bundle_behind_a_lost_manifest_points_to_salvage(machine: Machine) -> None:
    quiver = machine.start(config())
    quiver.append_raw(b"event")
    quiver.flush()
    machine.stop()
    (folder,) = machine.disk.list(SEGMENTS)
    machine.scribble(SEGMENTS / folder.name / "manifest", 0, 9000)
    assert "salvage" in story(machine, 0).place


def test_a_segment_that_goes_while_we_look_is_not_taken_for_damage(machine: Machine) -> None:
    quiver = machine.start(config())
    quiver.append_raw(b"event")
    quiver.flush()
    inventory = inspect(machine.disk, ROOT)
    path = inventory.segments[0].path
    machine.disk.rename(path, ROOT / "trash" / path.name, "test")
    assert explain(machine.disk, inventory, 0).place.startswith("gone this moment")
    assert list(search(inventory, "event")) == []


# What became of it.


def test_every_subscriber_has_its_own_story(machine: Machine) -> None:
    quiver = machine.start(config())
    quiver.register("archive")
    quiver.register("alerts")
    quiver.append_raw(b"0")
    quiver.append_raw(b"1")
    quiver.register("late", start="latest")
    machine.clock.jump(60)
    reject(quiver, "archive", "schema 7 is unknown")
    acknowledge(quiver, "alerts")
    told = {f.subscriber: f for f in story(machine, 0).subscribers}
    assert told["archive"].state == "dead_lettered"
    assert told["archive"].reason == "schema 7 is unknown"
    assert told["archive"].time_ns == START_NS + 60 * 10**9
    assert told["archive"].generation == 1
    assert told["alerts"].state == "acked"
    assert told["late"].state == "not for it"
    assert told["late"].reason == "it reads from 2 on"
    assert fate(machine, 1, "archive").state == "pending"


def test_outcomes_in_closed_files_are_told_too(machine: Machine) -> None:
    quiver = machine.start(config())
    quiver.register("archive")
    quiver.append_raw(b"0")
    acknowledge(quiver, "archive")
    for _ in range(3):
        machine.stop()
        machine.start(config())
    assert len(machine.disk.list(ROOT / "ledger")) == 4
    assert fate(machine, 0, "archive").state == "acked"
    assert fate(machine, 0, "archive").time_ns == START_NS


def test_an_outcome_older_than_the_kept_lines_is_known_to_be_one(machine: Machine) -> None:
    quiver = machine.start(config())
    quiver.register("archive")
    quiver.append_raw(b"0")
    acknowledge(quiver, "archive")
    machine.stop()
    machine.start(config())
    machine.disk.unlink(ROOT / "ledger" / "0000000000000001.log", "test")
    found = fate(machine, 0, "archive")
    assert (found.state, found.reason) == ("resolved", RESOLVED_EARLIER)


def test_the_first_outcome_counts_when_the_segment_is_dropped_as_a_whole(machine: Machine) -> None:
    retention = RetentionConfig(size_cap_bytes=4 * MB, size_cap_policy="drop_oldest", tick_s=3600)
    quiver = machine.start(config(retention))
    quiver.register("archive")
    quiver.append_raw(b"0" * 500_000)
    quiver.append_raw(b"1" * 500_000)
    acknowledge(quiver, "archive")
    quiver.flush()
    for _ in range(8):
        quiver.append_raw(bytes(500_000))
    assert fate(machine, 0, "archive").state == "acked"
    dropped = fate(machine, 1, "archive")
    assert (dropped.state, dropped.reason) == ("dropped", "size")
    assert "to make room" in story(machine, 1).place


def test_a_replay_is_part_of_the_story(machine: Machine) -> None:
    quiver = machine.start(config())
    quiver.register("archive")
    quiver.append_raw(b"0")
    quiver.append_raw(b"1")
    acknowledge(quiver, "archive", 2)
    quiver.replay("archive", 0, 1)
    found = fate(machine, 0, "archive")
    assert found.state == "pending"
    assert found.remarks[0][1] == "replayed; it had been acked"
    assert fate(machine, 1, "archive").state == "acked"
    acknowledge(quiver, "archive")
    assert fate(machine, 0, "archive").state == "acked"


def test_a_subscriber_that_was_dropped_stays_in_the_story(machine: Machine) -> None:
    quiver = machine.start(config())
    quiver.register("archive")
    quiver.append_raw(b"0")
    quiver.append_raw(b"1")
    acknowledge(quiver, "archive")
    quiver.unregister("archive", reason="closed for good")
    assert fate(machine, 0, "archive").state == "acked"
    given_up = fate(machine, 1, "archive")
    assert (given_up.state, given_up.reason) == ("given_up", "closed for good")
    assert given_up.remarks[-1][1] == "the subscriber was unregistered"


def test_a_bundle_committed_in_part_says_how_far(machine: Machine) -> None:
    quiver = machine.start(config())
    quiver.register("archive")
    quiver.append_raw([b"a", b"b", b"c"])
    cursor = quiver.cursor("archive")
    planned = cursor.plan()
    assert planned is not None
    cursor.commit(planned, through=Position(0, 2))
    found = fate(machine, 0, "archive")
    assert (found.state, found.events_done) == ("pending", 2)
    cursor.commit(planned)
    found = fate(machine, 0, "archive")
    assert (found.state, found.remarks[0][1]) == ("acked", "2 of its events acked")


# History.


def test_the_history_has_every_line_and_filters(machine: Machine) -> None:
    quiver = machine.start(config())
    quiver.register("archive")
    quiver.register("alerts")
    quiver.append_raw(b"0")
    quiver.append_raw([b"1", b"1"])
    acknowledge(quiver, "archive", 2)
    machine.clock.jump(60)
    acknowledge(quiver, "alerts")
    machine.stop()
    machine.start(config())
    outcomes = [line for line in history(machine) if line.resolution is not None]
    assert [(line.subscriber, line.covers(1)) for line in outcomes] == [
        ("archive", False),
        ("archive", True),
        ("alerts", False),
    ]
    assert len(history(machine, LineFilter(subscriber="alerts"))) == 4
    assert len(history(machine, LineFilter(outcomes=frozenset({Outcome.ACKED})))) == 3
    assert history(machine, LineFilter(outcomes=frozenset({Outcome.DROPPED}))) == []
    assert len(history(machine, LineFilter(seq=1))) == 1
    minute = START_NS + 60 * 10**9
    late = history(machine, LineFilter(since_ns=minute))
    assert {line.subscriber for line in late} == {"alerts", ""}
    assert [line.change for line in late if not line.subscriber] == [
        {"verb": "closed", "name": ""},
        {"verb": "continued", "name": "", "number": 2},
    ]
    assert all(line.time_ns == START_NS for line in history(machine, LineFilter(until_ns=minute)))


def test_a_line_has_flat_fields_for_export(machine: Machine) -> None:
    quiver = machine.start(config())
    quiver.register("archive")
    quiver.append_raw([b"0", b"0"])
    quiver.flush()
    acknowledge(quiver, "archive")
    quiver._engine.retention.tick()
    told = {line.fields()["what"]: line.fields() for line in history(machine)}
    assert set(told) >= {"register", "attach", "acked", "detach", "deleted"}
    assert told["acked"] == {
        "time_ns": START_NS,
        "file": "0000000000000001.log",
        "line": "outcome",
        "subscriber": "archive",
        "what": "acked",
        "generation": 1,
        "first_seq": 0,
        "first_row": 0,
        "end_seq": 1,
        "end_row": 0,
        "bundles": 1,
        "events": 2,
        "reason": "",
    }
    assert told["deleted"]["first_seq"] == 0
    assert told["deleted"]["end_seq"] == 1
    assert told["deleted"]["reason"] == "processed"
    assert told["register"]["subscriber"] == "archive"
    assert all(set(fields) == set(told["acked"]) for fields in told.values())


# Search.


def test_events_are_found_by_their_text_sealed_or_not(machine: Machine) -> None:
    quiver = machine.start(config())
    quiver.append_raw([b'{"run": "a-1"}', b'{"run": "b-2"}'])
    quiver.append(pa.record_batch({"note": ["nothing", "about b-2"], "n": [1, 2]}))
    words = pa.array(["b-2", None]).dictionary_encode()
    quiver.append({"words": pa.record_batch({"word": words})})
    quiver.append({"nested": pa.record_batch({"s": [{"deep": ["b-2"]}]})})
    quiver.flush()
    quiver.append_raw(b"tail with b-2", slot="tail")
    found = list(search(inspect(machine.disk, ROOT), "b-2"))
    assert [(m.seq, m.slot, m.row) for m in found] == [
        (0, "events", 1),
        (1, "events", 1),
        (2, "words", 0),
        (3, "nested", 0),
        (4, "tail", 0),
    ]
    assert found[0].excerpt == '{"run": "b-2"}'
    assert list(search(inspect(machine.disk, ROOT), "c-3")) == []


def test_text_in_rare_schemas_is_found(machine: Machine) -> None:
    quiver = machine.start(quiet(max_files=2))
    for number in range(4):
        quiver.append(pa.record_batch({f"column{number}": [f"value-{number}"]}))
    machine.stop()
    (match,) = search(inspect(machine.disk, ROOT), "value-3")
    assert (match.seq, match.column) == (3, "column3")


def test_damaged_bundles_are_passed_over(machine: Machine) -> None:
    quiver = machine.start(config())
    quiver.append_raw(b"needle", slot="one")
    quiver.append_raw(b"needle", slot="two")
    machine.stop()
    (folder,) = machine.disk.list(SEGMENTS)
    machine.flip(SEGMENTS / folder.name / "000-one.arrow", 8 * 700)
    assert [match.slot for match in search(inspect(machine.disk, ROOT), "needle")] == ["two"]
