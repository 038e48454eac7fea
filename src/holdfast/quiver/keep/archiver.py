"""Puts sealed segments into an archive, soon after they are sealed, beside everything else.

Retention asks `is_archived` before it removes a segment, and waits for nobody: what is not in the
archive yet stays, and the archiver tells when it is. So an upload holds no lock of the quiver, and
a bucket that is slow or away costs room on this machine, and nothing else.

Which segments are in the archive is known by asking it: once for each that is here when a quiver is
opened, and after each upload. The oldest goes first. When the bucket fails, all wait, longer each
time; a segment that cannot be read here, or that the archive has another of, waits by itself, and
the others go on.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.errors import HoldfastError, NotAllowed, ObjectMissing, StoreUnavailable
from holdfast.quiver.base.config import ArchiveConfig
from holdfast.quiver.segments.archive import ArchiveStopped, SegmentArchive, open_place
from holdfast.quiver.segments.segment import Catalog, Segment
from holdfast.seam import Seam

# How long a close waits for an upload to end by itself. What is left of one is done again later.
CLOSE_WAIT_S = 5.0
# What is wrong with the place, and not with a segment.
_AWAY = (NotAllowed, ObjectMissing, StoreUnavailable)

log = logging.getLogger("holdfast.quiver")


@dataclass(frozen=True)
class ArchiveStatistics:
    """What is in the archive of that which is held here, and what waits for it."""

    # Segments that are here and there, and those that are only here.
    archived_segments: int
    waiting_segments: int
    waiting_bytes: int
    # Since the quiver was opened.
    uploaded_segments: int
    uploaded_bytes: int
    failures: int
    # Removed at the cap although it was not in the archive: `on_full: remove`.
    removed_unarchived: int
    last_error: str | None


class _Pause(NamedTuple):
    """Until when nothing is tried, after so many failures."""

    failures: int = 0
    until_s: float = -math.inf


class Archiver:
    """Threads that upload, and what they know. Safe to use from many threads."""

    def __init__(
        self, seam: Seam, config: ArchiveConfig, archive: SegmentArchive, catalog: Catalog
    ) -> None:
        self.config = config
        self.removed_unarchived = 0
        # Called when a segment may be removed that might not before.
        self.on_archived: Callable[[], None] = lambda: None
        self._seam = seam
        self._archive = archive
        self._catalog = catalog
        self._changed = threading.Condition()
        # Those that wait, of the segments that there were when they were last looked through.
        self._waiting: deque[Segment] = deque()
        self._looked_at: tuple[Segment, ...] | None = None
        # By the names of segments: those in the archive, those on their way, and those that failed.
        self._archived: set[str] = set()
        self._sending: set[str] = set()
        self._pauses: dict[str, _Pause] = {}
        self._pause = _Pause()
        self._closing = False
        self._uploaded_segments = self._uploaded_bytes = self._failures = 0
        self._last_error: str | None = None
        self._threads = [
            threading.Thread(target=self._run, name=f"quiver-archiver-{number}", daemon=True)
            for number in range(config.uploads)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Look again: there may be another segment."""
        with self._changed:
            self._changed.notify()

    def close(self) -> None:
        """End the threads. An upload that does not end soon is left to end by itself."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        deadline_s = self._seam.clock.monotonic_s() + CLOSE_WAIT_S
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline_s - self._seam.clock.monotonic_s()))

    def is_archived(self, segment: Segment) -> bool:
        """Whether a segment is in the archive for good."""
        return segment.path.name in self._archived

    def removed(self, segment: Segment) -> None:
        """Forget a segment that is no longer here; count it if it is nowhere now."""
        with self._changed:
            name = segment.path.name
            self._pauses.pop(name, None)
            if name in self._archived:
                self._archived.discard(name)
                return
            self.removed_unarchived += 1
        log.warning(
            "%s is removed for want of room, and is not in the archive (%s): %s",
            name,
            "segment.archive.on_full is remove",
            self.why_not_yet,
        )

    @property
    def why_not_yet(self) -> str:
        """Why what waits is not in the archive."""
        return self._last_error or "it was not its turn yet"

    def statistics(self) -> ArchiveStatistics:
        """Return a snapshot."""
        segments = self._catalog.snapshot()
        with self._changed:
            waiting = [one for one in segments if one.path.name not in self._archived]
            return ArchiveStatistics(
                len(segments) - len(waiting),
                len(waiting),
                sum(one.summary.size_bytes for one in waiting),
                self._uploaded_segments,
                self._uploaded_bytes,
                self._failures,
                self.removed_unarchived,
                self._last_error,
            )

    # ------------------------------------------------------------------ threads

    def _run(self) -> None:
        try:
            while (segment := self._next()) is not None:
                self._keep(segment)
        except BaseException as error:
            self._last_error = f"the archiver ended: {type(error).__name__}: {error}"

    def _next(self) -> Segment | None:
        """Wait for a segment that is to be sent; None: there will be no other."""
        with self._changed:
            while not self._closing:
                now_s = self._seam.clock.monotonic_s()
                wait_s: float | None = None
                if self._pause.until_s > now_s:
                    wait_s = self._pause.until_s - now_s
                else:
                    segment, wait_s = self._oldest(now_s)
                    if segment is not None:
                        self._sending.add(segment.path.name)
                        return segment
                self._changed.wait(wait_s)
            return None

    def _oldest(self, now_s: float) -> tuple[Segment | None, float | None]:
        """Return the oldest segment that may be tried now, or how long until one may be."""
        segments, wait_s = self._catalog.snapshot(), None
        if segments is not self._looked_at:
            known = self._archived | self._sending
            self._waiting = deque(one for one in segments if one.path.name not in known)
            self._looked_at = segments
        for place, segment in enumerate(self._waiting):
            until_s = self._pauses.get(segment.path.name, _Pause()).until_s
            if until_s <= now_s:
                del self._waiting[place]
                return segment, None
            wait_s = until_s - now_s if wait_s is None else min(wait_s, until_s - now_s)
        return None, wait_s

    def _keep(self, segment: Segment) -> None:
        name = segment.path.name
        try:
            sent = self._archive.keep(segment, lambda: self._closing)
        except Exception as error:
            with self._changed:
                self._sending.discard(name)
                if not self._is_moot(segment, error):
                    self._failed(name, error)
                    self._waiting.appendleft(segment)
            return
        with self._changed:
            self._sending.discard(name)
            self._pauses.pop(name, None)
            self._pause = _Pause()
            if not self._pauses:
                self._last_error = None
            if sent:
                self._uploaded_segments += 1
                self._uploaded_bytes += segment.summary.size_bytes
            if self._is_here(segment):
                self._archived.add(name)
            # Those that paused while the bucket was away.
            self._changed.notify_all()
        self.on_archived()

    def _is_moot(self, segment: Segment, error: Exception) -> bool:
        """Whether an upload was given up because nobody wants it any more."""
        return self._closing or isinstance(error, ArchiveStopped) or not self._is_here(segment)

    def _is_here(self, segment: Segment) -> bool:
        return self._catalog.find(segment.summary.first_seq) is segment

    def _failed(self, name: str, error: Exception) -> None:
        self._failures += 1
        failure = f"{error}" if isinstance(error, HoldfastError) else f"{name}: {error}"
        # A bucket that stays away fails for ever; the log says so once, `last_error` always.
        if failure != self._last_error:
            log.warning("the archive failed, and will be tried again: %s", failure)
        self._last_error = failure
        if isinstance(error, _AWAY):
            self._pause = self._longer(self._pause)
        else:
            self._pauses[name] = self._longer(self._pauses.get(name, _Pause()))

    def _longer(self, pause: _Pause) -> _Pause:
        now_s = self._seam.clock.monotonic_s()
        if pause.until_s > now_s:
            return pause  # another upload failed at the same time
        longest_s = self.config.retry_min_s * 2 ** min(pause.failures, 32)
        # Not all at the same moment, of many that wait for one bucket.
        wait_s = min(longest_s, self.config.retry_max_s) * self._seam.randomness.uniform(0.5, 1.0)
        return _Pause(pause.failures + 1, now_s + wait_s)


def make_archiver(config: ArchiveConfig | None, seam: Seam, catalog: Catalog) -> Archiver | None:
    """Return what keeps segments in an archive, if there is one; it is not asked anything."""
    if config is None:
        return None
    archive = SegmentArchive(open_place(config, seam), seam.disk, seam.reached)
    return Archiver(seam, config, archive, catalog)
