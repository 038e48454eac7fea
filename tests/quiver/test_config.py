"""Every bound of the configuration is checked, and refused with a hint that names it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from tests.quiver.batches import column_of, numbers
from tests.quiver.machine import Machine

from holdfast.errors import BadInput
from holdfast.quiver import (
    AckLevel,
    AppendConfig,
    ProducerConfig,
    QuiverConfig,
    SegmentConfig,
    TransactionConfig,
    WalConfig,
)
from holdfast.quiver.base.config import AGE_MAX_S, KB, MB, WAIT_MAX_S

INF, NAN = math.inf, math.nan

OUT_OF_BOUNDS: list[tuple[Callable[..., Any], str, str, list[Any]]] = [
    (AppendConfig, "append", "max_bundle_bytes", [0, -1, 512 * MB + 1]),
    (AppendConfig, "append", "max_pending_bytes", [0, -1]),
    (AppendConfig, "append", "timeout_s", [0, -1.0, INF, NAN]),
    (WalConfig, "wal", "file_size_bytes", [0, 64 * KB - 1]),
    (WalConfig, "wal", "max_size_bytes", [0, 64 * MB - 1]),
    (WalConfig, "wal", "flush_interval_s", [-0.1, INF, NAN]),
    (WalConfig, "wal", "max_group_bytes", [0, 512 * MB + 1]),
    (WalConfig, "wal", "spare_files", [-1, 17]),
    (SegmentConfig, "segment", "target_size_bytes", [0, MB - 1, 256 * MB + 1]),
    (SegmentConfig, "segment", "max_open_duration_s", [0, -1.0, INF, NAN]),
    (SegmentConfig, "segment", "max_files", [0, 1, 1001]),
    (SegmentConfig, "segment", "compression", ["", "gzip", None]),
    (SegmentConfig, "segment", "retry_min_s", [0, -1.0, 10.1, INF, NAN]),
    (SegmentConfig, "segment", "retry_max_s", [0, INF, NAN]),
    (ProducerConfig, "producers", "max_count", [0, -1]),
    (ProducerConfig, "producers", "ttl_s", [0, -1.0, INF, NAN]),
    (TransactionConfig, "transactions", "max_staged_bytes", [0, 1024 * MB + 1]),
    (TransactionConfig, "transactions", "lease_s", [0, -1.0, INF, NAN]),
]


@pytest.mark.parametrize(
    ("make", "section", "option", "value"),
    [
        pytest.param(make, section, option, value, id=f"{section}.{option}={value}")
        for make, section, option, values in OUT_OF_BOUNDS
        for value in values
    ],
)
def test_a_value_out_of_bounds_is_refused_and_named(
    make: Callable[..., Any], section: str, option: str, value: Any
) -> None:
    with pytest.raises(BadInput) as caught:
        make(**{option: value})
    assert f"{section}.{option} is {value}" in caught.value.message
    assert f"{section}.{option} must be" in caught.value.hint


def test_the_first_retry_may_not_wait_longer_than_the_last() -> None:
    with pytest.raises(BadInput, match=r"segment\.retry_min_s is 0\.1"):
        SegmentConfig(retry_max_s=0.09)


@pytest.mark.parametrize("seconds", [-1.0, INF, NAN])
def test_a_skew_out_of_bounds_is_refused(seconds: float) -> None:
    with pytest.raises(BadInput, match="max_skew_s"):
        QuiverConfig(max_skew_s=seconds)


def test_a_level_that_is_none_is_refused() -> None:
    level: Any = "fsynced"
    with pytest.raises(BadInput, match="AckLevel"):
        AppendConfig(level=level)


def test_a_quiver_runs_at_all_upper_bounds_at_once(machine: Machine) -> None:
    config = QuiverConfig(
        append=AppendConfig(level=AckLevel.WRITTEN, timeout_s=WAIT_MAX_S),
        wal=WalConfig(flush_interval_s=WAIT_MAX_S, max_group_bytes=512 * MB),
        segment=SegmentConfig(
            target_size_bytes=256 * MB, max_open_duration_s=WAIT_MAX_S, max_files=1000
        ),
        producers=ProducerConfig(ttl_s=AGE_MAX_S),
        transactions=TransactionConfig(max_staged_bytes=1024 * MB, lease_s=AGE_MAX_S),
        max_skew_s=AGE_MAX_S,
    )
    with machine.start(config) as quiver:
        quiver.append(numbers(1), producer="p", epoch=1)
        with quiver.transaction() as transaction:
            transaction.append(numbers(2))
        quiver.flush()
        assert column_of(quiver) == [1, 2]


def test_a_quiver_runs_at_all_lower_bounds_at_once(machine: Machine) -> None:
    config = QuiverConfig(
        append=AppendConfig(max_pending_bytes=1),
        wal=WalConfig(
            file_size_bytes=64 * KB, max_size_bytes=64 * KB, flush_interval_s=0, max_group_bytes=1
        ),
        segment=SegmentConfig(target_size_bytes=MB, max_files=2, retry_min_s=0.001),
        producers=ProducerConfig(max_count=1, ttl_s=0.001),
        max_skew_s=0,
    )
    with machine.start(config) as quiver:
        for value in range(100):
            quiver.append_raw(bytes(2 * KB), slot="filler")
            quiver.append(numbers(value), producer=f"p{value}", epoch=1)
        assert column_of(quiver, slot="events") == list(range(100))
        assert quiver.statistics().producers == 1
    machine.kill()
    with machine.start(config) as quiver:
        assert column_of(quiver, slot="events") == list(range(100))
