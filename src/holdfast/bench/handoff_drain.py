"""Draining a backlog into data nodes: beside the bare transfer, beside a stopped node, and fairly.

A quiver with a backlog of sealed parts is in this process, with a real sender (`Handoff` and its
threads); data nodes are `holdfast node`, each new for its round. The clock runs from the moment a
node may be sent to until the last part is committed in the ledger. Start-up is outside of it, and
so is the slow start of a node that comes back: it is a pause on purpose.

The order of what is compared changes from round to round, and the disk is synced before each: what
one leaves to be written must not be the next one's time. Each ratio has a control beside it, the
denominator against itself, which is how far apart two equal things are on this machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from holdfast.bench.figures import Figures, rotated
from holdfast.bench.gateway_process import ServerProcess, free_ports
from holdfast.bench.handoff_peers import QUIVER, Peer
from holdfast.bench.load import telemetry_batch
from holdfast.bench.scale import HandoffScale
from holdfast.errors import CheckFailed
from holdfast.handoff.driver import HandoffDriver
from holdfast.handoff.monitor import MonitorSettings
from holdfast.handoff.scheduler import SchedulerSettings
from holdfast.handoff.sender import Handoff, HandoffSettings
from holdfast.quiver import AckLevel, Quiver, QuiverConfig, RetentionConfig, SegmentConfig
from holdfast.remote import ClientSettings, RemoteQuiver
from holdfast.replica.flight import FlightTransport
from holdfast.replica.part import part_of
from holdfast.replica.transport import OutgoingPart
from holdfast.seam import Seam

MB = 1 << 20
# No node is kept waiting by its history.
AT_ONCE = 1e15
# Fewer than there are nodes, so that they have to take turns.
PERMITS = 2
PATIENCE_S = 600.0
# About a quantum of 8 MiB.
BUNDLES_AT_ONCE = 90
POLL_S = 0.005
_CONFIG = QuiverConfig(
    segment=SegmentConfig(target_size_bytes=256 * MB, max_open_duration_s=600.0),
    retention=RetentionConfig(size_cap_bytes=64 << 30),
    control=False,
)


class NodeProcess(ServerProcess):
    """`holdfast node`, on a new directory."""

    def __init__(self, folder: Path) -> None:
        (port,) = free_ports(1)
        self.directory = folder
        self.location = f"grpc://127.0.0.1:{port}"
        command = [sys.executable, "-m", "holdfast", "node", "--data", str(folder)]
        command += ["--listen", f"127.0.0.1:{port}", "--min-free", "0"]
        folder.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(command, folder.with_suffix(".log"))
        self.wait_for_port(port)

    def halt(self) -> None:
        """Stop it, as a debugger does: it neither answers nor refuses."""
        self._child.send_signal(signal.SIGSTOP)

    def end(self) -> None:
        """Kill it."""
        self._child.kill()
        self._child.wait()


class DrainBench:
    """A quiver with a backlog, and what is measured with it."""

    def __init__(self, folder: Path, scale: HandoffScale, quiver: Quiver) -> None:
        self._folder = folder
        self._quiver = quiver
        self.scale = scale
        self._count = 0
        disk = Seam().disk
        self.parts = [
            OutgoingPart(part_of(disk, one.path, one.summary), disk, one.path)
            for one in quiver.segments()
        ]
        self.size_bytes = sum(one.part.size_bytes for one in self.parts)

    # ------------------------------------------------------------------ senders

    @contextlib.contextmanager
    def _nodes(self, count: int) -> Iterator[dict[str, NodeProcess]]:
        """Start new nodes under names that nobody had before."""
        nodes: dict[str, NodeProcess] = {}
        try:
            for _ in range(count):
                self._count += 1
                nodes[f"n{self._count}"] = NodeProcess(self._folder / f"n{self._count}")
            yield nodes
        finally:
            for node in nodes.values():
                node.end()
                shutil.rmtree(node.directory)

    @contextlib.contextmanager
    def _sender(
        self, nodes: dict[str, NodeProcess], scheduler: SchedulerSettings
    ) -> Iterator[Handoff]:
        """Attach a sender to nodes that miss everything; they are up, and nothing is sent yet."""
        # Registered before the sender knows them, and from the oldest on: to the sender they are
        # nodes that were away while the whole backlog came in.
        seam = Seam()
        for name in nodes:
            self._quiver.register(f"node.{name}", start="oldest")
        settings = HandoffSettings(
            monitor=MonitorSettings(probe_interval_s=0.2), scheduler=scheduler
        )
        handoff = Handoff(self._quiver, seam, settings)
        handoff.configure(nodes)
        for worker in handoff.workers.values():
            worker.reader.pause()
        patient = ClientSettings(timeout=PATIENCE_S)
        driver = HandoffDriver(
            handoff,
            seam.clock,
            lambda name: FlightTransport(nodes[name].location, patient, put_patience_s=PATIENCE_S),
        )
        driver.refresh()
        try:
            _wait(lambda: handoff.healthy_nodes() == nodes.keys(), "the nodes do not answer")
            yield handoff
        finally:
            for node in nodes.values():
                node.end()  # so that a call to one that is stopped ends, too
            driver.close()
            for name in nodes:
                handoff.forget(name, "drop")

    # -------------------------------------------------------------- contenders

    def drain(self, beside_stopped: int = 0) -> float:
        """Return how long it takes until a node has everything, beside some that are stopped."""
        with self._nodes(1 + beside_stopped) as nodes:
            name, *stopped = nodes
            with self._sender(nodes, SchedulerSettings(slow_start_bytes_s=AT_ONCE)) as handoff:
                for one in stopped:
                    nodes[one].halt()
                return self._until_committed(handoff, name)

    def _until_committed(self, handoff: Handoff, name: str) -> float:
        os.sync()
        began_s = time.perf_counter()
        for worker in handoff.workers.values():
            worker.reader.resume()
        subscriber, end_seq = self._quiver.subscriber(f"node.{name}"), self._quiver.end_seq
        _wait(lambda: subscriber.high_water_seq >= end_seq, "a backlog is not drained")
        return time.perf_counter() - began_s

    def share_ratio(self) -> float:
        """Return by how much three nodes differ when the first is done, in bytes: max ÷ min."""
        quantum_bytes = self.size_bytes // self.scale.fairness_quanta
        scheduler = SchedulerSettings(
            permits=PERMITS, quantum_bytes=quantum_bytes, slow_start_bytes_s=AT_ONCE
        )
        with self._nodes(3) as nodes, self._sender(nodes, scheduler) as handoff:
            os.sync()
            for worker in handoff.workers.values():
                worker.reader.resume()

            def sent() -> list[int]:
                with handoff.lock:
                    return [one.counters.sent_bytes for one in handoff.workers.values()]

            _wait(lambda: max(sent()) >= self.size_bytes, "a backlog is not drained")
            bytes_by_node = sent()
        return max(bytes_by_node) / max(1, min(bytes_by_node))

    def to_sink(self, sink: Peer) -> float:
        """Send the same bytes with the same calls to somebody who only writes them.

        It is the most that Flight and this disk can do together. What is missing to it is the price
        of checking a part, of adopting it exactly once, and of the ledger.
        """
        settings = SchedulerSettings()
        with contextlib.closing(FlightTransport(sink.location)) as transport:
            os.sync()
            began_s = time.perf_counter()
            quantum: list[OutgoingPart] = []
            for one in self.parts:
                quantum.append(one)
                if (
                    sum(sent.part.size_bytes for sent in quantum) >= settings.quantum_bytes
                    or len(quantum) == settings.parts_max
                ):
                    transport.send("", quantum)
                    quantum = []
            if quantum:
                transport.send("", quantum)
            return time.perf_counter() - began_s

    def append(self, peer: Peer, at_once: int = 1) -> float:
        """Append the same rows to a quiver elsewhere, until they are sealed there.

        One bundle after the other, as they were accepted, or so many in a transaction: that is
        faster, but all of them are one append then, and their bundles have no producer any more.
        """
        with RemoteQuiver.open(peer.location, QUIVER) as remote:
            os.sync()
            began_s = time.perf_counter()
            batches: list[pa.RecordBatch] = []
            for segment in self._quiver.segments():
                for bundle in segment.bundles():
                    batches += bundle.slots.values()
                    if len(batches) >= at_once:
                        remote.append_all(batches)
                        batches = []
            if batches:
                remote.append_all(batches)
            peer.seal()
            return time.perf_counter() - began_s


def _wait(condition: Callable[[], bool], complaint: str) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > give_up_s:
            raise CheckFailed(complaint, hint="this is a defect; report it with this output")
        time.sleep(POLL_S)


def measure_drain(
    folder: Path, scale: HandoffScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Add the figures of this module."""
    progress(f"draining {scale.parts} parts of {scale.part_mb} MB, {scale.rounds} rounds")
    batch = telemetry_batch()
    each = max(1, scale.part_mb * MB // batch.nbytes)
    with (
        Quiver.open(folder / "backlog", _CONFIG) as quiver,
        Peer("sink", folder / "sink") as sink,
        Peer("quiver", folder / "rows") as rows,
    ):
        quiver.register("keep")  # what is drained stays, for the next round
        for _ in range(scale.parts):
            for _ in range(each):
                quiver.append(batch, level=AckLevel.WRITTEN)
            quiver.flush()
        bench = DrainBench(folder, scale, quiver)
        figures.note("drain_mb", round(bench.size_bytes / 1e6, 1))
        _add_transfers(bench, sink, rows, figures)
        progress(f"fairness among three nodes, {scale.rounds} rounds")
        figures.add("fairness", [bench.share_ratio() for _ in range(scale.rounds)])
        figures.note("fairness_quanta", scale.fairness_quanta)
    for left in ("backlog", "sink", "rows"):
        shutil.rmtree(folder / left)


def _add_transfers(bench: DrainBench, sink: Peer, rows: Peer, figures: Figures) -> None:
    to_sink, append = partial(bench.to_sink, sink), partial(bench.append, rows)
    contenders: dict[str, Callable[[], float]] = {
        "drain": bench.drain,
        "sink": to_sink,
        "append": append,
        "beside": partial(bench.drain, beside_stopped=1),
        "sink_again": to_sink,
        "append_again": append,
        "transactions": partial(append, BUNDLES_AT_ONCE),
        "drain_again": bench.drain,
    }
    found = rotated(contenders, bench.scale.rounds)
    figures.add("drain_mb_s", (bench.size_bytes / s / 1e6 for s in found["drain"]))
    figures.add("flight_mb_s", (bench.size_bytes / s / 1e6 for s in found["sink"]))
    figures.add("append_sealed_mb_s", (bench.size_bytes / s / 1e6 for s in found["append"]))
    _add_ratio(figures, "drain_vs_flight", found["drain"], found["sink"])
    _add_ratio(figures, "drain_vs_flight_control", found["sink_again"], found["sink"])
    _add_ratio(figures, "adopt_vs_append", found["drain"], found["append"])
    _add_ratio(figures, "adopt_vs_transactions", found["drain"], found["transactions"])
    _add_ratio(figures, "adopt_vs_append_control", found["append_again"], found["append"])
    _add_ratio(figures, "healthy_node_ratio", found["beside"], found["drain"])
    _add_ratio(figures, "healthy_node_ratio_control", found["drain_again"], found["drain"])


def _add_ratio(
    figures: Figures, name: str, ours_s: Sequence[float], theirs_s: Sequence[float]
) -> None:
    """Add a ratio of speeds, round by round: above one, ours is the faster."""
    figures.add(name, (theirs / ours for ours, theirs in zip(ours_s, theirs_s, strict=True)))
