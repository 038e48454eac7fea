"""A damaged slot costs its bundle the delivery, and the other slots nothing: they stay readable."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from tests.quiver.batches import numbers, seal
from tests.quiver.machine import ROOT, Machine, quiet

from holdfast.errors import BadInput, Damaged
from holdfast.quiver import Outcome, Position, Quiver
from holdfast.quiver.read.sealed import SealedRead, scan_sealed
from holdfast.quiver.segments.segment import UNKNOWN_SLOT, Segment
from holdfast.quiver.tools.explain import explain
from holdfast.quiver.tools.history import LineFilter, lines
from holdfast.quiver.tools.inspect import inspect
from holdfast.quiver.tools.salvage import Salvaged, salvage
from holdfast.seam import Seam
from holdfast.seam.randomness import seeded_randomness

NEW = PurePath("/new")
BUNDLES = 3


def spans(number: int) -> dict[str, pa.RecordBatch]:
    """Return a bundle whose ids begin at 0 again, as those of every bundle of OTAP do."""
    return {
        "spans": pa.record_batch({"id": [0, 1], "name": [f"a{number}", f"b{number}"]}),
        "attributes": pa.record_batch({"parent": [0, 0, 1], "value": [f"v{number}"] * 3}),
        "links": numbers(number),
    }


def fill(machine: Machine) -> Quiver:
    """Seal three bundles of three slots."""
    quiver = machine.start(quiet(max_files=8))
    quiver.register("reader")
    for number in range(BUNDLES):
        quiver.append(spans(number))
    return quiver


def damage(machine: Machine, segment: Segment, slot: str) -> None:
    """Damage all record batches of a slot."""
    for file in segment.summary.files:
        for batch in file.batches if file.slot == slot else ():
            machine.flip(segment.path / file.name, 8 * (batch.offset + batch.length // 2))


@pytest.fixture
def damaged(machine: Machine) -> Quiver:
    """A quiver whose bundles have lost their attributes."""
    quiver = fill(machine)
    damage(machine, seal(quiver), "attributes")
    return quiver


def flags(quiver: Quiver, slot: str) -> list[tuple[int, Any]]:
    table = quiver.scan(["_seq"], slot=slot, partial=True).read_all()
    return [(row["_seq"], row["_damaged_slots"]) for row in table.to_pylist()]


def test_the_outcome_is_damaged_and_names_the_slots(damaged: Quiver, machine: Machine) -> None:
    with damaged.cursor("reader", on_data_loss="count") as cursor:
        planned = cursor.plan()
        assert planned is not None
        assert list(cursor.read(planned)) == []
        cursor.commit(planned)
    balance = damaged.balance("reader")
    assert balance.outcomes[Outcome.DAMAGED] == (BUNDLES, 6 * BUNDLES)
    assert balance.holds
    machine.stop()
    reasons = reasons_of(machine)
    assert len(reasons) == BUNDLES
    assert reasons[1].startswith("slot attributes of bundle 1: a segment file is damaged")


def reasons_of(machine: Machine) -> list[str]:
    """Return why bundles are damaged, as the ledger has it."""
    wanted = LineFilter(outcomes=frozenset({Outcome.DAMAGED}))
    found = lines(machine.disk, inspect(machine.disk, ROOT), wanted)
    return [line.resolution.reason for line in found if line.resolution is not None]


def test_a_lease_names_them_too(damaged: Quiver, machine: Machine) -> None:
    with damaged.lease("reader") as lease:
        assert lease.poll() is None
    machine.stop()
    assert reasons_of(machine)[0].startswith("slot attributes of bundle 0: ")


def test_a_bundle_gives_its_sound_slots_to_who_asks_for_them(damaged: Quiver) -> None:
    bundle = damaged.bundle(1)
    assert bundle is not None
    assert bundle.damaged_slots == ("attributes",)
    kept = spans(1)
    del kept["attributes"]
    assert bundle.sound_slots == kept
    with pytest.raises(Damaged, match="slot attributes of bundle 1"):
        _ = bundle.slots


def test_a_cursor_hands_out_a_part_of_a_bundle_only_to_who_asks_for_it(damaged: Quiver) -> None:
    with damaged.cursor("reader", on_data_loss="count") as cursor:
        planned = cursor.plan()
        assert planned is not None
        found = list(cursor.read(planned, partial=True))
        assert [bundle.damaged_slots for bundle in found] == [("attributes",)] * BUNDLES
        cursor.commit(planned, outcome=Outcome.DAMAGED, reason="sent without attributes")
    assert damaged.balance("reader").outcomes[Outcome.DAMAGED] == (BUNDLES, 6 * BUNDLES)


def test_a_partial_scan_flags_every_row_whose_bundle_lacks_something(machine: Machine) -> None:
    quiver = fill(machine)
    damage(machine, seal(quiver), "attributes")
    quiver.append(spans(7))
    seal(quiver)
    quiver.append(spans(8))  # not sealed
    lacking = [(seq, ["attributes"]) for seq in range(BUNDLES)]
    assert flags(quiver, "links") == [*lacking, (BUNDLES, None), (BUNDLES + 1, None)]
    assert flags(quiver, "attributes") == [(seq, None) for seq in (3, 3, 3, 4, 4, 4)]
    table = quiver.scan(slot="links", partial=True).read_all()
    assert table.schema.names[5:7] == ["_damaged_slots", "n"]
    assert "_damaged_slots" not in quiver.scan(slot="links").schema.names
    with pytest.raises(BadInput, match="_damaged_slots"):
        quiver.append(pa.record_batch({"_damaged_slots": [1]}))


def test_a_sealed_read_flags_them_too(damaged: Quiver, machine: Machine) -> None:
    segments = tuple(segment.path.name for segment in damaged.segments())
    wanted = SealedRead(damaged.quiver_id, segments, "links", ("n",), on_damage="flag")
    rows = scan_sealed(machine.disk, ROOT, wanted).read_all().to_pylist()
    assert rows == [{"n": n, "_damaged_slots": ["attributes"]} for n in range(BUNDLES)]


def test_slots_that_share_an_opaque_file_are_lost_with_their_names(machine: Machine) -> None:
    quiver = machine.start(quiet(max_files=2))
    for number in range(BUNDLES):
        quiver.append({"many": numbers(1), "one": numbers(number), "other": numbers(number)})
    segment = seal(quiver)
    assert [file.kind for file in segment.summary.files] == ["arrow", "opaque"]
    damage(machine, segment, "")
    kept = segment.summary.files[0].slot
    bundle = quiver.bundle(0)
    assert bundle is not None
    assert (list(bundle.sound_slots), bundle.damaged_slots) == ([kept], (UNKNOWN_SLOT,))
    assert flags(quiver, kept) == [(seq, [UNKNOWN_SLOT]) for seq in range(BUNDLES)]


def test_explain_shows_what_is_left(damaged: Quiver, machine: Machine) -> None:
    machine.stop()
    receipt = explain(machine.disk, inspect(machine.disk, ROOT), 1).receipt
    assert receipt is not None
    assert receipt["slots"] == {"spans": 2, "links": 1}
    assert receipt["damage"].startswith("slot attributes of bundle 1: ")


# --------------------------------------------------------------------------- salvage


def save(machine: Machine, source: PurePath = ROOT, target: PurePath = NEW) -> Salvaged:
    seam = Seam(machine.disk, machine.clock, seeded_randomness(77))
    return salvage(seam, source, target, lambda _: None)


def reopened(machine: Machine, path: PurePath = NEW) -> Quiver:
    machine.stop()
    seam = Seam(machine.disk, machine.clock, seeded_randomness(78))
    machine.quiver = Quiver.open(path, quiet(), seam=seam)
    return machine.quiver


def check_saved(quiver: Quiver) -> None:
    """The sound slots are there, and nobody takes them for the whole bundle."""
    for number in range(BUNDLES):
        bundle = quiver.bundle(number)
        assert bundle is not None
        kept = spans(number)
        del kept["attributes"]
        assert (bundle.sound_slots, bundle.damaged_slots) == (kept, ("attributes",))
        with pytest.raises(Damaged, match="when the quiver was salvaged"):
            _ = bundle.slots
    assert flags(quiver, "links") == [(seq, ["attributes"]) for seq in range(BUNDLES)]
    assert quiver.scan(slot="links").schema.metadata is None
    balance = quiver.balance("reader")
    assert balance.holds
    assert balance.accepted == (BUNDLES, 6 * BUNDLES)


def test_salvage_keeps_sound_slots_and_what_they_lack(damaged: Quiver, machine: Machine) -> None:
    machine.stop()
    result = save(machine)
    assert (result.saved, result.in_part) == ((BUNDLES, 3 * BUNDLES), (BUNDLES, 3 * BUNDLES))
    assert result.lost == (0, 3 * BUNDLES)
    assert "3 of them without attributes" in result.findings[0].what
    quiver = reopened(machine)
    check_saved(quiver)
    assert quiver.balance("reader").outcomes[Outcome.DAMAGED] == (0, 3 * BUNDLES)
    seal(quiver)
    check_saved(quiver)
    with quiver.cursor("reader", on_data_loss="count") as cursor:
        planned = cursor.plan()
        assert planned is not None
        assert list(cursor.read(planned)) == []
        cursor.commit(planned)
    assert quiver.balance("reader").outcomes[Outcome.DAMAGED] == (BUNDLES, 6 * BUNDLES)


def test_what_was_salvaged_in_part_can_be_damaged_and_salvaged_again(
    damaged: Quiver, machine: Machine
) -> None:
    machine.stop()
    save(machine)
    damage(machine, seal(reopened(machine)), "links")
    machine.stop()
    save(machine, NEW, PurePath("/newer"))
    quiver = reopened(machine, PurePath("/newer"))
    bundle = quiver.bundle(2)
    assert bundle is not None
    assert sorted(bundle.damaged_slots) == ["attributes", "links"]
    assert list(bundle.sound_slots) == ["spans"]
    assert quiver.balance("reader").holds


def test_a_reader_inside_of_a_bundle_begins_what_is_left_of_it_anew(machine: Machine) -> None:
    quiver = fill(machine)
    with quiver.cursor("reader") as cursor:
        planned = cursor.plan()
        assert planned is not None
        list(cursor.read(planned))
        cursor.commit(planned, through=Position(1, 5))
    damage(machine, seal(quiver), "attributes")
    machine.stop()
    save(machine)
    quiver = reopened(machine)
    assert quiver.balance("reader").holds
    assert quiver.balance("reader").pending == (2, 6)


def test_a_whole_copy_is_saved_rather_than_a_part(damaged: Quiver, machine: Machine) -> None:
    """A second copy of the segment has lost its manifest, and with it all checksums."""
    path = damaged.segments()[0].path
    machine.stop()
    sound = {entry.name: machine.disk.read(path / entry.name) for entry in machine.disk.list(path)}
    file = next(name for name in sound if "attributes" in name)
    copy = ROOT / "quarantine" / f"{path.name}"
    machine.disk.make_dir(ROOT / "quarantine", "test")
    machine.disk.make_dir(copy, "test")
    for name, content in sound.items():
        machine.disk.put(copy / name, content)
    damage_undone(machine, copy / file, damaged.segments()[0])
    machine.disk.unlink(copy / "manifest", "test")
    result = save(machine)
    assert (result.saved, result.in_part) == ((BUNDLES, 6 * BUNDLES), (0, 0))
    assert result.unverified == (BUNDLES, 6 * BUNDLES)


def damage_undone(machine: Machine, path: PurePath, segment: Segment) -> None:
    """Turn the bits back that `damage` turned over."""
    (summary,) = (file for file in segment.summary.files if file.name == path.name)
    for batch in summary.batches:
        machine.flip(path, 8 * (batch.offset + batch.length // 2))


# ---------------------------------------------------------------------- foreign keys


def test_ids_of_different_bundles_are_joined_within_their_bundle(machine: Machine) -> None:
    """Every bundle numbers its rows from 0: by the id alone each span gets all attributes."""
    quiver = fill(machine)
    seal(quiver)
    quiver.append(spans(BUNDLES))
    tables = {"one": "spans", "many": "attributes"}
    found = {name: quiver.scan(slot=slot).read_all() for name, slot in tables.items()}
    with duckdb.connect() as database:
        for name, table in found.items():
            database.register(name, table)
        joined = database.sql(
            "select name, value from one join many on one._seq = many._seq and id = parent"
        ).fetchall()
    assert sorted(joined) == sorted(
        (f"{span}{number}", f"v{number}") for number in range(BUNDLES + 1) for span in "aab"
    )
