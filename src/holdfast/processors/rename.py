"""`rename`: gives namespaces other names, everywhere they occur in an event.

One place that is missed breaks the lineage: a job would read datasets that nobody writes. So the
places are a table, of every field in the OpenLineage specification that holds a namespace of a job
or a dataset. Facets outside the specification are not searched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from holdfast.processors.document import ANY, Path, changed, document_of
from holdfast.processors.match import RegexSubstitution, checked_regex
from holdfast.settings import Settings
from holdfast.signals.event import Event

RULES_MAX = 1000
# Namespaces whose new name is remembered; longer ones than this are looked up each time.
REMEMBERED_MAX = 4096
REMEMBERED_CHARACTERS_MAX = 1024

NAMESPACE = "namespace"
_JOBS = (
    "job",
    "run.facets.parent.job",
    "run.facets.parent.root.job",
    "run.facets.jobDependencies.upstream.*.job",
    "run.facets.jobDependencies.downstream.*.job",
)
_IN_JOB_FACETS = (
    "lineage.entries.*",
    "lineage.entries.*.inputs.*",
    "lineage.entries.*.fields.*.inputs.*",
)
_DATASETS = ("dataset", "inputs.*", "outputs.*")
_IN_DATASET_FACETS = (
    "columnLineage.fields.*.inputFields.*",
    "columnLineage.dataset.*",
    "symlinks.identifiers.*",
    "lifecycleStateChange.previousIdentifier",
    "lineage.inputs.*",
    "lineage.fields.*.inputs.*",
)
# The objects in an event that have a namespace.
PLACES: tuple[Path, ...] = tuple(
    tuple(path.split("."))
    for path in (
        *_JOBS,
        *(f"job.facets.{path}" for path in _IN_JOB_FACETS),
        *_DATASETS,
        *(f"{dataset}.facets.{path}" for dataset in _DATASETS for path in _IN_DATASET_FACETS),
    )
)

LineageName = Annotated[str, Field(min_length=1, max_length=1024)]


class RenameRule(Settings):
    """One of `exact`, `prefix` and `regex`, and what becomes of it."""

    exact: LineageName | None = None
    """The whole namespace."""
    prefix: LineageName | None = None
    """How it begins; what follows stays."""
    regex: Annotated[LineageName, AfterValidator(checked_regex)] | None = None
    """An RE2 expression for the whole namespace; `\\1` in `to` is its first group."""
    to: str = Field(max_length=1024)
    """The new name (of the prefix, if that was asked for)."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        """Refuse a rule that could be read in two ways, or would make an empty name."""
        given = [one for one in (self.exact, self.prefix, self.regex) if one is not None]
        if len(given) != 1:
            raise ValueError("give one of exact, prefix and regex")
        if self.prefix is None and not self.to:
            raise ValueError("a namespace cannot be empty; give `to`")
        if self.regex is not None:
            RegexSubstitution(self.regex, self.to, whole=True)
        return self


class Config(Settings):
    """New names for namespaces. The first rule that holds decides."""

    namespaces: tuple[RenameRule, ...] = Field(min_length=1, max_length=RULES_MAX)
    """Looked at in order."""


class Rename:
    """Renames the namespaces of an event."""

    def __init__(self, config: Config) -> None:
        self._rules = [
            (rule, RegexSubstitution(rule.regex, rule.to, whole=True) if rule.regex else None)
            for rule in config.namespaces
        ]
        self._remembered = lru_cache(REMEMBERED_MAX)(self._look_up)

    def process(self, event: Event) -> Event | None:
        """Return the event with its namespaces renamed; the same one if it has none of them."""
        document = document_of(event)
        if document is None or not any(
            self.renamed(place[NAMESPACE]) != place[NAMESPACE] for place in _places(document)
        ):
            return event
        # An event that cannot be written again passes as it is. For redacting that would be a
        # leak; a name that stays old is a nuisance.
        return changed(event, self._rename_all) or event

    def renamed(self, namespace: str) -> str:
        """Return the new name of a namespace: the old one, if no rule holds."""
        if len(namespace) > REMEMBERED_CHARACTERS_MAX:
            return self._look_up(namespace)
        return self._remembered(namespace)

    def _rename_all(self, document: dict[str, Any]) -> None:
        for place in _places(document):
            place[NAMESPACE] = self.renamed(place[NAMESPACE])

    def _look_up(self, namespace: str) -> str:
        """Return the new name by the first rule that holds.

        A rule that would leave nothing of a name leaves it as it is: a namespace cannot be empty.
        """
        for rule, substitution in self._rules:
            if rule.exact == namespace:
                return rule.to
            if rule.prefix is not None and namespace.startswith(rule.prefix):
                return rule.to + namespace[len(rule.prefix) :] or namespace
            if substitution is not None and substitution.matches(namespace):
                return substitution.apply(namespace) or namespace
        return namespace


class _Branch:
    """The places behind one step, as a tree: an event has few of the places there are.

    Built once, at import. A loop over the table of paths would walk from the root for each of
    them, and most paths lead nowhere in most events.
    """

    __slots__ = ("is_place", "steps")

    def __init__(self, paths: Iterable[Path]) -> None:
        paths = list(paths)
        self.is_place = () in paths
        first_steps = dict.fromkeys(path[0] for path in paths if path)
        self.steps = {
            step: _Branch(path[1:] for path in paths if path[:1] == (step,)) for step in first_steps
        }


_TREE = _Branch(PLACES)


def _places(found: object, branch: _Branch = _TREE) -> Iterator[dict[str, Any]]:
    """Yield every object that has a namespace, each once."""
    if branch.is_place and isinstance(found, dict) and isinstance(found.get(NAMESPACE), str):
        yield found
    for step, behind in branch.steps.items():
        if step == ANY and isinstance(found, dict | list):
            for value in found.values() if isinstance(found, dict) else found:
                yield from _places(value, behind)
        elif step != ANY and isinstance(found, dict) and step in found:
            yield from _places(found[step], behind)


def make(config: Config) -> Rename:
    """Return a processor that renames."""
    return Rename(config)
