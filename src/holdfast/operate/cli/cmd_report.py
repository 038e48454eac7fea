"""`holdfast report`: what was accepted and what became of it, on one page.

The page answers one question, "was anything lost?", from the records that exist for it: the ledger
of every quiver (delivered, filtered, dead-lettered, dropped, expired, damaged, given up), what
still waits, the dead letters, and, of a running gateway, what its data nodes lack and what its
pipelines called late. It works beside a running gateway and on the files of a stopped one.

An event is lost for a destination if its outcome there is one of `LOSSES`. What was filtered was
left out on purpose, and a dead letter is kept: neither is lost.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

import click

from holdfast.errors import CannotOpen, Damaged, HoldfastError
from holdfast.operate.cli.base.output import (
    counted,
    json_option,
    moment,
    print_json,
    print_table,
)
from holdfast.operate.cli.base.target import Target, as_ns, gateway_argument, time_option
from holdfast.quiver import Outcome
from holdfast.quiver.tools.changes import balances
from holdfast.quiver.tools.history import LineFilter, lines
from holdfast.quiver.tools.inspect import inspect
from holdfast.seam import Seam

LOSSES = frozenset({Outcome.DROPPED, Outcome.EXPIRED, Outcome.DAMAGED, Outcome.GIVEN_UP})
# Ranges of lost events that are kept to be named; all of them are counted.
RANGES_MAX = 1000
RANGES_SHOWN = 50
PIPELINE_ROWS = "pipeline.query.outcome_rows_total"
# As `holdfast handoff` names it (handoff/control.py); not imported, so that the base has reports.
HANDOFF_VERB = "handoff"
# What only a gateway that sends to data nodes has.
NODE_STATE = "handoff.node.state"


@dataclass
class LostRange:
    """Bundles that a subscriber will not get, and why."""

    quiver: str
    subscriber: str
    outcome: str
    first_seq: int
    last_seq: int
    events: int
    time_ns: int
    reason: str


@dataclass
class ReportPage:
    """What became of everything."""

    since_ns: int | None = None
    # The equation of every subscriber, since it exists.
    accounts: list[dict[str, Any]] = field(default_factory=list)
    # By quiver and subscriber: events by outcome, as the ledger tells since then.
    since: dict[str, Counter[str]] = field(default_factory=dict)
    lost: list[LostRange] = field(default_factory=list)
    lost_events: int = 0
    dead_letters: dict[str, int] = field(default_factory=dict)
    # Of a running gateway; None: it does not run, or has none.
    gaps: list[dict[str, Any]] | None = None
    late: dict[str, int] | None = None

    @property
    def adds_up(self) -> bool:
        """Whether every equation is true."""
        return all(account["holds"] for account in self.accounts)

    @property
    def is_whole(self) -> bool:
        """Whether nothing was lost."""
        return self.adds_up and not self.lost_events and not self.gaps

    def fields(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        since = {who: dict(counts) for who, counts in self.since.items()}
        return {"nothing_lost": self.is_whole, **asdict(replace(self, since={})), "since": since}


@click.command()
@gateway_argument
@time_option("--since", "Only what was decided at this time or later, with a zone.")
@json_option
def command(target: Target, since: datetime | None, as_json: bool) -> int:
    """Say what was accepted and what became of it: "nothing was lost", or exactly what.

    TARGET is a graph file, a data directory, or a quiver; by default ./holdfast_data. Ends with 65
    if something was lost.
    """
    page = report(target, as_ns(since))
    if as_json:
        print_json(page.fields())
    else:
        _print(page)
    return 0 if page.is_whole else Damaged.exit_code


def report(target: Target, since_ns: int | None = None) -> ReportPage:
    """Read every ledger, and ask the gateway if it runs."""
    seam, page = Seam(), ReportPage(since_ns)
    quivers = target.quivers()
    places = [(one.name, one.directory) for one in quivers] or [("", target.path)]
    for name, directory in places:
        inventory = inspect(seam.disk, directory)
        for account in balances(seam, inventory):
            page.accounts.append({"quiver": name, **account})
        for line in lines(seam.disk, inventory, LineFilter(since_ns=since_ns)):
            if line.resolution is None:
                continue
            told = line.resolution
            who = f"{name} {told.subscriber}".strip()
            events = page.since.setdefault(who, Counter())
            events[told.outcome.name.lower()] += told.counts.events
            if told.outcome in LOSSES:
                page.lost_events += told.counts.events
                if len(page.lost) < RANGES_MAX:
                    outcome = told.outcome.name.lower()
                    last = told.end.seq if told.end.row else told.end.seq - 1
                    place = (name, told.subscriber, outcome, told.start.seq, last)
                    counts = (told.counts.events, line.time_ns, told.reason)
                    page.lost.append(LostRange(*place, *counts))
    if quivers:
        for letters in target.dead_letter_quivers():
            waiting = balances(seam, inspect(seam.disk, letters.directory))
            page.dead_letters[letters.name] = sum(one["pending"]["events"] for one in waiting)
        _ask_gateway(target, page)
    return page


def _ask_gateway(target: Target, page: ReportPage) -> None:
    """Take in what only a running gateway knows; without one the page is shorter, not wrong."""
    try:
        figures = target.ask_gateway("metrics")["records"]
        sends = any(name == NODE_STATE for name, _, _ in figures)
        asked = target.ask_gateway(HANDOFF_VERB, action="gaps") if sends else {"records": []}
        compared = asked["records"]
    except CannotOpen:
        return
    except HoldfastError as error:
        click.echo(f"the gateway does not answer: {error.message}", err=True)
        return
    late = Counter[str]()
    for name, labels, value in figures:
        if name == PIPELINE_ROWS and labels["outcome"] == "late":
            late[labels["pipeline"]] += int(value)
    page.late = dict(late)
    # Those without an outcome are nodes that could not be asked: they are away, not short.
    page.gaps = [one for one in compared if "outcome" in one]


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
