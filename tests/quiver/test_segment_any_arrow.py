"""Property: whatever Arrow can write is stored, sealed and read back as it was, at every stage."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.quiver.any_arrow import Draw, batch_of, schemas
from tests.quiver.batches import ENVELOPE, plain_rows
from tests.quiver.machine import Machine, quiet

from holdfast.errors import BadInput
from holdfast.quiver import Quiver
from holdfast.quiver.dictionaries import has_dictionary

BundleSlots = dict[str, pa.RecordBatch]
SLOTS = ("a", "b", "c")


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


@given(given_bundles=bundles(), max_files=st.sampled_from([2, 64]))
def test_any_batches_come_back_from_the_buffer_from_segments_and_after_a_restart(
    given_bundles: list[BundleSlots], max_files: int
) -> None:
    with Machine() as machine:
        quiver = machine.start(quiet(max_files=max_files))
        stored = {quiver.append(bundle).seq: bundle for bundle in given_bundles}
        check_all(quiver, stored)
        quiver.flush()
        check_all(quiver, stored)
        assert quiver.statistics().seal_failures_total == 0
        machine.stop()
        check_all(machine.start(), stored)


def check_all(quiver: Quiver, stored: dict[int, BundleSlots]) -> None:
    for seq, bundle in stored.items():
        check_bundle(quiver, seq, bundle)
    for slot in SLOTS:
        check_scan(quiver, slot, stored)


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


def check_scan(quiver: Quiver, slot: str, stored: dict[int, BundleSlots]) -> None:
    """Check that a scan gives each row once, whole if the schema never drifted."""
    drifted = len({str(b[slot].schema) for b in stored.values() if slot in b}) > 1
    for reader in (
        lambda: quiver.scan(slot=slot),
        lambda: quiver.scan(slot=slot, since=datetime(2000, 1, 1, tzinfo=UTC)),
    ):
        table = read_or_refuse(reader, drifted=drifted)
        if table is None:
            continue
        names = [n for n in table.schema.names if n not in ENVELOPE]
        found = Counter(map(repr, plain_rows(table.select(["_seq", "_row"]))))
        assert found == Counter(
            repr((seq, row))
            for seq, bundle in stored.items()
            if slot in bundle
            for row in rows_of(bundle, slot)
        )
        if not drifted and names:
            rows = [row for b in stored.values() if slot in b for row in plain_rows(b[slot])]
            assert Counter(map(repr, plain_rows(table.select(names)))) == Counter(map(repr, rows))


def rows_of(bundle: BundleSlots, slot: str) -> range:
    """Return the rows of a slot, counted over all slots of the bundle."""
    first = sum(bundle[before].num_rows for before in takewhile(lambda name: name != slot, bundle))
    return range(first, first + bundle[slot].num_rows)


def read_or_refuse(reader: Callable[[], Any], *, drifted: bool) -> pa.Table | None:
    """Return the rows, or None if the types of a drifted column cannot be read as one."""
    try:
        return reader().read_all()
    except BadInput:
        if not drifted:
            raise
        return None
