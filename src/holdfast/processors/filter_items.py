"""`filter_items`: lets spans, data points and log records through to a destination, or not.

A condition is about the signals that its fields speak of: one with `severity_below` is about log
records, and spans pass as if it were not there. So one filter may stand in front of a backend that
gets all signals.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from holdfast.processors.match import Patterns, glob
from holdfast.processors.telemetry import TELEMETRY, items_module, with_change
from holdfast.settings import Settings
from holdfast.signals.event import Event
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.signal import Takes

CONDITIONS_MAX = 1000
KEYS_MAX = 64
SERVICE_NAME = "service.name"

SpanKind = Literal["unspecified", "internal", "server", "client", "producer", "consumer"]
SpanStatus = Literal["unset", "ok", "error"]
SeverityWord = Literal["trace", "debug", "info", "warn", "error", "fatal"]
# As OTLP numbers them. A severity has four numbers, and the first is the least severe.
SPAN_KINDS: tuple[SpanKind, ...] = (
    "unspecified", "internal", "server", "client", "producer", "consumer",
)  # fmt: skip
STATUSES: tuple[SpanStatus, ...] = ("unset", "ok", "error")
SEVERITIES: Mapping[SeverityWord, int] = {
    "trace": 1, "debug": 5, "info": 9, "warn": 13, "error": 17, "fatal": 21,
}  # fmt: skip

KeyPatterns = Annotated[dict[str, Patterns], Field(max_length=KEYS_MAX)]
# What only items of one signal have.
_ONLY = {
    "span_kind": OtlpKind.TRACES,
    "status": OtlpKind.TRACES,
    "severity_below": OtlpKind.LOGS,
    "body": OtlpKind.LOGS,
}


class ItemCondition(Settings):
    """What an item must be like. At least one field must be given; those given must all hold."""

    signals: tuple[OtlpKind, ...] = ()
    """Only items of these signals; empty: of all that the other fields speak of."""
    service: Patterns = ()
    """The `service.name` of its resource."""
    scope: Patterns = ()
    """The name of its instrumentation scope."""
    name: Patterns = ()
    """The name of a span, of the metric of a data point, or of the event of a log record."""
    attributes: KeyPatterns = Field(default={})
    """Patterns for its own attributes, by key. Numbers and truth values are compared as text;
    lists, maps and bytes match nothing."""
    resource_attributes: KeyPatterns = Field(default={})
    """The same for the attributes of its resource."""
    span_kind: tuple[SpanKind, ...] = ()
    """Spans: `server`, `client`, `producer`, `consumer`, `internal` or `unspecified`."""
    status: tuple[SpanStatus, ...] = ()
    """Spans: `unset`, `ok` or `error`."""
    severity_below: SeverityWord | None = None
    """Log records that are less severe than this. One without a severity number is not."""
    body: Patterns = ()
    """Log records: the body, where it is a text."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        given = [name for name in ItemCondition.model_fields if getattr(self, name)]
        if not given:
            raise ValueError(f"give at least one of {', '.join(ItemCondition.model_fields)}")
        if not self.kinds:
            about = ", ".join(name for name in given if name in _ONLY)
            raise ValueError(f"no item has all of these: {about} (and `signals`)")
        return self

    @property
    def kinds(self) -> frozenset[OtlpKind]:
        """The signals that it is about."""
        kinds = set(self.signals or OtlpKind)
        for name, kind in _ONLY.items():
            if getattr(self, name):
                kinds &= {kind}
        return frozenset(kinds)


class Config(Settings):
    """Which items a destination gets. What it does not get is counted as `filtered`."""

    keep: tuple[ItemCondition, ...] = Field(default=(), max_length=CONDITIONS_MAX)
    """An item goes on if one of those that are about its signal holds. If none is: all do."""
    drop: tuple[ItemCondition, ...] = Field(default=(), max_length=CONDITIONS_MAX)
    """An item goes no further if one of these holds, whatever `keep` says."""

    @model_validator(mode="after")
    def _has_conditions(self) -> Self:
        if not self.keep and not self.drop:
            raise ValueError("give keep, drop, or both")
        return self


# Whether a condition holds of an item; given the item and its metric.
_Holds = Callable[[Any, Any], bool]
# By key: a pattern for the value.
_KeyMatches = list[tuple[str, re.Pattern[str]]]


