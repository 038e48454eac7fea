"""Property: whatever Arrow can write is stored, sealed and read back as it was, at every stage."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import takewhile

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.quiver.any_arrow import Draw, batch_of, schemas
from tests.quiver.batches import ENVELOPE, plain_rows
from tests.quiver.machine import START_NS, Machine, quiet

from holdfast.errors import BadInput
from holdfast.quiver import Quiver
from holdfast.quiver.base.arrow import has_dictionary

BundleSlots = dict[str, pa.RecordBatch]
SLOTS = ("a", "b", "c")
START = datetime.fromtimestamp(START_NS // 1_000_000_000, UTC)


@st.composite
def bundles(draw: Draw) -> list[BundleSlots]:
    """Return a strategy for bundles of several slots whose schemas drift."""
    known = draw(st.lists(schemas(), min_size=1, max_size=3))
    chance = random.Random(draw(st.integers(0, 2**32)))
    made: list[BundleSlots] = []
    for _ in range(draw(st.integers(1, 4))):
        slots = chance.sample(SLOTS, chance.randint(1, 3))
        made.append({slot: batch_of(chance.choice(known), chance) for slot in slots})
    return [bundle for bundle in made if any(batch.num_rows for batch in bundle.values())]


@given(
    given_bundles=bundles(),
    max_files=st.sampled_from([2, 64]),
    event_order=st.permutations(range(4)),
)
def test_any_batches_come_back_from_the_buffer_from_segments_and_after_a_restart(
    given_bundles: list[BundleSlots], max_files: int, event_order: list[int]
) -> None:
    with Machine() as machine:
        quiver = machine.start(quiet(max_files=max_files))
        stored: dict[int, BundleSlots] = {}
        late: dict[int, BundleSlots] = {}
        for hour, bundle in zip(event_order, given_bundles, strict=False):
            machine.clock.jump(3600 * hour)
            seq = quiver.append(bundle).seq
            machine.clock.jump(-3600 * hour)
            stored[seq] = bundle
            if hour >= 2:
                late[seq] = bundle
        check_all(quiver, stored, late)
        quiver.flush()
        check_all(quiver, stored, late)
        assert quiver.statistics().sealer.failures == 0
        machine.stop()
        check_all(machine.start(), stored, late)


def check_all(quiver: Quiver, stored: dict[int, BundleSlots], late: dict[int, BundleSlots]) -> None:
    for seq, bundle in stored.items():
        check_bundle(quiver, seq, bundle)
    for slot in SLOTS:
        schemas_of_slot = {str(b[slot].schema) for b in stored.values() if slot in b}
        drifted = len(schemas_of_slot) > 1
        check_scan(quiver, slot, None, stored, drifted=drifted)
        check_scan(quiver, slot, START + timedelta(hours=2), late, drifted=drifted)


def check_bundle(quiver: Quiver, seq: int, wanted: BundleSlots) -> None:
    found = quiver.bundle(seq)
    assert found is not None
    assert list(found.slots) == list(wanted)
    for slot, batch in wanted.items():
        assert plain_rows(found.slots[slot]) == plain_rows(batch)
        assert_same_schema(found.slots[slot].schema, batch.schema)


def assert_same_schema(found: pa.Schema, wanted: pa.Schema) -> None:
    """Check that nothing changed but the width of dictionaries."""
    assert found.names == wanted.names
    assert found.metadata == wanted.metadata
    for one, two in zip(found, wanted, strict=True):
        assert one.type == two.type or has_dictionary(two.type)


def check_scan(
    quiver: Quiver,
    slot: str,
    since: datetime | None,
    wanted: dict[int, BundleSlots],
    *,
    drifted: bool,
) -> None:
    """Check that a scan gives each row once, and as it was if the schema never drifted."""
    try:
        table = quiver.scan(slot=slot, since=since).read_all()
    except BadInput:  # the types of a drifted column cannot be read as one
        assert drifted
        return
    with_slot = {seq: bundle for seq, bundle in wanted.items() if slot in bundle}
    positions = Counter(plain_rows(table.select(["_seq", "_row"])))
    assert positions == Counter(
        (seq, row) for seq, bundle in with_slot.items() for row in rows_of(bundle, slot)
    )
    names = [name for name in table.schema.names if name not in ENVELOPE]
    if not drifted and names:
        rows = [row for bundle in with_slot.values() for row in plain_rows(bundle[slot])]
        assert Counter(map(repr, plain_rows(table.select(names)))) == Counter(map(repr, rows))


def rows_of(bundle: BundleSlots, slot: str) -> range:
    """Return the rows of a slot, counted over all slots of the bundle."""
    first = sum(bundle[before].num_rows for before in takewhile(lambda name: name != slot, bundle))
    return range(first, first + bundle[slot].num_rows)
