"""Pipelines for tests: short ways to write them, and random ones."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from holdfast.dataflow.spec import PipelineSettings

WINDOW = {"window": {"fixed": "10s"}, "aggregate": {"rows": "count(*)"}}


def same(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row."""
    return row


KINDS: dict[str, dict[str, Any]] = {
    "source": {"source": {"quiver": "q"}},
    "map": {"map": {"add": {"x": "1"}}},
    "python": {"map": {"python": same}},
    "dropping": {"filter": {"python": same, "on_failure": "drop"}},
    "reduce": {"reduce": WINDOW},
    "sink": {"sink": {"files": "out"}},
}


def pipeline(*edges: Any, **kinds: Any) -> PipelineSettings:
    """Return a pipeline; a vertex is a kind of `KINDS` or settings, `sink` gets its own folder."""
    vertices = {
        name: KINDS[kind] if isinstance(kind, str) else kind for name, kind in kinds.items()
    }
    vertices |= {n: {"sink": {"files": n}} for n, v in vertices.items() if v is KINDS["sink"]}
    return PipelineSettings.model_validate({"vertices": vertices, "edges": list(edges)})


@st.composite
def pipelines(draw: st.DrawFn) -> PipelineSettings:
    """Return a random graph that passes all checks: forward edges, all fed, all used."""
    sources = [f"s{n}" for n in range(draw(st.integers(1, 3)))]
    inner_kinds = st.sampled_from(["map", "python", "dropping", "reduce"])
    inner = {f"v{n}": draw(inner_kinds) for n in range(draw(st.integers(0, 6)))}
    sinks = [f"z{n}" for n in range(draw(st.integers(1, 3)))]
    order = [*sources, *inner, *sinks]
    edges: set[tuple[str, str]] = set()
    for place, name in enumerate(order):
        if name not in sources:
            before = [one for one in order[:place] if one not in sinks]
            chosen = draw(st.sets(st.sampled_from(before), min_size=1, max_size=3))
            edges |= {(one, name) for one in chosen}
    for place, name in enumerate(order):
        if name not in sinks and not any(one == name for one, _ in edges):
            edges.add(
                (name, draw(st.sampled_from([o for o in order[place + 1 :] if o not in sources])))
            )
    written = [
        {"from": one, "to": other, "durable": draw(st.integers(0, 9)) == 0}
        for one, other in sorted(edges)
    ]
    kinds = {**dict.fromkeys(sources, "source"), **inner, **dict.fromkeys(sinks, "sink")}
    return pipeline(*written, **kinds)
