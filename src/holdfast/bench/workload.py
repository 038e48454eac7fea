"""What is appended: a telemetry-like record batch of about 88 kB, and a raw event of 2 kB."""

from __future__ import annotations

import random

import pyarrow as pa

BATCH_ROWS = 1_000
EVENT_BYTES = 2_048

_SERVICES = ("checkout", "cart", "payment", "frontend", "recommendation")
_TIME_US = 1_760_000_000_000_000


def telemetry_batch(seed: int = 1) -> pa.RecordBatch:
    """Return log records as a collector sees them."""
    chance = random.Random(seed)
    rows = range(BATCH_ROWS)
    return pa.record_batch(
        {
            "time": pa.array([_TIME_US + 250 * row for row in rows], pa.timestamp("us", "UTC")),
            "trace_id": pa.array([chance.randbytes(16) for _ in rows], pa.binary(16)),
            "span_id": pa.array([chance.randbytes(8) for _ in rows], pa.binary(8)),
            "severity": pa.array([chance.choice((5, 9, 13, 17)) for _ in rows], pa.uint8()),
            "service": pa.array([chance.choice(_SERVICES) for _ in rows]),
            "body": pa.array([_body(chance) for _ in rows]),
            "duration_ms": pa.array([chance.random() * 100 for _ in rows], pa.float64()),
        }
    )


def _body(chance: random.Random) -> str:
    return f"request {chance.randrange(10**6)} took {chance.random() * 100:.2f} ms"


def raw_event(seed: int = 1) -> bytes:
    """Return bytes that no filesystem or device can compress."""
    return random.Random(seed).randbytes(EVENT_BYTES)
