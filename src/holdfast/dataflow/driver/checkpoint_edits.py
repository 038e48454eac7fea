"""What has to be settled on disk before an edited pipeline goes on with another plan.

The offset log has a line for each source each time the plan has it, in the order of the plan, and
nothing else says whose it is. A source that was added is a line too few, another way out of the
stream a line that has to be there twice: Spark refuses the one and mixes up the other. So before a
query starts, the newest offsets are rewritten as its plan has them. Our own lines say whose they
are (`subscriber`); a source that was not there yet has none, which Spark writes as a dash.

The state of Python reducers is found by the whole path of a file that describes it. A state
directory that was moved, or restored elsewhere, has the old one: that is put right, too.

A reduce whose results are used in one more place is one more operator for Spark. It begins with a
copy of the state, and sees the same rows from then on. The files of a state never change, so a copy
is links to them. A note says that there is one until the plan file has it, too.

Hadoop keeps sums beside files on local disks. One that is gone is not compared; so it goes first.

First it is checked that no rows would be left behind (`leftovers`). A retry lane that was taken
away may have rows in it, and so may a quiver between two queries that are one now, or gone. So may
one that is still there, for a vertex that would be in another query: it reads under another name
then, and begins with what comes. They are looked at before anything starts: rows are never left
behind without a word. A batch that was begun is finished by the same sinks and the same sources.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.dataflow.base.durable_file import replace_durably, sync_folder
from holdfast.dataflow.compiler.places import SINK_CONFIG, Places, subscriber
from holdfast.dataflow.compiler.plan import Output, Plan
from holdfast.dataflow.compiler.recorded import RecordedPlan, RecordedQuery
from holdfast.dataflow.source.checkpoint import Checkpoint
from holdfast.dataflow.source.notes import forget_start
from holdfast.quiver import Quiver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A source that has no offset yet.
NO_OFFSET = "-"
# Before the lines of the sources: the version, and what Spark says of the batch.
_HEADER_LINES = 2
_COPIED = "copied-state-"
_SCHEMA_PATH = re.compile(r'"file:[^"]*/state/(\d+/_stateSchema/)')


def subscribers_of(frame: DataFrame) -> list[str]:
    """Return the subscribers of a stream, each time that its plan has them, in Spark's order."""
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    streams = [leaves.apply(number) for number in range(leaves.size())]
    return [str(one.extraOptions().get("subscriber")) for one in streams if one.isStreaming()]


def arrange_offsets(folder: Path, subscribers: Sequence[str]) -> None:
    """Let the offset log of a query have its sources as the plan has them."""
    checkpoint = Checkpoint(str(folder))
    newest = checkpoint.last_planned()
    # The newest may have to be run again: then the one before says where it begins.
    for batch in () if newest is None else (newest - 1, newest):
        path = folder / "offsets" / str(batch)
        if not path.exists():
            continue
        lines = path.read_text("utf-8").split("\n")
        known = {
            json.loads(line)["subscriber"]: line
            for line in lines[_HEADER_LINES:]
            if line.strip() not in ("", NO_OFFSET)
        }
        if batch == newest:
            # One that was there before, and comes again, begins where its subscriber is now.
            for one in {*subscribers} - {*known}:
                forget_start(checkpoint, one)
        arranged = [known.get(one, NO_OFFSET) for one in subscribers]
        if arranged != [line for line in lines[_HEADER_LINES:] if line]:
            _replace(path, "\n".join((*lines[:_HEADER_LINES], *arranged)))


def mend_moved(folder: Path) -> None:
    """Let the states of Python reducers be found where the checkpoint is now."""
    place = f'"file:{folder}/state/'
    for path in folder.glob("state/*/_metadata/v2/*"):
        if path.name.isdigit():
            text = path.read_text("utf-8")
            moved = _SCHEMA_PATH.sub(lambda found: place + found[1], text)
            if moved != text:
                _replace(path, moved)


def copy_state(folder: Path, known: int, number: int) -> None:
    """Let an operator begin with the state of another one.

    The copy is made aside and renamed, with a note before the rename: what a killed driver leaves
    is either unfinished and made again, or whole and known by its note.
    """
    state, notes = folder / "state", Checkpoint(str(folder)).notes
    fresh, note = notes / f"state-{number}", notes / f"{_COPIED}{number}"
    if not (state / str(known)).is_dir():
        return  # it never ran
    note.parent.mkdir(exist_ok=True)
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(state / str(known), fresh, copy_function=_link_or_copy)
    for path in fresh.glob("_metadata/**/*"):
        if path.is_file() and not path.name.endswith(".crc"):
            text = path.read_text("utf-8").replace(f"/state/{known}/", f"/state/{number}/")
            _replace(path, re.sub(rf'"operatorId":{known}\b', f'"operatorId":{number}', text))
    for path in (fresh, *fresh.rglob("*")):
        if path.is_dir():
            sync_folder(path)
    note.touch()
    sync_folder(note.parent)
    shutil.rmtree(state / str(number), ignore_errors=True)
    os.rename(fresh, state / str(number))
    sync_folder(state)


