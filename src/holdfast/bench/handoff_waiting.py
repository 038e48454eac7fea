"""What waits for data nodes: what it costs on disk, at a start, and in what a node says of itself.

`store_amplification`: the disk that a quiver occupies with three nodes down ÷ with one down. Both
have real senders, whose nodes refuse every connection.

A start is that of a fresh process, `python -m holdfast.bench.handoff_waiting KIND DIRECTORY`. Of a
sender: open the quiver, attach, and find the first part to offer. Of a data node: open its
directory. Of the many segments one is sealed, and the others are its copies under other numbers:
nothing but their manifests is read here.

`health_bytes`: what a node says of its share of those parts, 2 replicas of 5. It is a real node,
and the folders are moved into its directory. Twenty parts lie in a block, as many as at 10,000
bundles a second, and what the node does not own, it is told.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

from holdfast.bench.figures import Figures, rotated
from holdfast.bench.gateway_process import free_ports
from holdfast.bench.load import telemetry_batch
from holdfast.bench.scale import HandoffScale
from holdfast.bench.stopwatch import Stopwatch
from holdfast.errors import CheckFailed
from holdfast.handoff.driver import HandoffDriver
from holdfast.handoff.owners import Owners, Placement
from holdfast.handoff.sender import Handoff
from holdfast.node import layout
from holdfast.node.data_node import DataNode
from holdfast.node.settings import DataNodeSettings
from holdfast.quiver import AckLevel, Quiver, QuiverConfig, RetentionConfig, SegmentConfig
from holdfast.quiver.base import names
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.quiver.segments import manifest
from holdfast.remote.wire import encode
from holdfast.replica.flight import FlightTransport
from holdfast.seam import Seam
from holdfast.seam.disk import RealDisk

MB = 1 << 20
NAMES = ("a", "b", "c", "d", "e")
REPLICAS = 2
PARTS_PER_BLOCK = 20
# Of one transaction.
BUNDLES_AT_ONCE = 1_000
# Names that one file has; ext4 allows 65,000.
LINKS_MAX = 50_000
_RETENTION = RetentionConfig(size_cap_bytes=64 << 30, max_segments=1_000_000)
_CONFIG = QuiverConfig(
    segment=SegmentConfig(target_size_bytes=256 * MB, max_open_duration_s=600.0),
    retention=_RETENTION,
    control=False,
)


class Started(NamedTuple):
    """What a start reports."""

    start_s: float
    cpu_s: float
    rss_mb: float
    segments: int
    # Of the part that would be offered first; of a data node: 0.
    first_seq: int


def start(kind: str, directory: Path) -> Started:
    """Start a sender or a data node in a fresh process."""
    command = [sys.executable, "-m", "holdfast.bench.handoff_waiting", kind, str(directory)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return Started(**json.loads(done.stdout))


def _sender_started(directory: Path) -> Started:
    """Measure a sender's start in this process, which has done nothing else before."""
    with Stopwatch() as watch:
        seam = Seam()
        quiver = Quiver.open(directory, _CONFIG, seam=seam)
        handoff = Handoff(quiver, seam)
        handoff.configure(NAMES[:1])
        head = next(handoff.workers["a"].reader.waiting(), None)
    first_seq = -1 if head is None else head.summary.first_seq
    return Started(watch.wall_s, watch.cpu_s, _rss_mb(), len(quiver.segments()), first_seq)


def _node_started(directory: Path) -> Started:
    """Measure a data node's start in this process."""
    with Stopwatch() as watch:
        node = DataNode(directory, DataNodeSettings(min_free=0))
    return Started(watch.wall_s, watch.cpu_s, _rss_mb(), node.statistics().parts, 0)


