"""Compares the facts of some prefixes: pure functions over Arrow tables, all joins local.

What they return are candidates. Facts are collected one after another while others work on the
store, so two that contradict each other may have been true at different times; confirm.py asks
again about each candidate, in an order that leaves no doubt.

Each function is one sentence about a sound store, and returns its exceptions. They do not build on
each other's results; where one fault would show in several (a lost chunk has no row, no object,
and references that lead nowhere), the more specific finding is kept by leaving it out of the
others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.store.fsck.findings import FindingKind, source_words
from holdfast.store.fsck.tables import FINDINGS, Partition
from holdfast.store.gc.references_sql import CHUNK_KIND, COMMIT_KIND
from holdfast.store.gc.transitions import ChunkState, JobKind

KEY = ["hash", "generation"]
SOURCE = ["source_kind", "source_id", "source_generation"]
_NUMBERED = [COMMIT_KIND, JobKind.JOB.value, JobKind.PIN.value]
_DYING = [ChunkState.REMOVING.value, ChunkState.DELETING.value]


def compare(part: Partition) -> pa.Table:
    """Return all that does not fit together, as a table of `FINDINGS`."""
    lost = needed(part)
    return pa.concat_tables(
        [
            missing_chunks(part, lost),
            missing_rows(part, lost),
            other_sizes(part),
            leaked_objects(part, lost),
            wrong_counts(part),
            stale_edges(part),
            edges_to_nothing(part, lost),
            missing_edges(part),
            edges_from_nobody(part, lost),
            unwarranted_edges(part),
        ]
    )


def missing_chunks(part: Partition, lost: pa.Table) -> pa.Table:
    """Return chunks whose object is gone: rows without one, and reached ones without either."""
    rows_alone = _anti(current(part), part.object, KEY)
    neither = _anti(lost, part.object, ["hash"])
    return pa.concat_tables(
        [
            _findings(FindingKind.MISSING_CHUNK, rows_alone),
            _findings(FindingKind.MISSING_CHUNK, neither),
        ]
    )


def missing_rows(part: Partition, lost: pa.Table) -> pa.Table:
    """Return reached chunks that have an object, and no row that says so."""
    return _findings(FindingKind.MISSING_ROW, _semi(lost, part.object, ["hash"]))


def other_sizes(part: Partition) -> pa.Table:
    """Return chunks whose object has another size than it was stored with: cut off, or replaced."""
    alive = part.row.filter(pc.and_(_is_current(part.row), pc.is_valid(part.row["stored_bytes"])))
    both = alive.select([*KEY, "stored_bytes"]).join(
        part.object.select([*KEY, "size_bytes"]), keys=KEY, join_type="inner", use_threads=False
    )
    wrong = both.filter(pc.not_equal(both["stored_bytes"], both["size_bytes"]))
    words = [
        f"its object has {row['size_bytes']} bytes, and was stored with {row['stored_bytes']}"
        for row in wrong.to_pylist()
    ]
    return _findings(FindingKind.DAMAGED_CHUNK, wrong, detail=words)


def leaked_objects(part: Partition, lost: pa.Table) -> pa.Table:
    """Return objects without a row, unless they are what a reached chunk needs."""
    orphans = _anti(part.object, part.row, KEY)
    return _findings(FindingKind.LEAKED_OBJECT, _anti(orphans, lost, ["hash"]))


def wrong_counts(part: Partition) -> pa.Table:
    """Return rows that count other references or holds than there are."""
    # Jobs hold, everybody else refers; a row counts the two apart, because a hold ends by itself.
    held = pc.equal(part.edge_to["source_kind"], JobKind.JOB.value)
    edges = part.edge_to.select(KEY)
    # What is dying goes, whatever it counts.
    rows = part.row.filter(pc.invert(_is_dying(part.row))).select([*KEY, "refcount", "holds"])
    counted = _counted(rows, edges.filter(pc.invert(held)))
    counted = _counted(counted.rename_columns([*KEY, "refcount", "holds", "edges"]), edges, held)
    wrong = counted.filter(
        pc.or_(
            pc.not_equal(counted["refcount"], counted["edges"]),
            pc.not_equal(counted["holds"], counted["count"]),
        )
    )
    # Counts too high with nobody behind them: a leak, which the collector can never find. Counts
    # that are wrong otherwise may lose data, and are reported apart.
    nobody = pc.equal(pc.add(wrong["edges"], wrong["count"]), 0)
    leaked = _anti(wrong.filter(nobody), part.reached, ["hash"])
    others = _anti(wrong, leaked, KEY)
    return pa.concat_tables(
        [_findings(FindingKind.LEAKED_ROW, leaked), _findings(FindingKind.WRONG_COUNT, others)]
    )


def stale_edges(part: Partition) -> pa.Table:
    """Return references to a generation that is not stored, where another one is."""
    not_stored = part.row.filter(
        pc.and_(pc.invert(part.row["uploaded"]), pc.invert(_is_dying(part.row)))
    )
    named = _semi(_references(part.edge_to), not_stored, KEY)
    return _edge_findings(FindingKind.STALE_EDGE, _semi(named, current(part), ["hash"]))


def edges_to_nothing(part: Partition, lost: pa.Table) -> pa.Table:
    """Return references to rows that are gone, unless the chunk is missing and reported as such."""
    gone = _anti(part.edge_to, part.row, KEY)
    leaked = _anti(gone, lost, ["hash"])
    return _edge_findings(FindingKind.LEAKED_EDGE, leaked, "there is no such chunk")


def missing_edges(part: Partition) -> pa.Table:
    """Return references that must be there, and are not."""
    keys = ["hash", *SOURCE]
    return _edge_findings(FindingKind.MISSING_EDGE, _anti(part.expected, part.edge_from, keys))


def edges_from_nobody(part: Partition, lost: pa.Table) -> pa.Table:
    """Return references of commits, jobs, pins and chunks that are not there."""
    kinds = part.edge_from["source_kind"]
    numbered = part.edge_from.filter(pc.is_in(kinds, pa.array(_NUMBERED)))
    from_chunks = part.edge_from.filter(pc.equal(kinds, CHUNK_KIND))
    sources = part.row.filter(pc.not_equal(part.row["state"], ChunkState.DELETING.value))
    gone = _anti(from_chunks, _as_sources(sources), SOURCE[1:])
    nobody = "there is nobody who refers"
    return pa.concat_tables(
        [
            _edge_findings(
                FindingKind.LEAKED_EDGE, _anti(numbered, part.source, SOURCE[:2]), nobody
            ),
            # A lost row of a chunk that is in use comes back, and its references with it.
            _edge_findings(
                FindingKind.LEAKED_EDGE, _anti(gone, _as_sources(lost), ["source_id"]), nobody
            ),
        ]
    )


def unwarranted_edges(part: Partition) -> pa.Table:
    """Return references of commits and index chunks to what they do not refer to."""
    # Only of those that were read: what a chunk or a commit refers to that could not be read is not
    # known, and its references stay.
    kinds = part.edge_from["source_kind"]
    keys = ["hash", *SOURCE]
    walked = part.source.filter(part.source["walked"])
    of_commits = part.edge_from.filter(pc.equal(kinds, COMMIT_KIND))
    of_chunks = part.edge_from.filter(pc.equal(kinds, CHUNK_KIND))
    judged = pa.concat_tables(
        [
            _semi(of_commits, walked, SOURCE[:2]),
            _semi(of_chunks, _as_sources(part.walked), SOURCE[1:]),
        ]
    )
    leaked = _anti(judged, part.expected, keys)
    return _edge_findings(FindingKind.LEAKED_EDGE, leaked, "who is said to refer does not")


def current(part: Partition) -> pa.Table:
    """Return the generations that are stored and not dying, as the database says."""
    return part.row.filter(_is_current(part.row)).select(KEY)


def needed(part: Partition) -> pa.Table:
    """Return the chunks that commits lead to, and of which no generation is current."""
    reached = part.reached.select(["hash"]).group_by(["hash"], use_threads=False).aggregate([])
    return _anti(reached, current(part), ["hash"])


def _counted(rows: pa.Table, edges: pa.Table, mask: Any = None) -> pa.Table:
    """Return rows with a column `count`: how many of the edges lead to each."""
    chosen = edges if mask is None else edges.filter(mask)
    counts = chosen.group_by(KEY, use_threads=False).aggregate([([], "count_all")])
    joined = rows.join(
        counts.rename_columns([*KEY, "count"]), keys=KEY, join_type="left outer", use_threads=False
    )
    filled = pc.fill_null(joined["count"], 0)
    return joined.set_column(joined.schema.get_field_index("count"), "count", filled)


def _references(edges: pa.Table) -> pa.Table:
    return edges.filter(pc.not_equal(edges["source_kind"], JobKind.JOB.value))


def _is_current(rows: pa.Table) -> Any:
    return pc.and_(rows["uploaded"], pc.invert(_is_dying(rows)))


def _is_dying(rows: pa.Table) -> Any:
    return pc.is_in(rows["state"], pa.array(_DYING))


def _as_sources(chunks: pa.Table) -> pa.Table:
    """Return chunks under the names that references have for those who refer."""
    names = {"hash": "source_id", "generation": "source_generation"}
    kept = [name for name in names if name in chunks.column_names]
    return chunks.select(kept).rename_columns([names[name] for name in kept])


# Joins run in one thread each: parts are compared one after another, or by Spark in many
# processes, and Arrow's pool of threads would only compete with those.
def _anti(left: pa.Table, right: pa.Table, keys: Sequence[str]) -> pa.Table:
    return left.join(
        right.select(list(keys)), keys=list(keys), join_type="left anti", use_threads=False
    )


def _semi(left: pa.Table, right: pa.Table, keys: Sequence[str]) -> pa.Table:
    return left.join(
        right.select(list(keys)), keys=list(keys), join_type="left semi", use_threads=False
    )


def _findings(
    kind: FindingKind,
    rows: pa.Table,
    sources: Sequence[str] | None = None,
    detail: str | Sequence[str] = "",
) -> pa.Table:
    count = rows.num_rows
    columns = {
        "kind": pa.array([kind.value] * count, pa.string()),
        "detail": pa.array([detail] * count if isinstance(detail, str) else detail, pa.string()),
    }
    for name in KEY:
        if name in rows.column_names:
            columns[name] = rows[name]
    if sources is not None:
        columns["source"] = pa.array(sources, pa.string())
    arrays = [columns.get(field.name, pa.nulls(count, field.type)) for field in FINDINGS]
    return pa.table(arrays, schema=FINDINGS)


def _edge_findings(kind: FindingKind, edges: pa.Table, detail: str = "") -> pa.Table:
    words = [source_words(*(row[name] for name in SOURCE)) for row in edges.to_pylist()]
    return _findings(kind, edges, words, detail)
