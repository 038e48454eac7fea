"""What can be wrong with a store, and the report of a check: a table, JSON, Parquet."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import pyarrow as pa

from holdfast.store.fsck.tables import FINDINGS
from holdfast.store.gc.references_sql import CHUNK_KIND, ReferenceSource
from holdfast.store.objects.objects import ChunkHash, ChunkKey


class FindingKind(StrEnum):
    """One way in which a store can be wrong."""

    MISSING_CHUNK = "missing chunk"
    DAMAGED_CHUNK = "damaged chunk"
    MISSING_ROW = "missing row"
    MISSING_EDGE = "missing reference"
    STALE_EDGE = "stale reference"
    LEAKED_EDGE = "leaked reference"
    LEAKED_ROW = "leaked row"
    LEAKED_OBJECT = "leaked object"
    WRONG_COUNT = "wrong count"
    COMMIT_OBJECT_MISSING = "commit without object"
    COMMIT_ROW_MISSING = "commit without row"
    COMMIT_DIFFERS = "commit differs"
    COMMIT_DAMAGED = "commit damaged"
    COMMIT_UNFINISHED = "commit unfinished"


MEANING: dict[FindingKind, str] = {
    FindingKind.MISSING_CHUNK: "its object is gone",
    FindingKind.DAMAGED_CHUNK: "its bytes are not what its name says",
    FindingKind.MISSING_ROW: "its object is there, and the database does not know it",
    FindingKind.MISSING_EDGE: "what refers to it is not noted: it could be collected",
    FindingKind.STALE_EDGE: "references name a generation that is gone; the chunk was stored anew",
    FindingKind.LEAKED_EDGE: "a reference from what is not there, or does not refer to it",
    FindingKind.LEAKED_ROW: "it counts references, and nobody refers to it",
    FindingKind.LEAKED_OBJECT: "an object that the database does not know",
    FindingKind.WRONG_COUNT: "it counts other references than there are",
    FindingKind.COMMIT_OBJECT_MISSING: "a rebuilt database would not know it",
    FindingKind.COMMIT_ROW_MISSING: "its object is there, and the database does not know it",
    FindingKind.COMMIT_DIFFERS: "its object and its row are not the same",
    FindingKind.COMMIT_DAMAGED: "neither its row nor its object can be read",
    FindingKind.COMMIT_UNFINISHED: "the lease of its writer or deleter ended before it was done",
}

# Findings for which commits and paths are looked up.
NEEDED_BY_COMMITS = (FindingKind.MISSING_CHUNK, FindingKind.DAMAGED_CHUNK, FindingKind.MISSING_ROW)
# How a finding says that the chunk leads to others.
INDEX_WORDS = "the index from"
REFS_WORDS = "a list of references"

_SOURCE = re.compile(r"([^:]*):([0-9a-f]*)(?:\.([0-9a-f]{16}))?")


class StoreFinding(NamedTuple):
    """One thing that is not as it should be; fields that do not apply are empty."""

    kind: FindingKind
    hash: ChunkHash = ChunkHash(b"")
    generation: int = 0
    commit: str = ""
    path: str = ""
    detail: str = ""
    source: str = ""

    @property
    def key(self) -> ChunkKey:
        """The generation of the chunk that it is about."""
        return ChunkKey(self.hash, self.generation)

    @property
    def use_refers(self) -> bool:
        """Whether commits use the chunk as something that leads to others.

        Told by its words, which survive tables, Parquet and JSON, through which findings travel.
        """
        return INDEX_WORDS in self.detail or REFS_WORDS in self.detail

    def to_json(self) -> dict[str, Any]:
        """Return the finding as JSON holds it."""
        return {
            **self._asdict(),
            "kind": self.kind.value,
            "hash": self.hash.hex(),
            "meaning": MEANING[self.kind],
        }


@dataclass
class FsckReport:
    """What was checked, and what was found."""

    findings: list[StoreFinding] = field(default_factory=list)
    commits: int = 0
    chunks: int = 0
    """Rows of chunks."""
    objects: int = 0
    references: int = 0
    sizes_unknown: int = 0
    """Chunks of whose object the database does not know the size, so that it was not compared."""
    unknown_names: int = 0
    """Objects whose names are not ours; left alone."""
    omitted: int = 0
    """Findings beyond `findings_max`."""

    @property
    def ok(self) -> bool:
        """Whether the store is as it should be."""
        return not self.findings and not self.omitted

    def count_rows(self, batch: pa.RecordBatch) -> None:
        """Count rows of chunks that are compared."""
        self.chunks += batch.num_rows
        stored = zip(batch.column("uploaded"), batch.column("stored_bytes"), strict=True)
        self.sizes_unknown += sum(
            uploaded.as_py() and not size.is_valid for uploaded, size in stored
        )

    def counts(self) -> dict[str, int]:
        """Return how many findings there are of each kind."""
        return dict(Counter(finding.kind.value for finding in self.findings))

    def add(self, found: Iterable[StoreFinding], findings_max: int) -> None:
        """Take findings, as many as there is room for.

        The bound is on what is shown, not on what is looked at: a store that is wrong in a million
        places is still counted to the end.
        """
        for finding in found:
            if len(self.findings) < findings_max:
                self.findings.append(finding)
            else:
                self.omitted += 1


def without_known(
    found: Sequence[StoreFinding], known: Iterable[StoreFinding]
) -> list[StoreFinding]:
    """Return those about chunks of which nothing of the kind is known yet."""
    seen = {(finding.kind, finding.key) for finding in known}
    return [finding for finding in found if (finding.kind, finding.key) not in seen]


def to_table(findings: Sequence[StoreFinding]) -> pa.Table:
    """Return findings as an Arrow table."""
    return pa.Table.from_pylist([one._asdict() for one in findings], schema=FINDINGS)


def from_table(table: pa.Table) -> list[StoreFinding]:
    """Return the findings of an Arrow table; those that are there twice once."""
    return list(
        dict.fromkeys(
            StoreFinding(
                FindingKind(row["kind"]),
                ChunkHash(row["hash"] or b""),
                row["generation"] or 0,
                row["commit"] or "",
                row["path"] or "",
                row["detail"] or "",
                row["source"] or "",
            )
            for row in table.to_pylist()
        )
    )


def source_words(kind: str, source_id: bytes, generation: int) -> str:
    """Return who refers, as a finding shows it."""
    return f"{kind}:{source_id.hex()}" + (f".{generation:016x}" if kind == CHUNK_KIND else "")


def parse_source(words: str) -> ReferenceSource | None:
    """Return who refers, from a finding."""
    found = _SOURCE.fullmatch(words)
    if found is None:
        return None
    return ReferenceSource(found[1], bytes.fromhex(found[2]), int(found[3] or "0", 16))
