"""`holdfast status | top`: a gateway on one screen, once or live.

Both ask the gateway over the socket in its data directory, and show the same figures as `/metrics`.
Where none runs, `status` says what its files say: what waits is as true then.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from holdfast.errors import CannotOpen
from holdfast.operate.cli.base.outcomes import report
from holdfast.operate.cli.base.output import (
    counted,
    json_option,
    print_json,
    print_table,
    printable,
    size,
    stdout,
)
from holdfast.operate.cli.base.target import Target, gateway_argument

if TYPE_CHECKING:
    from rich.table import Table

INTERVAL_S = 1.0


@dataclass(frozen=True)
class DestinationLine:
    """A destination, over all workers."""

    name: str
    state: str
    lag_events: int
    lag_bytes: int
    oldest_age_s: float
    sent_events: int
    lost_events: int
    last_error: str


@dataclass(frozen=True)
class GatewayView:
    """A gateway at one moment, over all workers."""

    ready: bool
    reasons: list[str]
    uptime_s: float
    addresses: dict[str, list[str]]
    accepted: dict[str, int]
    rejected: dict[str, int]
    destinations: list[DestinationLine]
    dead_letters: int

    @property
    def lost_events(self) -> int:
        """Events that some destination will not get."""
        return sum(one.lost_events for one in self.destinations)


def view_of(answer: dict[str, Any]) -> GatewayView:
    """Return the answer of a gateway, its workers added up."""
    workers = answer.get("workers", [answer])
    accepted: dict[str, int] = {}
    rejected: dict[str, int] = {}
    for worker in workers:
        for name, one in worker["receivers"].items():
            accepted[name] = accepted.get(name, 0) + one["accepted"]
            rejected[name] = rejected.get(name, 0) + sum(one["rejected"].values())
    by_name: dict[str, list[dict[str, Any]]] = {}
    for worker in workers:
        for one in worker["destinations"]:
            by_name.setdefault(one["name"], []).append(one)
    return GatewayView(
        ready=answer["ready"],
        reasons=list(answer["reasons"]),
        uptime_s=max((one["uptime_s"] for one in workers), default=0.0),
        addresses=dict(workers[0]["addresses"]) if workers else {},
        accepted=accepted,
        rejected=rejected,
        destinations=[_joined(name, parts) for name, parts in by_name.items()],
        dead_letters=sum(sum(one["dead_letters"].values()) for one in workers),
    )


def _joined(name: str, parts: list[dict[str, Any]]) -> DestinationLine:
    """Return one line for the parts that several workers have of a destination."""
    states = [one["state"] for one in parts]
    # What is in trouble counts: a destination is as well as its worst worker.
    worst = next((state for state in states if state != "running"), states[0])
    return DestinationLine(
        name=name,
        state=worst,
        lag_events=sum(one["lag_events"] for one in parts),
        lag_bytes=sum(one["lag_bytes"] for one in parts),
        oldest_age_s=max((one["oldest_age_s"] or 0.0 for one in parts), default=0.0),
        sent_events=sum(one["sent_events"] for one in parts),
        lost_events=sum(sum(one["lost_events"].values()) for one in parts),
        last_error=next((one["last_error"] for one in parts if one["last_error"]), ""),
    )


@click.command()
@gateway_argument
@json_option
def command(target: Target, as_json: bool) -> int:
    """Show the state of a gateway: ready or not, what came in, what waits, what was lost.

    TARGET is its graph file or its data directory; by default ./holdfast_data. Exits with 75 if
    it is not ready. If it is not running, its files are read instead.
    """
    try:
        answer = target.ask_gateway("status")
    except CannotOpen as error:
        return _from_files(target, error, as_json)
    if as_json:
        print_json(answer)
    else:
        _print(view_of(answer))
    return 0 if answer["ready"] else 75


def _from_files(target: Target, error: CannotOpen, as_json: bool) -> int:
    accounts = report(target).accounts
    if not accounts:
        raise error
    if as_json:
        print_json({"ready": False, "reasons": [error.message], "accounts": accounts})
        return error.exit_code
    click.echo(f"{error.message}; by its files:")
    rows = [
        (one["subscriber"], one["accepted"]["events"], one["pending"]["events"], one["holds"])
        for one in accounts
    ]
    print_table("destinations", ("destination", "accepted", "wait", "adds up"), rows)
    return error.exit_code


def _print(view: GatewayView) -> None:
    state = "ready" if view.ready else f"not ready: {'; '.join(view.reasons)}"
    click.secho(f"{state}, up for {duration(view.uptime_s)}", bold=True)
    columns = ("receiver", "listens on", "accepted", "rejected")
    rows = [
        (name, ", ".join(view.addresses.get(name, [])), count, view.rejected[name])
        for name, count in view.accepted.items()
    ]
    print_table("receivers", columns, rows)
    print_table("destinations", _COLUMNS, [_row(one) for one in view.destinations])
    if view.dead_letters:
        click.echo(f"{counted(view.dead_letters, 'dead letter')}; `holdfast dlq ls`")
    click.echo(sentence(view))


_COLUMNS = ("destination", "state", "wait", "size", "oldest", "sent", "lost", "last error")


def _row(one: DestinationLine) -> tuple[object, ...]:
    waits = (one.lag_events, size(one.lag_bytes), duration(one.oldest_age_s))
    error = printable(one.last_error) if one.state != "running" else ""
    return (one.name, one.state, *waits, one.sent_events, one.lost_events, error)


def sentence(view: GatewayView) -> str:
    """Return the one sentence that matters."""
    if view.lost_events:
        lost = counted(view.lost_events, "event")
        return f"{lost} will not reach a destination; `holdfast report` says which"
    waiting = sum(one.lag_events for one in view.destinations)
    return f"nothing was lost; {counted(waiting, 'delivery', 'deliveries')} still to come"


def duration(seconds: float) -> str:
    """Return a duration as people say it, in its two largest units."""
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if days:
        return f"{days:.0f} d {hours % 24:.0f} h"
    if hours:
        return f"{hours:.0f} h {minutes % 60:.0f} min"
    if minutes:
        return f"{minutes:.0f} min {seconds % 60:.0f} s"
    return f"{seconds:.0f} s"


# ------------------------------------------------------------------------------ top


@click.command("top")
@gateway_argument
@click.option(
    "--interval",
    "interval_s",
    default=INTERVAL_S,
    show_default=True,
    type=click.FloatRange(0.1, 3600),
    help="Seconds between two looks.",
)
@click.option("--count", type=click.IntRange(min=1), help="End after so many looks.")
def top_command(target: Target, interval_s: float, count: int | None) -> None:
    """Watch a gateway: events per second, what waits for whom and how long. Ctrl-C ends it."""
    frames = _frames(target, interval_s, count)
    if not stdout().is_terminal:
        for before, view, passed_s in frames:
            click.echo(_line(before, view, passed_s))
        return
    from rich.live import Live

    with Live(console=stdout(), screen=True, auto_refresh=False) as live:
        for before, view, passed_s in frames:
            live.update(_picture(before, view, passed_s), refresh=True)


def _frames(
    target: Target, interval_s: float, count: int | None
) -> Iterator[tuple[GatewayView, GatewayView, float]]:
    """Yield pairs of views, one interval apart; rates are what lies between them."""
    before, since_s = view_of(target.ask_gateway("status")), time.monotonic()
    seen = 0
    while count is None or seen < count:
        time.sleep(interval_s)
        view, now_s = view_of(target.ask_gateway("status")), time.monotonic()
        yield before, view, now_s - since_s
        before, since_s, seen = view, now_s, seen + 1


def _rates(before: GatewayView, view: GatewayView, passed_s: float) -> dict[str, float]:
    """Return events per second of every receiver and destination; a restart begins at zero."""
    sent = {one.name: one.sent_events for one in before.destinations}
    now = {one.name: one.sent_events for one in view.destinations}
    pairs = {name: (before.accepted.get(name, 0), new) for name, new in view.accepted.items()}
    pairs |= {name: (sent.get(name, 0), new) for name, new in now.items()}
    return {name: max(0, new - old) / passed_s for name, (old, new) in pairs.items()}


def _line(before: GatewayView, view: GatewayView, passed_s: float) -> str:
    rates = _rates(before, view, passed_s)
    inflow = ", ".join(f"{name} {rates[name]:,.0f}/s" for name in view.accepted)
    outflow = ", ".join(
        f"{one.name} {rates[one.name]:,.0f}/s, {one.lag_events:,} wait" for one in view.destinations
    )
    return f"in: {inflow}; out: {outflow}; {sentence(view)}"


def _picture(before: GatewayView, view: GatewayView, passed_s: float) -> Table:
    from rich.table import Table
    from rich.text import Text

    rates = _rates(before, view, passed_s)
    state = "ready" if view.ready else "; ".join(view.reasons)
    table = Table(title=f"{state}, up for {duration(view.uptime_s)}", title_justify="left")
    for column in ("", "state", "events/s", "events", "wait", "oldest"):
        table.add_column(column, justify="left" if column in ("", "state") else "right")
    for name, accepted in view.accepted.items():
        row = (Text(f"→ {name}"), "receives", f"{rates[name]:,.0f}", f"{accepted:,}", "", "")
        table.add_row(*row)
    for one in view.destinations:
        style = "" if one.state == "running" else "red"
        age = duration(one.oldest_age_s) if one.lag_events else ""
        cells = (f"{rates[one.name]:,.0f}", f"{one.sent_events:,}", f"{one.lag_events:,}", age)
        table.add_row(Text(f"{one.name} →"), Text(one.state, style), *cells)
    table.caption = sentence(view)
    return table
