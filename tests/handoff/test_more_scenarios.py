"""Scenarios that take a whole quiver or real nodes, each found by its number."""

from __future__ import annotations

import contextlib
import signal
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath

import pytest
from tests.handoff.simulation import ROOT, sim_config
from tests.handoff.test_driver import is_done, seal, sending
from tests.handoff.test_sender import FAST, Calm
from tests.node.serving import served
from tests.node.test_process import running
from tests.patience import PATIENCE_S, until

from holdfast.errors import BadInput, NotAccepted, Overloaded, OwnerGone
from holdfast.handoff.fake import FakeNode, FakeTransport
from holdfast.handoff.scheduler import MIB
from holdfast.handoff.sender import Handoff, HandoffSettings
from holdfast.handoff.statistics import backlog_statistics
from holdfast.handoff.worker import Worker
from holdfast.quiver import AppendConfig, Outcome, Quiver, SegmentConfig, SubscriberOptions
from holdfast.quiver.ledger.subscriber import OnFull
from holdfast.remote import ClientSettings
from holdfast.replica.flight import FlightTransport
from holdfast.replica.transport import Transport
from holdfast.seam import Seam
from holdfast.seam.simulated import SimulatedDisk

CAP = 2 * MIB


def test_scenario_02_two_quivers_with_equal_numbers_deliver_to_one_node_that_was_dead(
    tmp_path: Path,
) -> None:
    node = FakeNode("node-a", is_up=False)
    with contextlib.ExitStack() as stack:
        quivers = []
        for core in ("core-00", "core-01"):
            (tmp_path / core).mkdir()
            way: dict[str, Transport] = {"a": FakeTransport(partial(lambda: node))}
            handoff = stack.enter_context(sending(tmp_path / core, way))
            seal(handoff.quiver, 2)
            quivers.append(handoff)
        node.restart()
        until(lambda: all(map(is_done, quivers)), "that both have delivered")
        ids = {handoff.quiver.quiver_id for handoff in quivers}
    assert len(ids) == 2
    assert sorted(node.history) == sorted((one, seq, seq) for one in ids for seq in (0, 1))


@pytest.mark.parametrize("is_copied", [True, False])
@pytest.mark.parametrize("on_full", ["block", "drop_oldest", "drop_copied"])
def test_scenario_17_every_policy_at_the_cap_of_a_node_with_a_copy_elsewhere_and_without(
    on_full: OnFull, is_copied: bool
) -> None:
    options = SubscriberOptions(max_segment_bytes=CAP, on_full=on_full)
    sim = Calm(2, HandoffSettings(scheduler=FAST, subscriber=options))
    sim.stop("a", *([] if is_copied else ["b"]))
    accepted = 0
    while accepted < 8 and sim.quiver.refusal() is None:
        sim.seal(1, size_bytes=500_000)
        accepted += 1
        sim.run(10.0)
        sim.tick()
        sim.run(0.5)  # the other owner is asked whether it still has what is to go
        sim.tick()
    losses = sim.quiver.subscriber("node.a").losses
    drops = on_full == "drop_oldest" or (on_full == "drop_copied" and is_copied)
    assert bool(losses) == drops
    assert (accepted == 8) == drops
    if drops:
        # The oldest, and no more than it takes.
        ((first, end, outcome),) = losses
        assert (first, outcome) == (0, Outcome.DROPPED)
        kept = [one for one in sim.quiver.segments() if one.summary.first_seq >= end]
        assert CAP - MIB < sum(one.disk_bytes for one in kept) <= CAP
    sim.settle()
    assert sim.problems() == []
    sim.quiver.close()


