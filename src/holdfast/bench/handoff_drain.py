"""Draining a backlog into data nodes: beside the bare transfer, beside a stopped node, and fairly.

A quiver with a backlog of sealed parts is in this process, with a real sender (`Handoff` and its
threads); data nodes are `holdfast node`, each new for its round. The clock runs from the moment a
node may be sent to until the last part is committed in the ledger. Start-up is outside of it, and
so is the slow start of a node that comes back: it is a pause on purpose.

The order of what is compared changes from round to round, and the disk is synced before each: what
one leaves to be written must not be the next one's time. Each ratio has a control beside it, the
denominator against itself, which is how far apart two equal things are on this machine.

Adopting is compared with appending in three ways. All begin with the rows on the sender's disk,
and end when they are sealed and synced elsewhere. *append*: bundle by bundle, as the sender had
accepted them, and sealed where its parts end, so that the same parts are there. *transactions*: the
same, and the bundles of a part in one call. *bulk*: in transactions of about a quantum, sealed
once: that is the least there is to sync, and leaves one large segment instead of the parts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
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
from holdfast.quiver.base.names import HANDOFF_DIR, MEMBERS
from holdfast.quiver.segments.segment import Segment
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
SHARING = 3
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
        # Who owned the backlog in the round before is forgotten: then those own it for whom it is
        # kept.
        Path(self._quiver.directory, HANDOFF_DIR, MEMBERS).unlink(missing_ok=True)
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
        with self._nodes(SHARING) as nodes, self._sender(nodes, scheduler) as handoff:
            os.sync()
            for worker in handoff.workers.values():
                worker.reader.resume()

            def sent() -> list[int]:
                with handoff.lock:
                    return [one.counters.sent_bytes for one in handoff.workers.values()]

            _wait(lambda: max(sent()) >= self.size_bytes, "a backlog is not drained")
            return _share_ratio(sent())

    def unscheduled_ratio(self, sink: Peer) -> float:
        """Return the same of three that send at once, and that nobody makes take turns."""
        sent = [0] * SHARING
        quantum_bytes = self.size_bytes // self.scale.fairness_quanta
        first_done = threading.Event()

        def send(place: int) -> None:
            with contextlib.closing(self._to(sink)) as transport:
                for quantum in self._quanta(quantum_bytes):
                    if first_done.is_set():
                        return
                    transport.send("", quantum)
                    sent[place] += sum(one.part.size_bytes for one in quantum)
            first_done.set()

        os.sync()
        threads = [threading.Thread(target=send, args=(place,)) for place in range(SHARING)]
        for one in threads:
            one.start()
        first_done.wait(PATIENCE_S)
        bytes_by_sender = list(sent)
        for one in threads:
            one.join()
        return _share_ratio(bytes_by_sender)

    def _to(self, sink: Peer) -> FlightTransport:
        return FlightTransport(sink.location, put_patience_s=PATIENCE_S)

    def _quanta(self, quantum_bytes: int) -> Iterator[list[OutgoingPart]]:
        """Yield the parts as a worker sends them."""
        quantum: list[OutgoingPart] = []
        for one in self.parts:
            size_bytes = sum(sent.part.size_bytes for sent in quantum) + one.part.size_bytes
            is_full = size_bytes > quantum_bytes or len(quantum) == SchedulerSettings().parts_max
            if quantum and is_full:
                yield quantum
                quantum = []
            quantum.append(one)
        yield quantum

    def to_sink(self, sink: Peer) -> float:
        """Send the same bytes with the same calls to somebody who only writes them.

        It is the most that Flight and this disk can do together. What is missing to it is the price
        of checking a part, of adopting it exactly once, and of the ledger.
        """
        with contextlib.closing(self._to(sink)) as transport:
            os.sync()
            began_s = time.perf_counter()
            for quantum in self._quanta(SchedulerSettings().quantum_bytes):
                transport.send("", quantum)
            return time.perf_counter() - began_s

    def append(self, peer: Peer) -> float:
        """Append the same rows to a quiver elsewhere, bundle by bundle; the same parts result."""
        with self._appending(peer) as (remote, began_s):
            for segment in self._quiver.segments():
                for batch in _batches_of(segment):
                    remote.append_all([batch])
                remote.flush()
            return time.perf_counter() - began_s

    def append_parts(self, peer: Peer) -> float:
        """Append them part by part, each in a transaction: all of it is one append then."""
        with self._appending(peer) as (remote, began_s):
            for segment in self._quiver.segments():
                remote.append_all(list(_batches_of(segment)))
                remote.flush()
            return time.perf_counter() - began_s

    def append_in_bulk(self, peer: Peer) -> float:
        """Append them in large transactions, and seal all of them as one segment."""
        with self._appending(peer) as (remote, began_s):
            batches = chain.from_iterable(map(_batches_of, self._quiver.segments()))
            while some := list(islice(batches, BUNDLES_AT_ONCE)):
                remote.append_all(some)
            remote.flush()
            return time.perf_counter() - began_s

    @contextlib.contextmanager
    def _appending(self, peer: Peer) -> Iterator[tuple[RemoteQuiver, float]]:
        """Connect, and start the clock."""
        patient = ClientSettings(timeout=PATIENCE_S)
        with RemoteQuiver.open(peer.location, QUIVER, patient) as remote:
            os.sync()
            yield remote, time.perf_counter()


def _batches_of(segment: Segment) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part, read from the disk, a batch for each bundle."""
    for bundle in segment.bundles():
        yield from bundle.slots.values()


