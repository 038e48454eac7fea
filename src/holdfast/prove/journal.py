"""A client's journal: what it sent and how it was answered, in its own words.

One line per fact, written with one system call. kill -9 does not take back what was written, so the
journal needs no sync; a fact missing at its end only turns an answer into "unanswered".

    S <name> <bundles>          about to send: an append of so many bundles, named name.0, name.1, …
    A <name> <seq>              answered: the first bundle has this seq
    E <name> no|maybe <error>   refused: certainly not stored, or perhaps
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


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
    """Written by one client."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def sent(self, name: str, bundles: int) -> None:
        """Note that an append is about to be made."""
        self._write(f"S {name} {bundles}")

    def answered(self, name: str, seq: int) -> None:
        """Note that it was acknowledged."""
        self._write(f"A {name} {seq}")

    def refused(self, name: str, stored: str, error: str) -> None:
        """Note that it was refused."""
        self._write(f"E {name} {stored} {error}")

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _write(self, line: str) -> None:
        os.write(self._fd, line.encode() + b"\n")


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
    """Return how many appends were refused in these words."""
    return sum(
        line.startswith("E ") and why in line
        for path in directory.glob("*.journal")
        for line in whole_lines(path)
    )


def whole_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file up to the last newline: a kill may cut one in two."""
    text = path.read_text()
    return iter(text[: text.rfind("\n") + 1].splitlines())
