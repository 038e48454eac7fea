"""Writers, readers, deleters and collectors at work while a check runs: none of it is a finding."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.store.chunks.stage import noise
from tests.store.fsck.stage import Damaged, filled_store
from tests.store.postgres import schema

from holdfast.store.filesets import FileSetWriter
from holdfast.store.fsck.check import LocalEngine, check
from holdfast.store.fsck.findings import FindingKind
from holdfast.store.fsck.tables import FsckSettings
from holdfast.store.gc.collector import Collector

ROUNDS = 2
# Between two rounds of a worker, so that the checks get their turn, too.
REST_S = 0.05


class Worker(threading.Thread):
    """Repeats some work until it is stopped; what it raises is raised by `finish`."""

    def __init__(self, work: object) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._stopping = threading.Event()
        self.rounds = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._work(self.rounds)  # type: ignore[operator]
                self.rounds += 1
                self._stopping.wait(REST_S)
        except BaseException as error:
            self.error = error

    def finish(self) -> None:
        self._stopping.set()
        self.join()
        if self.error is not None:
            raise self.error


@contextlib.contextmanager
def at_work(*works: object) -> Iterator[list[Worker]]:
    workers = [Worker(work) for work in works]
    for worker in workers:
        worker.start()
    try:
        yield workers
    finally:
        for worker in workers:
            worker.finish()


def busy_store_is_sound(damaged: Damaged) -> None:
    commits, store = damaged.commits, damaged.store

    def write_and_delete(number: int) -> None:
        with store.references.open_job("busy") as job:
            files = {f"n{n}": noise(700, b"%d %d" % (number, n)) for n in range(8)}
            damaged.write(job, f"busy/{number}", files)
        if number:
            commits.delete(f"busy/{number - 1}")

    def collect(_: int) -> None:
        Collector(store.references, store.objects).collect()

    def read(_: int) -> None:
        with commits.open("one") as files:
            assert files.read("large")

    with at_work(write_and_delete, collect, read) as workers:
        for _ in range(ROUNDS):
            assert damaged.check().findings == []
    assert all(worker.rounds for worker in workers)


def test_others_at_work_cause_no_finding(damaged: Damaged) -> None:
    busy_store_is_sound(damaged)
    assert damaged.check().ok


def test_others_at_work_cause_no_finding_on_postgres(tmp_path: Path, postgres_url: str) -> None:
    with schema(postgres_url) as url, filled_store(tmp_path, url) as damaged:
        busy_store_is_sound(damaged)


def test_what_a_running_writer_has_stored_is_no_leak_and_is_not_repaired_away(
    damaged: Damaged,
) -> None:
    """Nascent chunks, those reserved and not uploaded, and an index that nobody refers to yet."""
    with damaged.store.references.open_job("slow") as job:
        with FileSetWriter(damaged.store, job) as writer:
            for n in range(40):
                writer.put(f"slow/{n}", noise(900, b"slow%d" % n))
            layer = writer.close()
        damaged.store.references.reserve_chunks(job, [(layer.chunks[0][::-1], 10)])  # type: ignore[list-item]
        assert damaged.check().ok
        assert damaged.repair().repairs == []
        key = damaged.file_chunk("one", "large")
        damaged.store.objects.delete_many([key.object_key()])
        damaged.repair()  # with a repair at work, too
        damaged.commits.create(job, "slow", [layer])
    with damaged.commits.open("slow") as files:
        assert files.read("slow/7") == noise(900, b"slow7")


def test_a_reader_of_a_deleted_commit_is_no_leak(damaged: Damaged) -> None:
    with damaged.commits.open("one") as files:
        damaged.commits.delete("one")
        damaged.commits.delete("two")
        Collector(damaged.store.references, damaged.store.objects).collect()
        assert damaged.check().ok
        assert damaged.repair().repairs == []
        assert files.read("large")
    Collector(damaged.store.references, damaged.store.objects).collect()
    assert damaged.known() == []
    assert damaged.check().ok


def test_garbage_that_waits_for_the_collector_is_no_leak(damaged: Damaged) -> None:
    damaged.commits.delete("two")
    damaged.commits.delete("one")
    assert damaged.check().ok


def test_a_slow_deleter_is_not_a_dead_one(damaged: Damaged) -> None:
    references = damaged.store.references
    number = references.begin_delete_commit("two")
    assert damaged.check().ok
    assert damaged.repair().repairs == []
    damaged.sql("UPDATE gc_job SET lease_until = 1.0")
    [finding] = damaged.check().findings
    assert (finding.kind, finding.commit) == (FindingKind.COMMIT_UNFINISHED, "two")
    assert references.begin_delete_commit("two") == number  # another one takes over
    assert damaged.check().ok
    damaged.commits.delete("two")
    Collector(references, damaged.store.objects).collect()
    assert damaged.check().ok
    assert damaged.rows("gc_job") == []


def test_a_commit_that_is_deleted_while_it_is_walked(damaged: Damaged) -> None:
    """The walk has its chunks among the reached; then they are collected."""

    class Deleting(LocalEngine):
        def _objects(self, report):  # type: ignore[no-untyped-def]
            for name in ("two", "one"):
                with contextlib.suppress(Exception):
                    damaged.commits.delete(name)
            Collector(damaged.store.references, damaged.store.objects).collect()
            yield from super()._objects(report)

    limits = FsckSettings(partitions=2)
    engine = Deleting(damaged.store, damaged.scratch, limits)
    assert check(damaged.store, engine, limits).findings == []
    assert damaged.known() == []
