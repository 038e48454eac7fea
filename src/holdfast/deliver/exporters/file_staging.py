"""Between a send and a complete file: events are durable in a journal, and each is kept once.

A send appends its events to the open journal and syncs it; then they are delivered. When the
journal is large or old enough, its events are written as complete files, the next journal is begun,
and the old one is removed. So files have a useful size however slowly events come, an event is
answered after one sync, and nobody who reads the directory ever sees half a file.

A crash leaves a journal behind. At the next start its events are published. What was appended, but
not yet acknowledged to the quiver, is then sent again: a journal *remembers* the identities of its
events and of the last ones before it, and each of those is passed over once. Therefore the order of
steps when a journal ends is: files, next journal (which remembers), remove the old one. At every
point between them either the old journal is still the newest one, and publishing it again gives the
same files under the same names, or the next one is, and older ones are known to be published.

A journal whose append failed is sealed: what is behind its last sound byte was never answered, and
a descriptor whose sync failed is not to be trusted again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import PurePath

from holdfast.deliver.exporters.complete_file import TEMPORARY, make_dirs
from holdfast.deliver.exporters.file_journal import (
    NOTHING,
    Contents,
    FileJournal,
    JournalIdentity,
    Records,
    name_of,
    number_of,
    read_journal,
)
from holdfast.deliver.exporters.file_publishing import Publisher
from holdfast.seam.clock import Clock
from holdfast.seam.disk import Disk, Handle, read_pages, write_all

# Identities that outlive their journal. More than can be under way at once.
REMEMBERED_MAX = 16_384

LOCK = "lock"
DAMAGED = ".damaged"

log = logging.getLogger("holdfast.deliver")


@dataclass(frozen=True)
class FileLimits:
    """When a journal becomes files; whichever comes first."""

    max_file_bytes: int
    max_file_events: int
    max_file_age_s: float


class FileStaging:
    """The journals of one exporter and one quiver. All calls block, and may raise OSError."""

    def __init__(
        self, disk: Disk, clock: Clock, folder: PurePath, publisher: Publisher, limits: FileLimits
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._folder = folder
        self._publisher = publisher
        self._limits = limits
        self._lock: Handle | None = None
        self._journal: FileJournal | None = None
        self._number = 0
        self._newest = 0
        self._began_at_s = 0.0

    def check(self) -> None:
        """Fail if no files can be written."""
        self._publisher.check()

    def open(self, owner: str) -> set[JournalIdentity]:
        """Take over what was left behind; return the events that may be sent once more.

        Raises `LockHeld` if another process is at work here.
        """
        make_dirs(self._disk, self._folder)
        self._lock = self._disk.lock(self._folder / LOCK, owner)
        try:
            left = self._left_behind()
            known = left.newest_identities(REMEMBERED_MAX)
            if left.damaged:
                self._set_aside()
            self._publish(left.records)
            self._begin(known)
        except BaseException:
            self.release()
            raise
        return set(known)

    def append(self, frames: list[bytes]) -> None:
        """Make events durable; before that, turn a journal that is full or failed into files."""
        assert self._journal is not None, "BUG: the staging folder is not open"
        # Also when it is only old enough: while files cannot be written, nothing more is taken.
        if self._journal.sealed or self.due_in_s() == 0.0:
            self.publish()
        if self._journal.events == 0:
            self._began_at_s = self._clock.monotonic_s()
        self._journal.append(frames)

    @property
    def is_full(self) -> bool:
        """Whether the journal is large enough to become files."""
        journal, limits = self._journal, self._limits
        return journal is not None and (
            journal.events >= limits.max_file_events or journal.sound_bytes >= limits.max_file_bytes
        )

    def due_in_s(self) -> float | None:
        """Return how long until the journal has to become files; None if it is empty."""
        if self._journal is None or self._journal.events == 0:
            return None
        if self._journal.sealed or self.is_full:
            return 0.0
        age_s = self._clock.monotonic_s() - self._began_at_s
        return max(0.0, self._limits.max_file_age_s - age_s)

    def publish_if_due(self) -> None:
        """Turn the journal into files if that has not happened meanwhile."""
        if self.due_in_s() == 0.0:
            self.publish()

    def publish(self) -> None:
        """Turn the journal into files, and begin the next one."""
        journal = self._journal
        assert journal is not None, "BUG: the staging folder is not open"
        # From here on it must not change: its content makes the files' names.
        journal.sealed = True
        # Read back from disk: memory holds no events between sends, and what the files are made of
        # is exactly what a start after a crash would make them of. Never behind `sound_bytes`: a
        # failed append was not answered, and its events come again. Cut off before the first file
        # appears: a start that found them would make one file more, of other events and so under
        # another name, of those that are in a file already.
        journal.cut()
        contents = read_journal(self._disk, journal.path, journal.sound_bytes)
        assert contents is not None, "BUG: a journal without its first frame"
        self._publish(contents.records)
        self._begin(contents.newest_identities(REMEMBERED_MAX))

    def close(self, in_doubt: set[JournalIdentity]) -> None:
        """Publish what is there, and remember only the events whose answer nobody heard."""
        journal = self._journal
        if journal is not None:
            if journal.events:
                self.publish()
                journal = self._journal
            # Durable, although nobody heard so: these will be sent again, and the next start must
            # know them. Everything else was answered for, and need not be remembered.
            if in_doubt:
                self._begin(sorted(in_doubt))
            elif journal is not None:
                self._disk.unlink(journal.path, "files.journal.unlink")
        self.release()

    def release(self) -> None:
        """Let go of files and lock; everything stays as a crash would leave it."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        if self._lock is not None:
            self._disk.unlock(self._lock)
            self._lock = None

    def _left_behind(self) -> Contents:
        """Return what the newest sound journal holds; older ones are published."""
        numbers = [number_of(entry.name) for entry in self._disk.list(self._folder)]
        for number in sorted((n for n in numbers if n is not None), reverse=True):
            self._number = max(self._number, number)
            contents = read_journal(self._disk, self._path(number))
            # A journal without its first frame was cut off by a crash in `_begin`, before anything
            # was removed: the one before it, if there was any, still holds everything.
            if contents is not None:
                self._newest = number
                return contents
        return NOTHING

    def _set_aside(self) -> None:
        """Keep a copy of a damaged journal; its sound events are still published."""
        path = self._path(self._newest)
        aside = path.with_name(path.name + DAMAGED)
        log.error(
            "the journal %s is damaged; its sound records are used, the damaged file is kept as %s",
            path,
            aside,
        )
        if self._disk.exists(aside):
            return
        # Written under another name first: a copy that a crash cut off would be taken for the
        # whole one at the next start, and the journal itself is removed after that.
        temporary = aside.with_name(aside.name + TEMPORARY)
        if self._disk.exists(temporary):
            self._disk.unlink(temporary, "files.aside.unlink")
        handle = self._disk.create(temporary, "files.aside.create")
        try:
            write_all(self._disk, handle, [read_pages(self._disk, path).view], "files.aside.write")
            self._disk.sync(handle, "files.aside.sync")
        finally:
            self._disk.close(handle)
        # Durable with the next journal's name, which is before the damaged one goes.
        self._disk.rename(temporary, aside, "files.aside.rename")

    def _publish(self, records: Records) -> None:
        if len(records):
            self._publisher.publish(records, self._folder)
            removed = self._publisher.remove_oldest()
            if removed:
                log.warning("removed %d files, the oldest, for `max_total_size`", len(removed))

    def _begin(self, remembered: list[JournalIdentity]) -> None:
        """Begin the next journal, and remove all others."""
        self._number += 1
        journal = FileJournal(self._disk, self._path(self._number), remembered)
        try:
            self._disk.sync_dir(self._folder, "files.journal.sync_dir")
        except OSError:
            journal.close()
            raise
        if self._journal is not None:
            self._journal.close()
        self._journal = journal
        # Only now that the new journal's name is durable: removed earlier, a crash would leave
        # neither of them, and events that are sent again would be in the files twice.
        for entry in self._disk.list(self._folder):
            is_older = number_of(entry.name) not in (None, self._number)
            if is_older or entry.name.endswith(TEMPORARY):
                self._disk.unlink(self._folder / entry.name, "files.journal.unlink")

    def _path(self, number: int) -> PurePath:
        return self._folder / name_of(number)
