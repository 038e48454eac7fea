"""The process that is killed: clients appending to one quiver and readers emptying it.

Run as `python -m holdfast.prove.quiver_victim TASK [DEATH]`, both as JSON. It prints "open" when
the quiver is open, and "full" when the disk refused an append for the first time. It appends for
`seconds`, closes the quiver and ends; most never get that far.

The content of every event follows from its name, so that damage is noticed by whoever reads it.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pyarrow as pa

from holdfast.errors import DiskFull, NotAccepted
from holdfast.prove.journal import (
    CURSOR,
    LEASE,
    UNKNOWN,
    ProofJournal,
    read_journals,
)
from holdfast.prove.victim import deadly_seam, say
from holdfast.quiver import (
    AppendConfig,
    Balance,
    Bundle,
    LedgerConfig,
    Quiver,
    QuiverConfig,
    SegmentConfig,
    WalConfig,
)
from holdfast.seam import Seam

MB = 1 << 20
BODY_BYTES_MAX = 3000


@dataclass(frozen=True)
class QuiverTask:
    """What one process has to do."""

    quiver_dir: str
    journal_dir: str
    incarnation: int
    clients: int
    seconds: float
    seed: int
    # Which of the two readers run.
    readers: tuple[str, ...] = (CURSOR, LEASE)
    append_timeout_s: float = AppendConfig.timeout_s

    def argument(self) -> str:
        """Return it for a command line."""
        return json.dumps(asdict(self))


# Small files and short periods, so that every step happens many times a second.
CONFIG = QuiverConfig(
    wal=WalConfig(file_size_bytes=MB // 4),
    segment=SegmentConfig(target_size_bytes=MB, max_open_duration_s=0.05),
    ledger=LedgerConfig(rotate_bytes=MB // 16, retain_bytes=MB // 2),
)


def config_of(task: QuiverTask) -> QuiverConfig:
    """Return the configuration of a task's quiver."""
    return replace(CONFIG, append=AppendConfig(timeout_s=task.append_timeout_s))


class AppendClient(threading.Thread):
    """Appends one thing after the other and writes down every answer.

    What it is about to send is on disk before it is sent, and the answer before the next is sent.
    So at every kill each event is known to be answered, refused, or neither, and never less.
    """

    def __init__(self, quiver: Quiver, task: QuiverTask, number: int, until_s: float) -> None:
        super().__init__(name=f"client-{number}")
        self.met_full_disk = False
        self._quiver = quiver
        self._until_s = until_s
        self._prefix = f"{task.incarnation}-{number}"
        self._random = random.Random(f"{task.seed}-{self._prefix}")
        self._producer = f"producer-{number}"
        self._directory = Path(task.journal_dir)
        self._number = number
        self._epoch = (task.incarnation + 1) << 32

    def run(self) -> None:
        """Retry what the last incarnation left unanswered, then append until time is up."""
        unanswered = self._unanswered()
        self._journal = ProofJournal(self._directory / f"{self._prefix}.journal")
        for name, old_epoch in unanswered:
            self._append(name, 1, old_epoch)
        count = 0
        while time.monotonic() < self._until_s:
            count += 1
            self._epoch += 1
            shape = self._random.choice(("arrow", "raw", "transaction", "producer"))
            bundles = 3 if shape == "transaction" else 1
            epoch = self._epoch if shape == "producer" else None
            suffix = f"-{self._epoch}" if epoch else ""
            self._append(f"{self._prefix}-{count}-{shape}{suffix}", bundles, epoch)
        self._journal.close()

    def _unanswered(self) -> list[tuple[str, int]]:
        """Return this client's last append with an epoch, if it was never answered."""
        mine = [
            sent
            for sent in read_journals(self._directory).values()
            if "-producer-" in sent.name and sent.name.split("-")[1] == str(self._number)
        ]
        by_epoch = sorted((int(sent.name.rsplit("-", 1)[1]), sent) for sent in mine)
        if by_epoch and by_epoch[-1][1].seq is None:
            return [(by_epoch[-1][1].name, by_epoch[-1][0])]
        return []

    def _append(self, name: str, bundles: int, epoch: int | None) -> None:
        """Append once, and note the answer; the first full disk is reported to the prover."""
        self._journal.sent(name, bundles)
        try:
            seq = self._send(name, bundles, epoch)
        except NotAccepted as error:
            self._journal.refused(name, error.stored, type(error).__name__)
            if isinstance(error, DiskFull) and not self.met_full_disk:
                self.met_full_disk = True
                say("full")
        else:
            self._journal.answered(name, seq)

    def _send(self, name: str, bundles: int, epoch: int | None) -> int:
        """Append in the shape that the name says; return the seq of the first bundle.

        A retry after a kill finds the same shape, because everything follows from the name.
        """
        if bundles > 1:
            with self._quiver.transaction() as transaction:
                for place in range(bundles):
                    transaction.append_raw(payload_of(f"{name}.{place}"), slot="raw")
            assert transaction.receipt is not None
            return transaction.receipt.seq
        event = f"{name}.0"
        if epoch is None and "-arrow" in name:
            batch = pa.record_batch({"name": [event], "body": [body_of(event)]})
            return self._quiver.append({"arrow": batch}).seq
        producer = None if epoch is None else self._producer
        receipt = self._quiver.append_raw(
            payload_of(event), slot="raw", producer=producer, epoch=epoch
        )
        return receipt.seq


