"""The driver process beside a gateway, played by small programs: restarts, figures, logs, ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.patience import PATIENCE_S, until_async

from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.driver import child as child_module
from holdfast.dataflow.driver import process as process_module
from holdfast.dataflow.driver import session as session_module
from holdfast.dataflow.driver.child import DriverChild
from holdfast.dataflow.driver.process import PipelineKeeper
from holdfast.dataflow.driver.settings import SparkSettings
from holdfast.dataflow.driver.wire import (
    Access,
    DriverFigures,
    DriverOrders,
    PipelineFigures,
    QueryStatistics,
    decode_figures,
    encode_figures,
)
from holdfast.dataflow.spec import PipelineSettings
from holdfast.errors import PipelineFailed
from holdfast.operate.gateway_metrics import PIPELINE_METRICS, driver_records

QUERY = QueryStatistics(
    name="events", is_running=True, batch=3, batches_total=4, batch_s=0.5, rows_total=100,
    rows_per_s=12.5, watermark="2026-05-01T10:00:00.000Z", lag_s=7.0, state_rows=2, state_bytes=64,
    left_out_total=1, counts={"late.per_job": 5, "written.out": 9},
)  # fmt: skip
FIGURES = {"stats": PipelineFigures("running", 2, "", (QUERY,))}
QUICK = SparkSettings(restart_min=0.01, restart_max=0.04)


async def orders() -> DriverOrders:
    return DriverOrders(
        "gateway.yaml", Access({"buffer": ("grpc://127.0.0.1:1/buffer",)}, "secret")
    )


def playing(program: str, settings: SparkSettings = QUICK) -> DriverChild:
    return DriverChild(settings, orders, [sys.executable, "-c", program])


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def test_figures_and_orders_come_through_whole() -> None:
    assert decode_figures(encode_figures(FIGURES)) == FIGURES
    given = asyncio.run(orders())
    assert DriverOrders.decode(given.encode()) == given
    assert DriverOrders.decode(DriverOrders("f", None, "http://h").encode()) == DriverOrders(
        "f", None, "http://h"
    )


def test_every_metric_of_a_driver_has_its_labels() -> None:
    told = driver_records(DriverFigures(True, 1, FIGURES))
    assert {record.name for record in told} == {metric.name for metric in PIPELINE_METRICS}
    labels = {metric.name: set(metric.labels) for metric in PIPELINE_METRICS}
    assert all(set(record.labels) == labels[record.name] for record in told)
    values = {(r.name, r.labels.get("outcome"), r.labels.get("state")): r.value for r in told}
    assert values["pipeline.query.outcome_rows_total", "late", None] == 5
    assert values["pipeline.query.lag_seconds", None, None] == 7
    assert values["pipeline.run.state", None, "running"] == 1
    assert values["pipeline.run.state", None, "closed"] == 0
    assert values["pipeline.query.watermark_timestamp_seconds", None, None] == 1777629600


def test_one_that_ends_is_started_again_with_its_orders(tmp_path: Path) -> None:
    program = (
        f"import sys; open({str(tmp_path / 'told')!r}, 'a').write(input() + '\\n'); sys.exit(3)"
    )

    async def run() -> None:
        child = playing(program)
        child.start()
        await until_async(lambda: child.figures.starts_total >= 4)
        await child.stop(5.0)
        assert not child.figures.is_running

    asyncio.run(run())
    lines = (tmp_path / "told").read_text().splitlines()
    assert len(lines) >= 3
    assert DriverOrders.decode(lines[0].encode()) == asyncio.run(orders())


def test_one_whose_pipelines_have_all_ended_is_not(tmp_path: Path) -> None:
    async def run() -> None:
        child = playing("input()")
        child.start()
        assert child._keeping is not None
        await asyncio.wait_for(child._keeping, PATIENCE_S)
        assert (child.figures.starts_total, child.figures.is_running) == (1, False)
        await child.stop(5.0)

    asyncio.run(run())


def test_its_figures_and_its_log_are_read(caplog: pytest.LogCaptureFixture) -> None:
    told = encode_figures(FIGURES).decode().strip()
    program = (
        "import sys, time; input(); "
        f"print({told!r}, flush=True); "
        """print('{"level": "error", "message": "it hurts"}', file=sys.stderr); """
        "print('WARNING: as always', file=sys.stderr); "
        "print('java.lang.Something', file=sys.stderr, flush=True); time.sleep(600)"
    )

    async def run() -> None:
        child = playing(program)
        child.start()
        await until_async(lambda: child.figures.pipelines == FIGURES)
        await until_async(lambda: "spark: java.lang.Something" in caplog.messages)
        assert child.figures.is_running
        await child.stop(5.0)

    with caplog.at_level(logging.INFO, "holdfast.pipelines"):
        asyncio.run(run())
    levels = {record.getMessage(): record.levelname for record in caplog.records}
    assert levels["it hurts"] == "ERROR"
    assert not any("as always" in message for message in levels)


@pytest.mark.parametrize("how", ["it is stopped", "it ends"])
def test_nothing_that_it_started_is_left(tmp_path: Path, how: str) -> None:
    """A grandchild in a process group of its own, deaf to SIGTERM like its parent."""
    deaf = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    grandchild = deaf + "os.setpgid(0, 0); time.sleep(600)"
    noted = str(tmp_path / "pid")

    def pids() -> list[int]:
        path = Path(noted)
        return [int(path.read_text())] if path.exists() and path.read_text() else []

    program = (
        f"{deaf} import subprocess, sys; input(); "
        f"child = subprocess.Popen([sys.executable, '-c', {grandchild!r}]); "
        f"open({noted!r}, 'w').write(str(child.pid)); "
    ) + ("time.sleep(600)" if how == "it is stopped" else "os._exit(0)")

    async def run() -> None:
        child = playing(program)
        child.start()
        await until_async(lambda: bool(pids()))
        await child.stop(0.0)
        await until_async(lambda: not is_alive(pids()[0]))

    asyncio.run(run())


@pytest.mark.parametrize("leave", ["os.setpgid(0, 0)", "os.setsid()"])
def test_one_whose_output_somebody_still_holds_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leave: str
) -> None:
    """Java does, when its driver was killed; and so does whatever a function started for good."""
    monkeypatch.setattr(child_module, "PIPES_PATIENCE_S", 0.1)
    noted = tmp_path / "pids"
    holder = f"import os, time; {leave}; print(flush=True); time.sleep(600)"
    program = (
        "import os, subprocess, sys; input(); "
        f"child = subprocess.Popen([sys.executable, '-c', {holder!r}], stdin=subprocess.PIPE); "
        f"open({str(noted)!r}, 'a').write(f'{{child.pid}}\\n'); os._exit(3)"
    )

    async def run() -> None:
        child = playing(program)
        child.start()
        await until_async(lambda: child.figures.starts_total >= 3)
        await child.stop(5.0)

    try:
        asyncio.run(run())
        gc.collect()  # a pipe that is still open here complains when it goes
    finally:
        for pid in map(int, noted.read_text().split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_it_can_be_stopped_before_its_orders_are_known() -> None:
    async def never() -> DriverOrders:
        await asyncio.Event().wait()
        raise AssertionError

    async def run() -> None:
        child = DriverChild(QUICK, never, command=())
        child.start()
        await asyncio.sleep(0)
        await child.stop(5.0)
        assert child.figures == DriverFigures()

    asyncio.run(run())
    assert os.getpid()


# ------------------------------------------------------------ a Spark that does not answer


class _Java:
    """A Java process that runs, and is told signals."""

    def __init__(self) -> None:
        self.signals: list[int] = []

    def send_signal(self, number: int) -> None:
        """As `Popen.send_signal`."""
        self.signals.append(number)

    def poll(self) -> None:
        """As `Popen.poll`."""


class _SilentKeeper:
    """A pipeline that has asked Spark for something, long ago."""

    figures = PipelineFigures("running")

    def __init__(self, name: str, *_: object) -> None:
        self.name = name

    def start(self, session: object) -> None:
        """Do nothing."""

    def join(self, patience_s: float) -> bool:
        """Have ended."""
        return True

    def complaint(self, patience_s: float) -> str:
        """Say what hangs."""
        return f"Spark has not answered {self.name} for {patience_s + 1:.0f} s"


@pytest.fixture
def java(monkeypatch: pytest.MonkeyPatch) -> _Java:
    """The Java process of a Spark that never was."""
    java = _Java()
    context = SimpleNamespace(_gateway=SimpleNamespace(proc=java))
    session = SimpleNamespace(sparkContext=context, version="4")
    for name, value in {
        "start_session": lambda *_: session,
        "stop_session": lambda _: None,
        "PipelineKeeper": _SilentKeeper,
        "REPORT_EVERY_S": 0.0,
        "STACKS_PATIENCE_S": 0.0,
    }.items():
        monkeypatch.setattr(process_module, name, value)
    return java


def run_driver(folder: Path, stop: threading.Event) -> int:
    pipelines = {"stats": (PipelineSettings.model_construct(), Places(folder, folder))}
    with (folder / "figures").open("wb") as figures:
        return process_module.run_pipelines(pipelines, SparkSettings(), stop, figures, None)


def test_a_driver_whose_spark_does_not_answer_says_what_it_did_and_ends(
    tmp_path: Path, java: _Java, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_driver(tmp_path, threading.Event()) == 71
    assert java.signals == [signal.SIGQUIT]
    assert "test_a_driver_whose_spark_does_not_answer" in capfd.readouterr().err


def test_a_driver_that_somebody_told_to_stop_has_not_ended_its_pipelines(
    tmp_path: Path, java: _Java
) -> None:
    """A SIGTERM that was not the gateway's ended with 0, and nobody started it again."""
    stop = threading.Event()
    stop.set()
    assert run_driver(tmp_path, stop) == 72
    assert java.signals == []


