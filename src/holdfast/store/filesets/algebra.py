"""What layers mean: how a newer layer changes what older ones hold, and how two become one.

A layer is (T, A). T is a set of folders that are gone from all older layers; A says for each path
what becomes of it, after T: a `Change`, with a `TagChange` for each tag.

    put, overwrite    reset, {tag: set, refs}      all that was there is replaced
    append            {tag: refs}                  goes behind what the tag holds
    replace a tag     {tag: set, refs}             other tags stay
    delete a tag      {tag: set, nothing}
    delete            reset, {}
    delete a folder   T gains the folder, A loses what stands below it

Newer over older: T is the union. A path below a folder of the newer T forgets the older change. A
newer change with `reset` stands alone. Otherwise tag by tag: a newer part with `set` replaces the
older one, any other goes behind it. This is associative, so that neighbouring layers may be merged
in any grouping (lazily while reading, or by compaction); layers that are not neighbours may not.

A file is there if at least one tag has content, maybe of no bytes. Its bytes are those of its tags
in ascending order, and within a tag those of the layers, older first. What else is known of it is
what the newest layer says that knows anything.

Below a folder of the layer's own T, and in a base layer, there is nothing older to reset or
replace: there the flags are dropped, and so is what only takes away. So equal file sets have equal
entries, however they came about.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from holdfast.store.filesets.paths import after_folder

# A reference to content. The algebra only puts them into sequences.
Ref = TypeVar("Ref")
Ref_co = TypeVar("Ref_co", covariant=True)


class TagChange(NamedTuple, Generic[Ref_co]):
    """What a layer does to one tag of one path; `refs` is None where it takes the tag away."""

    set: bool
    refs: tuple[Ref_co, ...] | None


class Change(NamedTuple, Generic[Ref_co]):
    """What a layer does to one path. `metadata` is None if it says nothing about it."""

    reset: bool
    parts: Mapping[bytes, TagChange[Ref_co]]
    metadata: Any = None

    @property
    def present(self) -> bool:
        """Whether the change by itself makes a file."""
        return any(part.refs is not None for part in self.parts.values())


def append(tag: bytes, refs: tuple[Ref, ...], metadata: Any = None) -> Change[Ref]:
    """Put content behind what the tag holds."""
    return Change(False, {tag: TagChange(False, refs)}, metadata)


def overwrite(tag: bytes, refs: tuple[Ref, ...], metadata: Any = None) -> Change[Ref]:
    """Replace all that the path holds."""
    return Change(True, {tag: TagChange(True, refs)}, metadata)


def replace_tag(tag: bytes, refs: tuple[Ref, ...], metadata: Any = None) -> Change[Ref]:
    """Replace what the tag holds."""
    return Change(False, {tag: TagChange(True, refs)}, metadata)


def delete_tag(tag: bytes) -> Change[Any]:
    """Take the tag away; with its last tag the file goes."""
    return Change(False, {tag: TagChange(True, None)})


def delete() -> Change[Any]:
    """Take the file away."""
    return Change(True, {})


def compose(newer: Change[Ref], older: Change[Ref] | None) -> Change[Ref]:
    """Return the one change that does what `older` and then `newer` do."""
    if older is None or newer.reset:
        return newer
    parts = dict(older.parts)
    for tag, part in newer.parts.items():
        before = parts.get(tag)
        if part.set or before is None:
            parts[tag] = part
        elif part.refs is not None:
            parts[tag] = TagChange(before.set, (before.refs or ()) + part.refs)
    metadata = older.metadata if newer.metadata is None else newer.metadata
    return Change(older.reset, parts, metadata)


def over_nothing(change: Change[Ref]) -> Change[Ref] | None:
    """Return the change where nothing older can be: without flags; None if it makes no file."""
    parts = {
        tag: TagChange(False, part.refs)
        for tag, part in change.parts.items()
        if part.refs is not None
    }
    return Change(False, parts, change.metadata) if parts else None


class Tombstones:
    """The folders that a layer takes away from older ones: sorted, none of them within another."""

    def __init__(self, folders: Iterable[str] = ()) -> None:
        kept: list[str] = []
        for folder in sorted(set(folders)):
            if not kept or not folder.startswith(kept[-1]):
                kept.append(folder)
        self.folders = tuple(kept)

    def __bool__(self) -> bool:
        return bool(self.folders)

    def __len__(self) -> int:
        return len(self.folders)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tombstones) and self.folders == other.folders

    def __hash__(self) -> int:
        return hash(self.folders)

    def __or__(self, other: Tombstones) -> Tombstones:
        return Tombstones(self.folders + other.folders) if other else self

    def covers(self, path: str) -> bool:
        """Whether what older layers hold at the path is gone."""
        if not self.folders:
            return False
        at = bisect_right(self.folders, path) - 1
        return at >= 0 and path.startswith(self.folders[at])

    def covers_all(self, first: str, last: str) -> bool:
        """Whether everything from `first` to `last` is gone, because one folder holds both."""
        if not self.folders:
            return False
        at = bisect_right(self.folders, first) - 1
        return at >= 0 and first.startswith(self.folders[at]) and last.startswith(self.folders[at])

    def touch(self, first: str, last: str) -> bool:
        """Whether anything from `first` to `last` may be gone."""
        if not self.folders:
            return False
        at = bisect_left(self.folders, first)
        if at < len(self.folders) and self.folders[at] <= last:
            return True
        if at == 0:
            return False
        end = after_folder(self.folders[at - 1])
        return end is None or first < end
