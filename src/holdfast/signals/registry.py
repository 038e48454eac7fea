"""The signals that Holdfast knows. To add one, write a `Signal` and add it here.

A package that brings a receiver for a signal of its own calls `register` in the receiver's module.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from holdfast.quiver import Extractor, ItemTable
from holdfast.quiver.base.frame import FrameKind
from holdfast.signals.event import RAW_SIGNAL, DocumentReader, Event
from holdfast.signals.item_tables import TelemetryTable
from holdfast.signals.openlineage.names import SLOT, OpenLineageExtractor, OrderBy, order_key
from holdfast.signals.otap.payloads import ROOTS, kind_of_slots
from holdfast.signals.otap_units import (
    HEADERS_SLOT,
    otap_extractors,
    otap_item_counter,
    otap_split,
    otap_to_otlp,
)
from holdfast.signals.otlp.extractor import OtlpExtractor, document_reader, item_counter
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.signal import Conversion, Form, Signal, in_raw_slot


def _by(key: OrderBy) -> Callable[[Event], str]:
    return lambda event: order_key(event.document, key)


# Raw JSON events in one slot, kept in order by run or by job.
OPENLINEAGE = Signal(
    "openlineage",
    Form.JSON,
    in_raw_slot(SLOT),
    order_keys={"root_job": _by("root_job"), "job": _by("job"), "run": _by("run")},
    extractors={SLOT: OpenLineageExtractor()},
)
# For bundles that no other signal recognises.
_RAW = Signal(RAW_SIGNAL, Form.RAW, lambda kind, slots: kind is FrameKind.RAW)
ROWS = Signal("rows", Form.ARROW, lambda kind, slots: True)


def _otlp(kind: OtlpKind) -> Signal:
    """Return a signal of OpenTelemetry: one request of OTLP in each row of its slot."""
    table = TelemetryTable(kind)
    return Signal(
        kind.value,
        Form.PROTOBUF,
        in_raw_slot(kind.slot),
        extractors={kind.slot: OtlpExtractor(kind)},
        tables={table.name: table},
        read=document_reader(kind),
        count=item_counter(kind),
        # Items carry their times, and every backend takes them in any order.
        promises_order=False,
    )


def _otap(kind: OtlpKind) -> Signal:
    """Return the same in another form: the tables of OTAP, one batch in each bundle."""
    return Signal(
        kind.value,
        Form.ARROW,
        lambda frame, slots: frame is FrameKind.ARROW and kind_of_slots(slots) is kind,
        extractors=otap_extractors(kind),
        split=otap_split(kind),
        count=otap_item_counter(kind),
        conversion=Conversion(Form.PROTOBUF, otap_to_otlp(kind)),
        promises_order=False,
        # All tables belong to rows of the first; and without its headers nobody knows whose it is.
        roots=frozenset({ROOTS[kind].slot, HEADERS_SLOT}),
    )


_signals: list[Signal] = [
    OPENLINEAGE,
    *(_otlp(kind) for kind in OtlpKind),
    *(_otap(kind) for kind in OtlpKind),
]


def register(signal: Signal) -> None:
    """Add a signal. One that is registered under its name already is replaced."""
    unregister(signal.name)
    _signals.append(signal)


def unregister(name: str) -> None:
    """Remove a signal, if there is one of that name."""
    _signals[:] = [known for known in _signals if known.name != name]


def all_signals() -> Sequence[Signal]:
    """Return every signal, in the order in which they are asked whether a bundle is theirs."""
    return (*_signals, _RAW, ROWS)


def signal_named(name: str, form: Form | None = None) -> Signal | None:
    """Return the signal of a name, in a form if that matters."""
    return next(
        (one for one in all_signals() if one.name == name and form in (None, one.form)), None
    )


def signal_of(kind: FrameKind, slots: Collection[str]) -> Signal:
    """Return the signal of bundles of a kind with slots of these names."""
    for signal in _signals:
        if signal.recognise(kind, slots):
            return signal
    return _RAW if kind is FrameKind.RAW else ROWS


def tables() -> dict[str, ItemTable]:
    """Return the tables of items that stored bundles can be read as, by name."""
    return {name: one for signal in _signals for name, one in signal.tables.items()}


def otap_signals() -> tuple[Signal, ...]:
    """Return the signals of OpenTelemetry in tables."""
    known = (signal_named(kind.value, Form.ARROW) for kind in OtlpKind)
    return tuple(signal for signal in known if signal is not None)


def readers() -> dict[str, DocumentReader]:
    """Return what makes JSON documents of payloads that are not JSON, by slot."""
    return {
        slot: signal.read
        for signal in _signals
        if signal.read is not None
        for slot in signal.extractors
    }


def signal_of_slot() -> dict[str, str]:
    """Return the signals whose events are made of items, by their slots.

    A slot that several signals have is not among them; its extractor names none.
    """
    return {
        slot: signal.name
        for signal in _signals
        if signal.count is not None
        for slot, one in signal.extractors.items()
        if getattr(one, "signal", signal.name)
    }


def extractors() -> dict[str, Extractor]:
    """Return what reads event time and keys out of stored rows, by slot."""
    return {slot: one for signal in _signals for slot, one in signal.extractors.items()}
