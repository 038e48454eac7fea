"""What the processors of telemetry share: which units they take, and how one is changed.

They look at the items of a request (spans, data points, log records) and not at the request. A
request of which no item is left is not sent, and `filtered` in the ledger; of one that lost some,
the rest is sent. How many items went is counted in both cases.

What cannot be read is neither passed on nor dropped: the exception makes it a dead letter. It may
hold just what somebody wanted to be hashed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from holdfast.extras import need
from holdfast.signals.event import Event
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.signal import Form, Takes

TELEMETRY = Takes(frozenset({Form.PROTOBUF}), frozenset(kind.value for kind in OtlpKind))
TRACED = Takes(frozenset({Form.PROTOBUF}), frozenset({OtlpKind.TRACES.value, OtlpKind.LOGS.value}))


@cache
def items_module() -> Any:
    """Return what changes requests. Asked for with the first of them, and not when a processor is
    made: a file is validated also where the extra is not installed.
    """
    need("otel")
    from holdfast.signals.otlp import items

    return items


def with_change(event: Event, change: Callable[[bytes, OtlpKind], bytes | None]) -> Event | None:
    """Return the event as `change` leaves its payload: itself for None, None if nothing is left."""
    payload = change(event.payload, OtlpKind(event.signal))
    if payload is None:
        return event
    changed = event.with_payload(payload)
    return None if event.items and not changed.items else changed
