"""The tables of OTAP: their numbers on the wire, their slots, and how they refer to each other.

Nothing of protobuf or numpy is imported here: a gateway without telemetry knows that there are such
slots, and needs no more.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, IntEnum

from holdfast.signals.otlp.kinds import OtlpKind

_SLOT_PREFIX = "otap_"
_UNKNOWN_PREFIX = "otap_type_"


class PayloadType(IntEnum):
    """What a table is of, by its number on the wire."""

    RESOURCE_ATTRS = 1
    SCOPE_ATTRS = 2
    UNIVARIATE_METRICS = 10
    NUMBER_DATA_POINTS = 11
    SUMMARY_DATA_POINTS = 12
    HISTOGRAM_DATA_POINTS = 13
    EXP_HISTOGRAM_DATA_POINTS = 14
    NUMBER_DP_ATTRS = 15
    SUMMARY_DP_ATTRS = 16
    HISTOGRAM_DP_ATTRS = 17
    EXP_HISTOGRAM_DP_ATTRS = 18
    NUMBER_DP_EXEMPLARS = 19
    HISTOGRAM_DP_EXEMPLARS = 20
    EXP_HISTOGRAM_DP_EXEMPLARS = 21
    NUMBER_DP_EXEMPLAR_ATTRS = 22
    HISTOGRAM_DP_EXEMPLAR_ATTRS = 23
    EXP_HISTOGRAM_DP_EXEMPLAR_ATTRS = 24
    METRIC_ATTRS = 26
    LOGS = 30
    LOG_ATTRS = 31
    SPANS = 40
    SPAN_ATTRS = 41
    SPAN_EVENTS = 42
    SPAN_LINKS = 43
    SPAN_EVENT_ATTRS = 44
    SPAN_LINK_ATTRS = 45

    @property
    def slot(self) -> str:
        """Where the table is stored."""
        return f"{_SLOT_PREFIX}{self.name.lower()}"


ROOTS = {
    OtlpKind.TRACES: PayloadType.SPANS,
    OtlpKind.METRICS: PayloadType.UNIVARIATE_METRICS,
    OtlpKind.LOGS: PayloadType.LOGS,
}
KIND_OF_ROOT_SLOT = {root.slot: kind for kind, root in ROOTS.items()}

# Table: the one whose `id` its `parent_id` means. Attributes of resources and scopes mean a field
# of a struct in the root, which is another for each signal; they are not named here.
PARENTS = {
    PayloadType.NUMBER_DATA_POINTS: PayloadType.UNIVARIATE_METRICS,
    PayloadType.SUMMARY_DATA_POINTS: PayloadType.UNIVARIATE_METRICS,
    PayloadType.HISTOGRAM_DATA_POINTS: PayloadType.UNIVARIATE_METRICS,
    PayloadType.EXP_HISTOGRAM_DATA_POINTS: PayloadType.UNIVARIATE_METRICS,
    PayloadType.NUMBER_DP_ATTRS: PayloadType.NUMBER_DATA_POINTS,
    PayloadType.SUMMARY_DP_ATTRS: PayloadType.SUMMARY_DATA_POINTS,
    PayloadType.HISTOGRAM_DP_ATTRS: PayloadType.HISTOGRAM_DATA_POINTS,
    PayloadType.EXP_HISTOGRAM_DP_ATTRS: PayloadType.EXP_HISTOGRAM_DATA_POINTS,
    PayloadType.NUMBER_DP_EXEMPLARS: PayloadType.NUMBER_DATA_POINTS,
    PayloadType.HISTOGRAM_DP_EXEMPLARS: PayloadType.HISTOGRAM_DATA_POINTS,
    PayloadType.EXP_HISTOGRAM_DP_EXEMPLARS: PayloadType.EXP_HISTOGRAM_DATA_POINTS,
    PayloadType.NUMBER_DP_EXEMPLAR_ATTRS: PayloadType.NUMBER_DP_EXEMPLARS,
    PayloadType.HISTOGRAM_DP_EXEMPLAR_ATTRS: PayloadType.HISTOGRAM_DP_EXEMPLARS,
    PayloadType.EXP_HISTOGRAM_DP_EXEMPLAR_ATTRS: PayloadType.EXP_HISTOGRAM_DP_EXEMPLARS,
    PayloadType.METRIC_ATTRS: PayloadType.UNIVARIATE_METRICS,
    PayloadType.LOG_ATTRS: PayloadType.LOGS,
    PayloadType.SPAN_ATTRS: PayloadType.SPANS,
    PayloadType.SPAN_EVENTS: PayloadType.SPANS,
    PayloadType.SPAN_LINKS: PayloadType.SPANS,
    PayloadType.SPAN_EVENT_ATTRS: PayloadType.SPAN_EVENTS,
    PayloadType.SPAN_LINK_ATTRS: PayloadType.SPAN_LINKS,
}
_SHARED = {PayloadType.RESOURCE_ATTRS, PayloadType.SCOPE_ATTRS}


def _root_of(table: PayloadType) -> PayloadType:
    while table in PARENTS:
        table = PARENTS[table]
    return table


# What a stream of each signal may carry.
TABLES = {
    kind: frozenset(one for one in PayloadType if one in _SHARED or _root_of(one) is root)
    for kind, root in ROOTS.items()
}


class TableForm(Enum):
    """What kind of table it is, which says how its ids are written on a stream."""

    ROOT = "root"
    POINTS = "points"
    EVENTS = "events"
    LINKS = "links"
    EXEMPLARS = "exemplars"
    ATTRIBUTES = "attributes"


def _form(table: PayloadType) -> TableForm:
    if table.name.endswith("_ATTRS"):
        return TableForm.ATTRIBUTES
    if table.name.endswith("_EXEMPLARS"):
        return TableForm.EXEMPLARS
    if table.name.endswith("_DATA_POINTS"):
        return TableForm.POINTS
    return {
        PayloadType.SPAN_EVENTS: TableForm.EVENTS,
        PayloadType.SPAN_LINKS: TableForm.LINKS,
    }.get(table, TableForm.ROOT)


FORMS = {table: _form(table) for table in PayloadType}
_TYPE_OF_SLOT: dict[str, int] = {table.slot: table.value for table in PayloadType}


def slot_of(number: int) -> str:
    """Return where a table of that number is stored, also of one that nobody here knows."""
    try:
        return PayloadType(number).slot
    except ValueError:
        return f"{_UNKNOWN_PREFIX}{number}"


def number_of(slot: str) -> int | None:
    """Return which table is stored in a slot; None if the slot is not one of OTAP's."""
    if slot in _TYPE_OF_SLOT:
        return _TYPE_OF_SLOT[slot]
    digits = slot.removeprefix(_UNKNOWN_PREFIX)
    return int(digits) if digits != slot and digits.isascii() and digits.isdigit() else None


def kind_of_slots(slots: Collection[str]) -> OtlpKind | None:
    """Return which signal a bundle with these slots is of; None if it is not OTAP."""
    for slot in slots:
        if slot in KIND_OF_ROOT_SLOT:
            return KIND_OF_ROOT_SLOT[slot]
    return None


# The columns by which tables refer to each other.
ID, PARENT_ID, RESOURCE, SCOPE = "id", "parent_id", "resource", "scope"
# What the columns' metadata says of how their numbers are written, and the values it has.
ENCODING_KEY, PLAIN = b"encoding", b"plain"


class ValueType(IntEnum):
    """What an attribute, or the body of a log record, is. Maps and lists are CBOR in `ser`."""

    EMPTY = 0
    STR = 1
    INT = 2
    DOUBLE = 3
    BOOL = 4
    MAP = 5
    SLICE = 6
    BYTES = 7


def with_orphans(slots: Collection[str]) -> set[str]:
    """Return lost slots, and those whose rows belong to rows that are in them."""
    lost = set(slots)
    for child, parent in PARENTS.items():  # a parent comes before its children
        if parent.slot in lost:
            lost.add(child.slot)
    return lost
