"""Pipelines written in Python: the same object as in a file, one call per vertex.

    pipeline = (
        Pipeline(max_delay="10s")
        .source("events", quiver="./buffer")
        .map(parse, returns="key string, number bigint")
        .window(fixed="1m")
        .aggregate(key="key", total="sum(number)")
        .sink(files="./totals")
    )

Each call returns a new pipeline, whose next vertex is behind the one just added. `after` goes back
to another one, and `union` leads several into the next: so a pipeline is a graph, not only a chain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from holdfast.dataflow.spec.checks import check
from holdfast.dataflow.spec.pipeline import MAIN, PipelineSettings
from holdfast.errors import BadConfig

Tags = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class _PipelineDraft:
    vertices: dict[str, dict[str, Any]] = field(default_factory=dict)
    edges: tuple[dict[str, Any], ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    # What the next vertex is behind.
    last: tuple[str, ...] = ()
    window: dict[str, Any] | None = None
    tags: Tags | None = None
    durable: bool = False


class Pipeline:
    """A pipeline in the making; `settings` is what it says."""

    def __init__(
        self,
        *,
        trigger: str | float = 0.0,
        shuffle_partitions: int | None = None,
        push_down: bool = True,
        buffers: Mapping[str, Any] | None = None,
        worker_attempts: int = 4,
        **watermark: Any,
    ) -> None:
        """Begin one; the other keywords are those of `watermark:` in a file."""
        options: dict[str, Any] = {"trigger": trigger, "shuffle_partitions": shuffle_partitions}
        options |= {"push_down": push_down}
        options |= {"buffers": dict(buffers or {}), "worker_attempts": worker_attempts}
        self._draft = _PipelineDraft(options={**options, "watermark": watermark})

    # ------------------------------------------------------------------- vertices

    def source(self, name: str = "", **settings: Any) -> Pipeline:
        """Add a source; keywords are the settings of `source:`."""
        started = self._changed(last=(), tags=None, durable=False)
        return started._added("source", settings, name)

    def map(
        self, python: Callable[..., Any] | str | None = None, name: str = "", **settings: Any
    ) -> Pipeline:
        """Add a map: a function of a row, or `select=`, `add=`, `arrow=`."""
        return self._added("map", _with_function(python, settings), name)

    def filter(
        self, condition: Callable[..., Any] | str | None = None, name: str = "", **settings: Any
    ) -> Pipeline:
        """Add a filter: an SQL expression, or a function of a row, or `arrow=`."""
        if isinstance(condition, str):
            return self._added("filter", {"where": condition, **settings}, name)
        return self._added("filter", _with_function(condition, settings), name)

    def flat_map(
        self, python: Callable[..., Any] | str | None = None, name: str = "", **settings: Any
    ) -> Pipeline:
        """Add a flat map: a function from a row to rows, or `explode=` and `into=`, or `arrow=`."""
        return self._added("flat_map", _with_function(python, settings), name)

    def window(self, **window: Any) -> Pipeline:
        """Say how the next reduce cuts time: `fixed=`, `session=`, or `size=` and `every=`."""
        if "size" in window:
            window = {"sliding": window}
        return self._changed(window=window)

    def aggregate(
        self,
        name: str = "",
        *,
        key: str | Sequence[str] = (),
        allowed_lateness: str | float = 0.0,
        late: str = "drop",
        **columns: str,
    ) -> Pipeline:
        """Add a reduce; the other keywords are its columns, in SQL."""
        settings: dict[str, Any] = {"key": [key] if isinstance(key, str) else list(key)}
        settings |= {"aggregate": columns, "allowed_lateness": allowed_lateness, "late": late}
        if self._draft.window is not None:
            settings["window"] = self._draft.window
        return self._changed(window=None)._added("reduce", settings, name)

    def reduce(
        self,
        python: Callable[..., Any] | str | None = None,
        name: str = "",
        *,
        returns: str,
        key: str | Sequence[str] = (),
        **settings: Any,
    ) -> Pipeline:
        """Add a reduce by a function of a window and its rows, or `arrow=`, or `fold=`."""
        keys = [key] if isinstance(key, str) else list(key)
        window = {} if self._draft.window is None else {"window": self._draft.window}
        given = {"returns": returns, "key": keys, **window, **settings}
        made = _with_function(python, given)
        return self._changed(window=None)._added("reduce", made, name)

    def process(
        self,
        process: Callable[..., Any] | str,
        name: str = "",
        *,
        returns: str,
        key: str | Sequence[str] = (),
        **settings: Any,
    ) -> Pipeline:
        """Add a reduce by a class with state and timers."""
        keys = [key] if isinstance(key, str) else list(key)
        given = {"process": process, "returns": returns, "key": keys, **settings}
        return self._added("reduce", given, name)

    def sink(
        self, python: Callable[..., Any] | str | None = None, name: str = "", **settings: Any
    ) -> Pipeline:
        """Add a sink: a function of a row, or `files=`, `quiver=`, `console=`."""
        before = self._draft.last
        # What comes next is behind what the sink is behind: a sink has nothing behind it.
        return self._added("sink", _with_function(python, settings), name)._changed(last=before)

    # ---------------------------------------------------------------------- edges

    def after(self, vertex: str, port: str = MAIN, *, tags: Tags | None = None) -> Pipeline:
        """Let the next vertex be behind another one, or behind its `late` or `failed` rows."""
        return self._changed(last=(f"{vertex}.{port}" if port else vertex,), tags=tags)

    def union(self, *others: str) -> Pipeline:
        """Let the next vertex be behind others, too."""
        return self._changed(last=(*self._draft.last, *others))

    def tagged(self, **tags: Sequence[str]) -> Pipeline:
        """Let only rows with tags into the next vertex: `any_of=`, `all_of=`, `none_of=`."""
        words = {"any_of": "or", "all_of": "and", "none_of": "not"}
        return self._changed(tags={words.get(key, key): list(value) for key, value in tags.items()})

    def durable(self) -> Pipeline:
        """Keep rows in a quiver before the next vertex."""
        return self._changed(durable=True)

    # -------------------------------------------------------------------- results

    @property
    def settings(self) -> PipelineSettings:
        """The pipeline, as a file would have it; raises `BadConfig` with all that is wrong."""
        draft = self._draft
        written = {"vertices": draft.vertices, "edges": list(draft.edges), **draft.options}
        try:
            settings = PipelineSettings.model_validate(written)
        except ValidationError as error:
            wrong = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
            raise _bad(wrong) from None
        found = [f for f in check(settings) if f.severity == "error"]
        if found:
            raise _bad([f"{f.message}; {f.hint}" if f.hint else f.message for f in found])
        return settings

    def _changed(self, **changes: Any) -> Pipeline:
        """Return a copy: a pipeline is never changed, so that several can share a beginning."""
        changed = Pipeline()
        changed._draft = replace(self._draft, **changes)
        return changed

    def _added(self, kind: str, settings: dict[str, Any], name: str) -> Pipeline:
        """Return the pipeline with one more vertex, and edges to it from what it is behind.

        Tags and `durable` belong to those edges, so they are used up by them.
        """
        draft = self._draft
        name = name or _free_name(kind, draft.vertices)
        if name in draft.vertices:
            raise BadConfig(f"there is a vertex {name!r} already", hint="give it another name")
        if draft.window is not None:
            raise BadConfig("a window is not followed by an aggregate", hint="add `.aggregate(…)`")
        edges = [self._edge(source, name) for source in draft.last]
        return self._changed(
            vertices={**draft.vertices, name: {kind: settings}},
            edges=(*draft.edges, *edges),
            last=(name,),
            tags=None,
            durable=False,
        )

    def _edge(self, source: str, target: str) -> dict[str, Any]:
        edge: dict[str, Any] = {"from": source, "to": target, "durable": self._draft.durable}
        return edge if self._draft.tags is None else {**edge, "tags": dict(self._draft.tags)}


def _with_function(
    python: Callable[..., Any] | str | None, settings: dict[str, Any]
) -> dict[str, Any]:
    return settings if python is None else {"python": python, **settings}


def _free_name(kind: str, taken: Mapping[str, object]) -> str:
    if kind not in taken:
        return kind
    return next(f"{kind}{n}" for n in range(2, len(taken) + 3) if f"{kind}{n}" not in taken)


def _bad(wrong: Sequence[str]) -> BadConfig:
    return BadConfig(f"the pipeline is wrong: {'; '.join(wrong)}", hint="fix it, and run it again")