def _share_ratio(bytes_by_receiver: Sequence[int]) -> float:
    return max(bytes_by_receiver) / max(1, min(bytes_by_receiver))


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
        sharing: dict[str, Callable[[], float]] = {
            "scheduled": bench.share_ratio,
            "not": partial(bench.unscheduled_ratio, sink),
        }
        found = rotated(sharing, scale.rounds)
        figures.add("fairness", found["scheduled"])
        figures.add("fairness_control", found["not"])
        figures.note("fairness_quanta", scale.fairness_quanta)
    for left in ("backlog", "sink", "rows"):
        shutil.rmtree(folder / left)


def _add_transfers(bench: DrainBench, sink: Peer, rows: Peer, figures: Figures) -> None:
    to_sink, append = partial(bench.to_sink, sink), partial(bench.append, rows)
    by_part, in_bulk = partial(bench.append_parts, rows), partial(bench.append_in_bulk, rows)
    contenders: dict[str, Callable[[], float]] = {
        "drain": bench.drain,
        "sink": to_sink,
        "append": append,
        "beside": partial(bench.drain, beside_stopped=1),
        "sink_again": to_sink,
        "append_again": append,
        "transactions": by_part,
        "bulk": in_bulk,
        "drain_again": bench.drain,
        "transactions_again": by_part,
        "bulk_again": in_bulk,
    }
    found = rotated(contenders, bench.scale.rounds)
    figures.add("drain_mb_s", (bench.size_bytes / s / 1e6 for s in found["drain"]))
    figures.add("flight_mb_s", (bench.size_bytes / s / 1e6 for s in found["sink"]))
    figures.add("append_sealed_mb_s", (bench.size_bytes / s / 1e6 for s in found["append"]))
    by_part_s = found["transactions"]
    figures.add("transactions_sealed_mb_s", (bench.size_bytes / s / 1e6 for s in by_part_s))
    _add_ratio(figures, "drain_vs_flight", found["drain"], found["sink"])
    _add_ratio(figures, "drain_vs_flight_control", found["sink_again"], found["sink"])
    _add_ratio(figures, "adopt_vs_append", found["drain"], found["append"])
    _add_ratio(figures, "adopt_vs_append_control", found["append_again"], found["append"])
    for name in ("transactions", "bulk"):
        _add_ratio(figures, f"adopt_vs_{name}", found["drain"], found[name])
        _add_ratio(figures, f"adopt_vs_{name}_control", found[f"{name}_again"], found[name])
    _add_ratio(figures, "healthy_node_ratio", found["beside"], found["drain"])
    _add_ratio(figures, "healthy_node_ratio_control", found["drain_again"], found["drain"])


def _add_ratio(
    figures: Figures, name: str, ours_s: Sequence[float], theirs_s: Sequence[float]
) -> None:
    """Add a ratio of speeds, round by round: above one, ours is the faster."""
    figures.add(name, (theirs / ours for ours, theirs in zip(ours_s, theirs_s, strict=True)))
