"""`holdfast report`: what was accepted and what became of it, on one page.

The page answers one question: was anything lost?
"""

from __future__ import annotations

from datetime import datetime

import click

from holdfast.errors import Damaged
from holdfast.operate.cli.base.outcomes import ReportPage, report
from holdfast.operate.cli.base.output import (
    counted,
    json_option,
    moment,
    print_json,
    print_table,
)
from holdfast.operate.cli.base.target import Target, as_ns, gateway_argument, time_option
from holdfast.quiver import Outcome

RANGES_SHOWN = 50


@click.command()
@gateway_argument
@time_option("--since", "Only what was decided at this time or later.")
@json_option
def command(target: Target, since: datetime | None, as_json: bool) -> int:
    """Report what was accepted and what became of it: "nothing was lost", or exactly what.

    TARGET is a graph file, a data directory, or a quiver; by default ./holdfast_data. Exits with
    65 if something was lost.
    """
    page = report(target, as_ns(since))
    if as_json:
        print_json(page.fields())
    else:
        _print(page)
    return 0 if page.is_whole else Damaged.exit_code


def _print(page: ReportPage) -> None:
    since = "" if page.since_ns is None else f" since {moment(page.since_ns)}"
    names = [outcome.name.lower() for outcome in Outcome]
    used = [n for n in names if any(a["outcomes"][n]["events"] for a in page.accounts)]
    rows = [
        (
            f"{one['quiver']} {one['subscriber']}".strip(),
            one["accepted"]["events"],
            *(one["outcomes"][name]["events"] for name in used),
            one["pending"]["events"],
            one["holds"],
        )
        for one in page.accounts
    ]
    columns = ("destination", "accepted", *used, "waiting", "adds up")
    print_table("what became of every event, ever", columns, rows)
    if page.since_ns is not None:
        rows = [(who, *(counts[name] for name in names)) for who, counts in page.since.items()]
        print_table(f"decided{since}", ("destination", *names), rows)
    if any(page.dead_letters.values()):
        letters = [(name, count) for name, count in page.dead_letters.items() if count]
        print_table("dead letters, kept (holdfast dlq ls)", ("queue", "events"), letters)
    if page.late:
        print_table("late for their window", ("pipeline", "rows"), list(page.late.items()))
    if page.lost:
        _print_lost(page, since)
    waiting = sum(one["pending"]["events"] for one in page.accounts)
    if page.is_whole:
        still = f"; {counted(waiting, 'delivery', 'deliveries')} still to come" if waiting else ""
        click.secho(f"Nothing was lost{since}{still}.", fg="green", bold=True)
    elif page.lost_events:
        text = f"{counted(page.lost_events, 'event')} will not reach a destination{since}."
        click.secho(text, fg="red", bold=True)
    elif page.gaps:
        click.secho("Data nodes lack events; `holdfast handoff repair`.", fg="red", bold=True)
    else:
        text = "A ledger does not add up; run `holdfast quiver fsck`."
        click.secho(text, fg="red", bold=True)


def _print_lost(page: ReportPage, since: str) -> None:
    rows = [
        (
            moment(one.time_ns),
            f"{one.quiver} {one.subscriber}".strip(),
            one.outcome,
            f"{one.first_seq}-{one.last_seq}",
            one.events,
            one.reason,
        )
        for one in page.lost[:RANGES_SHOWN]
    ]
    columns = ("time", "destination", "what", "bundles", "events", "reason")
    print_table(f"lost{since}", columns, rows)
    if len(page.lost) > RANGES_SHOWN:
        click.echo(f"{len(page.lost) - RANGES_SHOWN:,} more: holdfast quiver ledger, or --json")
