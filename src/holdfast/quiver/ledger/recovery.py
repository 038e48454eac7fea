"""Reading the ledger back: the newest sound checkpoint, and every sound line after it.

Three kinds of missing lines have to be told apart, because only one of them is harmless:

    torn       behind the last sync of the last file: a power cut leaves that. The outcomes are
               forgotten and what they resolved is delivered again, as at-least-once allows
    damaged    before a point that a later line knew to be synced: the disk lost what it had
               promised to keep, and the start says so
    missing    a whole file, named as its successor by the one before it: also damage

Every line records how far its file was synced when it was written (`synced_through`), which is
what separates the first kind from the second without any state outside the file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from holdfast.errors import UnknownFormat
from holdfast.quiver.base import names
from holdfast.quiver.base.frame import Frame
from holdfast.quiver.base.identity import unknown_format
from holdfast.quiver.ledger.ledger import LedgerState
from holdfast.quiver.ledger.log import (
    CONTINUED,
    LedgerContent,
    LineKind,
    decode_resolutions,
    read_ledger_file,
)
from holdfast.quiver.log.quarantine import Damage
from holdfast.quiver.log.replay import UNREADABLE
from holdfast.quiver.log.wal import BLOCK_BYTES, HeaderFault, Hole, NewerVersion
from holdfast.seam.disk import DirEntry, Disk

_FORGOTTEN = "outcomes in it are forgotten, and what they resolved comes again"


@dataclass
class RecoveredLedger:
    """The state, and what was found on the way."""

    state: LedgerState
    next_number: int = 1
    # Path, time it was begun, size.
    files: list[tuple[PurePath, int, int]] = field(default_factory=list)
    # The last file that can be read.
    last: LedgerContent | None = None
    # The same, if it holds everything and is not damaged.
    newest: LedgerContent | None = None
    replayed_lines: int = 0
    # Ledger files that cannot be read, with the reason.
    unreadable: list[tuple[PurePath, str]] = field(default_factory=list)
    # Files whose beginning was interrupted; they never held anything.
    interrupted: list[PurePath] = field(default_factory=list)
    # Lines that do not match their checksum, before the end of a file.
    damages: list[Damage] = field(default_factory=list)
    # Lines that a power cut may have left: they were not synced.
    torn_bytes: int = 0

    @property
    def damaged_bytes(self) -> int:
        """Bytes of damaged lines."""
        return sum(damage.size_bytes for damage in self.damages)


def refuse_newer(disk: Disk, directory: PurePath) -> None:
    """Raise if a newer program wrote a file, before anything was touched because of others."""
    for entry in disk.list(directory):
        try:
            read_ledger_file(disk, directory / entry.name)
        except NewerVersion as newer:
            raise _unknown_version(directory / entry.name, newer) from None
        except (OSError, HeaderFault):
            continue  # a matter of recovery


def _unknown_version(path: PurePath, newer: NewerVersion) -> UnknownFormat:
    return unknown_format(path, f"ledger {newer}")


def recover_ledger(disk: Disk, directory: PurePath, own_ids: set[str]) -> RecoveredLedger:
    """Return the state of the ledger in a directory."""
    recovered = RecoveredLedger(LedgerState({}))
    contents: list[LedgerContent] = []
    entries = disk.list(directory)
    for entry in entries:
        path, number = directory / entry.name, names.parse_ledger_file(entry.name)
        if number is None:
            recovered.unreadable.append((path, "not a ledger file's name"))
            continue
        recovered.next_number = max(recovered.next_number, number + 1)
        try:
            content = read_ledger_file(disk, path)
        except NewerVersion as newer:
            raise _unknown_version(path, newer) from None
        except HeaderFault as fault:
            # The header is synced alone before anything follows it. So a file no longer than that
            # never held a line, and a longer one without a header did.
            if entry.size_bytes <= BLOCK_BYTES:
                recovered.interrupted.append(path)
                recovered.torn_bytes += entry.size_bytes
            else:
                recovered.unreadable.append((path, str(fault)))
            continue
        except OSError as error:
            recovered.unreadable.append((path, str(error)))
            continue
        if content.header.quiver_id not in own_ids:
            recovered.unreadable.append((path, f"a ledger of {content.header.quiver_id}"))
            continue
        contents.append(content)
        recovered.files.append((path, content.header.created_ns, entry.size_bytes))
    named = _replay(recovered, contents)
    if named:
        recovered.next_number = max(recovered.next_number, named + 1)
        if _is_missing(named, disk, directory, entries, recovered):
            recovered.newest = None
            reason = f"it is missing or empty: {_FORGOTTEN}"
            where = f"{names.LEDGER_DIR}/{names.ledger_file(named)}"
            recovered.damages.append(Damage(where, reason, 0, 0, None, None))
    return recovered


def _is_missing(
    number: int,
    disk: Disk,
    directory: PurePath,
    entries: Sequence[DirEntry],
    recovered: RecoveredLedger,
) -> bool:
    """Whether neither a file that was durable is there, nor one that came after it."""
    readable = [path for path, _, _ in recovered.files]
    found = [*readable, *(path for path, _ in recovered.unreadable)]
    # A running owner may have begun it since the folder was listed.
    seen = {entry.name for entry in entries}
    # This runs in tools beside a live owner, too. The line that names the next file is written
    # when that file exists, so a second listing is enough to find it.
    found += [directory / entry.name for entry in disk.list(directory) if entry.name not in seen]
    numbers = [names.parse_ledger_file(path.name) or 0 for path in found]
    return all(other < number for other in numbers)


def _replay(recovered: RecoveredLedger, contents: list[LedgerContent]) -> int:
    """Apply the newest checkpoint and what follows; return which file continues the last, or 0."""
    begin = next(
        (place for place in reversed(range(len(contents))) if contents[place].checkpoint), 0
    )
    named = 0
    for content in contents[begin:]:
        named = _continued_in(content)
        checkpoint = content.checkpoint
        if checkpoint is not None:
            recovered.state = LedgerState.from_fields(checkpoint)
        # Also from frames behind a hole: they could not have been written with that mark unless
        # the bytes in the hole had been synced once.
        synced = [item.synced_through for item in content.items if isinstance(item, Frame)]
        for item in content.items:
            if isinstance(item, Frame):
                recovered.replayed_lines += apply_line(recovered.state, item)
            elif content.pages.lacks(item.start, item.end):  # no power cut leaves that
                recovered.damages.append(_damage(content, replace(item, reason=UNREADABLE)))
            elif item.start < max(synced, default=0):
                recovered.damages.append(_damage(content, item))
            else:
                # What a power cut left of lines that were not synced. A line counts what those
                # before it left over, so nothing behind the hole is taken.
                recovered.torn_bytes += content.items[-1].end - item.start
                break
    # Only a file that holds the whole state may be continued in place on a full disk; one that
    # begins behind a lost checkpoint would make the loss permanent.
    if begin == len(contents) - 1 and not recovered.damages:
        recovered.newest = contents[begin]
    recovered.last = contents[-1] if contents else None
    return named


def _continued_in(content: LedgerContent) -> int:
    """Return the number of the file that continues this one, 0 if its last line names none."""
    last = content.items[-1] if content.items else None
    if not isinstance(last, Frame) or last.kind != LineKind.CHANGE:
        return 0
    change = json.loads(bytes(last.payload))
    return int(change["number"]) if change["verb"] == CONTINUED else 0


def _damage(content: LedgerContent, hole: Hole) -> Damage:
    name = f"{names.LEDGER_DIR}/{content.path.name}"
    reason = f"{hole.reason}: {_FORGOTTEN}"
    return Damage(name, reason, hole.start, hole.end - hole.start, None, None)


def apply_line(state: LedgerState, frame: Frame) -> int:
    """Apply one frame to the state; return how many lines it held."""
    if frame.kind == LineKind.RESOLUTIONS:
        lines = list(decode_resolutions(frame.payload))
        for line in lines:
            subscriber = state.subscribers.get(line.subscriber)
            # A line for somebody who was unregistered later in the same file, or whose
            # registration is in the hole before it. There is no account to put it on.
            if subscriber is not None:
                subscriber.apply(line)
        return len(lines)
    if frame.kind == LineKind.CHANGE:
        state.change(json.loads(bytes(frame.payload)))
        return 1
    return 0
