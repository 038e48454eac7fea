"""The readers of a proof: one with a cursor, one with a lease, each keeping a journal.

    D <seq> <name> …    these events of the bundle were handed to us
    K <seq>             our acknowledgement of the bundle was taken

A line is written before the next thing is done, so that after a kill the journal says what the
reader had in hand and what it had been told.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.prove.events import body_of, name_in
from holdfast.quiver import Bundle, Quiver

CURSOR, LEASE = "by-cursor", "by-lease"
# Content that does not match its name.
INVENTED = "?"


class ReaderJournal:
    """Written by one reader."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def delivered(self, bundle: Bundle) -> None:
        """Note what is in hand."""
        self._write(f"D {bundle.seq} {' '.join(names_of(bundle))}")

    def acknowledged(self, seq: int) -> None:
        """Note that it is off our hands."""
        self._write(f"K {seq}")

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _write(self, line: str) -> None:
        os.write(self._fd, line.encode() + b"\n")


def names_of(bundle: Bundle) -> list[str]:
    """Return the names of a bundle's events, checked against their content."""
    names: list[str] = []
    for slot, batch in bundle.slots.items():
        if slot == "raw":
            payloads = batch.column("payload").to_pylist()
            names += [name_in(payload) or INVENTED for payload in payloads]
        else:
            rows = batch.to_pylist()
            names += [r["name"] if r["body"] == body_of(r["name"]) else INVENTED for r in rows]
    return names


def read_by_cursor(quiver: Quiver, journal: ReaderJournal, go_on: Callable[[], bool]) -> None:
    """Take ranges in order and commit them."""
    with quiver.cursor(CURSOR, on_data_loss="count") as cursor:
        while True:
            planned = cursor.plan(max_events=100, wait_s=0.05)
            if planned is None:
                if not go_on():
                    return
                continue
            for bundle in cursor.read(planned):
                journal.delivered(bundle)
            cursor.commit(planned)
            for ref in planned.refs:
                journal.acknowledged(ref.seq)


def read_by_lease(
    quiver: Quiver, journal: ReaderJournal, go_on: Callable[[], bool], dice: random.Random
) -> None:
    """Take single bundles, give some back, acknowledge the rest."""
    with quiver.lease(LEASE) as lease:
        while True:
            delivery = lease.poll(timeout_s=0.05)
            if delivery is None:
                if not go_on() and lease.in_flight == 0 and not lease.leased():
                    return
                continue
            if delivery.attempt == 1 and dice.random() < 0.05:  # noqa: PLR2004
                delivery.nack(retry_after_s=0.01)
                continue
            journal.delivered(delivery.bundle)
            delivery.ack()
            journal.acknowledged(delivery.seq)


def start_readers(
    quiver: Quiver,
    directory: Path,
    incarnation: int,
    seed: int,
    go_on: Callable[[], bool],
    which: Sequence[str],
) -> list[threading.Thread]:
    """Start readers; they end when `go_on` says no and nothing is left."""
    dice = random.Random(f"{seed}-{incarnation}-reader")

    def by_cursor() -> None:
        journal = ReaderJournal(directory / f"{incarnation:06d}.{CURSOR}")
        read_by_cursor(quiver, journal, go_on)
        journal.close()

    def by_lease() -> None:
        journal = ReaderJournal(directory / f"{incarnation:06d}.{LEASE}")
        read_by_lease(quiver, journal, go_on, dice)
        journal.close()

    known = {CURSOR: by_cursor, LEASE: by_lease}
    threads = [threading.Thread(target=known[name], name=name) for name in which]
    for thread in threads:
        thread.start()
    return threads
