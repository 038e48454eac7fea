"""Delivery: how fast data leaves a quiver, how soon, and at what cost.

cursor, lease      read everything of a sealed store and acknowledge it
idle delivery      from the call of append to the delivery in a waiting reader's hands, nothing else
                   going on: about one sync, and no seal
streaming          producer to consumer through a queue in memory, and through a quiver, at the same
                   rate (half of what the quiver can do): CPU per event
neighbour          a healthy reader alone, and beside one that is dead at its `drop_oldest` cap
"""

from __future__ import annotations

import queue
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from holdfast.bench.figures import Figures, interleave, percentile
from holdfast.bench.load import raw_event, telemetry_batch
from holdfast.bench.scale import QuiverScale
from holdfast.bench.stopwatch import Stopwatch
from holdfast.quiver import (
    AckLevel,
    Lease,
    Quiver,
    QuiverConfig,
    SegmentConfig,
    SubscriberOptions,
)

MB = 1 << 20
CAPPED = SubscriberOptions(max_bytes=2 * MB, on_full="drop_oldest")


def measure_delivery(
    folder: Path, scale: QuiverScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Add the figures of this module."""
    measure_throughput(folder / "deliver", scale, figures, progress)
    progress("idle delivery, streaming, a dead neighbour")
    _add_idle(folder / "idle", scale, figures)
    _add_streaming(folder / "stream", scale, figures)
    _add_neighbour(folder / "neighbour", scale, figures)


# ------------------------------------------------------------------- throughput


def filled_sealed(folder: Path, batch: pa.RecordBatch | None, count: int) -> int:
    """Fill a new quiver, sealed; return the payload bytes it holds.

    At the level `written`: filling is not measured, and a sync for each append would take minutes.
    Leaving the block closes the quiver, which seals everything.
    """
    event = raw_event()
    with Quiver.open(folder) as quiver:
        for _ in range(count):
            if batch is None:
                quiver.append_raw(event, level=AckLevel.WRITTEN)
            else:
                quiver.append(batch, level=AckLevel.WRITTEN)
        return quiver.statistics().writer.payload_bytes


def _by_cursor(quiver: Quiver, name: str) -> int:
    """Read everything in ranges, each committed as a whole: what delivery does."""
    events = 0
    with quiver.cursor(name) as cursor:
        while (planned := cursor.plan()) is not None:
            events += sum(bundle.events for bundle in cursor.read(planned))
            cursor.commit(planned)
    return events


def _by_lease(quiver: Quiver, name: str) -> int:
    """Read everything bundle by bundle, each acknowledged by itself: what a worker queue does."""
    events = 0
    with quiver.lease(name) as lease:
        while (delivery := lease.poll()) is not None:
            events += delivery.bundle.events
            delivery.ack()
    return events


def measure_throughput(
    folder: Path, scale: QuiverScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Add how fast a sealed store is read and acknowledged."""
    progress(f"delivery: {scale.deliver_mb} MB by cursor and by lease, {scale.rounds} rounds")
    batch = telemetry_batch()
    large = filled_sealed(folder / "large", batch, scale.deliver_mb * MB // 88_000)
    bundles = scale.deliver_bundles
    filled_sealed(folder / "small", None, bundles)

    def contender(source: str, read: Callable[[Quiver, str], int]) -> Callable[[], Stopwatch]:
        def contend() -> Stopwatch:
            with Quiver.open(folder / source) as quiver:
                quiver.register("keeps")  # so that nothing goes before everyone has read it
                with Stopwatch() as watch:
                    assert read(quiver, "reader") > 0
                quiver.unregister("reader")
                quiver.unregister("keeps")
            return watch

        return contend

    runs = interleave(
        {
            "cursor": contender("large", _by_cursor),
            "lease": contender("large", _by_lease),
            "cursor_small": contender("small", _by_cursor),
            "lease_small": contender("small", _by_lease),
        },
        scale.rounds,
    )
    shutil.rmtree(folder)
    for name, prefix in (("cursor", ""), ("lease", "lease_")):
        figures.add(f"{prefix}deliver_mb_s", (large / run.wall_s / 1e6 for run in runs[name]))
        cpu_s_per_gb = (run.cpu_s / large * 1e9 for run in runs[name])
        figures.add(f"{prefix}deliver_cpu_s_per_gb", cpu_s_per_gb)
    for name in ("cursor_small", "lease_small"):
        figures.add(f"{name}_bundles_per_s", (bundles / run.wall_s for run in runs[name]))
        figures.add(f"{name}_cpu_us", (run.cpu_s / bundles * 1e6 for run in runs[name]))


# ------------------------------------------------------------------------- idle


def _add_idle(folder: Path, scale: QuiverScale, figures: Figures) -> None:
    """Measure the delay of single events, each in an otherwise idle quiver."""
    event = raw_event()
    medians_ms, worst_ms = [], []
    with Quiver.open(folder) as quiver, quiver.lease("waiting", start="latest") as lease:
        for _ in range(scale.rounds):
            delays_s = sorted(_idle_delay_s(quiver, lease, event) for _ in range(scale.idle_events))
            medians_ms.append(percentile(delays_s, 50) * 1e3)
            worst_ms.append(percentile(delays_s, 99) * 1e3)
    shutil.rmtree(folder)
    figures.add("idle_delivery_ms", medians_ms)
    figures.add("idle_delivery_p99_ms", worst_ms)


def _idle_delay_s(quiver: Quiver, lease: Lease, event: bytes) -> float:
    """One event at a time, with the reader already asleep. Under load a reader finds data waiting
    and this delay disappears; here it is all there is: one sync, one wake-up, one look.
    """
    arrived_s: list[float] = []
    waiting = threading.Event()

    def wait() -> None:
        waiting.set()
        delivery = lease.poll(timeout_s=10.0)
        arrived_s.append(time.perf_counter())
        assert delivery is not None, "nothing arrived for ten seconds"
        delivery.ack()

    reader = threading.Thread(target=wait)
    reader.start()
    waiting.wait()
    time.sleep(0.002)  # until it really waits: what is measured is the wake-up, not the start
    began_s = time.perf_counter()
    quiver.append_raw(event)
    reader.join()
    return arrived_s[0] - began_s


# -------------------------------------------------------------------- streaming


@dataclass(frozen=True)
class _Stream:
    cpu_us_per_event: float


def _add_streaming(folder: Path, scale: QuiverScale, figures: Figures) -> None:
    """CPU per event from a producer's batch to a consumer's, with and without the quiver.

    Both send at the same rate: whoever is faster would otherwise do more work in the same time,
    and waiting costs no CPU. The queue in memory encodes and decodes, too, as any hand-over
    between processes has to; what remains is the price of durability.
    """
    batch = telemetry_batch()
    rate_per_s = _half_load(folder, batch, scale.stream_batches)

    def paced(send: Callable[[pa.RecordBatch], object]) -> None:
        began_s = time.perf_counter()
        for number in range(scale.stream_batches):
            ahead_s = began_s + number / rate_per_s - time.perf_counter()
            if ahead_s > 0:
                time.sleep(ahead_s)
            send(batch)

    def in_memory() -> _Stream:
        waiting: queue.Queue[pa.Buffer | None] = queue.Queue()
        consumer = threading.Thread(target=_consume_queue, args=(waiting,))
        with Stopwatch() as watch:
            consumer.start()
            paced(lambda one: waiting.put(_as_stream(one)))
            waiting.put(None)
            consumer.join()
        return _Stream(watch.cpu_s / scale.stream_batches / batch.num_rows * 1e6)

    def persistent() -> _Stream:
        with Quiver.open(folder) as quiver:
            consumer = threading.Thread(target=_consume_quiver, args=(quiver, scale.stream_batches))
            quiver.register("consumer")
            with Stopwatch() as watch:
                consumer.start()
                paced(quiver.append)
                consumer.join()
        shutil.rmtree(folder)
        return _Stream(watch.cpu_s / scale.stream_batches / batch.num_rows * 1e6)

    runs = interleave({"memory": in_memory, "quiver": persistent}, scale.rounds)
    pairs = list(zip(runs["quiver"], runs["memory"], strict=True))
    figures.add("stream_cpu_us_per_event", (run.cpu_us_per_event for run in runs["quiver"]))
    figures.add("stream_memory_cpu_us_per_event", (r.cpu_us_per_event for r in runs["memory"]))
    figures.add("overhead_cpu_ratio", (q.cpu_us_per_event / m.cpu_us_per_event for q, m in pairs))
    figures.note("overhead_batches_per_s", round(rate_per_s))


def _half_load(folder: Path, batch: pa.RecordBatch, count: int) -> float:
    """Return half of the rate that a quiver manages, so that neither contender is at its limit.

    Measured on this machine and not assumed: at a fixed rate one contender may be saturated, and
    CPU per event then says nothing, since both would be waiting.
    """
    with Quiver.open(folder) as quiver:
        quiver.register("consumer")
        with Stopwatch() as watch:
            for _ in range(count):
                quiver.append(batch)
            _consume_quiver(quiver, count)
    shutil.rmtree(folder)
    return count / watch.wall_s / 2


def _as_stream(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _consume_queue(waiting: queue.Queue[pa.Buffer | None]) -> None:
    while (stream := waiting.get()) is not None:
        assert pa.ipc.open_stream(stream).read_next_batch().num_rows


def _consume_quiver(quiver: Quiver, count: int) -> None:
    with quiver.cursor("consumer") as cursor:
        while count:
            planned = cursor.plan(wait_s=10.0)
            assert planned is not None, "nothing arrived for ten seconds"
            for bundle in cursor.read(planned):
                assert bundle.slots
                count -= 1
            cursor.commit(planned)


# -------------------------------------------------------------------- neighbour


def _add_neighbour(folder: Path, scale: QuiverScale, figures: Figures) -> None:
    """What a reader that is dead at its cap costs another one.

    The dead one is over its cap before the clock starts, so that its oldest data is dropped all
    the time; the reader that keeps up must not feel that.
    """
    batch = telemetry_batch()
    config = QuiverConfig(segment=SegmentConfig(target_size_bytes=2 * MB))

    def contender(dead: bool) -> Callable[[], tuple[float, list[float]]]:
        def contend() -> tuple[float, list[float]]:
            with Quiver.open(folder, config) as quiver:
                quiver.register("consumer")
                if dead:
                    quiver.register("dead", options=CAPPED)
                    for _ in range(60):  # well beyond its cap before the measurement
                        quiver.append(batch)
                    _consume_quiver(quiver, 60)
                delays_s: list[float] = []
                with Stopwatch() as watch:
                    for _ in range(scale.stream_batches):
                        began_s = time.perf_counter()
                        quiver.append(batch)
                        _consume_quiver(quiver, 1)
                        delays_s.append(time.perf_counter() - began_s)
            shutil.rmtree(folder)
            return scale.stream_batches / watch.wall_s, sorted(delays_s)

        return contend

    runs = interleave({"alone": contender(False), "dead": contender(True)}, scale.rounds)
    pairs = list(zip(runs["dead"], runs["alone"], strict=True))
    figures.add("dead_neighbour_throughput_ratio", (d[0] / a[0] for d, a in pairs))
    for percent in (50, 99):
        ratios = (percentile(d[1], percent) / percentile(a[1], percent) for d, a in pairs)
        figures.add(f"dead_neighbour_p{percent}_ratio", ratios)
