"""The cold tier: what retention takes becomes hourly commits of a file store before it leaves.

A part moves in steps. It is in the node until it is in the store for good, and in both in between;
there is no step at which it is in neither:

    1. verify   every byte: damage is set aside, and never stored
    2. write    its files into chunks of the store, under a job's lease
    3. commit   `nodes/<node_id>/<hour>/<number>`: they are durable, and have a name
    4. seen     the node notes, durably, that it had the part
    5. remove   the part leaves the node

A process that dies after 3 finds the parts in the commit at its next start, and goes on with 4. All
of it is done by the thread that sweeps: a store that is slow, full or away keeps no sender waiting,
and what it does not take stays here.

Files keep their paths, `<quiver_id>/segments/<segment>/<file>`, so what is restored from a commit
can be read like a replica. Several owners of a part store its bytes once: chunks are named by their
content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

from holdfast.node.layout import SEGMENTS_DIR
from holdfast.replica.part import Part, PartId, slices
from holdfast.seam.disk import Disk

if TYPE_CHECKING:  # an extra that a node without a cold tier does not need
    from holdfast.store.filesets import Commits, FileSetWriter
    from holdfast.store.store import Store

_HOUR_NS = 3600 * 10**9
# Of one commit: what a crash may have written for nothing, and how soon the disk is relieved.
COMMIT_PARTS_MAX = 1000
COMMIT_BYTES_MAX = 4 << 30


class ColdPart(NamedTuple):
    """A part that goes into the store."""

    part: Part
    disk: Disk
    folder: PurePath
    # Reads every byte; what is damaged is set aside, and does not go into the store.
    is_sound: Callable[[], bool]

    @property
    def paths(self) -> dict[str, int]:
        """Its files as the store names them, and their sizes."""
        below = f"{self.part.id.quiver_id}/{SEGMENTS_DIR}/{self.part.folder_name}"
        return {f"{below}/{file.name}": file.size_bytes for file in self.part.files}


def hour_of(moment_ns: int) -> int:
    """Return the number of the hour that a moment is in."""
    return moment_ns // _HOUR_NS


def hour_start_ns(hour: int) -> int:
    """Return when an hour began."""
    return hour * _HOUR_NS


class ColdTier:
    """Writes parts into a store, and knows which are there. One thread."""

    def __init__(self, open_store: Callable[[], Store]) -> None:
        """The store is opened when it is first needed, and again after it failed."""
        self._open_store = open_store
        self._store: Store | None = None
        self.commits_total = 0
        self.parts_total = 0
        self.bytes_total = 0

    def keep(
        self, node_id: str, hour: int, parts: Sequence[ColdPart], stopping: Callable[[], bool]
    ) -> list[PartId]:
        """Return which of an hour's parts are in the store for good; what is not is put there.

        Fewer than there are if `stopping` says so meanwhile, or if they are too many for one call.
        Raises whatever is wrong with the store; then nothing is known of them.
        """
        try:
            return self._keep(node_id, hour, parts, stopping)
        except BaseException:
            self.close()
            raise

    def _keep(
        self, node_id: str, hour: int, parts: Sequence[ColdPart], stopping: Callable[[], bool]
    ) -> list[PartId]:
        from holdfast.store.filesets import Commits, FileSetWriter

        if self._store is None:
            self._store = self._open_store()
        commits = Commits(self._store)
        moment = datetime.fromtimestamp(hour_start_ns(hour) / 1e9, UTC)
        prefix = f"nodes/{node_id}/{moment:%Y-%m-%dT%H}/"
        last = commits.last(prefix)  # it also makes good what a publisher that died left
        stored = _stored_files(commits, prefix)
        known = [one.part.id for one in parts if one.paths.items() <= stored.items()]
        new = [one for one in parts if one.part.id not in known]
        new = list(_at_most(new, COMMIT_PARTS_MAX, COMMIT_BYTES_MAX))
        taken = [one for one in new if not stopping() and one.is_sound()]
        if not taken or stopping():
            return known
        number = 0 if last is None else int(last.name.removeprefix(prefix)) + 1
        with self._store.references.open_job(f"data node {node_id}") as job:
            with FileSetWriter(self._store, job) as writer:
                for one in taken:
                    if stopping():
                        return known
                    _write(writer, one)
                layer = writer.close()
            commits.create(job, f"{prefix}{number:06d}", [layer])
        self.commits_total += 1
        self.parts_total += len(taken)
        self.bytes_total += sum(one.part.size_bytes for one in taken)
        return [*known, *(one.part.id for one in taken)]

    def close(self) -> None:
        """Let go of the store."""
        store, self._store = self._store, None
        if store is not None:
            store.close()


def _stored_files(commits: Commits, prefix: str) -> dict[str, int]:
    """Return the files in all commits of an hour, and their sizes."""
    found: dict[str, int] = {}
    for commit in commits.list(prefix):
        with commits.open(commit.name) as files:
            found |= {file.path: file.size_bytes for file in files.files()}
    return found


def _at_most(parts: Sequence[ColdPart], parts_max: int, bytes_max: int) -> Iterator[ColdPart]:
    """Yield the first parts of some that fit into one commit; at least one."""
    size_bytes = 0
    for number, one in enumerate(parts):
        size_bytes += one.part.size_bytes
        if number and (number >= parts_max or size_bytes > bytes_max):
            return
        yield one


def _write(writer: FileSetWriter, one: ColdPart) -> None:
    """Store the files of a part, piece by piece."""
    for path, file in zip(one.paths, one.part.files, strict=True):
        pieces = slices(one.disk, one.folder, replace(one.part, files=(file,)))
        writer.put(path, (piece.data for piece in pieces))
