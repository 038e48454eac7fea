"""What has to be put right in Spark's own files before a query goes on with another plan.

The offset log has a line for each source each time the plan has it, in the order of the plan, and
nothing else says whose it is. A source that was added is a line too few, another way out of the
stream a line that has to be there twice: Spark refuses the one and mixes up the other. So before a
query starts, the newest offsets are written anew as its plan has them. Our own lines say whose they
are (`subscriber`); a source that was not there yet has none, which Spark writes as a dash.

The state of Python reducers is found by the whole path of a file that describes it. A state
directory that was moved, or restored elsewhere, has the old one: that is put right, too.

A reduce whose results are used in one more place is one more operator for Spark. It begins with a
copy of the state, and sees the same rows from then on. The files of a state never change, so a copy
is links to them. A note says that there is one until the plan file has it, too.

Hadoop keeps sums beside files on local disks. One that is gone is not compared; so it goes first.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.dataflow.durable_file import replace_durably, sync_folder
from holdfast.dataflow.source.checkpoint import Checkpoint
from holdfast.dataflow.source.remembered import forget_start
from holdfast.dataflow.source.trimming import FOLDER

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
            mended = _SCHEMA_PATH.sub(lambda found: place + found[1], text)
            if mended != text:
                _replace(path, mended)


def copy_state(folder: Path, known: int, number: int) -> None:
    """Let an operator begin with the state of another one."""
    state, fresh = folder / "state", folder / FOLDER / f"state-{number}"
    if not (state / str(known)).is_dir():
        return  # it never ran
    note = folder / FOLDER / f"{_COPIED}{number}"
    note.parent.mkdir(exist_ok=True)
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(state / str(known), fresh, copy_function=_link_or_copy)
    for path in fresh.glob("_metadata/**/*"):
        if path.is_file() and not path.name.endswith(".crc"):
            told = path.read_text("utf-8").replace(f"/state/{known}/", f"/state/{number}/")
            _replace(path, re.sub(rf'"operatorId":{known}\b', f'"operatorId":{number}', told))
    for path in (fresh, *fresh.rglob("*")):
        if path.is_dir():
            sync_folder(path)
    note.touch()
    sync_folder(note.parent)
    shutil.rmtree(state / str(number), ignore_errors=True)
    os.rename(fresh, state / str(number))
    sync_folder(state)


def settle_copies(folder: Path, operators: int) -> None:
    """Remove copies of states that no plan file tells of: whoever made them was killed."""
    for note in folder.glob(f"{FOLDER}/{_COPIED}*"):
        number = int(note.name.removeprefix(_COPIED))
        if number >= operators:
            shutil.rmtree(folder / "state" / str(number), ignore_errors=True)
        note.unlink()


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _replace(path: Path, text: str) -> None:
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    replace_durably(path, text)