def settle_copies(folder: Path, operators: int) -> None:
    """Remove copies of states that no plan file names: the driver that made them was killed."""
    for note in Checkpoint(str(folder)).notes.glob(f"{_COPIED}*"):
        number = int(note.name.removeprefix(_COPIED))
        if number >= operators:
            shutil.rmtree(folder / "state" / str(number), ignore_errors=True)
        note.unlink()


def _link_or_copy(source: str, target: str) -> None:
    """Link a file of a state, which never changes; copy it where the disk has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _replace(path: Path, text: str) -> None:
    """Replace a file of Spark's, without the checksum that would no longer be right."""
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    replace_durably(path, text)


log = logging.getLogger("holdfast.dataflow")


def leftovers(plan: Plan, recorded: RecordedPlan, places: Places) -> Iterator[str]:
    """Yield what would be left behind: rows in lanes and buffers that the plan no longer reads."""
    written = {str(output) for query in plan.queries for output in query.writes}
    for query in recorded.queries:
        now = next((one for one in plan.queries if one.name == query.name), None)
        folder = places.state_dir / query.name
        if query.has_lane and (now is None or not now.has_lane):
            rows = sum(_unread(folder / "lane" / part) for part in ("waiting", "due"))
            if rows:
                yield f"{rows} rows wait in the retry lane of {query.name}, which was removed"
        for output in query.writes:
            if output not in written and (rows := _unread(_buffer(places, output))):
                yield f"{rows} rows of {output} wait for a query that was removed"
        for output in query.reads:
            if output in written:
                yield from _unread_by(plan, recorded, query, output, places)
        yield from _unfinished(plan, query, folder)


def _unread_by(
    plan: Plan, recorded: RecordedPlan, query: RecordedQuery, output: str, places: Places
) -> Iterator[str]:
    """Yield the rows of a quiver between two queries that a reader of it would no longer read."""
    targets = {target for source, target in recorded.edges if source == output}
    moved = [
        plan.name_of(name)
        for name in query.vertices
        if name in targets & plan.pipeline.vertices.keys()
        and plan.query_of(name).name != query.name
    ]
    now = next((one for one in plan.queries if one.name == query.name), None)
    if not moved and now is not None and output in map(str, now.reads):
        return
    if rows := _unread(_buffer(places, output), subscriber(plan.name, f"{query.name}.{output}")):
        whose = f"{', '.join(moved)} in {query.name}" if moved else query.name
        yield (
            f"{rows} rows of {output} wait for {whose}, which would no longer read them: "
            "run it once with the file as it was"
        )


def _unfinished(plan: Plan, query: RecordedQuery, folder: Path) -> Iterator[str]:
    """Yield what would end a batch in another way than it was begun."""
    gone = [name for name in query.sources if name not in plan.pipeline.vertices]
    for name in gone:
        log.warning(
            "%s was removed from the file; what it did not read stays in its quivers, held by the "
            "subscriber %s.%s", name, plan.name, name,
        )  # fmt: skip
    checkpoint = Checkpoint(str(folder / "checkpoint"))
    if checkpoint.last_planned() == checkpoint.last_committed():
        return
    moved = [
        name
        for name in query.vertices
        if name in plan.pipeline.vertices
        and plan.pipeline.vertices[name].kind == "sink"
        and plan.query_of(name).name != query.name
    ]
    if gone or moved:
        yield (
            f"a batch with {', '.join((*gone, *moved))} was started and not finished: "
            "run it once with the file as it was"
        )


def _buffer(places: Places, output: str) -> Path:
    """Return where an output that is named in a plan file is kept."""
    vertex, _, port = output.partition(".")
    return places.buffer(Output(vertex, port))


def _unread(folder: Path, reader: str | None = None) -> int:
    """Return how many rows of a quiver wait for one of its readers, or for the slowest of all."""
    if not folder.exists():
        return 0
    with Quiver.open(folder, SINK_CONFIG) as quiver:
        readers = [name for name in quiver.subscribers() if reader in (None, name)]
        pending = [quiver.balance(name).pending.events for name in readers]
        return max(pending, default=0)
