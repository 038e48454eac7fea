"""Pipelines beside a running gateway, as a user starts them: `holdfast up`, kills, and `drain`."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.dataflow.beside import Beside, lineage
from tests.patience import until_spark

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def counting(**spark: Any) -> dict[str, Any]:
    """Return a file whose pipeline counts events, in windows that only a `close` closes."""
    return {
        "data_dir": "data",
        "spark": {"restart_min": "200ms", "restart_max": "1s", **spark},
        "pipelines": {
            "counts": {
                "watermark": {"max_delay": "1h", "idle_after": "1h"},
                "shuffle_partitions": 1,
                "vertices": {
                    "events": {"source": {"quiver": "buffer", "decode": "openlineage"}},
                    "n": {
                        "reduce": {
                            "window": {"fixed": "1m"},
                            "key": ["job"],
                            "aggregate": {"n": "count(*)"},
                        }
                    },
                    "out": {"sink": {"files": "out"}},
                },
                "edges": ["events -> n", "n -> out"],
            }
        },
    }


def closed(gateway: Beside) -> dict[str, Any]:
    """Drain and close the pipeline from another process; return what that prints."""
    ended = gateway.holdfast("dataflow", "drain", str(gateway.config), "--close", "--json")
    assert ended.returncode == 0, ended.stderr + gateway.log()
    told: dict[str, Any] = json.loads(ended.stdout)
    return told


def counted(gateway: Beside) -> int:
    return sum(row["n"] for row in gateway.rows("out"))


def test_a_driver_that_is_killed_is_started_again(tmp_path: Path) -> None:
    with Beside(tmp_path, counting()) as gateway:
        gateway.start()
        sent = gateway.post(*(lineage("a", "COMPLETE") for _ in range(30)))
        until_spark(
            lambda: gateway.metric("quiver_subscriber_lag_events", "counts.events") == 0,
            "the first batch", gateway.log,
        )  # fmt: skip
        (driver,) = gateway.processes("operate.driver_main")
        os.kill(driver, signal.SIGKILL)
        sent += gateway.post(*(lineage("a", "COMPLETE") for _ in range(20)))
        until_spark(
            lambda: gateway.metric("pipeline_driver_starts_total") == 2
            and gateway.metric("pipeline_query_batches_total") > 0,
            "another driver", gateway.log,
        )  # fmt: skip
        refused = gateway.holdfast("dataflow", "run", str(gateway.config), "--master", "local[1]")
        assert refused.returncode != 0
        assert "another driver runs this pipeline" in refused.stderr
        told = closed(gateway)
        assert told["closed"] is True
        assert counted(gateway) == sent == 50
        until_spark(
            lambda: gateway.metric("pipeline_run_state", 'state="closed"') == 1,
            "closed", gateway.log,
        )  # fmt: skip
        gateway.stop()
    assert not gateway.processes()


def test_two_workers_have_one_driver(tmp_path: Path) -> None:
    tree = {**counting(), "workers": 2}
    with Beside(tmp_path, tree) as gateway:
        gateway.start()
        # Each request on its own connection: the kernel spreads them.
        sent = gateway.post(*(lineage("a", "COMPLETE") for _ in range(60)))
        until_spark(
            lambda: gateway.metric("pipeline_query_batches_total") > 0, "a batch", gateway.log
        )
        assert len(gateway.processes("operate.driver_main")) == 1
        shares = [
            gateway.metric("quiver_ingest_accepted_events_total", f'core_id="{n}"') for n in (0, 1)
        ]
        assert sum(shares) == sent
        assert min(shares) > 0
        closed(gateway)
        assert counted(gateway) == sent
        gateway.stop()


def test_a_driver_of_its_own_reads_a_running_gateway(tmp_path: Path) -> None:
    """`spark.run: false`: the driver is started by hand, and finds the gateway by itself."""
    tree = {**counting(run=False), "flight": {"listen": "127.0.0.1:0"}}
    tree["flight"]["tokens"] = [{"name": "somebody", "token": "secret"}]
    with Beside(tmp_path, tree) as gateway:
        gateway.start()
        sent = gateway.post(*(lineage("a", "COMPLETE") for _ in range(10)))
        assert gateway.processes("operate.driver_main") == []
        ended = gateway.holdfast(
            "dataflow", "run", str(gateway.config), "--once", "--master", "local[1]", "--json"
        )
        assert ended.returncode == 0, ended.stderr
        gateway.stop()
        # Nobody has the directory open now: it is read there.
        closed(gateway)
        assert counted(gateway) == sent
