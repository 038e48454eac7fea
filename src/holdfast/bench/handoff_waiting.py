"""What waits for data nodes: what it costs on disk, at a start, and in what a node says of itself.

`store_amplification`: the disk that a quiver occupies with three nodes down ÷ with one down. Both
have real senders, whose nodes refuse every connection.

A start is that of a fresh process, `python -m holdfast.bench.handoff_waiting DIRECTORY`: open the
quiver, attach the sender, and find the first part to offer. Of the many segments one is sealed, and
the others are its copies under other numbers: nothing but their manifests is read here.

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
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
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
    # Of the part that would be offered first.
    first_seq: int


def start(directory: Path) -> Started:
    """Start a sender in a fresh process."""
    command = [sys.executable, "-m", "holdfast.bench.handoff_waiting", str(directory)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return Started(**json.loads(done.stdout))


def _report(directory: Path) -> Started:
    """Measure the start in this process, which has done nothing else before."""
    with Stopwatch() as watch:
        seam = Seam()
        quiver = Quiver.open(directory, _CONFIG, seam=seam)
        handoff = Handoff(quiver, seam)
        handoff.configure(NAMES[:1])
        head = next(handoff.workers["a"].reader.waiting(), None)
    rss_mb = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    first_seq = -1 if head is None else head.summary.first_seq
    return Started(watch.wall_s, watch.cpu_s, rss_mb, len(quiver.segments()), first_seq)


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
    starts = {one.name: partial(start, one) for one in (bundles, segments)}
    found = rotated(starts, scale.startup_rounds)
    for started in found["segments"]:
        if (started.segments, started.first_seq) != (scale.waiting_segments, 0):
            raise CheckFailed(f"not all segments wait: {started}", hint="report this as a defect")
    figures.add("startup_s", (one.start_s for one in found["bundles"]))
    figures.add("startup_segments_s", (one.start_s for one in found["segments"]))
    figures.add("startup_cpu_s", (one.cpu_s for one in found["bundles"]))
    figures.add("startup_segments_cpu_s", (one.cpu_s for one in found["segments"]))
    figures.add("startup_rss_mb", (one.rss_mb for one in found["bundles"]))
    figures.add("startup_segments_rss_mb", (one.rss_mb for one in found["segments"]))
    progress(f"health of a node of five with its share of {scale.waiting_segments:,} parts")
    _add_health(segments, folder / "node", scale.waiting_segments, figures)
    for left in (bundles, segments, folder / "node"):
        shutil.rmtree(left)


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
        copied = replace(summary, segment_seq=number, first_seq=number, last_seq=number)
        place = path.with_name(names.segment_dir(copied.name))
        place.mkdir()
        for file in (names.BUNDLES, *(one.name for one in summary.files)):
            os.link(path / file, place / file)
        (place / names.MANIFEST).write_bytes(manifest.encode(copied))


def _add_health(quiver_dir: Path, node_dir: Path, count: int, figures: Figures) -> None:
    """Give one node of five its share of the segments, and ask it how it is."""
    folders = sorted((quiver_dir / names.SEGMENTS_DIR).iterdir())
    quiver_id = manifest.read(RealDisk(), folders[0]).quiver_id
    owners = Owners([Placement(0, NAMES, REPLICAS, PARTS_PER_BLOCK)])
    with closing(DataNode(node_dir, DataNodeSettings(min_free=0))) as node:
        told = IntervalSet(owners.not_owned(NAMES[0], quiver_id, 0, count))
        node.tell_not_owned(quiver_id, told)
    target = node_dir / layout.REPLICAS_DIR / quiver_id / layout.SEGMENTS_DIR
    own = 0
    for folder in folders:
        found = names.parse_segment_dir(folder.name)
        assert found is not None, f"BUG: {folder} is not a segment"
        if NAMES[0] in owners.owners(quiver_id, found.first_seq, found.last_seq + 1):
            os.rename(folder, target / folder.name)
            own += 1
    with Stopwatch() as watch:
        node = DataNode(node_dir, DataNodeSettings(min_free=0))
    figures.note("health_parts", own)
    figures.add("node_startup_s", [watch.wall_s])
    with closing(node):
        health = node.health()
        pages = [health]
        while pages[-1].next_page is not None:
            pages.append(node.health(pages[-1].next_page))
        known = node.health(known_digest=health.digest)
    figures.add("health_bytes", [sum(len(encode(page.to_fields())) for page in pages)])
    figures.add("health_known_bytes", [len(encode(known.to_fields()))])
    figures.note("health_pages", len(pages))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_report(Path(sys.argv[1]))._asdict()))
    sys.stdout.flush()
    os._exit(0)
