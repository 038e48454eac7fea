"""What every test of an exporter needs: events, a context, and one send from start to close."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from holdfast.deliver.exporter import Answer, Exporter, ExporterContext, Failure
from holdfast.quiver import Position
from holdfast.seam import Seam
from holdfast.signals.event import Event, Unit

QUIVER_ID = "7b0a2c1e-8c55-4a6e-9d9f-2f8d2b7f6a10"

# As a client wrote it: spaces, key order and the text of numbers must survive.
PAYLOAD = b'{ "eventType":"COMPLETE", "job": {"namespace":"n","name":"j"}, "x": 1.50 }'


def event(seq: int = 1, payload: bytes = PAYLOAD, row: int = 0, **changes: Any) -> Event:
    given: dict[str, Any] = {
        "quiver_id": QUIVER_ID,
        "slot": "openlineage",
        "headers": {},
        "ingestion_ns": 1_750_000_000_000_000_000 + seq,
    }
    return Event(position=Position(seq, row), payload=payload, **(given | changes))


def events(count: int, first: int = 1) -> list[Event]:
    return [event(seq, b'{"n":%d}' % seq) for seq in range(first, first + count)]


def context(base_dir: Path = Path(), seam: Seam | None = None) -> ExporterContext:
    return ExporterContext("backend", seam or Seam(), base_dir, base_dir / "data")


def with_exporter(exporter: Exporter, use: Callable[[Exporter], Coroutine[Any, Any, Any]]) -> Any:
    """Start an exporter, use it, close it."""

    async def run() -> Any:
        await exporter.start()
        try:
            return await use(exporter)
        finally:
            await exporter.close()

    return asyncio.run(run())


def send(exporter: Exporter, *batches: Sequence[Unit]) -> list[Answer]:
    """Send some batches, one after the other."""

    async def use(started: Exporter) -> list[Answer]:
        return [await started.send(batch) for batch in batches]

    answers: list[Answer] = with_exporter(exporter, use)
    return answers


def send_one(exporter: Exporter, sent: Event | None = None) -> Failure | None:
    """Send one event; None if it was delivered."""
    (result,) = send(exporter, [sent or event()])
    assert set(result.failed) <= {0}
    return result.failed.get(0)
