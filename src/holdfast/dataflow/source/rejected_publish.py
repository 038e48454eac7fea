"""Rejected rows, from the files of tasks into the dead letter quiver, each once.

This is done in the process that plans, when a batch is committed and before it is acknowledged:

    note: E is begun ──▶ append (producer, epoch of E) ──▶ note: E is done ──▶ files removed

E is where the committed batch ends, so it only grows. A driver that dies before the append finds
everything again: the files are synced, and the quiver still holds the rows themselves. One that
dies behind it appends again what was begun, to the same E, under the same epochs, and the quiver
answers that it has them. That is so even if Spark forgot the batch in a power cut and the next one
ends elsewhere: what was begun is finished first, on its own.

Rows of bundles before the last E that is done are dead letters, whatever files say: a task that
came too late may leave one. Two files may be about one row, if a batch was planned anew with
another end: it is taken once. So what is appended for an E depends on the rows alone, not on files.

The quiver is opened only while that is done. Its lock is also what keeps two drivers apart, if one
has not ended yet when the next one begins. The note says how many rows there were
(`rejected_totals`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.dataflow.base.durable_file import replace_durably
from holdfast.dataflow.source.checkpoint import Checkpoint
from holdfast.dataflow.source.options import SourceOptions
from holdfast.dataflow.source.rejected_stage import (
    LETTER_FIELDS,
    SCHEMA,
    RejectedFileName,
    clear_halves,
    staged_names,
    staging_folder,
)
from holdfast.errors import DirectoryLocked, StaleEpoch
from holdfast.quiver import ColumnExtractor, Quiver, QuiverConfig
from holdfast.quiver.base.bundle import one_batch

SLOT = "events"
# As all dead letters of a pipeline are kept (compiler/places.py).
CONFIG = QuiverConfig(extractors={SLOT: ColumnExtractor("event_time")})
# The approximate size of one bundle.
PART_BYTES = 4 * 1024 * 1024
# Epochs of one end: one for each part.
PARTS_MAX = 1_000_000
# How long to wait for a quiver that another process has open.
FREE_TIMEOUT_S = 10.0
_POLL_S = 0.05
_NOTE_SUFFIX = ".unfit.json"

log = logging.getLogger("holdfast.dataflow")


class RejectedPublisher:
    """Makes dead letters of what the tasks of one stream rejected. One thread."""

    def __init__(self, options: SourceOptions) -> None:
        self._directory = options.unfit
        self._folder = staging_folder(options)
        # Tasks do not make it: where it is not there, they do not share the driver's storage.
        self._folder.mkdir(parents=True, exist_ok=True)
        clear_halves(self._folder)
        self._producer = f"unfit/{options.subscriber}"
        self._note = _RejectedNote(Checkpoint(options.checkpoint), options)

    def publish(self, ends: Mapping[str, int]) -> None:
        """Append all rejected rows of bundles before these, by quiver; free if there are none.

        Raises `DirectoryLocked` if another process has the dead letters open for too long.
        """
        due = [name for name in staged_names(self._folder) if _is_due(name, ends)]
        if not due:
            return
        with _open_when_free(self._directory) as quiver:
            self._note.load()  # another driver may have been here meanwhile
            for quiver_id in sorted({name.quiver_id for name in due}):
                self._publish(quiver, quiver_id, ends[quiver_id])
        for name in due:
            (self._folder / name.file).unlink(missing_ok=True)

    def _publish(self, quiver: Quiver, quiver_id: str, end: int) -> None:
        """Append the letters of one quiver up to an end, after finishing what was begun before.

        What a dead driver had begun goes to its own end, under its own epochs, and only then what
        is new. Appended together, both would have other epochs than before, and the quiver could
        not tell that it has some of the letters already.
        """
        begun = self._note.begun(quiver_id)
        for until in sorted({end if begun is None else begun, end}):
            letters = _Letters(self._folder, quiver_id, self._note.done(quiver_id), until)
            if letters.rows:
                self._note.begin(quiver_id, until)
                self._append(quiver, f"{self._producer}/{quiver_id}", until, letters)
                self._note.finish(quiver_id, until, letters.rows)

    def _append(self, quiver: Quiver, producer: str, end: int, letters: _Letters) -> None:
        for part, rows in enumerate(letters.parts()):
            if not part:
                why = rows.column("error")[0].as_py()
                log.warning("%d rows do not fit and are rejected, first: %s", letters.rows, why)
            with contextlib.suppress(StaleEpoch):  # the parts behind it are there, so it is, too
                quiver.append({SLOT: rows}, producer=producer, epoch=end * PARTS_MAX + part + 1)


class _Letters:
    """The staged letters for some bundles of a quiver, in order, each once."""

    def __init__(self, folder: Path, quiver_id: str, first: int, end: int) -> None:
        found = [name for name in staged_names(folder) if name.quiver_id == quiver_id]
        tables = [_table(folder / name.file) for name in found]
        self._all = pa.concat_tables([*tables, SCHEMA.empty_table()])
        numbers = pa.array(range(self._all.num_rows), pa.int64())
        places = self._all.select(["_seq", "_row"]).append_column("place", numbers)
        places = places.filter((pc.field("_seq") >= first) & (pc.field("_seq") < end))
        once = places.group_by(["_seq", "_row"]).aggregate([("place", "min")])
        order = once.sort_by([("_seq", "ascending"), ("_row", "ascending")])
        self._order = order["place_min"].combine_chunks()

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self._order)

    def parts(self) -> Iterator[pa.RecordBatch]:
        """Yield them in parts of about this many bytes, the same for the same letters.

        Each part has its own epoch. A driver that runs this again must cut at the same places, or a
        part would be taken for one that is there already.
        """
        lengths = (pc.binary_length(self._all[name]) for name in ("error", "row", "payload"))
        sizes = [pc.fill_null(one, 0).cast(pa.int64()).take(self._order) for one in lengths]
        ends = pc.cumulative_sum(reduce(pc.add, sizes))
        numbers = pc.divide(ends, PART_BYTES).to_pylist()
        cuts = [place for place in range(1, self.rows) if numbers[place] != numbers[place - 1]]
        letters = self._all.select([field.name for field in LETTER_FIELDS])
        for first, end in pairwise([0, *cuts, self.rows]):
            yield one_batch(letters.take(self._order.slice(first, end - first)))


def _is_due(name: RejectedFileName, ends: Mapping[str, int]) -> bool:
    return name.end_seq <= ends.get(name.quiver_id, 0)


def _table(path: Path) -> pa.Table:
    with pa.ipc.open_file(pa.py_buffer(path.read_bytes())) as reader:
        return reader.read_all()


def _open_when_free(directory: str) -> Quiver:
    """Open the dead letters; a process that is just ending may still have them open."""
    give_up_s = time.monotonic() + FREE_TIMEOUT_S
    while True:
        try:
            return Quiver.open(directory, CONFIG)
        except DirectoryLocked:
            if time.monotonic() > give_up_s:
                raise
            time.sleep(_POLL_S)


# ------------------------------------------------------------------------------- note


class _RejectedNote:
    """How far rejected rows are dead letters, by quiver: a small file, replaced and synced."""

    def __init__(self, checkpoint: Checkpoint, options: SourceOptions) -> None:
        self._path = checkpoint.notes / f"{options.subscriber}{_NOTE_SUFFIX}"
        self._vertex = options.called
        self._quivers: dict[str, dict[str, int]] = {}

    def load(self) -> None:
        """Read what is there."""
        self._quivers = _read_note(self._path).get("quivers", {})

    def done(self, quiver_id: str) -> int:
        """Return before which bundle all rejected rows are dead letters."""
        return self._quivers.get(quiver_id, {}).get("done", 0)

    def begun(self, quiver_id: str) -> int | None:
        """Return the end up to which letters were being appended, if that may not be done."""
        return self._quivers.get(quiver_id, {}).get("begun")

    def begin(self, quiver_id: str, end: int) -> None:
        """Say that all letters before a bundle are about to be appended."""
        self._write(quiver_id, begun=end)

    def finish(self, quiver_id: str, end: int, rows: int) -> None:
        """Say that they are, and how many that were."""
        rows += self._quivers.get(quiver_id, {}).get("rows", 0)
        self._quivers.get(quiver_id, {}).pop("begun", None)
        self._write(quiver_id, done=end, rows=rows)

    def _write(self, quiver_id: str, **changes: int) -> None:
        self._quivers[quiver_id] = self._quivers.get(quiver_id, {}) | changes
        note = {"vertex": self._vertex, "quivers": self._quivers}
        replace_durably(self._path, json.dumps(note))


def _read_note(path: Path) -> dict[str, Any]:
    """Return a note; without a file nothing was ever rejected."""
    try:
        note: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    return note


def rejected_totals(checkpoint: Path) -> Counter[str]:
    """Return how many rows of a query were ever rejected by its sources, by vertex."""
    totals: Counter[str] = Counter()
    for path in Checkpoint(str(checkpoint)).notes.glob(f"*{_NOTE_SUFFIX}"):
        note = _read_note(path)
        for counted in note.get("quivers", {}).values():
            totals[note["vertex"]] += counted.get("rows", 0)
    return totals


class RejectedCount:
    """How many rows of a query were rejected since a driver began; for the driver, which asks."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self._before = rejected_totals(checkpoint)
        self.by_vertex: Counter[str] = Counter()

    def look(self) -> None:
        """Take in what is new."""
        self.by_vertex = rejected_totals(self._checkpoint) - self._before
