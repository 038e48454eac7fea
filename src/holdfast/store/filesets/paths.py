"""What a path in a file set may be, how paths are ordered, and what stands below a folder.

Paths are compared as UTF-8 bytes, which is the order of Python's strings. A folder's path ends with
a slash. Everything below `d/` stands in `d/` ≤ path < `d0`, because '0' is the character after '/'.
Nothing is normalised: what would need it is refused, since a path that means another one on some
disk is how an archive writes outside of its folder. A name on disk that is not UTF-8 has a text
that stands for it (`seam.names`).

Glob patterns: `*` and `?` match within a folder, `**` across folders; `[a-z]` and `{one,other}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from holdfast.errors import BadInput
from holdfast.seam.names import is_stored_name, name_bytes, stored_name_of

# As long as a path may be on Linux, in the bytes of its names.
PATH_BYTES_MAX = 4096

_REFUSED = re.compile("(?:\\A|/)\\.{0,2}(?:/|\\Z)|\0|[\ud800-\udfff]")


def check_path(path: str) -> str:
    """Return the path of a file or folder if it can be stored."""
    trouble = path_trouble(path)
    if trouble is not None:
        raise BadInput(f"the path {path!r} cannot be stored: {trouble}", hint=_HINT)
    return path


def path_trouble(path: str) -> str | None:
    """Return why the path of a file or folder cannot be stored; None: it can."""
    # One search decides for nearly all paths; why one is refused is worked out only then. A
    # character has four bytes at most, so a short path need not be encoded to be measured.
    inner = path.removesuffix("/")
    is_short = len(inner) <= PATH_BYTES_MAX // 4 or _name_bytes(inner) <= PATH_BYTES_MAX
    if is_short and not _REFUSED.search(inner) and is_stored_name(inner):
        return None
    return _reason(inner)


def check_file(path: str) -> str:
    """Return the path of a file if it can be stored."""
    if path.endswith("/"):
        raise BadInput(
            f"the path {path!r} is a folder's", hint="Give the file's name, without a slash behind."
        )
    return check_path(path)


def check_folder(folder: str) -> str:
    """Return a folder's path, with a slash behind it; '' is the whole file set."""
    if folder in ("", "/"):
        return ""
    return check_path(folder if folder.endswith("/") else folder + "/")


def decode_path(name: bytes) -> str:
    """Return the path that stands for a name from an archive, which may hold any bytes."""
    return stored_name_of(name)


_HINT = (
    "Paths are relative, without NUL, with no empty part, '.' or '..'; what is not UTF-8 has a "
    "text that stands for it. "
    "Rename the file, or leave it out."
)


def _name_bytes(path: str) -> int:
    return len(name_bytes(path)) if is_stored_name(path) else len(path) * 4


def _reason(path: str) -> str:
    parts = path.split("/")
    reasons = (
        (not path, "it is empty"),
        ("\0" in path, "it holds a NUL"),
        (re.search("[\ud800-\udfff]", path) is not None, "it is not UTF-8"),
        (not is_stored_name(path), "it stands for no name"),
        (path.startswith("/"), "it is absolute"),
        (".." in parts, "'..' leads out of its folder"),
        ("." in parts, "it has '.' as a part"),
        ("" in parts, "it has an empty part"),
    )
    longest = f"it is longer than {PATH_BYTES_MAX} bytes"
    return next((reason for holds, reason in reasons if holds), longest)


def after_folder(folder: str) -> str | None:
    """Return the first path behind everything that is below a folder; None: there is none."""
    return folder[:-1] + "0" if folder else None


def folders_above(path: str) -> Iterator[str]:
    """Yield the folders that a path stands in, outermost first, without ''."""
    at = path.find("/")
    while 0 <= at < len(path) - 1:
        yield path[: at + 1]
        at = path.find("/", at + 1)


def is_target(target: str) -> bool:
    """Whether a symbolic link can lead there, wherever that is."""
    return bool(target) and "\0" not in target and is_stored_name(target)


def leads_out(path: str, target: str) -> bool:
    """Whether a symbolic link at `path` points outside of the file set.

    By its text alone: other links on the way are not followed, since they may change with the next
    layer. Whoever restores a folder checks again, on the disk.
    """
    if target.startswith("/") or not is_target(target):
        return True
    depth = path.count("/")
    for part in target.split("/"):
        if part == "..":
            depth -= 1
        elif part not in ("", "."):
            depth += 1
        if depth < 0:
            return True
    return False


