"""`holdfast demo`: watch it keep its promise.

Everything is real, if small: processes, ports, kills, a disk. The table at the end is the point of
it. It is an equation, and every number in it comes from somebody else: the clients' journals, the
backends, the ledger, Spark.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import click
from rich.live import Live
from rich.table import Table

from holdfast.demo.results import Kept, PipelineView, can_count, how_to_read
from holdfast.demo.run import DemoReport, DemoRun, DemoView
from holdfast.demo.telemetry import COLLECTOR
from holdfast.errors import BadInput
from holdfast.operate.cli.base.output import json_option, print_json, print_table, stdout
from holdfast.quiver import Balance, Outcome


@click.command()
@click.option(
    "--seconds", default=3.0, show_default=True, type=click.FloatRange(0.2, 3600), help="Per step."
)
@click.option(
    "--spark/--no-spark", default=None, help="With a pipeline or not; by default if Spark can run."
)
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    help="Run in this folder, new or empty, and leave it; on a terminal it then runs on until "
    "Ctrl-C. By default in a temporary one.",
)
@json_option
def command(seconds: float, spark: bool | None, keep: Path | None, as_json: bool) -> int:
    """Send lineage and traces through a gateway, kill backends and the gateway; then add up.

    A pipeline on Spark counts the same events, where Spark is installed, and commits its results
    to a store. Then a commit is deleted, and collected.
    """
    counts = can_count() if spark is None else spark
    with _folder(keep) as directory:
        if as_json:
            report = DemoRun(directory, lambda _: None, seconds, counts=counts).run()
            print_json(_fields(report))
            return 0 if report.ok else 3
        if stdout().is_terminal:
            with Live(console=stdout(), auto_refresh=False) as live:
                run = DemoRun(directory, _drawing(live), seconds, counts=counts)
                report = run.run()
            _print(report, keep)
            if keep is not None:
                with Live(console=stdout(), auto_refresh=False) as live:
                    run.watch(_drawing(live))
                    run.run_on()
        else:
            report = DemoRun(directory, _LinePrinter(), seconds, counts=counts).run()
            _print(report, keep)
    return 0 if report.ok else 3


def _drawing(live: Live) -> Callable[[DemoView], None]:
    return lambda view: live.update(_picture(view), refresh=True)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as temporary:
            yield Path(temporary)
        return
    keep.mkdir(parents=True, exist_ok=True)
    if any(keep.iterdir()):
        raise BadInput("the folder is not empty", hint="name a new one", path=str(keep))
    yield keep.resolve()


class _LinePrinter:
    """Prints what happens line by line, where there is no terminal to draw on."""

    def __init__(self) -> None:
        self._printed = ""

    def __call__(self, view: DemoView) -> None:
        if view.step != self._printed:
            self._printed = view.step
            arrived = ", ".join(f"{name} {count:,}" for name, count in view.delivered.items())
            copied = ", ".join(f"{name} {count:,}" for name, count in view.copied.items())
            line = f"{view.step}; accepted {view.accepted:,}, arrived: {arrived}; copied: {copied}"
            if view.tracer:
                line += f"; spans {view.spans_accepted:,}, arrived {view.spans_delivered:,}"
            if view.pipeline is not None:
                line += f"; Spark: {_pipeline_row(view.pipeline)[1]}"
            click.echo(line if view.client else f"{view.step}; console: {view.address}")


def _picture(view: DemoView) -> Table:
    table = Table(title=view.step, title_justify="left", title_style="bold", min_width=72)
    if not view.client:
        view = replace(view, client="an OpenLineage client, soon")
    for name in ("", "state", "events", "behind"):
        table.add_column(name, justify="left" if name in ("", "state") else "right", no_wrap=True)
    state = "killed" if "gateway" in view.dead else f"{view.accepted_per_s:,.0f} events/s"
    table.add_row(f"accepted from {view.client}", state, f"{view.accepted:,}", "")
    for name, count in view.delivered.items():
        behind = max(0, view.accepted - count)
        state = "dead" if name in view.dead else "up"
        table.add_row(f"arrived at {name}", state, f"{count:,}", f"{behind:,}")
    for name, count in view.copied.items():
        behind = max(0, view.accepted - count)
        state = "dead" if name in view.dead else "up"
        table.add_row(f"copied to {name}", state, f"{count:,}", f"{behind:,}")
    if view.tracer:
        behind = max(0, view.spans_accepted - view.spans_delivered)
        state = "killed" if "gateway" in view.dead else "up"
        table.add_row(f"spans from {view.tracer}", state, f"{view.spans_accepted:,}", "")
        state = "dead" if COLLECTOR in view.dead else "up"
        arrived = f"{view.spans_delivered:,}"
        table.add_row(f"spans at the {COLLECTOR}", state, arrived, f"{behind:,}")
    if view.pipeline is not None:
        table.add_row(*_pipeline_row(view.pipeline))
    table.caption = f"{view.kills} kills so far; console and metrics: {view.address}"
    return table


def _pipeline_row(pipeline: PipelineView) -> tuple[str, str, str, str]:
    state = pipeline.state
    if state == "running":
        watermark = pipeline.watermark
        watermark_text = (
            "no watermark yet" if watermark is None else f"watermark {watermark:%H:%M:%S}"
        )
        state = f"{pipeline.rows_per_s:,.0f} rows/s, {watermark_text}"
    return "read by Spark since it started", state, f"{pipeline.rows:,}", ""


def _print(report: DemoReport, keep: Path | None) -> None:
    """Print the tables, and one sentence at the end. What was accepted and never answered is in
    them: a client that is cut off sends again, and then an event may be there twice, which is not
    lost.
    """
    rows: list[tuple[str, object]] = [
        (f"accepted from {report.client}", report.accepted),
        ("+ accepted, but a kill cut off the answer", report.unanswered),
    ]
    rows += [(f"= arrived at {name}", count) for name, count in report.delivered.items()]
    rows.append(("accepted, by the ledger (sent twice: there twice)", report.stored))
    rows += [(f"= copied to {name}", count) for name, count in report.copied.items()]
    if report.counted is not None:
        rows.append(("= counted by Spark, in windows and late", report.counted))
    rows += [
        ("lost", report.lost),
        ("out of order", report.out_of_order),
        *((f"twice at {name} (in flight at a kill)", n) for name, n in report.repeated.items()),
        ("kills (kill -9)", report.kills),
    ]
    print_table("every event accounted for", ("events", "count"), rows)
    if report.spans is not None:
        spans = report.spans
        rows = [
            (f"accepted from {spans.client}", spans.accepted),
            (f"= arrived at the {COLLECTOR}", spans.delivered),
            ("lost", spans.lost),
            ("twice (in flight at a kill)", spans.repeated),
        ]
        print_table("every span, too", ("spans", "count"), rows)
    accounts = _accounts(report)
    used = [o for o in Outcome if any(one.outcomes[o].events for one in accounts)]
    print_table(
        "the ledger, in events: accepted = outcomes + pending",
        ("destination", "accepted", *(o.name.lower() for o in used), "pending", "holds"),
        (_account_row(account, used) for account in accounts),
    )
    if report.kept is not None:
        print_table("the store", ("", "chunks", "bytes"), _kept_rows(report.kept))
        if report.kept.last:
            _print_how_to_read(report.kept, keep)
    click.secho(verdict(report), fg="green" if report.ok else "red", bold=True)


def verdict(report: DemoReport) -> str:
    """Return how it ended, in one sentence."""
    if not report.ok:
        return "A PROMISE WAS BROKEN: the table does not add up."
    counted = "" if report.counted is None else " = counted"
    spans = 0 if report.spans is None else report.spans.accepted
    return (
        f"Nothing accepted was lost: {report.accepted + spans:,} events and spans, "
        f"{report.kills} kills, accepted = delivered = stored{counted}."
    )


def _kept_rows(kept: Kept) -> list[tuple[object, ...]]:
    return [
        ("a commit of the journals had added", kept.added_chunks, kept.added_bytes),
        ("= deleted, and reclaimed", kept.reclaimed_chunks, kept.reclaimed_bytes),
    ]


def _print_how_to_read(kept: Kept, keep: Path | None) -> None:
    click.echo(f"Commits of the pipeline: {kept.commits}; events in the last: {kept.counted:,}.")
    if keep is None:
        click.echo("They went with the temporary folder. With --keep FOLDER they stay; read them:")
    click.echo(how_to_read(str(keep.resolve()) if keep else "FOLDER", kept))


def _accounts(report: DemoReport) -> list[Balance]:
    """Return all accounts; that of the spans is in requests."""
    return [*report.accounts, *([] if report.spans is None else [report.spans.account])]


def _account_row(account: Balance, used: Sequence[Outcome]) -> tuple[object, ...]:
    outcomes = [account.outcomes[outcome].events for outcome in used]
    events = (account.accepted.events, *outcomes, account.pending.events)
    return (account.subscriber, *events, account.holds)


def _fields(report: DemoReport) -> dict[str, object]:
    ledger = [
        {
            "subscriber": account.subscriber,
            "accepted": account.accepted.events,
            **{o.name.lower(): counts.events for o, counts in account.outcomes.items()},
            "pending": account.pending.events,
            "holds": account.holds,
        }
        for account in _accounts(report)
    ]
    spans = None
    if report.spans is not None:
        named = ("client", "accepted", "delivered", "lost", "repeated")
        spans = {name: getattr(report.spans, name) for name in named}
    return {
        "ok": report.ok,
        "client": report.client,
        "kills": report.kills,
        "accepted": report.accepted,
        "unanswered": report.unanswered,
        "delivered": report.delivered,
        "copied": report.copied,
        "repeated": report.repeated,
        "lost": report.lost,
        "out_of_order": report.out_of_order,
        "stored": report.stored,
        "spans": spans,
        "counted": report.counted,
        "store": None if report.kept is None else asdict(report.kept),
        "ledger": ledger,
    }
