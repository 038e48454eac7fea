"""Which files of a folder are stored: patterns as in .gitignore, folders that are caches, links.

    *.tmp        any name, at any depth
    /build       only beside the top; so does any pattern with a slash inside: docs/*.html
    cache/       only folders
    **/x, x/**   across folders
    !keep.tmp    (in files of patterns) is stored although another pattern leaves it out

What is left out takes along all below it, except what is included, which takes along all below it,
too. Where anything may be included, folders that are left out are still looked into.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from holdfast.seam.folders import FolderEntry
from holdfast.seam.names import stored_name
from holdfast.store.filesets.paths import compile_glob

# What a file of this name begins with where a folder is a cache (https://bford.info/cachedir/).
CACHE_TAG = "CACHEDIR.TAG"
CACHE_SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55"

# What becomes of links that lead out of the folder.
OutsideLinks = Literal["keep", "skip", "refuse"]


class Selection:
    """Patterns of what is left out, and of what is stored nevertheless. For one pass."""

    def __init__(
        self,
        exclude: Sequence[str] = (),
        include: Sequence[str] = (),
        *,
        exclude_caches: bool = False,
        outside_links: OutsideLinks = "keep",
    ) -> None:
        self._exclude = _matcher(exclude)
        self._include = _matcher(include)
        self.exclude_caches = exclude_caches
        self.outside_links = outside_links
        # The folders around the last entry, and what is decided of each; None: nothing yet.
        self._around: list[tuple[str, bool | None]] = []

    @property
    def chooses(self) -> bool:
        """Whether any path is left out."""
        return bool(self._exclude or self.exclude_caches)

    def wants(self, entry: FolderEntry) -> bool:
        """Whether an entry is stored; asked in order of the paths."""
        around = self._around
        while around and not entry.path.startswith(around[-1][0]):
            around.pop()
        is_wanted = around[-1][1] if around else None
        if self._include and self._include.fullmatch(entry.path):
            is_wanted = True
        elif is_wanted is None and self._exclude and self._exclude.fullmatch(entry.path):
            is_wanted = False
        if entry.kind == "folder":
            around.append((entry.path, is_wanted))
        return is_wanted is not False

    def enters(self, folder: FolderEntry) -> bool:
        """Whether a folder is looked into; asked after `wants`."""
        return self._include is not None or self._around[-1][1] is not False


def split_patterns(lines: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the patterns in a file of them: what is left out, and what is included with a '!'."""
    exclude: list[str] = []
    include: list[str] = []
    for line in lines:
        pattern = line.rstrip("\r\n").rstrip()
        if not pattern or pattern.startswith("#"):
            continue
        if pattern.startswith("!"):
            include.append(pattern[1:])
        else:
            exclude.append(pattern.removeprefix("\\"))
    return exclude, include


def _matcher(patterns: Sequence[str]) -> re.Pattern[str] | None:
    """Return one expression for paths of entries, of which a folder's ends with a slash."""
    return re.compile("|".join(map(_expression, patterns)), re.DOTALL) if patterns else None


def _expression(pattern: str) -> str:
    text = stored_name(pattern)
    only_folders = text.endswith("/")
    inner = text.rstrip("/")
    anchored = "/" in inner
    glob = inner.removeprefix("/") if anchored else f"**/{inner}"
    return f"(?:{compile_glob(glob).pattern}){'/' if only_folders else '/?'}"
