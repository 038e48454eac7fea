"""`holdfast dataflow run | drain | test`: what starts Spark, and how its progress is shown.

Spark takes seconds to start and its errors are long, so whatever can be refused without it is
refused before. A pipeline that is run here and one beside a gateway are the same `PipelineRun`;
only who restarts it differs, which is nobody here: a person looks on.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click
from rich.live import Live
from rich.table import Table

from holdfast.dataflow.compiler.continuation import planned
from holdfast.dataflow.driver.lineage import RunReporter, lineage_sender
from holdfast.dataflow.driver.session import start_session
from holdfast.dataflow.driver.settings import TO_GATEWAY
from holdfast.dataflow.driver.state_dir import StateDir
from holdfast.dataflow.driver.wire import DriverFigures, PipelineFigures, QueryStatistics
from holdfast.errors import BadConfig, BadInput
from holdfast.graph.document import Substitution, read_document
from holdfast.graph.pipelines import load_pipelines
from holdfast.graph.validation import validated
from holdfast.operate.cli.base.output import (
    counted,
    json_option,
    print_json,
    print_table,
    size,
    stdout,
)
from holdfast.operate.cli.base.target import config_argument
from holdfast.operate.cli.base.work import stop_on_signals
from holdfast.operate.cli.dataflow.show import (
    Chosen,
    choose,
    name_argument,
    state_option,
)
from holdfast.operate.gateway_metrics import driver_records, render_records
from holdfast.operate.metrics import CONTENT_TYPE
from holdfast.operate.up import gateway_lineage_url
from holdfast.receive.listening import parse_address

if TYPE_CHECKING:
    from holdfast.dataflow.driver.run import PipelineRun
    from holdfast.dataflow.kit import CasesFile

# Without a terminal: a line this often.
TELL_EVERY_S = 10.0
_MINUTE_S, _HOUR_S = 60, 3600


class Display:
    """Shows the progress of a pipeline."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._shown_s = time.monotonic()
        self._live = Live(console=stdout()) if stdout().is_terminal and not as_json else None
        self.figures = PipelineFigures("starting")

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, queries: Sequence[QueryStatistics]) -> None:
        """Show the statistics of its queries."""
        self.figures = PipelineFigures("running", queries=tuple(queries))
        if self._live is not None:
            self._live.update(progress_table(queries))
        elif time.monotonic() > self._shown_s + TELL_EVERY_S:
            self._shown_s = time.monotonic()
            if self._as_json:
                print_json([one.to_fields() for one in queries])
            else:
                for one in queries:
                    click.echo(_line(one))


def _line(one: QueryStatistics) -> str:
    counts = " ".join(f"{name}={n}" for name, n in one.counts.items())
    return (
        f"{one.name} batch={one.batch} rows={one.rows_total} rows_per_s={one.rows_per_s:.0f} "
        f"watermark={one.watermark} lag={_duration(one.lag_s)} state={size(int(one.state_bytes))} "
        f"{counts}".rstrip()
    )


_COLUMNS = ("query", "batch", "rows", "rows/s", "watermark", "lag", "state", "counts")


def progress_table(queries: Sequence[QueryStatistics]) -> Table:
    """Return a table for a terminal, a row for each query."""
    table = Table(*_COLUMNS)
    for one in queries:
        table.add_row(*_row(one))
    return table


def print_progress(queries: Sequence[QueryStatistics]) -> None:
    """Print where queries ended."""
    print_table("queries", _COLUMNS, map(_row, queries))


def _row(one: QueryStatistics) -> tuple[str, ...]:
    return (
        one.name,
        "" if one.batch is None else f"{one.batch:,}",
        f"{one.rows_total:,}",
        f"{one.rows_per_s:,.0f}",
        one.watermark or "",
        _duration(one.lag_s),
        f"{counted(one.state_rows, 'row')}, {size(int(one.state_bytes))}",
        ", ".join(f"{name} {n:,}" for name, n in one.counts.items()),
    )


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < _MINUTE_S:
        return f"{seconds:.1f} s"
    if seconds < _HOUR_S:
        return f"{seconds / _MINUTE_S:.1f} min"
    return f"{seconds / _HOUR_S:,.1f} h"


master_option = click.option(
    "--master", help="Where Spark runs; by default `spark.master` of CONFIG, else local[*]."
)
conf_option = click.option(
    "--conf", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; repeatable."
)


@click.command("run")
@config_argument
@name_argument
@master_option
@conf_option
@state_option
@click.option("--once", is_flag=True, help="Read what is there now, and end.")
@click.option("--metrics", metavar="HOST:PORT", help="Serve /metrics (Prometheus) there.")
@json_option
def run_command(
    config: str,
    name: str | None,
    master: str | None,
    settings: Sequence[str],
    state_dir: Path | None,
    once: bool,
    metrics: str | None,
    as_json: bool,
) -> None:
    """Run a pipeline of CONFIG until it is stopped (Ctrl-C, SIGTERM) or drained.

    Quivers of a gateway that runs are read where it serves them.
    """
    from holdfast.dataflow.driver.process import drive

    chosen = choose(config, name, state_dir, reach=True)
    if once:
        _drain(chosen, master, settings, close=False, as_json=as_json)
        return
    stop = threading.Event()
    with stop_on_signals(stop.set), _running(chosen, master, settings) as run:
        with (
            Display(as_json) as display,
            exposed(metrics, chosen.name, display),
            _reporting(config, chosen) as reporter,
        ):
            end = drive(run, stop, display.show, reporter)
        if end != "stopped":
            _print_ended(run.statistics(), close=end == "closed", as_json=as_json)


