"""What has to be put right in Spark's own files before a query goes on with another plan.

The offset log has a line for each source each time the plan has it, in the order of the plan, and
nothing else says whose it is. A source that was added is a line too few, another way out of the
stream a line that has to be there twice: Spark refuses the one and mixes up the other. So before a
query starts, the newest offsets are written anew as its plan has them. Our own lines say whose they
are (`subscriber`); a source that was not there yet has none, which Spark writes as a dash.

The state of Python reducers is found by the whole path of a file that describes it. A state
directory that was moved, or restored elsewhere, has the old one: that is put right, too.

Hadoop keeps sums beside files on local disks. One that is gone is not compared; so it goes first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.dataflow.durable_file import replace_durably
from holdfast.dataflow.source.checkpoint import Checkpoint
from holdfast.dataflow.source.remembered import forget_start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A source that has no offset yet.
NO_OFFSET = "-"
# Before the lines of the sources: the version, and what Spark says of the batch.
_HEADER_LINES = 2
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


def _replace(path: Path, text: str) -> None:
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    replace_durably(path, text)
