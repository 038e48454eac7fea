"""Journals: what everybody involved in a proof did and was answered, in their own words.

The checkers believe nothing else. One line per fact, written with one system call, before the next
thing is done. kill -9 does not take back what was written, so a journal needs no sync; a fact
missing at its end only turns an answer into "unanswered".

A client of a quiver or a gateway:

    S <name> <bundles>          about to send: an append of so many bundles, named name.0, name.1, …
    A <name> <seq>              answered: the first bundle has this seq; of telemetry, whose answers
                                tell none, the client's own count
    E <name> no|maybe <error>   refused: certainly not stored, or perhaps

A reader of a quiver:

    D <seq> <name> …            these events of the bundle were handed to it
    K <seq>                     its acknowledgement of the bundle was accepted

A writer, deleter or reader of a store:

    S <commit> <digest>         about to make this commit, with these paths and contents
    A <commit>                  it was made
    D <commit>                  about to delete this commit
    G <commit>                  it was deleted
    R <commit> <digest>         read as a whole, with this result
    X <commit> <error>          could not be read although it was there
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

CURSOR, LEASE = "by-cursor", "by-lease"
# The name of content that nobody sent.
UNKNOWN = "?"


@dataclass
class Sent:
    """One append as its client saw it."""

    name: str
    bundles: int
    # None: never answered.
    seq: int | None = None
    refused: str | None = None

    @property
    def answered(self) -> bool:
        """Whether the client received the answer that it is durable."""
        return self.seq is not None

    def events(self) -> list[str]:
        """Return the names of the append's events."""
        return [f"{self.name}.{index}" for index in range(self.bundles)]


class ProofJournal:
    """Written by one process at a time; its successor may continue it."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, *words: object) -> None:
        """Write one fact."""
        os.write(self._fd, " ".join(map(str, words)).encode() + b"\n")

    def sent(self, name: str, bundles: int) -> None:
        """Note that an append is about to be made."""
        self.note("S", name, bundles)

    def answered(self, name: str, seq: int) -> None:
        """Note that it was acknowledged."""
        self.note("A", name, seq)

    def refused(self, name: str, stored: str, error: str) -> None:
        """Note that it was refused."""
        self.note("E", name, stored, error)

    def delivered(self, seq: int, names: Iterable[str]) -> None:
        """Note what a reader was handed."""
        self.note("D", seq, *names)

    def acknowledged(self, seq: int) -> None:
        """Note that a reader's acknowledgement was accepted."""
        self.note("K", seq)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def read_journals(directory: Path) -> dict[str, Sent]:
    """Return every append in the journals of a directory, by name."""
    sent: dict[str, Sent] = {}
    for path in sorted(directory.glob("*.journal")):
        for line in whole_lines(path):
            fact, name, rest = line.split(" ", 2)
            if fact == "S":
                # Sent again after a restart under the same name: an idempotent producer.
                sent.setdefault(name, Sent(name, int(rest)))
            elif fact == "A":
                sent[name].seq = int(rest)
            else:
                sent[name].refused = rest.split(" ", 1)[0]
    return sent


def count_refused(directory: Path, why: str) -> int:
    """Return how many appends were refused with these words in the message."""
    return sum(
        line.startswith("E ") and why in line
        for path in directory.glob("*.journal")
        for line in whole_lines(path)
    )


def whole_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file up to the last newline: a kill may cut one in two."""
    text = path.read_text()
    return iter(text[: text.rfind("\n") + 1].splitlines())


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
    digest = hashlib.sha256()
    for path, data in sorted(files):
        digest.update(f"{len(path)} {path} {len(data)} ".encode())
        digest.update(data)
    return digest.hexdigest()