def test_scenario_19_appends_of_many_threads_hold_the_cap_and_the_account_stays_exact() -> None:
    seam = Seam(SimulatedDisk())
    config = replace(sim_config(), append=AppendConfig(timeout_s=0.05))
    options = SubscriberOptions(max_segment_bytes=CAP, on_full="block")
    with Quiver.open(ROOT, config, seam=seam) as quiver:
        handoff = Handoff(quiver, seam, HandoffSettings(subscriber=options))
        handoff.configure(["a"])

        def fill() -> None:
            while quiver.refusal() is None:
                # Also what only took too long on a busy machine is tried again.
                with contextlib.suppress(NotAccepted):
                    quiver.append_raw([bytes(100_000)])
                # Behind that, too: it may be stored all the same, and only what is sealed counts.
                quiver.flush(PATIENCE_S)

        threads = [threading.Thread(target=fill) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert isinstance(quiver.refusal(), Overloaded)
        quiver.flush(PATIENCE_S)
        segments = quiver.segments()
        # What is above the cap is what was sealed last: one event of each thread at most.
        assert CAP // 2 < sum(one.disk_bytes for one in segments) <= CAP + 20 * 120_000
        before = backlog_statistics(handoff, 0)
        for _ in range(1000):
            handoff.configure(["a"])
        assert backlog_statistics(handoff, 0) == before
        for segment in segments:
            quiver.resolve_segment("node.a", segment, Outcome.ACKED)
            quiver.resolve_segment("node.a", segment, Outcome.ACKED)
        (after,) = backlog_statistics(handoff, 0)
        assert (after.pending_parts, after.pending_bytes) == (0, 0)
        assert quiver.balance("node.a").holds
        until(lambda: quiver.refusal() is None, "that there is room again")
        handoff.close()


def test_scenario_28_a_node_that_is_given_up_frees_what_waited_for_it_and_it_is_counted() -> None:
    sim = Calm(2)
    sim.stop("a")
    sim.seal(5, size_bytes=100_000)
    sim.run(30.0)
    sim.tick()
    assert len(sim.quiver.segments()) == 5
    held_bytes = sim.quiver._engine.retention.used_bytes()
    given_up = sim.quiver.balance("node.a").pending
    assert given_up.bundles == 5
    sim.handoff.forget("a", "drop")
    sim.tick()
    assert sim.quiver.segments() == ()
    assert sim.quiver._engine.retention.used_bytes() < held_bytes - 500_000
    assert sim.quiver.subscribers() == ("node.b",)
    lines = b"".join(
        sim.disk.read(ROOT / "ledger" / e.name) for e in sim.disk.list(ROOT / "ledger")
    )
    assert b"forgotten (drop)" in lines
    sim.quiver.close()


class CountingDisk(SimulatedDisk):
    """Counts what is asked of it."""

    reads = 0

    def read(self, path: PurePath) -> bytes:
        self.reads += 1
        return super().read(path)

    def read_range(self, path: PurePath, start: int, size_bytes: int) -> bytes:
        self.reads += 1
        return super().read_range(path, start, size_bytes)


def reads_of_a_start(bundles: int, segments: int) -> tuple[int, int]:
    """Return what a start reads, and what a turn of a worker reads whose node is away."""
    disk = CountingDisk()
    with Quiver.open(ROOT, sim_config(), seam=Seam(disk)) as quiver:
        Handoff(quiver, Seam(disk)).configure(["a"])
        for _ in range(segments):
            with quiver.transaction() as transaction:
                for number in range(bundles // segments):
                    transaction.append_raw(b"%d" % number)
            quiver.flush()
    disk.reads = 0
    with Quiver.open(ROOT, sim_config(), seam=Seam(disk)) as quiver:
        handoff = Handoff(quiver, Seam(disk))
        handoff.configure(["a"])
        worker = handoff.workers["a"]
        assert next(worker.reader.waiting()).summary.first_seq == 0
        at_start, disk.reads = disk.reads, 0
        for _ in range(3):
            assert worker.begin() is None
        handoff.close()
    return at_start, disk.reads


def test_scenario_33_what_waits_is_not_read_at_a_start_nor_while_nothing_can_be_sent() -> None:
    few, many = reads_of_a_start(bundles=20, segments=2), reads_of_a_start(5_000, segments=2)
    assert few == many
    assert many[1] == 0
    # A summary for each segment, and nothing for a bundle.
    assert reads_of_a_start(20, segments=10)[0] == few[0] + 8


def test_scenario_13_a_node_that_does_not_speak_tls_is_told_in_time(tmp_path: Path) -> None:
    with served(tmp_path) as (_, location):
        encrypted = location.replace("grpc://", "grpc+tls://")
        settings = ClientSettings(timeout=PATIENCE_S)
        with contextlib.closing(FlightTransport(encrypted, settings)) as transport:
            with pytest.raises(OwnerGone) as error:
                transport.health()
            assert error.value.hint


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_scenario_13_a_stopped_process_is_down_and_the_other_node_gets_everything(
    tmp_path: Path,
) -> None:
    (tmp_path / "b").mkdir()
    with (
        running(tmp_path / "a") as (process, _, location),
        served(tmp_path / "b") as (other, other_location),
    ):
        quick = ClientSettings(timeout=1.0)
        ways: dict[str, Transport] = {
            "a": FlightTransport(location, quick, put_patience_s=1.0),
            "b": FlightTransport(other_location, ClientSettings(timeout=PATIENCE_S)),
        }
        with sending(tmp_path, ways) as handoff:
            seal(handoff.quiver, 1)
            until(lambda: is_done(handoff), "that both have the first part")
            process.send_signal(signal.SIGSTOP)
            seal(handoff.quiver, 3)
            until(lambda: other.statistics().parts == 4, "that the other has all")
            until(lambda: handoff.healthy_nodes() == {"b"}, "that the stopped one is down")
            process.send_signal(signal.SIGCONT)
            until(lambda: is_done(handoff), "that it catches up")


@pytest.mark.parametrize("size_bytes", [2 << 30, 3 << 30])
def test_scenario_34_no_part_of_more_than_2_gib_can_come_to_be(size_bytes: int) -> None:
    with pytest.raises(BadInput, match="target_size_bytes") as error:
        SegmentConfig(target_size_bytes=size_bytes)
    assert "256 MB" in error.value.hint
    with pytest.raises(BadInput, match="max_bundle_bytes"):
        AppendConfig(max_bundle_bytes=size_bytes)


def test_a_part_that_is_sealed_while_a_worker_chooses_goes_to_its_owners_alone() -> None:
    sim = Calm(2, HandoffSettings(replicas=1, block_seqs=1, scheduler=FAST))
    sim.run(10.0)
    looks = Worker._filter

    def slow(worker: Worker) -> None:
        looks(worker)
        if sim.quiver.end_seq < 20:
            sim.append()
            sim.flush()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "_filter", slow)
        sim.run(30.0)
    sim.settle()
    owners = sim.handoff.membership.owners
    for name in "ab":
        assert sim.has(name)
        for part in sim.has(name):
            assert name in owners.owners(*part[:2], part.end_seq), f"{name} got {part}"
    assert sim.problems() == []
    sim.quiver.close()
