"""OpenLineage as a signal: raw JSON events in one slot, kept in order by run or by job."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.signals.event import Event
from holdfast.signals.openlineage.envelope import OpenLineageExtractor
from holdfast.signals.openlineage.names import OrderBy, order_key
from holdfast.signals.signal import Form, Signal, in_raw_slot

NAME = "openlineage"
SLOT = "openlineage"


def _by(key: OrderBy) -> Callable[[Event], str]:
    return lambda event: order_key(event.document, key)


OPENLINEAGE = Signal(
    NAME,
    Form.JSON,
    in_raw_slot(SLOT),
    order_keys={"root_job": _by("root_job"), "job": _by("job"), "run": _by("run")},
    extractors={SLOT: OpenLineageExtractor()},
)
