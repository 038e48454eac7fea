"""What a signal is: one kind of content that bundles have, and everything delivery must know of it.

    recognise   is a bundle of this kind, with slots of these names, of the signal?
    split       which parts of it are delivered as one? Rows in order, none left out.
    order_keys  by name: what keeps units in order among themselves, for `delivery: {order: key}`.
                The first one is used where the configuration names none.
    extractors  by slot: what reads event time and keys out of stored rows.
    tables      by name: its items as rows, made when somebody reads them.
    read        what makes a JSON document of a payload, if that is not JSON itself.
    count       what counts the items of a payload, if it stands for several.
    conversion  what makes units of another form of it, for components that do not take this one.
    promises_order   whether its units mean something else if they arrive in another order.
    roots       slots that the others refer to: without one of them the rest means nothing.

One signal may come in several forms: traces as requests of OTLP, and as record batches. These are
several `Signal`s of one name, and whoever names it means all of them.

Receivers name the signals that they produce, processors and exporters say with `Takes` what they
can be given. `holdfast validate` compares the two; at run time a destination holds what it cannot
take. Registered in `registry.py`, so that neither deliver nor graph knows any signal by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

from holdfast.quiver import Bundle, Extractor, ItemTable
from holdfast.quiver.base.frame import FrameKind
from holdfast.quiver.segments.segment import UNKNOWN_SLOT
from holdfast.signals.event import DocumentReader, ItemCounter, Unit, arrow_data_of, events_of


class Form(StrEnum):
    """What a unit is handed over as."""

    # An `Event` whose payload is a JSON document.
    JSON = "json"
    # An `Event` of which only its receiver knows what its bytes are.
    RAW = "raw"
    # An `Event` whose payload is a message of protobuf; `Event.json_text` shows it as JSON.
    PROTOBUF = "protobuf"
    # `ArrowData`: record batches by slot.
    ARROW = "arrow"


Recognise = Callable[[FrameKind, Collection[str]], bool]
# Returns the units of a bundle, given the id of its quiver, the name of the signal, and the first
# row that is not in the ledger.
Split = Callable[[Bundle, str, str, int], Sequence[Unit]]


class Conversion(NamedTuple):
    """What makes units of another form. It may take its time, so never on the event loop."""

    form: Form
    convert: Callable[[Any], Unit]


@dataclass(frozen=True)
class Signal:
    """One kind of content."""

    name: str
    form: Form
    recognise: Recognise
    order_keys: Mapping[str, Callable[[Any], str]] = field(default_factory=dict)
    extractors: Mapping[str, Extractor] = field(default_factory=dict)
    tables: Mapping[str, ItemTable] = field(default_factory=dict)
    # None: one unit for each raw event, or one for all slots of an Arrow bundle.
    split: Split | None = None
    read: DocumentReader | None = None
    count: ItemCounter | None = None
    conversion: Conversion | None = None
    promises_order: bool = True
    roots: frozenset[str] = frozenset()

    def units(self, bundle: Bundle, quiver_id: str, first_row: int) -> Sequence[Unit]:
        """Return what of a bundle is to be delivered, from `first_row` on."""
        if self.split is not None:
            return self.split(bundle, quiver_id, self.name, first_row)
        if self.form is Form.ARROW:
            return arrow_data_of(bundle, quiver_id, self.name, first_row, self.count)
        return events_of(bundle, quiver_id, self.name, first_row, self.read, self.count)

    def can_do_without(self, damaged_slots: Collection[str]) -> bool:
        """Whether the rest of a bundle still means something, if that is known."""
        is_lost = UNKNOWN_SLOT in damaged_slots or not self.roots.isdisjoint(damaged_slots)
        # A signal that splits bundles itself, and names no roots, knows nothing of parts of them.
        knows_parts = self.split is None or bool(self.roots)
        return self.form is Form.ARROW and knows_parts and not (self.roots and is_lost)

    def order_key(self, name: str | None) -> Callable[[Any], str] | None:
        """Return what finds the order key of that name; None if the signal has none."""
        if name is None:
            return next(iter(self.order_keys.values()), None)
        return self.order_keys.get(name)

    def taken_by(self, takes: Takes) -> Signal | None:
        """Return the signal as a component gets it: as it is, or converted; None if it cannot."""
        if takes.includes(self):
            return self
        if self.conversion is None:
            return None
        converted = replace(self, form=self.conversion.form, conversion=None)
        return converted if takes.includes(converted) else None


def in_raw_slot(slot: str) -> Recognise:
    """Return what recognises the raw bundles of a slot."""
    return lambda kind, slots: kind is FrameKind.RAW and slot in slots


@dataclass(frozen=True)
class Takes:
    """What a processor or an exporter can be given."""

    forms: frozenset[Form] = frozenset({Form.JSON, Form.RAW})
    # None: any, known today or not.
    signals: frozenset[str] | None = None
    # What an exporter makes of all of them before it sends; None: it sends what it is given.
    sent_as: Form | None = None

    def includes(self, signal: Signal) -> bool:
        """Whether units of a signal can be given to it."""
        return signal.form in self.forms and (self.signals is None or signal.name in self.signals)

    def __str__(self) -> str:
        """Say it to people, such as `openlineage (json)`."""
        of = "any signal" if self.signals is None else ", ".join(sorted(self.signals))
        return f"{of} ({', '.join(form.value for form in Form if form in self.forms)})"


# What a component takes that does not say so: the bytes of raw events.
RAW_EVENTS = Takes()
# What one takes that writes bytes as they are, or as JSON, whatever they mean.
ANY_EVENTS = Takes(frozenset({Form.JSON, Form.RAW, Form.PROTOBUF}))
EVERYTHING = Takes(frozenset(Form))