def _rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure_waiting(
    folder: Path, scale: HandoffScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Add the figures of this module."""
    progress(f"disk: {scale.down_mb} MB for one node that is down, and for three")
    used = {count: _used_bytes(folder / f"down-{count}", scale, count) for count in (1, 3)}
    figures.add("store_amplification", [used[3] / used[1]])
    again = _used_bytes(folder / "down-again", scale, 1)
    figures.add("store_amplification_control", [again / used[1]])
    bundles, segments = folder / "bundles", folder / "segments"
    progress(f"start-up: {scale.waiting_bundles:,} bundles that wait")
    _leave_bundles(bundles, scale.waiting_bundles)
    progress(f"start-up: {scale.waiting_segments:,} segments that wait")
    _leave_segments(segments, scale.waiting_segments)
    starts = {one.name: partial(start, "sender", one) for one in (bundles, segments)}
    found = rotated(starts, scale.startup_rounds)
    _add_starts(figures, "startup", found["bundles"])
    _add_starts(figures, "startup_segments", found["segments"], scale.waiting_segments)
    progress(f"start-up: a data node with {scale.waiting_segments:,} parts")
    moved = _MovedParts(segments, folder / "node")
    found = rotated({"node": partial(start, "node", moved.node_dir)}, scale.startup_rounds)
    _add_starts(figures, "node_startup", found["node"], scale.waiting_segments)
    progress(f"health of a node of five with its share of {scale.waiting_segments:,} parts")
    moved.add_health(figures)
    for left in (bundles, segments, moved.node_dir):
        shutil.rmtree(left)


def _add_starts(
    figures: Figures, name: str, found: Sequence[Started], segments: int | None = None
) -> None:
    """Add what starts cost, all of which must have found so many segments."""
    for one in found:
        if segments is not None and (one.segments, one.first_seq) != (segments, 0):
            raise CheckFailed(f"not all segments are there: {one}", hint="this is a defect")
    figures.add(f"{name}_s", (one.start_s for one in found))
    figures.add(f"{name}_cpu_s", (one.cpu_s for one in found))
    figures.add(f"{name}_rss_mb", (one.rss_mb for one in found))


def _used_bytes(folder: Path, scale: HandoffScale, nodes_down: int) -> int:
    """Return what a quiver occupies when everything waits for so many nodes.

    In blocks, as the disk counts it, not in bytes: many small files would hide in the difference.
    """
    seam, batch = Seam(), telemetry_batch()
    config = QuiverConfig(segment=SegmentConfig(target_size_bytes=8 * MB), control=False)
    ports = dict(zip(NAMES, free_ports(len(NAMES)), strict=True))
    with Quiver.open(folder, config, seam=seam) as quiver:
        handoff = Handoff(quiver, seam)
        handoff.configure(NAMES[:nodes_down])
        driver = HandoffDriver(
            handoff, seam.clock, lambda name: FlightTransport(f"grpc://127.0.0.1:{ports[name]}")
        )
        driver.refresh()
        for _ in range(scale.down_mb * 1_000_000 // batch.nbytes):
            quiver.append(batch, level=AckLevel.WRITTEN)
        driver.close()
    used = sum(path.stat().st_blocks * 512 for path in folder.rglob("*"))
    shutil.rmtree(folder)
    return used


def _leave_bundles(folder: Path, count: int) -> None:
    """Leave a quiver in which so many bundles wait for a node."""
    with Quiver.open(folder, _CONFIG) as quiver:
        Handoff(quiver, Seam()).configure(NAMES[:1])
        for begun in range(0, count, BUNDLES_AT_ONCE):
            with quiver.transaction() as transaction:
                for number in range(begun, min(count, begun + BUNDLES_AT_ONCE)):
                    transaction.append_raw(b"%d" % number)
    # The log of the last segment goes when the next process has begun one of its own. Reading it
    # is recovery, which `bench quiver` measures.
    Quiver.open(folder, _CONFIG).close()


def _leave_segments(folder: Path, count: int) -> None:
    """Leave a quiver in which so many segments wait for a node, each with one bundle."""
    with Quiver.open(folder, _CONFIG) as quiver:
        Handoff(quiver, Seam()).configure(NAMES[:1])
        quiver.append_raw(b"event")
        quiver.flush()
        (first,) = quiver.segments()
    # Written by hand: sealing a hundred thousand segments takes an hour, and a start reads their
    # names and manifests alone.
    summary, path = first.summary, Path(first.path)
    for number in range(1, count):
        copied = summary._replace(segment_seq=number, first_seq=number, last_seq=number)
        place = path.with_name(names.segment_dir(copied.name))
        place.mkdir()
        for file in (names.BUNDLES, *(one.name for one in summary.files)):
            if number % LINKS_MAX:
                os.link(path / file, place / file)
            else:
                shutil.copyfile(path / file, place / file)
        path = path if number % LINKS_MAX else place
        (place / names.MANIFEST).write_bytes(manifest.encode(copied))
    # As a sealer does with each: a start must not pay for what this wrote.
    os.sync()


class _MovedParts:
    """The segments of a quiver, moved into the directory of a data node."""

    def __init__(self, quiver_dir: Path, node_dir: Path) -> None:
        self.node_dir = node_dir
        self._left = quiver_dir / names.SEGMENTS_DIR
        folders = sorted(self._left.iterdir())
        self._quiver_id = manifest.read(RealDisk(), folders[0]).quiver_id
        self._count = len(folders)
        with closing(DataNode(node_dir, DataNodeSettings(min_free=0))) as node:
            node.tell_not_owned(self._quiver_id, IntervalSet())
        target = node_dir / layout.REPLICAS_DIR / self._quiver_id / layout.SEGMENTS_DIR
        self._folders = [folder.rename(target / folder.name) for folder in folders]

    def add_health(self, figures: Figures) -> None:
        """Leave one node of five its share, and ask it how it is."""
        owners = Owners([Placement(0, NAMES, REPLICAS, PARTS_PER_BLOCK)])
        own = 0
        for folder in self._folders:
            found = names.parse_segment_dir(folder.name)
            assert found is not None, f"BUG: {folder} is not a segment"
            if NAMES[0] in owners.owners(self._quiver_id, found.first_seq, found.last_seq + 1):
                own += 1
            else:
                folder.rename(self._left / folder.name)
        figures.note("health_parts", own)
        with closing(DataNode(self.node_dir, DataNodeSettings(min_free=0))) as node:
            told = IntervalSet(owners.not_owned(NAMES[0], self._quiver_id, 0, self._count))
            node.tell_not_owned(self._quiver_id, told)
            pages = [node.health()]
            while pages[-1].next_page is not None:
                pages.append(node.health(pages[-1].next_page))
            known = node.health(known_digest=pages[0].digest)
        figures.add("health_bytes", [sum(len(encode(page.to_fields())) for page in pages)])
        figures.add("health_known_bytes", [len(encode(known.to_fields()))])
        figures.note("health_pages", len(pages))


if __name__ == "__main__":
    started = {"sender": _sender_started, "node": _node_started}[sys.argv[1]]
    sys.stdout.write(json.dumps(started(Path(sys.argv[2]))._asdict()))
    sys.stdout.flush()
    os._exit(0)
