"""`holdfast dataflow run | drain | test`: what starts Spark."""

from __future__ import annotations

import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click
from rich.live import Live
from rich.table import Table

from holdfast.dataflow.run import (
    PipelineRun,
    QueryStatistics,
    ask_to_drain,
    asked_to_drain,
    is_running,
)
from holdfast.dataflow.session import start_session
from holdfast.errors import BadConfig, BadInput
from holdfast.graph.document import read_document
from holdfast.graph.pipelines import load_pipelines
from holdfast.graph.substitution import Substitution
from holdfast.graph.validation import validated
from holdfast.operate.cli.dataflow.arguments import (
    Chosen,
    choose,
    config_argument,
    name_argument,
    state_option,
)
from holdfast.operate.cli.output import json_option, print_json, stdout

if TYPE_CHECKING:
    from holdfast.dataflow.kit.cases import CasesFile

master_option = click.option(
    "--master", default="local[*]", show_default=True, help="Where Spark runs."
)
conf_option = click.option(
    "--conf", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; repeatable."
)
LOOK_EVERY_S = 0.5
# On no terminal: a line that often.
TELL_EVERY_S = 10.0
# A driver that was asked to drain has so long for each look whether it has ended.
ASKED_POLL_S = 0.5


@click.command("run")
@config_argument
@name_argument
@master_option
@conf_option
@state_option
@click.option("--once", is_flag=True, help="Read what is there now, and end.")
@json_option
def run_command(
    config: str,
    name: str | None,
    master: str,
    settings: Sequence[str],
    state_dir: Path | None,
    once: bool,
    as_json: bool,
) -> None:
    """Run a pipeline of CONFIG until it is told to stop (Ctrl-C, SIGTERM) or to drain."""
    chosen = choose(config, name, state_dir)
    if once:
        _drain(chosen, master, settings, close=False, as_json=as_json)
        return
    stop = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        stop.set()

    before = {one: signal.signal(one, end) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        asked = _run(chosen, master, settings, stop, as_json=as_json)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked is not None:
        _drain(chosen, master, settings, close=asked.get("close", False), as_json=as_json)


def _run(
    chosen: Chosen, master: str, settings: Sequence[str], stop: threading.Event, *, as_json: bool
) -> dict[str, bool] | None:
    """Run until told to stop; return what was asked for if it is to drain."""
    session = start_session(master, _settings(settings), name=chosen.name)
    with PipelineRun(chosen.name, chosen.pipeline, chosen.places, session) as run:
        asked_to_drain(chosen.places.state_dir)  # what was asked before we began
        run.start()
        with _Display(as_json) as display:
            while not stop.is_set():
                if run.wait(LOOK_EVERY_S):
                    return None
                display.show(run.statistics())
                asked = asked_to_drain(chosen.places.state_dir)
                if asked is not None:
                    return asked
    return None


@click.command("drain")
@config_argument
@name_argument
@master_option
@conf_option
@state_option
@click.option(
    "--close", is_flag=True, help="Close all windows: nothing more will come. The end of it."
)
@json_option
def drain_command(
    config: str,
    name: str | None,
    master: str,
    settings: Sequence[str],
    state_dir: Path | None,
    close: bool,
    as_json: bool,
) -> None:
    """Let a pipeline of CONFIG read everything that is there now, and end.

    A driver that runs it is asked to; without one it is done here.
    """
    chosen = choose(config, name, state_dir)
    if ask_to_drain(chosen.places.state_dir, close=close):
        while is_running(chosen.places.state_dir):
            time.sleep(ASKED_POLL_S)
        return
    _drain(chosen, master, settings, close=close, as_json=as_json)


def _drain(
    chosen: Chosen, master: str, settings: Sequence[str], *, close: bool, as_json: bool
) -> None:
    session = start_session(master, _settings(settings), name=chosen.name)
    with PipelineRun(chosen.name, chosen.pipeline, chosen.places, session) as run:
        run.drain(close=close)
    told = run.statistics()
    if as_json:
        print_json({"closed": close, "queries": [_fields(one) for one in told]})
    else:
        stdout.print(_table(told))


@click.command("test")
@config_argument
@click.argument("cases", type=click.Path(dir_okay=False, path_type=Path))
@json_option
def test_command(config: str, cases: Path, as_json: bool) -> int:
    """Run the tests in CASES on the pipelines of CONFIG: rows in, rows out, nothing kept."""
    from holdfast.dataflow.kit.cases import run_case

    pipelines = load_pipelines(config, imports=True).pipelines
    tests = _cases(cases).tests
    session = start_session("local[2]")
    outcomes = []
    for name, case in tests.items():
        with tempfile.TemporaryDirectory(prefix="holdfast-test-") as folder:
            outcome = run_case(name, case, pipelines, Path(folder), session)
        outcomes.append(outcome)
        if not as_json:
            click.echo(f"{'FAILED' if outcome.wrong else 'passed'}  {name}")
            for line in outcome.wrong:
                click.echo(f"        {line}")
    failed = sum(bool(outcome.wrong) for outcome in outcomes)
    if as_json:
        print_json({"ok": not failed, "tests": [outcome._asdict() for outcome in outcomes]})
    else:
        click.echo(f"{len(outcomes) - failed} passed, {failed} failed")
    return 1 if failed else 0


def _cases(path: Path) -> CasesFile:
    from holdfast.dataflow.kit.cases import CasesFile

    document = read_document(path.absolute(), Substitution({}, path.absolute().parent))
    document.file = str(path)
    found = None if document.findings else validated(CasesFile, document.value, document, ())
    if found is None:
        raise BadConfig(
            "the tests cannot be read", hint="mend them", findings=document.findings, path=str(path)
        )
    return found


def _settings(given: Sequence[str]) -> dict[str, str]:
    wrong = [one for one in given if "=" not in one]
    if wrong:
        raise BadInput(f"{wrong[0]!r} is no setting", hint="write --conf spark.executor.memory=4g")
    return dict(one.split("=", 1) for one in given)


# -------------------------------------------------------------------------- display


class _Display:
    """Tells how a pipeline goes: a table on a terminal, else a line now and then."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._told_s = time.monotonic()
        self._live = Live(console=stdout) if stdout.is_terminal and not as_json else None

    def __enter__(self) -> _Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, told: Sequence[QueryStatistics]) -> None:
        """Show how things are."""
        if self._live is not None:
            self._live.update(_table(told))
        elif time.monotonic() > self._told_s + TELL_EVERY_S:
            self._told_s = time.monotonic()
            if self._as_json:
                print_json([_fields(one) for one in told])
            else:
                for one in told:
                    counts = " ".join(f"{name}={n}" for name, n in one.counts.items())
                    click.echo(
                        f"{one.name} batch={one.batch} rows={one.rows_total} "
                        f"watermark={one.watermark} {counts}".rstrip()
                    )


def _fields(one: QueryStatistics) -> dict[str, object]:
    return {**one._asdict(), "counts": dict(one.counts)}


def _table(told: Sequence[QueryStatistics]) -> Table:
    table = Table()
    for column in ("query", "batch", "rows", "rows/s", "watermark", "state rows", "counts"):
        table.add_column(column)
    for one in told:
        counts = ", ".join(f"{name} {n:,}" for name, n in one.counts.items())
        table.add_row(
            one.name,
            "" if one.batch is None else f"{one.batch:,}",
            f"{one.rows_total:,}",
            f"{one.rows_per_s:,.0f}",
            one.watermark or "",
            f"{one.state_rows:,}",
            counts,
        )
    return table