class Collisions:
    """Finds a path that is both a file and a folder, in a sorted stream of paths.

    Neighbours are not enough: between `a` and `a/x` may stand `a-b`, because '-' sorts before '/'.
    So it keeps all files that may still turn out to be folders: those that are prefixes of the
    last path.
    """

    def __init__(self, files: list[str] | None = None) -> None:
        self._files = files or []

    def check(self, path: str) -> None:
        """Take the next path; raise `BadInput` if a file stands above it."""
        files = self._files
        while files and not path.startswith(files[-1]):
            files.pop()
        for file in files:
            if path.startswith(file + "/"):
                raise collision(file)
        if not path.endswith("/"):
            files.append(path)


def collision(path: str) -> BadInput:
    """Return the error for a path that is a file and a folder."""
    return BadInput(
        f"{path!r} is a file and a folder at once",
        hint="Delete one of them in the same layer, or give it another name.",
    )


_SPECIAL = re.compile(r"[*?\[{]")
# Alternatives may stand in alternatives; deeper is nobody's pattern.
_DEPTH_MAX = 8


def literal_prefix(pattern: str) -> str:
    """Return what every path that matches begins with."""
    found = _SPECIAL.search(pattern)
    return pattern[: found.start()] if found else pattern


def compile_glob(pattern: str) -> re.Pattern[str]:
    """Return the pattern as a regular expression for whole paths."""
    translated, end = _translate(pattern, 0, 0)
    if end != len(pattern):
        raise _bad(pattern, "a '}' closes nothing")
    return re.compile(translated, re.DOTALL)


def _translate(pattern: str, at: int, depth: int) -> tuple[str, int]:
    """Return the expression up to the end, or up to what ends an alternative."""
    parts = []
    while at < len(pattern):
        character = pattern[at]
        if depth and character in ",}":
            break
        if character == "}":
            break
        if pattern.startswith("**/", at) and (at == 0 or pattern[at - 1] == "/"):
            parts.append("(?:[^/]+/)*")
            at += 3
        elif pattern.startswith("**", at):
            parts.append(".*")
            at += 2
        elif character in "*?":
            parts.append("[^/]*" if character == "*" else "[^/]")
            at += 1
        elif character == "[":
            expression, at = _characters(pattern, at)
            parts.append(expression)
        elif character == "{":
            expression, at = _alternatives(pattern, at, depth)
            parts.append(expression)
        else:
            parts.append(re.escape(character))
            at += 1
    return "".join(parts), at


def _characters(pattern: str, at: int) -> tuple[str, int]:
    end = pattern.find("]", at + 2)
    if end < 0:
        raise _bad(pattern, "a '[' is not closed")
    inner = pattern[at + 1 : end]
    negated = inner[0] in "!^"
    ranges = _ranges(inner[1:] if negated else inner)
    expression = f"(?!/)[{'^' if negated else ''}{ranges}]"
    try:
        re.compile(expression)
    except re.error:
        raise _bad(pattern, f"[{inner}] is not a range of characters") from None
    return expression, end + 1


def _ranges(inner: str) -> str:
    """Return single characters and ranges; whatever else `re` would see in them is escaped."""
    parts, at = [], 0
    while at < len(inner):
        is_range = inner[at + 1 : at + 2] == "-" and at + 2 < len(inner)
        parts.append(re.escape(inner[at]) + ("-" + re.escape(inner[at + 2]) if is_range else ""))
        at += 3 if is_range else 1
    return "".join(parts)


def _alternatives(pattern: str, at: int, depth: int) -> tuple[str, int]:
    if depth == _DEPTH_MAX:
        raise _bad(pattern, "there are too many '{' within each other")
    options = []
    while True:
        option, at = _translate(pattern, at + 1, depth + 1)
        options.append(option)
        if at >= len(pattern):
            raise _bad(pattern, "a '{' is not closed")
        if pattern[at] == "}":
            return f"(?:{'|'.join(options)})", at + 1


def _bad(pattern: str, why: str) -> BadInput:
    return BadInput(
        f"the pattern {pattern!r} cannot be read: {why}",
        hint="Use *, ?, **, [a-z] and {one,other}; put a special character into brackets: [*].",
    )
