"""Every field of full events is deleted, retyped and corrupted; the verdicts agree with the oracle.

The oracle (`client_classes.py`) is made of the installed client's classes. Where it disagrees, the
difference has a name and a reason below; a difference without one fails, and so does a reason that
explains nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.signals import events
from tests.signals.client_classes import TIME, URI, UUID, Oracle, facet_classes

from holdfast.signals.openlineage.validation import ValidationSettings, Validator

OTHER_TYPES: tuple[Any, ...] = (None, True, 7, 1.5, "text", [], {})
CORRUPT = (
    "text",
    "",
    "http://[",  # what neither the client nor the specification takes for anything
    "2026-01-31T12:00:00",
    "0195fdc17bc97a278d929a6f1b0f6a41",
)

STRICT = Validator(ValidationSettings(level="strict"))
STANDARD = Validator()
ORACLE = Oracle(formats=True)
LENIENT_ORACLE = Oracle(formats=False)

# Why the client takes what the specification does not. Each is a rule on (before, after).
DIFFERENCES: dict[str, Callable[[Any, Any], bool]] = {
    # The client asks `urlparse`, which takes any text but for a few broken hosts. The specification
    # says `format: uri`: a scheme and no blanks. (Real producers: "airflow".)
    "a URI without a scheme": lambda before, after: before == URI and after in CORRUPT,
    # The client asks `isoparse`. RFC 3339, which `format: date-time` means, wants a time zone.
    "a time without a zone": lambda before, after: before == TIME and after == CORRUPT[3],
    # `uuid.UUID` takes 32 digits without hyphens (and braces, and `urn:`); `format: uuid` does not.
    "a UUID without hyphens": lambda before, after: before == UUID and after == CORRUPT[4],
}


@dataclass(frozen=True)
class Mutation:
    """One change of a document in place, which can be undone."""

    holder: Any
    step: str | int
    after: Any
    deletes: bool

    def apply(self) -> Any:
        before = self.holder[self.step]
        if self.deletes:
            del self.holder[self.step]
        else:
            self.holder[self.step] = self.after
        return before


def nodes(document: Any) -> Iterator[tuple[Any, str | int]]:
    """Yield every place in a document, as its holder and the step from there."""
    steps = list(document.items() if isinstance(document, dict) else enumerate(document))
    for step, value in steps:
        yield document, step
        if isinstance(value, dict | list):
            yield from nodes(value)


def mutations(document: Any) -> Iterator[Mutation]:
    """Yield every change: each field deleted, given each other type, and each text corrupted."""
    for holder, step in nodes(document):
        value = holder[step]
        if isinstance(holder, dict):
            yield Mutation(holder, step, None, deletes=True)
        for other in OTHER_TYPES:
            if type(other) is not type(value):
                yield Mutation(holder, step, other, deletes=False)
        if isinstance(value, str):
            for text in CORRUPT:
                yield Mutation(holder, step, text, deletes=False)


def difference(before: Any, after: Any) -> str | None:
    return next((name for name, rule in DIFFERENCES.items() if rule(before, after)), None)


def samples() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield an event for every facet and case, and one for every kind of event."""
    for slot, key in facet_classes():
        for number, facet in enumerate(events.full_facets(slot, key)):
            yield f"{slot}.{key}-{number}", events.event_with(slot, {key: facet})
    yield "run", events.run_event()
    yield "job", events.job_event(inputs=[events.DATASET])
    yield "dataset", events.dataset_event()
    yield "all three", events.run_event(dataset=events.DATASET)
    yield "run and dataset", events.dataset_event(run=events.RUN)
    yield "custom", events.event_with("dataset", {"my_own": {**events.FACET, "x": [1, {}]}})


SAMPLES = dict(samples())


@pytest.mark.parametrize("name", SAMPLES)
def test_a_full_event_is_valid(name: str) -> None:
    for validator in (STRICT, STANDARD):
        verdict = validator.check(SAMPLES[name])
        assert verdict.ok
        assert verdict.warnings == ()
    assert ORACLE.accepts(SAMPLES[name])


@pytest.fixture(scope="module")
def explained() -> Counter[str]:
    """Counts which reasons were needed."""
    return Counter()


@pytest.mark.parametrize("name", SAMPLES)
def test_mutations_agree_with_the_oracle(name: str, explained: Counter[str]) -> None:
    event = SAMPLES[name]
    unchanged = json.dumps(event)
    tried = Counter[bool]()
    for mutation in list(mutations(event)):
        before = mutation.apply()
        strict, standard = STRICT.check(event).ok, STANDARD.check(event).ok
        expected, lenient = ORACLE.accepts(event), LENIENT_ORACLE.accepts(event)
        tried[expected] += 1
        assert standard == lenient, json.dumps(event)
        if strict != expected:
            reason = difference(before, None if mutation.deletes else mutation.after)
            assert expected, json.dumps(event)
            assert reason is not None, json.dumps(event)
            explained[reason] += 1
        mutation.holder[mutation.step] = before
    assert tried[True]
    assert tried[False]
    # A deleted key comes back at the end of its object; nothing else is different.
    assert json.loads(unchanged) == event


def test_every_difference_is_needed(explained: Counter[str]) -> None:
    # Runs behind the mutations, with what they counted; alone it has to count for itself.
    for name in ("run.nominalTime-0", "run"):
        test_mutations_agree_with_the_oracle(name, explained)
    assert set(explained) == set(DIFFERENCES)


FULL_EVENT = json.dumps(events.full_event())


@given(st.data())
def test_mutations_of_an_event_with_all_facets_agree_with_the_oracle(data: st.DataObject) -> None:
    event = json.loads(FULL_EVENT)
    places = list(nodes(event))
    for holder, step in data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=3)):
        if step not in (holder if isinstance(holder, dict) else range(len(holder))):
            continue  # deleted just before
        if isinstance(holder, dict) and data.draw(st.booleans()):
            del holder[step]
        else:
            holder[step] = data.draw(st.sampled_from((*OTHER_TYPES, "http://[")))
    assert STANDARD.check(event).ok == LENIENT_ORACLE.accepts(event)


@pytest.mark.parametrize("parts", range(8))
def test_every_shape_agrees_with_the_oracle(parts: int) -> None:
    event: dict[str, Any] = {
        **events.BASE,
        **({"run": events.RUN} if parts & 1 else {}),
        **({"job": events.JOB} if parts & 2 else {}),
        **({"dataset": events.DATASET} if parts & 4 else {}),
    }
    assert STRICT.check(event).ok == ORACLE.accepts(event)
    assert ORACLE.accepts(event) == (parts in (0b010, 0b011, 0b100, 0b101, 0b111))
