"""A fork: the child gets a typed error at every call, and harms nothing of its parent's."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S
from tests.seam.forking import in_child

from holdfast.errors import DirectoryLocked, Forked, StorageFailed
from holdfast.quiver import Cores, Quiver, QuiverConfig
from holdfast.quiver.read.lease import Lease
from holdfast.seam import process

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def files_of(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def drain(lease: Lease) -> int:
    count = 0
    while (delivery := lease.poll()) is not None:
        delivery.ack()
        count += 1
    return count


def test_a_worker_that_acks_does_not_make_the_parents_acks_unreadable(tmp_path: Path) -> None:
    quiver = Quiver.open(tmp_path)
    quiver.register("x")
    quiver.register("y")
    for number in range(20):
        quiver.append_raw(b"%d" % number)

    def work() -> None:
        with quiver.lease("y") as lease:
            delivery = lease.poll(timeout_s=1)
            assert delivery is not None
            delivery.ack()

    worker = multiprocessing.get_context("fork").Process(target=work)
    worker.start()
    worker.join(PATIENCE_S)
    assert worker.exitcode == 1, "it should end with Forked"
    with quiver.lease("x") as lease:
        assert drain(lease) == 20
    quiver.close()
    with Quiver.open(tmp_path) as quiver:
        assert quiver.balance("x").pending.bundles == 0
        assert quiver.balance("y").pending.bundles == 20
        assert quiver.recovery.damages == []


def test_every_call_of_a_child_is_refused_at_once(tmp_path: Path) -> None:
    with Quiver.open(tmp_path) as quiver:
        quiver.append_raw([b"one", b"two"])
        lease, cursor = quiver.lease("l"), quiver.cursor("c")
        delivery, planned = lease.poll(), cursor.plan()
        assert delivery is not None
        assert planned is not None
        transaction, arrivals = quiver.transaction(), quiver.arrivals
        reading = cursor.read(planned)
        calls: list[Callable[[], object]] = [
            lambda: quiver.append_raw(b"x"),
            lambda: asyncio.run(quiver.append_raw_async(b"x")),
            lambda: quiver.register("z"),
            lambda: quiver.unregister("l"),
            lambda: quiver.lease("l"),
            lambda: quiver.cursor("c"),
            lambda: quiver.scan().read_all(),
            lambda: quiver.bundle(0),
            quiver.flush,
            quiver.statistics,
            quiver.subscribers,
            lambda: quiver.heartbeat("p", 1),
            quiver.transaction,
            lease.poll,
            lambda: next(iter(lease)),
            delivery.ack,
            delivery.nack,
            delivery.extend,
            cursor.plan,
            lambda: cursor.commit(planned),
            lambda: next(reading),
            lambda: transaction.append_raw(b"x"),
            transaction.commit,
            lambda: arrivals.wait(0, 1.0),
        ]

        def work() -> None:
            for call in calls:
                with pytest.raises(Forked):
                    call()

        before = files_of(tmp_path)
        in_child(work)
        assert files_of(tmp_path) == before
        assert drain(quiver.lease("l")) == 1


def test_locks_that_were_held_at_the_fork_stop_no_child(tmp_path: Path) -> None:
    with Quiver.open(tmp_path) as quiver:
        quiver.append_raw(b"one")
        lease = quiver.lease("l")
        delivery = lease.poll()
        assert delivery is not None

        def work() -> None:
            calls: list[Callable[[], object]] = [
                lambda: quiver.register("y"),
                lambda: quiver.append_raw(b""),
                delivery.ack,
            ]
            for call in calls:
                with pytest.raises(Forked):
                    call()

        # As if other threads were at work in there.
        engine = quiver._engine
        with engine.ledger.lock, engine.retention._lock, lease._lock, engine.arrivals._condition:
            in_child(work)
        assert delivery.ack()


def test_a_child_that_closes_does_not_give_the_directory_away(tmp_path: Path) -> None:
    with Quiver.open(tmp_path) as quiver, quiver.lease("l") as lease:
        quiver.append_raw(b"one")
        before, transaction = files_of(tmp_path), quiver.transaction()
        transaction.append_raw(b"two")

        def work() -> None:
            with contextlib.suppress(KeyError), quiver, lease, transaction:
                raise KeyError
            quiver.close()
            lease.close()
            with pytest.raises(DirectoryLocked):
                Quiver.open(tmp_path)

        in_child(work)
        assert files_of(tmp_path) == before, "the control socket or a file went"
        with pytest.raises(DirectoryLocked):
            Quiver.open(tmp_path)
        transaction.commit()
        assert drain(lease) == 2


def test_a_child_that_ends_like_any_program_harms_nothing(tmp_path: Path) -> None:
    """Garbage collection, `atexit` and the end of a `with` block run in it."""
    program = f"""
