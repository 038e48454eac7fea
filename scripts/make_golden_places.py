"""Write golden data directories and stores: what a version leaves on disk, in several shapes.

    PYTHONPATH=/path/to/that/version/src python scripts/make_golden_places.py tests/golden/v1

Each shape becomes `<shape>.tar.xz`, and `expected.json` says what was put in, so that a test
compares what a later program reads with that, and not with what it reads itself. Shapes that
crashed were left by a process that was killed. `tests/golden/README.md` says who wrote what.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.dead_letters.letter import Letter
from holdfast.dead_letters.queue import DeadLetterQueue
from holdfast.quiver import Cores, Outcome, Quiver, QuiverConfig
from holdfast.store.filesets import Commits, FileSetWriter
from holdfast.store.gc.leases import Job
from holdfast.store.store import Store

CONFIG = QuiverConfig()
# By shape: the quivers in it, by folder, each with its payloads by seq and those who wait.
Expected = dict[str, Any]


def append(quiver: Quiver, first: int, count: int) -> dict[str, str]:
    """Append raw events, one to a bundle; return them by seq."""
    texts = [f'{{"event": {number}}}' for number in range(first, first + count)]
    return {str(quiver.append_raw(text.encode()).seq): text for text in texts}


def told(quiver: Quiver, payloads: dict[str, str]) -> Expected:
    """Return what must be found in a quiver."""
    waiting = {name: quiver.waiting(name) for name in quiver.subscribers()}
    return {"payloads": payloads, "waiting": waiting}


def clean(folder: Path) -> Expected:
    """Several segments, closed in order; one subscriber has everything, one nothing."""
    with Quiver.open(folder / "data", CONFIG) as quiver:
        quiver.register("slow")
        payloads = append(quiver, 0, 5)
        quiver.flush()
        payloads |= append(quiver, 5, 5)
        lease = quiver.lease("quick")
        while (delivery := lease.poll()) is not None:
            delivery.ack()
        quiver.flush()
        payloads |= append(quiver, 10, 3)
        return {"data": told(quiver, payloads)}


def gaps(folder: Path) -> Expected:
    """Subscribers that have resolved some of what they were given, in no order."""
    with Quiver.open(folder / "data", CONFIG) as quiver:
        quiver.register("gaps")
        payloads = append(quiver, 0, 12)
        seqs = [int(seq) for seq in payloads]
        quiver.flush()
        quiver.resolve("gaps", [seqs[1], seqs[4], seqs[5]], Outcome.ACKED)
        quiver.resolve("gaps", [seqs[8]], Outcome.DEAD_LETTERED, "too odd")
        quiver.register("late", start="latest")
        payloads |= append(quiver, 12, 2)
        return {"data": told(quiver, payloads)}


def crashed(folder: Path) -> Expected:
    """Killed with a segment, a log that nobody sealed, and a transaction that nobody ended."""
    quiver = Quiver.open(folder / "data", CONFIG)
    quiver.register("reader")
    payloads = append(quiver, 0, 4)
    quiver.flush()
    payloads |= append(quiver, 4, 6)
    quiver.resolve("reader", [int(seq) for seq in list(payloads)[:3]], Outcome.ACKED)
    transaction = quiver.transaction(producer="writer", epoch=1)
    transaction.__enter__()
    transaction.append_raw(b"never committed")
    return {"data": told(quiver, payloads)}


def cores(folder: Path) -> Expected:
    """Three cores, killed."""
    opened = Cores.open(folder / "data", 3, CONFIG)
    found: Expected = {}
    for number in range(3):
        opened[number].register("reader")
        payloads = append(opened[number], 10 * number, 2 + number)
        found[f"data/core-{number:02}"] = told(opened[number], payloads)
    return found


def dead_letters(folder: Path) -> Expected:
    """Letters that were rejected, and one that was not delivered."""
    rejected = [Letter(b'{"odd": %d}' % n, "invalid", "ingest") for n in range(3)]
    undelivered = [Letter(b'{"stuck": 1}', "invalid", "ingest", attempts=7)]
    with DeadLetterQueue.open(folder / "data") as office:
        assert asyncio.run(office.reject(rejected))
        asyncio.run(office.undelivered(undelivered))
        found: Expected = {}
        for quiver in (office.rejected, office.undelivered_quiver):
            letters = rejected if quiver is office.rejected else undelivered
            texts = [letter.payload.decode() for letter in letters]
            name = str(Path(str(quiver.directory)).relative_to(folder))
            found[name] = told(quiver, {}) | {"texts": texts}
        return found


def put(store: Store, job: Job, name: str, files: dict[str, bytes], parent: str | None) -> None:
    """Make a commit on top of another one."""
    commits = Commits(store)
    with FileSetWriter(store, job) as writer:
        for path, data in files.items():
            writer.put(path, data)
        layer = writer.close()
    below = list(commits.get(parent).layers) if parent else []
    commits.create(job, name, [*below, layer], parent=parent)


def store(folder: Path) -> Expected:
    """Two commits, one on top of the other; a deleted one whose chunks nobody has collected."""
    dice = random.Random(1)
    first = {f"folder/{n:02}": dice.randbytes(2000 * n) for n in range(12)} | {"empty": b""}
    second = {"folder/03": b"changed", "new": b"text " * 5000}
    with Store.create(str(folder / "store")) as opened:
        with opened.references.open_job("golden") as job:
            put(opened, job, "first", first, None)
            put(opened, job, "second", second, "first")
            put(opened, job, "gone", {"x": dice.randbytes(9000)}, None)
        Commits(opened).delete("gone")
    files = {"first": first, "second": first | second}
    return {"store": {name: _hex(one) for name, one in files.items()}}


def store_killed(folder: Path) -> Expected:
    """A store whose writer was killed after it had stored chunks, and committed nothing of them."""
    dice = random.Random(2)
    opened = Store.create(str(folder / "store"))
    job = opened.references.open_job("golden")
    files = {"kept": dice.randbytes(10_000)}
    put(opened, job, "kept", files, None)
    lost = opened.references.open_job("killed")
    with opened.chunks.writer(lost) as writer:
        writer.put(dice.randbytes(3000))
        writer.barrier()
    return {"store": {"kept": _hex(files)}}


def _hex(files: dict[str, bytes]) -> dict[str, str]:
    from blake3 import blake3

    return {path: blake3(data).hexdigest() for path, data in files.items()}


SHAPES: dict[str, Callable[[Path], Expected]] = {
    one.__name__: one for one in (clean, gaps, crashed, cores, dead_letters, store, store_killed)
}
KILLED = ("crashed", "cores", "store_killed")


def make(shape: str, target: Path) -> Expected:
    """Let a process of its own make a shape, and pack what it left."""
    with tempfile.TemporaryDirectory() as folder:
        told_by = subprocess.run(
            [sys.executable, __file__, "--child", shape, folder], capture_output=True, check=False
        )
        expected: Expected = json.loads(told_by.stdout)
        with tarfile.open(target / f"{shape}.tar.xz", "w:xz") as archive:
            archive.add(folder, arcname=".", filter=_plain)
        return expected


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out who made it, and the sockets of the living."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry if entry.isfile() or entry.isdir() else None


def child(shape: str, folder: Path) -> None:
    """Make a shape; tell what it holds; die, if it is one of those."""
    sys.stdout.write(json.dumps(SHAPES[shape](folder)))
    sys.stdout.flush()
    if shape in KILLED:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Write all shapes into a folder."""
    if sys.argv[1] == "--child":
        child(sys.argv[2], Path(sys.argv[3]))
        return
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    expected = {shape: make(shape, target) for shape in SHAPES}
    (target / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