def body_of(name: str) -> bytes:
    """Return the content that the event with this name must have."""
    digest = hashlib.sha256(name.encode()).digest()
    length = int.from_bytes(digest[:4], "little") % BODY_BYTES_MAX
    return (digest * (length // len(digest) + 1))[:length]


def payload_of(name: str) -> bytes:
    """Return a raw event: its name, a zero byte, its content."""
    return name.encode() + b"\0" + body_of(name)


def name_in(payload: bytes) -> str | None:
    """Return the name of a raw event, or None if it is not what was sent."""
    name, _, body = payload.partition(b"\0")
    text = name.decode("utf-8", "replace")
    return text if body == body_of(text) else None


def names_of(bundle: Bundle) -> list[str]:
    """Return the names of a bundle's events, checked against their content."""
    names: list[str] = []
    for slot, batch in bundle.slots.items():
        if slot == "raw":
            payloads = batch.column("payload").to_pylist()
            names += [name_in(payload) or UNKNOWN for payload in payloads]
        else:
            rows = batch.to_pylist()
            names += [r["name"] if r["body"] == body_of(r["name"]) else UNKNOWN for r in rows]
    return names


def read_by_cursor(quiver: Quiver, journal: ProofJournal, more_comes: Callable[[], bool]) -> None:
    """Take ranges in order and commit them."""
    with quiver.cursor(CURSOR, on_data_loss="count") as cursor:
        while True:
            planned = cursor.plan(max_events=100, wait_s=0.05)
            if planned is None:
                if not more_comes():
                    return
                continue
            # What was read is noted before it is committed, and the commit after it succeeded: a
            # kill between them is a delivery that may be repeated, and never one that may not.
            for bundle in cursor.read(planned):
                journal.delivered(bundle.seq, names_of(bundle))
            cursor.commit(planned)
            for ref in planned.refs:
                journal.acknowledged(ref.seq)


def read_by_lease(
    quiver: Quiver, journal: ProofJournal, more_comes: Callable[[], bool], dice: random.Random
) -> None:
    """Take single bundles, give some back, acknowledge the rest."""
    with quiver.lease(LEASE) as lease:
        while True:
            delivery = lease.poll(timeout_s=0.05)
            if delivery is None:
                if not more_comes() and lease.in_flight == 0 and not lease.leased():
                    return
                continue
            if delivery.attempt == 1 and dice.random() < 0.05:  # noqa: PLR2004
                delivery.nack(retry_after_s=0.01)
                continue
            journal.delivered(delivery.seq, names_of(delivery.bundle))
            delivery.ack()
            journal.acknowledged(delivery.seq)


def start_readers(
    quiver: Quiver, task: QuiverTask, more_comes: Callable[[], bool]
) -> list[threading.Thread]:
    """Start a task's readers; they end when no more comes and nothing is left."""
    dice = random.Random(f"{task.seed}-{task.incarnation}-reader")

    def run(name: str) -> None:
        path = Path(task.journal_dir) / f"{task.incarnation:06d}.{name}"
        with ProofJournal(path) as journal:
            if name == CURSOR:
                read_by_cursor(quiver, journal, more_comes)
            else:
                read_by_lease(quiver, journal, more_comes, dice)

    threads = [threading.Thread(target=run, args=(name,), name=name) for name in task.readers]
    for thread in threads:
        thread.start()
    return threads


def main(task: QuiverTask, seam: Seam) -> None:
    """Open, append, close."""
    until_s = time.monotonic() + task.seconds
    with Quiver.open(task.quiver_dir, config_of(task), seam=seam) as quiver:
        for name in {CURSOR, LEASE}.difference(quiver.subscribers()):
            quiver.register(name)  # before the first append, so that both see everything
        say("open")
        clients = [AppendClient(quiver, task, number, until_s) for number in range(task.clients)]
        for client in clients:
            client.start()
        readers = start_readers(quiver, task, lambda: any(client.is_alive() for client in clients))
        for thread in (*clients, *readers):
            thread.join()


def drain(task: QuiverTask) -> list[Balance]:
    """Read everything that is left, as the last incarnation; return the subscribers' balances."""
    with Quiver.open(task.quiver_dir, config_of(task)) as quiver:
        for thread in start_readers(quiver, task, lambda: False):
            thread.join()
        return [quiver.balance(name) for name in quiver.subscribers()]


if __name__ == "__main__":
    main(QuiverTask(**json.loads(sys.argv[1])), deadly_seam(sys.argv[2:]))
