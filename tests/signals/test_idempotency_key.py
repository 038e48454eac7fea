"""The key of an event, by which a backend knows one that is sent again."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from holdfast.quiver import Position
from holdfast.signals.event import Event

# Backends remember keys: those of the next version have to be the same.
NAMESPACE = uuid.UUID("5b7e5f0c-6a3c-5d0a-9a55-0f1d3a4f7c11")


@given(st.uuids(), st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1))
def test_a_key_is_the_uuid_of_its_place(quiver_id: uuid.UUID, seq: int, row: int) -> None:
    event = Event(str(quiver_id), Position(seq, row), "events", b"{}", {}, 0)
    assert event.idempotency_key == str(uuid.uuid5(NAMESPACE, f"{quiver_id}/{seq}/{row}"))