def test_a_driver_that_tells_nothing_any_more_is_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its Java did not come up, or it was stopped (SIGSTOP), or waits for its disk."""
    monkeypatch.setattr(child_module, "SILENCE_PATIENCE_S", 0.2)
    monkeypatch.setattr(child_module, "STACKS_PATIENCE_S", 0.0)

    async def run() -> None:
        child = playing("import time; input(); time.sleep(600)")
        child.start()
        await until_async(lambda: child.figures.starts_total >= 3)
        await child.stop(5.0)

    with caplog.at_level(logging.ERROR, "holdfast.pipelines"):
        asyncio.run(run())
    told = "the driver of the pipelines has reported nothing for 0.2 s: killing it"
    assert told in caplog.messages


def test_a_pipeline_whose_query_cannot_be_stopped_asks_for_another_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was begun again for ever: Spark does not start a query beside itself."""
    begun = []

    class Run:
        plan = SimpleNamespace(queries=())
        asking_s = 0.0
        not_stopped: list[str]

        def __init__(self, *_: object) -> None:
            begun.append(1)
            self.not_stopped = []

        def __enter__(self) -> Run:
            return self

        def __exit__(self, *_: object) -> None:
            self.stop()

        def stop(self) -> None:
            self.not_stopped = ["events"]

    def hang(*_: object) -> None:
        raise PipelineFailed("the query events does not go on", hint="…")

    monkeypatch.setattr(process_module, "PipelineRun", Run)
    monkeypatch.setattr(process_module, "drive", hang)
    places: Any = SimpleNamespace(state_dir=tmp_path)
    keeper = PipelineKeeper(
        "stats", PipelineSettings.model_construct(), places, QUICK, threading.Event()
    )
    assert keeper.complaint(600) == ""
    keeper.start(SimpleNamespace())  # type: ignore[arg-type]
    assert keeper.join(PATIENCE_S)
    assert keeper.complaint(600) == "queries of stats do not stop: events"
    assert len(begun) == 1


