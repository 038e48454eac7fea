"""Edges: `a -> b`, `a.late -> b`, or a mapping that says which tags go that way."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from holdfast.settings import Settings

MAIN, LATE, FAILED = "", "late", "failed"
PORTS = (MAIN, LATE, FAILED)
_TEXT = re.compile(r"\s*(?P<source>\S+)\s*->\s*(?P<target>\S+)\s*")


class TagCondition(Settings):
    """Which rows take an edge, by the array column `_tags`; all that are given must hold."""

    # `print-config` prints the names that Python can have.
    model_config = ConfigDict(populate_by_name=True)

    any_of: list[str] = Field(default_factory=list, alias="or")
    """At least one of these."""
    all_of: list[str] = Field(default_factory=list, alias="and")
    """Every one of these."""
    none_of: list[str] = Field(default_factory=list, alias="not")
    """None of these."""

    @model_validator(mode="after")
    def _says_something(self) -> TagCondition:
        if not (self.any_of or self.all_of or self.none_of):
            raise ValueError("name tags under `or`, `and` or `not`")
        return self

    def admits(self, tags: frozenset[str]) -> bool:
        """Whether a row with these tags takes the edge."""
        return (
            (not self.any_of or not tags.isdisjoint(self.any_of))
            and tags.issuperset(self.all_of)
            and tags.isdisjoint(self.none_of)
        )


class PipelineEdge(Settings):
    """Rows go from one vertex to another."""

    model_config = ConfigDict(populate_by_name=True)

    source: str = Field(alias="from")
    """The vertex, or one of its other outputs: `name.late`, `name.failed`."""
    target: str = Field(alias="to")
    """The vertex behind."""
    tags: TagCondition | None = None
    """Only rows with such tags; by default all."""
    durable: bool = False
    """Keep the rows in a quiver between the two: they become two queries."""

    @property
    def vertex(self) -> str:
        """The vertex that the rows come from."""
        return self.source.partition(".")[0]

    @property
    def port(self) -> str:
        """Which of its outputs: "" is its results."""
        return self.source.partition(".")[2]

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"


def _edge(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    found = _TEXT.fullmatch(value)
    if found is None:
        raise ValueError("write an edge as `a -> b` or `a.late -> b`")
    return {"from": found["source"], "to": found["target"]}


WrittenEdge = Annotated[PipelineEdge, BeforeValidator(_edge)]