import gc, os, sys
from holdfast import Quiver
with Quiver.open({str(tmp_path)!r}) as quiver:
    quiver.append_raw(b"one")
    lease = quiver.lease("l")
    if (child := os.fork()) == 0:
        del lease
        gc.collect()
        sys.exit(7)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7, status
    lease.poll().ack()
with Quiver.open({str(tmp_path)!r}) as quiver:
    assert quiver.balance("l").pending.bundles == 0
    assert quiver.recovery.damages == []
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)


def test_a_child_that_lives_on_keeps_neither_lock_nor_space(tmp_path: Path) -> None:
    quiver = Quiver.open(tmp_path)
    quiver.append_raw(b"one")
    told_out, told_in = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(int(PATIENCE_S))
        os.write(told_in, b"x")
        time.sleep(PATIENCE_S)
        os._exit(0)
    try:
        os.read(told_out, 1)
        held = [os.readlink(fd) for fd in _descriptors(child)]
        assert not [path for path in held if path.startswith(str(tmp_path))]
        quiver.close()
        Quiver.open(tmp_path).close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(told_out)
        os.close(told_in)


def _descriptors(process: int) -> list[Path]:
    folder = Path(f"/proc/{process}/fd")
    if not folder.exists():
        pytest.skip("needs /proc to look at the descriptors of another process")
    return list(folder.iterdir())


def test_a_child_may_open_another_quiver(tmp_path: Path) -> None:
    with Quiver.open(tmp_path / "parent"):

        def work() -> None:
            with Quiver.open(tmp_path / "child") as quiver:
                quiver.append_raw(b"one")
                assert drain(quiver.lease("l")) == 1

        in_child(work)


def test_cores_of_a_parent_are_refused_too(tmp_path: Path) -> None:
    config = QuiverConfig()
    with Cores.open(tmp_path, 2, config) as cores:
        core = cores[0]
        calls: list[Callable[[], object]] = [
            lambda: cores[0],
            lambda: core.append_raw(b""),
            cores.sources,
            cores.sweep,
        ]

        def work() -> None:
            for call in calls:
                with pytest.raises(Forked):
                    call()
            cores.close()

        before = files_of(tmp_path)
        in_child(work)
        assert files_of(tmp_path) == before
        with pytest.raises(DirectoryLocked):
            Cores.open(tmp_path, 2, config)
        cores[0].append_raw(b"one")


def test_an_intake_of_a_parent_is_refused(tmp_path: Path) -> None:
    async def run(quiver: Quiver) -> None:
        intake = quiver.intake()

        def work() -> None:
            with pytest.raises(Forked):
                intake.offer(b"x", None, lambda _: None)

        in_child(work)

    with Quiver.open(tmp_path) as quiver:
        asyncio.run(run(quiver))


def test_what_is_forgotten_is_not_kept_for_the_sake_of_a_fork(tmp_path: Path) -> None:
    gc.collect()  # what earlier tests left
    before = len(process._bound)
    with Quiver.open(tmp_path) as quiver:
        for _ in range(100):
            quiver.transaction().abort()
        assert len(process._bound) > before
    del quiver
    gc.collect()
    assert len(process._bound) <= before


def test_bytes_that_somebody_else_wrote_cost_neither_appends_nor_outcomes(tmp_path: Path) -> None:
    """A line or a frame is read by its place: one that others moved would be lost in silence."""
    with Quiver.open(tmp_path) as quiver:
        lease = quiver.lease("l")
        for number in range(4):
            quiver.append_raw(b"%d" % number)
        for path in [*(tmp_path / "wal").iterdir(), *(tmp_path / "ledger").iterdir()]:
            with path.open("ab") as file:
                file.write(b"not ours")
        with pytest.raises(StorageFailed, match="written by another process"):
            quiver.append_raw(b"4")
        quiver.append_raw(b"5")
        delivery = lease.poll()
        assert delivery is not None
        with pytest.raises(StorageFailed, match="written by another process"):
            delivery.ack()
        delivery.ack()
        assert drain(lease) == 4
        snapshot = files_of(tmp_path)
    for path, content in snapshot.items():  # as kill -9 would have left it
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    with Quiver.open(tmp_path) as quiver:
        assert quiver.balance("l").pending.bundles == 0
        assert quiver.balance("l").accepted.bundles == 5
        assert quiver.recovery.damages == []
