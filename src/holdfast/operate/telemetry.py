"""Holdfast's own metrics, log and traces, sent by OTLP wherever `telemetry:` says.

Metrics are the rows of the tables that `/metrics` is made of, log records are what goes to standard
error, and of requests and sends a sample becomes spans. They are sent at an interval by the code of
the exporter `otlp`, beside the work and never in its way: what is logged or traced is put into a
bounded queue or counted as dropped, and nobody waits for the sending. They are not buffered on
disk. A failed send of metrics is over, since the next one has the same totals; records and spans of
a failed send are tried again while there is room.

Telemetry that comes back to a receiver of the gateway it is about would tell of its own arrival,
again and again. `validate` refuses an address of the same file. What only the network knows (a
name, a proxy, a collector that sends it on) is noticed when it arrives: every request carries the
id of the gateway's start, and a receiver that sees it ends the sending.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import time
import traceback
import uuid
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from holdfast import __version__, self_watch
from holdfast.deliver.exporter import ExporterContext, FailureClass
from holdfast.extras import need
from holdfast.graph.model import Graph
from holdfast.operate.gateway_metrics import ALL_METRICS
from holdfast.operate.metrics import Sample
from holdfast.operate.telemetry_messages import (
    EndedSpan,
    OwnLog,
    logs_request,
    metrics_request,
    traces_request,
)
from holdfast.operate.telemetry_metrics import LOOPING, TelemetryStatistics
from holdfast.quiver import Position
from holdfast.seam import Seam
from holdfast.signals.event import NO_HEADERS, Event
from holdfast.signals.otlp.kinds import OtlpKind

MESSAGE_CHARS_MAX = 4096
TRACEBACK_CHARS_MAX = 8192
# How much of a request is searched for our own id.
SEARCHED_BYTES = 64 * 1024
# How long the last push may take, when the process stops.
LAST_PUSH_S = 2.0
_WARNING_INTERVAL_S = 60.0

log = logging.getLogger("holdfast.operate")

ReadSamples = Callable[[], Awaitable[Sequence[Sample]]]


class OwnTelemetry(logging.Handler):
    """What one process tells of itself: takes log records and spans, and sends them."""

    # In the environment of workers: the id of the whole gateway.
    INSTANCE_VARIABLE = "HOLDFAST_INSTANCE_ID"

    def __init__(self, graph: Graph, *, worker: int | None, records: ReadSamples | None) -> None:
        """Keep what is logged from now on. Without `records` somebody else sends the metrics."""
        super().__init__()
        settings, node = graph.settings.telemetry, graph.telemetry
        assert settings is not None, "BUG: there is no `telemetry:`"
        assert node is not None, "BUG: there is no `telemetry:`"
        need("otel")
        self._settings = settings
        self._ratio = settings.sample_ratio if "traces" in settings.signals else 0.0
        self._records = records
        self.instance_id = os.environ.get(self.INSTANCE_VARIABLE) or str(uuid.uuid4())
        self._marker = self.instance_id.encode()
        self._resource = {
            "service.name": "holdfast",
            "service.version": __version__,
            "service.instance.id": self.instance_id,
            "host.name": socket.gethostname(),
            "process.pid": str(os.getpid()),
            **({} if worker is None else {"holdfast.worker": str(worker)}),
            **settings.attributes,
        }
        context = ExporterContext("telemetry", Seam(), graph.base_dir, graph.data_dir)
        self._exporter: Any = node.component.code.make(node.config, context)
        self._logs: deque[OwnLog] = deque()
        self._spans: deque[EndedSpan] = deque()
        self._sent: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        # Log records, counted by whichever thread logs.
        self._left_out = 0
        self._failures = 0
        self._is_looping = False
        self._warned_s = -_WARNING_INTERVAL_S
        self._started_ns = time.time_ns()

    def statistics(self) -> TelemetryStatistics:
        """Return a picture of this moment."""
        waiting = {"logs": len(self._logs), "traces": len(self._spans)}
        dropped = self._dropped + Counter(logs=self._left_out)
        return TelemetryStatistics(
            waiting,
            {signal: self._sent[signal] for signal in self._settings.signals},
            {signal: dropped[signal] for signal in self._settings.signals},
            self._failures,
            self._is_looping,
        )

    @contextlib.asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Take and send everything, until the end of a block; then what is left, for a moment."""
        if "logs" in self._settings.signals:
            logging.getLogger().addHandler(self)
        self_watch.installed = self
        await self._exporter.start()
        pushing = asyncio.create_task(self._push_on())
        try:
            yield
        finally:
            pushing.cancel()
            await asyncio.wait([pushing])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_PUSH_S):
                    await self.push()
            logging.getLogger().removeHandler(self)
            self_watch.installed = None
            await self._exporter.close()

    # --------------------------------------------------------------- what is told

    def emit(self, record: logging.LogRecord) -> None:
        """Take a log record, in whatever thread."""
        if self._is_looping or len(self._logs) >= self._settings.max_waiting:
            self._left_out += 1
            return
        try:
            message = record.getMessage()[:MESSAGE_CHARS_MAX]
        except Exception:
            self.handleError(record)
            return
        error = text = ""
        if record.exc_info and record.exc_info[1] is not None:
            error = type(record.exc_info[1]).__name__
            text = "".join(traceback.format_exception(record.exc_info[1]))[-TRACEBACK_CHARS_MAX:]
        time_ns = int(record.created * 1e9)
        self._logs.append(OwnLog(time_ns, record.levelno, record.name, message, error, text))

    def begin(self) -> int:
        return time.time_ns() if random.random() < self._ratio and not self._is_looping else 0

    def end(self, span: self_watch.OwnSpan) -> None:
        if len(self._spans) >= self._settings.max_waiting:
            self._dropped["traces"] += 1
            return
        trace_id, span_id = random.randbytes(16), random.randbytes(8)
        self._spans.append(EndedSpan(span, time.time_ns(), trace_id, span_id))

    def look(self, body: bytes) -> None:
        # The resource is at the beginning of a request, and our id in it. It is searched for in the
        # bytes: parsing every request for this would cost more than all the rest.
        if not self._is_looping and self._marker in body[:SEARCHED_BYTES]:
            self._stop_looping()

    def _stop_looping(self) -> None:
        self._is_looping = True
        self._dropped["logs"] += len(self._logs)
        self._dropped["traces"] += len(self._spans)
        self._logs.clear()
        self._spans.clear()
        log.error(
            "telemetry came back to this gateway, and is not sent any more: change "
            "telemetry.config.url, or what sends it on to a receiver of this gateway, and restart"
        )

    # ------------------------------------------------------------------- sending

    async def _push_on(self) -> None:
        while True:
            await asyncio.sleep(self._settings.interval)
            await self.push()

    async def push(self) -> None:
        """Send everything that is new, all signals at once; raises nothing."""
        if self._is_looping:
            return
        work: list[Awaitable[None]] = [self._push_logs(), self._push_spans()]
        if self._records is not None and "metrics" in self._settings.signals:
            work.append(self._push_metrics(self._records))
        for outcome in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(outcome, Exception):
                self._warn(f"BUG: {type(outcome).__name__}", outcome)

    async def _push_metrics(self, records: ReadSamples) -> None:
        told = await records()
        if any(one.name == LOOPING and one.value for one in told):
            # Of several workers, one has seen it.
            self._stop_looping()
            return
        times_ns = (self._started_ns, time.time_ns())
        body = await asyncio.to_thread(metrics_request, self._resource, ALL_METRICS, told, times_ns)
        if await self._send(OtlpKind.METRICS, body) is None:
            self._sent["metrics"] += len(told)
        else:
            self._dropped["metrics"] += len(told)

    async def _push_logs(self) -> None:
        told = [self._logs.popleft() for _ in range(len(self._logs))]
        if not told:
            return
        body = await asyncio.to_thread(logs_request, self._resource, told)
        failure = await self._send(OtlpKind.LOGS, body)
        self._settle("logs", told, self._logs, failure)

    async def _push_spans(self) -> None:
        told = [self._spans.popleft() for _ in range(len(self._spans))]
        if not told:
            return
        body = await asyncio.to_thread(traces_request, self._resource, told)
        failure = await self._send(OtlpKind.TRACES, body)
        self._settle("traces", told, self._spans, failure)

    def _settle(
        self, signal: str, told: list[Any], queue: deque[Any], failure: FailureClass | None
    ) -> None:
        """Count what was sent; what was not goes before what came since, if there is room."""
        if failure is None:
            self._sent[signal] += len(told)
            return
        # What was logged while this was sent has its room first: it is newer.
        room = 0 if self._is_looping else max(0, self._settings.max_waiting - len(queue))
        if failure not in (FailureClass.TRANSIENT, FailureClass.AUTH):
            room = 0
        # The newest of them say most about what goes wrong.
        kept = told[len(told) - room :] if room < len(told) else told
        self._dropped[signal] += len(told) - len(kept)
        queue.extendleft(reversed(kept))

    async def _send(self, kind: OtlpKind, body: bytes) -> FailureClass | None:
        event = Event("", Position(0, 0), kind.slot, body, NO_HEADERS, time.time_ns(), kind.value)
        failed = (await self._exporter.send([event])).failed
        if not failed:
            return None
        self._failures += 1
        self._warn(f"{kind.value} were not taken: {failed[0]}")
        kind_of_failure: FailureClass = failed[0].kind
        return kind_of_failure

    def _warn(self, message: str, error: Exception | None = None) -> None:
        """Log, now and then: it may last for days."""
        now_s = time.monotonic()
        if now_s - self._warned_s >= _WARNING_INTERVAL_S:
            self._warned_s = now_s
            log.warning("telemetry: %s", message, exc_info=error)