_ORPHAN = """
import os, sys, threading
from holdfast.dataflow.driver import process
process.GATEWAY_EVERY_S = 0.05
stop = threading.Event()
process.listen(stop)
print(os.getpid(), flush=True)
stop.wait()
print("stops", flush=True)
os._exit(0)
"""
_PARENT = """
import os, subprocess, sys, threading
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=int(sys.argv[2]))
threading.Thread(target=lambda: os._exit(child.wait()), daemon=True).start()
sys.stdin.read()
os._exit(0)
"""


def test_a_driver_notices_that_its_gateway_is_gone_though_somebody_holds_its_input() -> None:
    """A process that the gateway had forked has its pipes, too, and outlives it."""
    reading, held = os.pipe()
    try:
        parent = subprocess.Popen(
            [sys.executable, "-c", _PARENT, _ORPHAN, str(reading)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[reading],
        )  # fmt: skip
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stdout.readline().strip().isdigit()
        parent.stdin.close()
        assert parent.stdout.readline() == b"stops\n"
        parent.stdout.close()
        parent.wait()
    finally:
        os.close(reading)
        os.close(held)


def test_queries_are_started_one_after_another_unless_one_takes_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entered, leave, done = threading.Event(), threading.Event(), threading.Event()

    def second() -> None:
        entered.set()
        with session_module.starting_in_turn():
            done.set()

    with session_module.starting_in_turn():
        waiting = threading.Thread(target=second)
        waiting.start()
        assert entered.wait(PATIENCE_S)
        assert not done.is_set()
    waiting.join(PATIENCE_S)
    assert done.is_set()
    monkeypatch.setattr(session_module, "TURN_PATIENCE_S", 0.0)
    with session_module.starting_in_turn(), session_module.starting_in_turn():
        leave.set()
    assert leave.is_set()
