"""Replay: what the WAL files still hold that no segment covers.

Every file is walked, oldest first. Bundles that a segment covers are skipped, so replaying twice
changes nothing. A file that was left behind counts up to where the next one says (wal.py).

Holes. `synced_through` in the frames, and `previous_synced` in the next file's header, say how far
a file certainly was on stable storage. A hole before that point is damage, and so is an end before
it: the bytes go to quarantine, the missing seqs are reported, and reading goes on at the next sound
frame. A hole beyond it is a torn tail: it was never acknowledged, so it is dropped and only
counted. Sound frames beyond that point are kept: they may have been acknowledged at level
`written`, or on the way to be. They are copied into the next file before anybody sees them.

Transactions. Staged bundles count only with the COMMIT behind them, and only all together. There is
one exception: if a hole that is damage swallowed the COMMIT or some of the bundles, what is sound
is kept, because all of it had been acknowledged. That is so only next to the hole, and only for
frames that were synced: a transaction torn later in the same file was not.

A file is read piece by piece, into one buffer of bounded size (`FileWindow`). What the disk cannot
read is zeros there, which no checksum takes for a frame, and is noted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import NamedTuple

from holdfast.quiver.base.bundle import is_readable
from holdfast.quiver.base.frame import (
    ALIGNMENT_BYTES,
    BUNDLE_KINDS,
    HEADER_BYTES,
    NOTHING,
    STAGED,
    Frame,
    FrameFault,
    FrameKind,
    Totals,
    decode,
    find_next,
)
from holdfast.quiver.base.held_bundle import HeldBundle, OpenFile, Unread, in_memory
from holdfast.quiver.base.identity import unknown_format
from holdfast.quiver.log.group import COUNT
from holdfast.quiver.log.quarantine import Damage
from holdfast.quiver.log.wal import HEADER_BYTES as FILE_HEADER_BYTES
from holdfast.quiver.log.wal import Hole, WalHeader, decode_header
from holdfast.quiver.segments.segment import Catalog
from holdfast.seam.disk import Disk, read_pages

# What is read at once; a larger frame is read as a whole.
WINDOW_BYTES = 1 << 20


class FileWindow:
    """What is seen of a file at the moment, up to `end`."""

    def __init__(self, file: OpenFile, end: int) -> None:
        self.file = file
        self.end = end
        self.unreadable: list[tuple[int, int]] = []
        self.base = 0
        self.view = memoryview(b"")
        self._buffer = bytearray(min(WINDOW_BYTES, end))

    def show(self, offset: int, size_bytes: int) -> None:
        """Have a part of the file in view, as far as the file goes."""
        if self.base <= offset and offset + size_bytes <= self.base + len(self.view):
            return
        size_bytes = min(max(WINDOW_BYTES, size_bytes), self.end - offset)
        if size_bytes > len(self._buffer):
            self._buffer = bytearray(size_bytes)
        self.base, self.view = offset, memoryview(self._buffer)[:size_bytes]
        count, unreadable = self.file.fill(offset, self.view)
        self.unreadable += unreadable
        if count < size_bytes:
            self.view, self.end = self.view[:count], offset + count

    def forget(self) -> None:
        """Have nothing in view, so that what is shown next is read again."""
        self.base, self.view = 0, memoryview(b"")

    @property
    def shown_end(self) -> int:
        """Where the view ends in the file."""
        return self.base + len(self.view)

    def lacks(self, start: int, end: int) -> bool:
        """Whether anything between the two cannot be read."""
        return any(first < end and start < last for first, last in self.unreadable)


def walk_file(window: FileWindow, salt: int) -> Iterator[Frame | Hole]:
    """Yield everything after the header, as `walk` does; payloads are there until the next item.

    A hole is read again when something sound is found behind it. The owner may be writing over an
    old file meanwhile: then the hole was only older than what stands behind it.
    """
    offset = FILE_HEADER_BYTES
    holes: list[Hole] = []
    read_again_at = -1
    while offset < window.end:
        if offset + HEADER_BYTES > window.shown_end:
            window.show(offset, HEADER_BYTES)
        try:
            frame = decode(window.view, offset - window.base, salt, window.base)
        except FrameFault as fault:
            frame_end = offset if fault.frame is None else min(fault.frame.end, window.end)
            if window.shown_end < frame_end:
                window.show(offset, frame_end - offset)
                continue
            if fault.frame is None:
                frame_end = _next_header(window, offset + ALIGNMENT_BYTES, salt)
            holes.append(Hole(offset, frame_end, fault.reason, fault.frame))
            offset = frame_end
        else:
            if holes and holes[0].start > read_again_at:
                offset = read_again_at = holes[0].start
                holes.clear()
                window.forget()
                continue
            yield from holes
            holes.clear()
            yield frame
            offset = frame.end
    yield from holes


def is_begun(window: FileWindow, header: WalHeader) -> bool:
    """Whether the creation of a file was finished: all its copies are there, or more is."""
    if header.recycled_bytes:
        return True  # it has no copies, and had this header before it had this name
    end = FILE_HEADER_BYTES + header.copied_bytes
    if window.end != end:
        return window.end > end
    return all(isinstance(item, Frame) for item in walk_file(window, header.salt))


def _next_header(window: FileWindow, offset: int, salt: int) -> int:
    """Return where the next sound header begins; only a window of the file is in memory."""
    while offset + HEADER_BYTES <= window.end:
        window.show(offset, HEADER_BYTES)
        found = find_next(window.view, offset - window.base, salt, window.base)
        if found is not None:
            return window.base + found
        # The first place whose header is not in view as a whole.
        offset = window.shown_end - HEADER_BYTES
        offset += ALIGNMENT_BYTES - offset % ALIGNMENT_BYTES
    return window.end


UNREADABLE = "the disk cannot read it"

_KINDS = {int(kind): kind for kind in FrameKind}


@dataclass(frozen=True)
class WalContent:
    """One readable WAL file. It is read when it is walked."""

    disk: Disk
    path: PurePath
    header: WalHeader
    size_bytes: int

    def window(self, end: int | None = None) -> FileWindow:
        """Return the file to be walked, up to `end`."""
        return FileWindow(OpenFile(self.disk, self.path), self.size_bytes if end is None else end)

    def read(self) -> memoryview:
        """Return the whole file, with zeros for what the disk cannot read."""
        return read_pages(self.disk, self.path).view


def read_wal_file(disk: Disk, path: PurePath) -> WalContent:
    """Return a WAL file by its header; raises what `decode_header` raises."""
    header = decode_header(read_pages(disk, path, FILE_HEADER_BYTES).view)
    return WalContent(disk, path, header, disk.file_bytes(path))


@dataclass(slots=True)
class _Place:
    """Where in which file the walk is; one for all of a file, because there are many frames."""

    file: WalContent
    # The header that was written when the file was left, if it is there.
    later: WalHeader | None
    items: Sequence[Frame | Hole]
    synced_through: int
    open_file: OpenFile
    # Which of the items have payloads that are not what their kinds say.
    unlike: set[int]
    number: int = 0
    start: int = FILE_HEADER_BYTES

    def neighbours(self) -> tuple[Frame | None, Frame | None]:
        """Return what the headers before and after say; no two holes without one are adjacent."""
        before, after = self.number - 1, self.number + 1
        return (
            _header_of(self.items[before]) if before >= 0 else None,
            _header_of(self.items[after]) if after < len(self.items) else None,
        )


class _Staged(NamedTuple):
    """A bundle that waits for its COMMIT."""

    held: HeldBundle
    synced: bool


@dataclass
class Replay:
    """Walks WAL files and gathers what they still hold."""

    catalog: Catalog
    # Whether payloads are in memory: for who looks from outside, whose files may go meanwhile.
    keeps_payloads: bool = False
    bundles: dict[int, HeldBundle] = field(default_factory=dict)
    damages: list[tuple[WalContent, Damage]] = field(default_factory=list)
    torn_bytes: int = 0
    skipped_bundles: int = 0
    dropped_transactions: int = 0
    last_seq: int = -1
    # The number to go on with, if the newest file ends with a clean shutdown.
    closed_at_seq: int | None = None
    # The number of the newest file, how far it is on stable storage, and what it holds up to there.
    newest: int = 0
    synced_through: int = 0
    synced_holds: Totals = NOTHING
    # The same up to its end, or to the first hole that is no damage.
    sound_through: int = 0
    sound_holds: Totals = NOTHING
    # What stands beyond `synced_through` of any file, by append.
    copied: list[list[HeldBundle]] = field(default_factory=list)
    # Whether it all stands before `sound_through`.
    _copied_is_sound: bool = True
    _torn: bool = False
    _accepted_bundles: int = 0
    _accepted_events: int = 0
    _seen: set[int] = field(default_factory=set)
    _last_in_file: int = -1
    _staged: list[_Staged] = field(default_factory=list)
    # Whether nothing but staged bundles came since a hole that is damage.
    _beside_damage: bool = False
    # Where in `damages` those are whose last seq the next bundle will tell.
    _unended: list[int] = field(default_factory=list)

    def walk_all(self, files: Sequence[WalContent]) -> dict[PurePath, int]:
        """Replay all files in order; return the highest seq each one still holds (-1: none).

        Raises `UnknownFormat` for a sound frame of a kind, or with a flag, that is not known here.
        """
        begun = _begun(files)
        left = {later.header.previous_number: later.header for later in begun}
        self.torn_bytes += sum(f.size_bytes for f in files) - sum(f.size_bytes for f in begun)
        needed = {file.path: -1 for file in files}
        for file in begun:
            needed[file.path] = self._walk(file, left.get(file.header.number))
        return needed

    @property
    def accepted(self) -> Totals:
        """What was ever accepted into these files, damaged or not."""
        return Totals(self._accepted_bundles, self._accepted_events)

    @property
    def trusted(self) -> tuple[int, Totals] | None:
        """How far the newest file may count, and what it holds there, instead of any copies."""
        if not self.copied or not self._copied_is_sound:
            return None
        return self.sound_through, self.sound_holds

    def _walk(self, file: WalContent, later: WalHeader | None) -> int:
        """Take everything from one file; return the highest seq still needed from it, -1 if none.

        `synced_through` is the line between damage and a torn tail. It is the largest that any
        frame, or the next file's header, vouches for: a frame written later knows more than one
        written earlier.
        """
        end = file.size_bytes if later is None else min(file.size_bytes, later.previous_synced)
        window = file.window(end)
        items, unlike = self._items(window, file.header.salt)
        synced = [item.synced_through for item in items if isinstance(item, Frame)]
        synced_through = max([later.previous_synced if later else 0, *synced])
        if synced_through > window.end:
            _note_cut(items, window.end, synced_through)
        self.closed_at_seq = None
        self.newest, self.synced_through = file.header.number, synced_through
        self.sound_through, self._copied_is_sound = window.end, not self.copied
        self._torn = False
        self._last_in_file = -1
        last_synced = last_sound = None
        place = _Place(file, later, items, synced_through, window.file, unlike)
        for place.number, item in enumerate(items):
            if isinstance(item, Frame):
                self._take(item, place)
                if item.end <= synced_through:
                    last_synced = item
                if item.end <= self.sound_through:
                    last_sound = item
            elif item.start < synced_through:
                self._damage(item, place)
            elif _is_unused(item, window, place):
                self.sound_through = min(self.sound_through, item.start)
            else:
                self.torn_bytes += item.end - item.start
                self.sound_through = min(self.sound_through, item.start)
                self._torn = True
                self.closed_at_seq = None
                if window.lacks(item.start, item.end):
                    self._damage(item, place)  # no power cut leaves that
            place.start = item.end
        self.synced_holds = last_synced.after if last_synced else NOTHING
        self.sound_holds = last_sound.after if last_sound else NOTHING
        self._end_run()
        return self._last_in_file

    def _items(self, window: FileWindow, salt: int) -> tuple[list[Frame | Hole], set[int]]:
        """Return what a file holds, and which of its payloads are not what their kinds say."""
        items: list[Frame | Hole] = []
        unlike: set[int] = set()
        for item in walk_file(window, salt):
            if isinstance(item, Hole):
                if self.keeps_payloads:
                    window.file.check_name()
                if window.lacks(item.start, item.end):
                    item = replace(item, reason=UNREADABLE)  # noqa: PLW2901
            elif item.kind in BUNDLE_KINDS and not is_readable(item.kind, item.payload):
                unlike.add(len(items))
            elif item.kind == FrameKind.COMMIT or (
                self.keeps_payloads and not self.catalog.covers(item.seq)
            ):
                item = item._replace(payload=memoryview(bytes(item.payload)))  # noqa: PLW2901
            items.append(item)
        return items, unlike

    # ------------------------------------------------------------------ frames

    def _take(self, frame: Frame, place: _Place) -> None:
        """Take one sound frame.

        An unknown kind or flag is data of a newer program: never skip it.
        """
        kind = frame.kind
        if frame.flags & ~STAGED:
            raise unknown_format(place.file.path, f"a frame with flags {frame.flags:#04x}")
        if kind in BUNDLE_KINDS:
            self._take_bundle(frame, place)
        elif kind == FrameKind.COMMIT:
            self._commit(frame, place)
        elif kind == FrameKind.CLOSE:
            self._end_run()
            self.closed_at_seq = frame.seq
        else:
            raise unknown_format(place.file.path, f"a frame of kind {kind}")

    def _take_bundle(self, frame: Frame, place: _Place) -> None:
        """Take a bundle, or stage it if it belongs to a transaction."""
        if place.number in place.unlike:
            reason = "the payload is not what its kind says"
            self._damage(Hole(place.start, frame.end, reason, frame), place)
            return
        if self._unended:
            self._end_damages(frame.seq - 1)
        self.last_seq = max(self.last_seq, frame.seq)
        held = self._held(frame, place)
        if frame.flags & STAGED:
            synced = frame.end <= place.synced_through
            self._staged.append(_Staged(held, synced))
            return
        self._end_run()
        self._accept([held], synced=frame.end <= place.synced_through)

    def _held(self, frame: Frame, place: _Place) -> HeldBundle:
        """Return the bundle of a frame.

        Its payload stays in the file unless a caller wants it now.
        """
        payload: memoryview | Unread = frame.payload
        if not self.keeps_payloads:
            salt, size_bytes = place.file.header.salt, len(frame.payload)
            payload = Unread(place.open_file, salt, place.start, frame.end, size_bytes)
        return HeldBundle(
            frame.seq,
            _KINDS[frame.kind],
            frame.ingestion_ns,
            frame.watermark_ns,
            frame.producer,
            frame.epoch,
            frame.events,
            payload,
        )

    def _accept(self, bundles: Sequence[HeldBundle], *, synced: bool) -> None:
        """Keep bundles that are new. Those not certainly synced are copied into the next file."""
        fresh = [held for held in bundles if self._is_fresh(held)]
        if fresh and not synced:
            fresh = in_memory(fresh)
            self.bundles.update({held.seq: held for held in fresh})
            self.copied.append(fresh)
            self._copied_is_sound &= not self._torn

    def _is_fresh(self, held: HeldBundle) -> bool:
        """Count a bundle, once per seq.

        Return whether neither a segment nor an earlier frame has it.
        """
        if held.seq not in self._seen:
            self._seen.add(held.seq)
            self._accepted_bundles += 1
            self._accepted_events += held.events
        if held.seq in self.bundles or self.catalog.covers(held.seq):
            self.skipped_bundles += 1
            return False
        self.bundles[held.seq] = held
        self._last_in_file = max(self._last_in_file, held.seq)
        return True

    # ------------------------------------------------------------ transactions

    def _commit(self, frame: Frame, place: _Place) -> None:
        """End a transaction: its bundles count if all of them are here."""
        (count,) = COUNT.unpack_from(frame.payload)
        members = [staged for staged in self._staged if staged.held.seq > frame.seq - count]
        if len(members) == count:
            # Whatever else is staged belongs to a transaction whose own COMMIT is missing.
            self._staged = self._staged[:-count]
        self._end_run()
        if len(members) == count:
            synced = frame.end <= place.synced_through
            self._accept([staged.held for staged in members], synced=synced)

    def _end_run(self) -> None:
        """Decide about staged bundles that lack their COMMIT, or some of their company."""
        if not self._staged:
            self._beside_damage = False
            return
        kept = [staged for staged in self._staged if self._beside_damage and staged.synced]
        self._accept([staged.held for staged in kept], synced=True)
        if len(kept) < len(self._staged):
            self.dropped_transactions += 1
        self._staged = []
        self._beside_damage = False

    # ------------------------------------------------------------------- holes

    def _damage(self, hole: Hole, place: _Place) -> None:
        """Note a hole, with the seqs it may have held and the number of bundles it swallowed."""
        self._beside_damage = True
        frame = hole.frame
        first_seq, last_seq = self.last_seq + 1, None
        if frame is not None:
            first_seq = last_seq = frame.seq
            start, end = frame.before, frame.after
        else:
            previous, following = place.neighbours()
            start = previous.after if previous else NOTHING
            end = place.later.previous_holds if place.later else start
            if following is not None:
                end, last_seq = following.before, max(first_seq, _last_before(following))
        lost = Totals(max(0, end.bundles - start.bundles), max(0, end.events - start.events))
        unknown = hole.reason == UNREADABLE and hole.start >= place.synced_through
        if lost == NOTHING and not unknown:
            return  # a COMMIT, or the mark of a clean end
        self._accepted_bundles += lost.bundles
        self._accepted_events += lost.events
        if last_seq is None:
            self._unended.append(len(self.damages))
        damage = Damage(
            source=place.file.path.name,
            reason=hole.reason,
            offset=hole.start,
            size_bytes=hole.end - hole.start,
            first_seq=first_seq,
            last_seq=last_seq,
            bundles=None if lost == NOTHING else lost.bundles,
            events=None if lost == NOTHING else lost.events,
        )
        self.damages.append((place.file, damage))
        if last_seq is not None:
            self.last_seq = max(self.last_seq, last_seq)

    def _end_damages(self, last_seq: int) -> None:
        """Give damages with an open end their last seq: the one before the next sound bundle."""
        for place in self._unended:
            file, damage = self.damages[place]
            assert damage.first_seq is not None
            ended = replace(damage, last_seq=max(damage.first_seq, last_seq))
            self.damages[place] = file, ended
        self._unended.clear()

    def real_damages(self) -> list[tuple[WalContent, Damage]]:
        """Return the damages that cost something, with the seqs that exist nowhere else."""
        narrowed = [(file, self._narrowed(damage)) for file, damage in self.damages]
        return [(file, damage) for file, damage in narrowed if damage is not None]

    def _narrowed(self, damage: Damage) -> Damage | None:
        """Return the damage without the seqs that are stored elsewhere too.

        None if none are left.
        """
        first, last = damage.first_seq, damage.last_seq
        assert first is not None
        if damage.bundles is None:
            return damage  # nothing tells what was there
        known_last = first + damage.bundles - 1 if last is None else last
        missing = self._next_missing(first, known_last)
        if missing is None:
            return None
        if last is not None:
            last = self._last_missing(missing, last)
        return replace(damage, first_seq=missing, last_seq=last)

    def _next_missing(self, seq: int, last: int) -> int | None:
        while seq <= last:
            segment = self.catalog.find(seq)
            if segment is not None:
                seq = segment.summary.last_seq + 1
            elif seq in self.bundles:
                seq += 1
            else:
                return seq
        return None

    def _last_missing(self, first: int, seq: int) -> int:
        while seq > first:
            segment = self.catalog.find(seq)
            if segment is not None:
                seq = segment.summary.first_seq - 1
            elif seq in self.bundles:
                seq -= 1
            else:
                break
        return max(first, seq)


def _begun(files: Sequence[WalContent]) -> list[WalContent]:
    """Return the files that count. One that does not is followed by none, and follows another."""
    followed = {file.header.previous_number for file in files}
    single = {file.header.number for file in files} - followed
    return [
        file
        for file in files
        if file.header.number not in single
        or file.header.previous_number not in single | followed
        or is_begun(file.window(), file.header)
    ]


def _is_unused(hole: Hole, window: FileWindow, place: _Place) -> bool:
    """Whether a hole is what the file that was written over held there, as far as can be told.

    It begins where the next group would, and ends where the old file did: nothing was appended
    beyond. A group that is torn before its first header looks the same; it was never acknowledged.
    What the disk cannot read there may have been.
    """
    recycled_bytes = place.file.header.recycled_bytes
    if place.later is not None or hole.end != window.end or hole.end != recycled_bytes:
        return False
    return hole.frame is None and not window.lacks(hole.start, hole.start + HEADER_BYTES)


def _note_cut(items: list[Frame | Hole], end: int, synced_through: int) -> None:
    """Add the hole between the end of a file and where it once was synced to."""
    last = items[-1] if items else None
    if isinstance(last, Hole) and last.frame is None:
        items[-1] = replace(last, end=synced_through)
    else:
        items.append(Hole(end, synced_through, "the file is cut short", None))


def _header_of(item: Frame | Hole) -> Frame | None:
    return item if isinstance(item, Frame) else item.frame


def _last_before(following: Frame) -> int:
    """Return the highest seq that can stand before this frame."""
    return following.seq if following.kind == FrameKind.COMMIT else following.seq - 1