@contextlib.contextmanager
def _reporting(config: str, chosen: Chosen) -> Iterator[RunReporter | None]:
    """Give what reports the run to OpenLineage, if the file asks for that."""
    settings = chosen.spark.lineage
    url = None
    if settings is not None and settings.to == TO_GATEWAY and chosen.has_gateway:
        url = gateway_lineage_url(config)
    sender = lineage_sender(settings, url)
    if sender is None or settings is None:
        yield None
        return
    try:
        yield RunReporter(settings, sender, chosen.name, chosen.pipeline, chosen.places)
    finally:
        sender.close()


@contextlib.contextmanager
def _running(chosen: Chosen, master: str | None, settings: Sequence[str]) -> Iterator[PipelineRun]:
    """Start Spark and the pipeline; end both with the block."""
    from holdfast.dataflow.driver.run import PipelineRun

    # Spark takes seconds to start: what can be refused is refused before.
    StateDir(chosen.places.state_dir).lock().close()
    planned(chosen.name, chosen.pipeline, chosen.places.state_dir)
    given = {**chosen.spark.conf, **spark_settings(settings)}
    session = start_session(master or chosen.spark.master, given, name=chosen.name)
    with PipelineRun(chosen.name, chosen.pipeline, chosen.places, session) as run:
        yield run


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
    master: str | None,
    settings: Sequence[str],
    state_dir: Path | None,
    close: bool,
    as_json: bool,
) -> None:
    """Let a pipeline of CONFIG read everything that is there now, then stop it.

    A driver that runs it is asked to; without one it is done here.
    """
    # Asked for first, by a file in its state directory: a running driver holds the lock, and only
    # it knows what it has read.
    chosen = choose(config, name, state_dir)
    state = StateDir(chosen.places.state_dir)
    if state.ask_to_drain(close=close):
        queries = [QueryStatistics.from_fields(one) for one in state.wait_drained()]
        _print_ended(queries, close=close, as_json=as_json)
        return
    chosen = choose(config, name, state_dir, reach=True)
    _drain(chosen, master, settings, close=close, as_json=as_json)


def _drain(
    chosen: Chosen, master: str | None, settings: Sequence[str], *, close: bool, as_json: bool
) -> None:
    """Run the pipeline until it has read everything that is there now."""
    with _running(chosen, master, settings) as run:
        run.drain(close=close)
    _print_ended(run.statistics(), close=close, as_json=as_json)


def _print_ended(queries: Sequence[QueryStatistics], *, close: bool, as_json: bool) -> None:
    if as_json:
        print_json({"closed": close, "queries": [one.to_fields() for one in queries]})
    else:
        print_progress(queries)


@click.command("test")
@config_argument
@click.argument("cases", type=click.Path(dir_okay=False, path_type=Path))
@json_option
def test_command(config: str, cases: Path, as_json: bool) -> int:
    """Run the tests in CASES on the pipelines of CONFIG: rows in, rows out, nothing kept."""
    from holdfast.dataflow.kit import run_case

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
    """Read a file of test cases; all errors are found in one pass, with line and column."""
    from holdfast.dataflow.kit import CasesFile

    document = read_document(path.absolute(), Substitution({}, path.absolute().parent))
    document.file = str(path)
    found = None if document.findings else validated(CasesFile, document.value, document, ())
    if found is None:
        raise BadConfig(
            "the tests cannot be read",
            hint="fix what is named above",
            findings=document.findings,
            path=str(path),
        )
    return found


def spark_settings(given: Sequence[str]) -> dict[str, str]:
    """Return settings of Spark, written as KEY=VALUE."""
    wrong = [one for one in given if "=" not in one]
    if wrong:
        raise BadInput(
            f"{wrong[0]!r} is not a setting", hint="write --conf spark.executor.memory=4g"
        )
    return dict(one.split("=", 1) for one in given)


POLL_S = 0.2


class WatchedPipelines(Protocol):
    """What knows the progress of a pipeline."""

    @property
    def figures(self) -> PipelineFigures:
        """Its statistics now."""


@contextlib.contextmanager
def exposed(listen: str | None, name: str, watched: WatchedPipelines) -> Iterator[None]:
    """Serve the figures of one pipeline, if an address is given."""
    if listen is None:
        yield
        return
    try:
        host, port = parse_address(listen)
        server = _Server((host, port), name, watched)
    except (OSError, ValueError) as error:
        raise BadConfig(
            f"metrics cannot be served on {listen}: {error}", hint="write host:port; is it free?"
        ) from error
    thread = threading.Thread(target=server.serve_forever, args=(POLL_S,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    """Of the standard library: a driver has no event loop, and one page for one scraper needs none
    of what receivers have.
    """

    daemon_threads = True

    def __init__(self, address: tuple[str, int], name: str, watched: WatchedPipelines) -> None:
        self.name = name
        self.watched = watched
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        """Answer with the figures."""
        if self.path != "/metrics":
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        figures = DriverFigures(True, 1, {self.server.name: self.server.watched.figures})
        body = render_records(driver_records(figures)).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing: the terminal shows the progress."""