class ItemFilter:
    """Lets items through by conditions."""

    def __init__(self, config: Config) -> None:
        self._keep = self._by_kind(config.keep)
        self._drop = self._by_kind(config.drop)

    def _by_kind(self, conditions: Iterable[ItemCondition]) -> dict[OtlpKind, list[_ItemMatcher]]:
        return {
            kind: [
                _ItemMatcher(condition, kind) for condition in conditions if kind in condition.kinds
            ]
            for kind in OtlpKind
        }

    def process(self, event: Event) -> Event | None:
        """Return the event with the items that go on; the same one if all do."""
        return with_change(event, self._filtered)

    def _filtered(self, payload: bytes, kind: OtlpKind) -> bytes | None:
        if not self._keep[kind] and not self._drop[kind]:
            return None

        def change(request: Any) -> bool:
            dropped = sum(
                [self._drop_from(one, kind) for one in items_module().scopes(kind, request)]
            )
            if dropped:
                items_module().prune(kind, request)
            return dropped > 0

        filtered: bytes | None = items_module().changed(payload, kind, change)
        return filtered

    def _drop_from(self, one: Any, kind: OtlpKind) -> int:
        """Take out what does not go on, and return how many."""
        keep = _in_scope(self._keep[kind], one)
        drop = _in_scope(self._drop[kind], one)
        keeps_all = not self._keep[kind] or any(holds is None for holds in keep)
        drops_all = any(holds is None for holds in drop)
        if keeps_all and not drop:
            return 0
        dropped = 0
        for metric, items in items_module().lists_of_scope(kind, one.holder):

            def is_dropped(item: Any, metric: Any = metric) -> bool:
                wanted = keeps_all or any(holds(item, metric) for holds in keep if holds)
                return not wanted or any(holds(item, metric) for holds in drop if holds)

            if drops_all:
                dropped += len(items)
                del items[:]
            else:
                dropped += items_module().drop_from(items, is_dropped)
        return dropped


class _ItemMatcher:
    """A condition with its patterns compiled, for items of one signal."""

    def __init__(self, condition: ItemCondition, kind: OtlpKind) -> None:
        self._resource: _KeyMatches = [
            (key, glob(patterns)) for key, patterns in condition.resource_attributes.items()
        ]
        if condition.service:
            self._resource.append((SERVICE_NAME, glob(condition.service)))
        self._scope = glob(condition.scope) if condition.scope else None
        self._tests: list[_Holds] = [*self._item_tests(condition, kind)]

    def in_scope(self, one: Any) -> Literal[False] | _Holds | None:
        """Return what is left to be asked of the items of a scope.

        None: nothing, it holds of all of them. False: it holds of none.
        """
        if self._scope is not None and not self._scope.match(one.scope.name):
            return False
        if not self._match(self._resource, one.resource.attributes):
            return False
        tests = self._tests
        if not tests:
            return None
        return lambda item, metric: all(test(item, metric) for test in tests)

    def _match(self, wanted: _KeyMatches, attributes: Any) -> bool:
        """Whether there is an attribute of every key, and its value is like that."""
        text_of = items_module().text_of
        # Plain loops: this runs for every item, and a generator costs more than what it finds.
        for key, pattern in wanted:
            for one in attributes:
                if one.key == key:
                    text = text_of(one.value)
                    if text is not None and pattern.match(text):
                        break
            else:
                return False
        return True

    def _item_tests(self, condition: ItemCondition, kind: OtlpKind) -> Iterable[_Holds]:
        """Yield what has to hold of an item, the cheapest first."""
        if condition.severity_below is not None:
            below = SEVERITIES[condition.severity_below]
            yield lambda item, metric: 0 < item.severity_number < below
        if condition.span_kind:
            kinds = {SPAN_KINDS.index(one) for one in condition.span_kind}
            yield lambda item, metric: item.kind in kinds
        if condition.status:
            codes = {STATUSES.index(one) for one in condition.status}
            yield lambda item, metric: item.status.code in codes
        if condition.name:
            names = glob(condition.name)
            if kind is OtlpKind.TRACES:
                yield lambda item, metric: names.match(item.name) is not None
            elif kind is OtlpKind.METRICS:
                yield lambda item, metric: names.match(metric.name) is not None
            else:
                yield lambda item, metric: bool(item.event_name and names.match(item.event_name))
        if condition.body:
            bodies = glob(condition.body)
            yield (
                lambda item, metric: (
                    item.body.HasField("string_value")
                    and bodies.match(item.body.string_value) is not None
                )
            )
        if condition.attributes:
            wanted = [(key, glob(patterns)) for key, patterns in condition.attributes.items()]
            yield lambda item, metric: self._match(wanted, item.attributes)


def _in_scope(matchers: Iterable[_ItemMatcher], one: Any) -> list[_Holds | None]:
    found = (matcher.in_scope(one) for matcher in matchers)
    return [holds for holds in found if holds is not False]


def takes(config: Config) -> Takes:
    """All telemetry."""
    return TELEMETRY


def make(config: Config) -> ItemFilter:
    """Return a filter of items."""
    return ItemFilter(config)
