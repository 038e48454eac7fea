"""What writers, deleters and readers of a store note down, in their own words.

One line per fact, written with one system call, as in journal.py:

    S <commit> <digest>   about to make this commit; the digest is over its paths and contents
    A <commit>            it was made
    D <commit>            about to delete this commit
    G <commit>            it was deleted
    R <commit> <digest>   read as a whole, and this is what was read
    X <commit> <error>    could not be read though it was there
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from blake3 import blake3

from holdfast.prove.journal import whole_lines


class StoreJournal:
    """Written by one process at a time; its successor goes on."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, fact: str, commit: str, more: str = "") -> None:
        """Write one fact."""
        os.write(self._fd, f"{fact} {commit} {more}".rstrip().encode() + b"\n")


@dataclass
class CommitHistory:
    """What is known of one commit from those who were there."""

    digest: str = ""
    made: bool = False
    to_be_deleted: bool = False
    deleted: bool = False


@dataclass
class CommitHistories:
    """All journals together."""

    commits: dict[str, CommitHistory] = field(default_factory=dict)
    reads: int = 0
    wrong_reads: list[str] = field(default_factory=list)


def read_histories(folder: Path) -> CommitHistories:
    """Return what all journals of a folder say."""
    found = CommitHistories()
    read: list[tuple[str, str]] = []
    for path in sorted(folder.glob("*.journal")):
        for line in whole_lines(path):
            fact, commit, more = [*line.split(" ", 2), ""][:3]
            history = found.commits.setdefault(commit, CommitHistory())
            if fact == "S":
                history.digest = more
            elif fact == "A":
                history.made = True
            elif fact == "D":
                history.to_be_deleted = True
            elif fact == "G":
                history.deleted = True
            elif fact == "R":
                read.append((commit, more))
            else:
                found.wrong_reads.append(f"{commit}: {more}")
    found.reads = len(read)
    found.wrong_reads += [
        f"{commit}: other content than was written"
        for commit, digest in read
        if digest != found.commits[commit].digest
    ]
    return found


def digest_of(files: Iterable[tuple[str, bytes]]) -> str:
    """Return a digest of paths and contents, in order of the paths."""
    digest = blake3()
    for path, data in sorted(files):
        digest.update(f"{len(path)} {path} {len(data)} ".encode())
        digest.update(data)
    return digest.hexdigest()
