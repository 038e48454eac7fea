"""A sender with its threads: over the fake transport, and over Flight to real data nodes."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.node.serving import served
from tests.patience import PATIENCE_S, until

from holdfast.errors import BadInput, OwnerGone, StorageFailed
from holdfast.handoff import driver as driver_module
from holdfast.handoff import sender as sender_module
from holdfast.handoff.driver import HandoffDriver
from holdfast.handoff.fake import FakeNode, FakeTransport
from holdfast.handoff.monitor import MonitorSettings
from holdfast.handoff.scheduler import SchedulerSettings
from holdfast.handoff.sender import Handoff, HandoffSettings
from holdfast.handoff.worker import WorkerSettings
from holdfast.quiver import Quiver, QuiverConfig
from holdfast.quiver.read.parts import waiting_segments
from holdfast.quiver.segments.segment import Segment
from holdfast.remote import ClientSettings
from holdfast.replica.flight import FlightTransport
from holdfast.replica.part import part_id
from holdfast.replica.transport import Transport, whole_health
from holdfast.replica.verify import verify
from holdfast.seam import Seam

QUICK = HandoffSettings(
    monitor=MonitorSettings(probe_interval_s=0.05, damping_min_s=0.05, damping_max_s=0.1),
    scheduler=SchedulerSettings(slow_start_bytes_s=1e15),
    worker=WorkerSettings(node_pause_min_s=0.01, node_pause_max_s=0.1, part_pause_max_s=0.1),
)


@contextlib.contextmanager
def sending(folder: Path, transports: dict[str, Transport]) -> Iterator[Handoff]:
    """Send what is appended to a quiver, with real threads."""
    seam = Seam()
    with Quiver.open(folder / "quiver", QuiverConfig(control=False), seam=seam) as quiver:
        handoff = Handoff(quiver, seam, QUICK)
        handoff.configure(transports)
        driver = HandoffDriver(handoff, seam.clock, lambda name: transports[name])
        driver.refresh()
        try:
            yield handoff
        finally:
            driver.close(PATIENCE_S)


def seal(quiver: Quiver, parts: int) -> None:
    for number in range(parts):
        quiver.append_raw([b"%d" % number])
        quiver.flush(PATIENCE_S)


def is_done(handoff: Handoff) -> bool:
    return handoff.reached(handoff.sync_point()).is_complete


def test_threads_send_to_fake_nodes_while_one_dies_and_comes_back(tmp_path: Path) -> None:
    nodes = {name: FakeNode(f"node-{name}") for name in "ab"}
    transports: dict[str, Transport] = {
        name: FakeTransport(partial(nodes.get, name)) for name in nodes
    }
    with sending(tmp_path, transports) as handoff:
        seal(handoff.quiver, 3)
        until(lambda: is_done(handoff), "the first parts")
        nodes["a"].is_up = False
        until(lambda: handoff.healthy_nodes() == {"b"}, "that a is found to be down")
        seal(handoff.quiver, 3)
        until(lambda: len(nodes["b"].history) == 6, "that b has all")
        nodes["a"].restart()
        until(lambda: is_done(handoff), "that a catches up")
    assert {len(set(node.history)) for node in nodes.values()} == {6}
    assert {len(node.history) for node in nodes.values()} == {6}


def test_a_transport_that_fails_in_a_way_nobody_foresaw_costs_no_part(tmp_path: Path) -> None:
    node, failures = FakeNode("node-a"), [ValueError("?"), OwnerGone("cut", hint=""), KeyError("!")]

    def trouble(verb: str, moment: str) -> None:
        if verb == "send" and moment == "after" and failures:
            raise failures.pop()

    with sending(tmp_path, {"a": FakeTransport(lambda: node, trouble)}) as handoff:
        seal(handoff.quiver, 2)
        until(lambda: is_done(handoff), "that it is sent all the same")
    assert len(failures) < 3
    assert len(node.history) == 2


def test_real_data_nodes_get_every_part_byte_for_byte(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        nodes, transports = {}, dict[str, Transport]()
        for name in "ab":
            (tmp_path / name).mkdir()
            nodes[name], location = stack.enter_context(served(tmp_path / name))
            transports[name] = FlightTransport(location, ClientSettings(timeout=PATIENCE_S))
        handoff = stack.enter_context(sending(tmp_path, transports))
        seal(handoff.quiver, 5)
        parts = {part_id(one.summary) for one in handoff.quiver.segments()}
        until(lambda: is_done(handoff), "that both have all")
        quiver_id = handoff.quiver.quiver_id
        for name in "ab":
            (holding,) = whole_health(transports[name]).holdings
            assert list(holding.stored) == [(0, 5)]
            folders = (tmp_path / name / "node" / "replicas" / quiver_id / "segments").iterdir()
            found = {part_id(verify(Seam().disk, folder)) for folder in folders}
            assert len(found) == 5
            assert parts <= found
            assert handoff.membership.bound[name].node_id == nodes[name].node_id


class Replaced:
    """The way to an address at which another node came to answer, and no probe has noticed."""

    def __init__(self, probed: Transport, reached: Transport) -> None:
        self.probed, self.reached = probed, reached

    def __getattr__(self, verb: str) -> Any:
        return getattr(self.probed if verb == "health" else self.reached, verb)


def test_scenario_23_a_real_node_replaced_between_two_probes_settles_nothing(
    tmp_path: Path,
) -> None:
    with contextlib.ExitStack() as stack:
        nodes, ways = {}, {}
        for name in ("bound", "fresh"):
            (tmp_path / name).mkdir()
            nodes[name], location = stack.enter_context(served(tmp_path / name))
            ways[name] = FlightTransport(location, ClientSettings(timeout=PATIENCE_S))
            stack.callback(ways[name].close)
        replaced: Any = Replaced(ways["bound"], ways["fresh"])
        handoff = stack.enter_context(sending(tmp_path, {"a": replaced}))
        seal(handoff.quiver, 2)
        answers = nodes["fresh"].statistics
        until(lambda: sum(answers().answers_total.values()) > 3, "that it was asked again")
        assert {kind for kind, count in answers().answers_total.items() if count} == {"wrong_node"}
        assert handoff.quiver.balance("node.a").pending.bundles == 2
        replaced.probed = ways["fresh"]
        handoff.rebind("a")
        until(lambda: is_done(handoff), "that the new node has all")
        assert nodes["fresh"].statistics().adopted_total == 2


def test_appends_wake_no_thread_of_a_data_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "NEWS_EVERY_S", PATIENCE_S)
    node, begun = FakeNode("node-a"), 0
    with sending(tmp_path, {"a": FakeTransport(lambda: node)}) as handoff:
        until(lambda: handoff.healthy_nodes() == {"a"}, "that it is met")
        begin = handoff.workers["a"].begin

        def counted() -> Any:
            nonlocal begun
            begun += 1
            return begin()

        # Probes do; and every thread looks for itself after a while.
        monkeypatch.setattr(handoff.probers["a"], "begin", lambda: None)
        monkeypatch.setattr(handoff.probers["a"], "due_s", lambda: math.inf)
        monkeypatch.setattr(handoff.workers["a"], "begin", counted)
        for _ in range(200):
            handoff.quiver.append_raw([b"x"])
        assert begun < 100


def test_a_node_that_nobody_can_connect_to_holds_back_only_what_it_owns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "IDLE_S", 0.05)
    node, seam = FakeNode("node-a"), Seam()

    def connect(name: str) -> Transport:
        if name == "b":
            raise BadInput("nobody knows where it is", hint="")
        return FakeTransport(lambda: node)

    with Quiver.open(tmp_path / "quiver", QuiverConfig(control=False), seam=seam) as quiver:
        handoff = Handoff(quiver, seam, replace(QUICK, replicas=1, block_seqs=1))
        handoff.configure(["a", "b"])
        driver = HandoffDriver(handoff, seam.clock, connect)
        driver.refresh()
        seal(quiver, 6)
        owned = [
            seq
            for seq in range(6)
            if "b" in handoff.membership.owners.owners(quiver.quiver_id, seq, seq + 1)
        ]
        until(lambda: quiver.waiting("node.b") == owned, "that the rest is resolved for it")
        assert "nobody knows where it is" in str(handoff.monitor.last_error("b"))
        driver.close(PATIENCE_S)


def test_what_waits_for_an_orphan_is_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []

    def counted(*given: Any) -> Iterator[Segment]:
        for segment in waiting_segments(*given):
            looked.append(segment.summary.first_seq)
            yield segment

    monkeypatch.setattr(sender_module, "waiting_segments", counted)
    with Quiver.open(tmp_path / "quiver", QuiverConfig(control=False)) as quiver:
        handoff = Handoff(quiver, Seam(), replace(QUICK, replicas=1, block_seqs=1))
        handoff.configure(["a", "b"])
        seal(quiver, 4)
        handoff.configure(["a"])
        seal(quiver, 2)
        handoff.filter_orphans()
        assert looked == [0, 1, 2, 3, 4, 5]
        # It owns nothing of what came since it is an orphan.
        owners = handoff.membership.owners
        owned = [n for n in range(4) if "b" in owners.owners(quiver.quiver_id, n, n + 1)]
        assert quiver.waiting("node.b") == owned
        looked.clear()
        handoff.filter_orphans()
        assert looked == []
        seal(quiver, 1)
        handoff.filter_orphans()
        assert looked == [6]
        handoff.close()


def test_a_disk_that_fails_ends_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "IDLE_S", 0.05)
    failures = [StorageFailed("the disk is full", hint=""), OSError("I/O error")]

    def fail(handoff: Handoff) -> None:
        if failures:
            raise failures.pop()

    node = FakeNode("node-a")
    with sending(tmp_path, {"a": FakeTransport(lambda: node)}) as handoff:
        until(lambda: handoff.healthy_nodes() == {"a"}, "that it is met")
        monkeypatch.setattr(Handoff, "filter_orphans", fail)
        until(lambda: not failures, "that both failures are met")
        asked = len(node.history)
        seal(handoff.quiver, 1)
        until(lambda: is_done(handoff), "that it is asked and sent to all the same")
        assert len(node.history) == asked + 1
        node.is_up = False
        until(lambda: handoff.healthy_nodes() == set(), "that its prober lives")


def test_a_stop_that_is_to_hurry_waits_for_no_call(tmp_path: Path) -> None:
    node, called, let_go, seam = FakeNode("node-a"), threading.Event(), threading.Event(), Seam()

    def hang(verb: str, moment: str) -> None:
        if verb == "send" and moment == "before":
            called.set()
            let_go.wait()

    with Quiver.open(tmp_path / "quiver", QuiverConfig(control=False), seam=seam) as quiver:
        handoff = Handoff(quiver, seam, QUICK)
        handoff.configure(["a"])
        driver = HandoffDriver(handoff, seam.clock, lambda name: FakeTransport(lambda: node, hang))
        driver.refresh()
        seal(quiver, 1)
        assert called.wait(PATIENCE_S)
        patient = threading.Thread(target=driver.close, args=[10 * PATIENCE_S])
        patient.start()
        driver.close(0.0)
        patient.join(PATIENCE_S)
        assert not patient.is_alive()
        let_go.set()
        for thread in driver._threads.values():
            thread.join(PATIENCE_S)
    # What it was answered after the end settles nothing: it is offered again at the next start.
    with Quiver.open(tmp_path / "quiver", QuiverConfig(control=False), seam=seam) as quiver:
        assert quiver.balance("node.a").pending.bundles == 1


def test_refresh_starts_what_is_missing_once(tmp_path: Path) -> None:
    node, seam = FakeNode("node-a"), Seam()
    with Quiver.open(tmp_path / "quiver", QuiverConfig(control=False), seam=seam) as quiver:
        handoff = Handoff(quiver, seam, QUICK)
        driver = HandoffDriver(handoff, seam.clock, lambda name: FakeTransport(lambda: node))
        for names in ([], ["a"], ["a"]):
            handoff.configure(names)
            driver.refresh()
            assert len(driver._threads) == 2 * len(names)
        driver.close(PATIENCE_S)
        assert not any(thread.is_alive() for thread in driver._threads.values())
