"""What became of everything, gathered from every record that there is of it.

From the ledger of every quiver (delivered, filtered, dead-lettered, dropped, expired, damaged,
given up), what still waits, the dead letters, and, of a running gateway, what its data nodes lack
and what its pipelines called late. It works beside a running gateway and on the files of a stopped
one.

An event is lost for a destination if its outcome there is one of `LOSSES`. What was filtered was
left out on purpose, and a dead letter is kept: neither is lost.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import click

from holdfast.errors import CannotOpen, HoldfastError
from holdfast.operate.cli.base.target import Target
from holdfast.quiver import Outcome
from holdfast.quiver.tools.changes import balances
from holdfast.quiver.tools.history import LineFilter, lines
from holdfast.quiver.tools.inspect import inspect
from holdfast.seam import Seam

LOSSES = frozenset({Outcome.DROPPED, Outcome.EXPIRED, Outcome.DAMAGED, Outcome.GIVEN_UP})
# Ranges of lost events that are kept to be named; all of them are counted.
RANGES_MAX = 1000
PIPELINE_ROWS = "pipeline.query.outcome_rows_total"
# As `holdfast handoff` names it (handoff/control.py); not imported, so that the base has reports.
HANDOFF_VERB = "handoff"
# What only a gateway that sends to data nodes has.
NODE_STATE = "handoff.node.state"


@dataclass
class UndeliveredRange:
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
    lost: list[UndeliveredRange] = field(default_factory=list)
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
                    page.lost.append(UndeliveredRange(*place, *counts))
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
