"""`holdfast explain`: from receipt to outcome, what became of a bundle, or of a whole run.

"It never arrived" is a question about one event, and this is the answer to it: when it came in,
where it is, and what each destination made of it. The ledger has the outcomes of bundles that were
deleted long ago, so a number can be asked for when the event itself cannot be found any more.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from itertools import islice

import click

from holdfast.operate.cli.base.output import (
    counted,
    json_option,
    moment,
    print_json,
    print_table,
    printable,
    size,
)
from holdfast.operate.cli.base.target import TARGET, NamedQuiver, Target, nearest
from holdfast.quiver.tools.explain import BundleExplanation, Fate, Match, explain, search
from holdfast.quiver.tools.inspect import Inventory, inspect
from holdfast.seam import Seam
from holdfast.signals.registry import readers


@click.command()
@click.argument("what", metavar="RUN_ID|TRACE_ID|TEXT|SEQ")
@click.argument("target", metavar="[TARGET]", type=TARGET, default=nearest)
@click.option(
    "--text",
    "is_text",
    is_flag=True,
    help="Search all text, also for digits, and for an id that is not an item's own.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Bundles to explain, of each quiver.",
)
@json_option
def command(what: str, target: Target, is_text: bool, limit: int, as_json: bool) -> int:
    """Find the bundles that mention a run or a trace, and what became of them everywhere.

    Instead of the id of a run, a trace or a span, any text in an event will do, or the number of a
    bundle. Without a TARGET, it looks into the current directory if that is a quiver, and
    otherwise into ./holdfast_data.
    """
    seam = Seam()
    found = [_look(seam, place, what, is_text, limit) for place in _quivers(target)]
    if as_json:
        if len(found) == 1 and not found[0].name:
            print_json(found[0].fields())
        else:
            print_json({"quivers": [{"quiver": one.name, **one.fields()} for one in found]})
    else:
        _print(what, found, limit, is_text)
    return 0 if any(one.is_found for one in found) else 1


@dataclass(frozen=True)
class _QuiverMatches:
    """What one quiver knows."""

    name: str
    inventory: Inventory
    explanations: list[BundleExplanation]
    matches: list[Match]
    # Whether there is more than was asked for.
    more: bool

    @property
    def is_found(self) -> bool:
        """Whether there is, or was, such a bundle: a number may be one of the future."""
        return any(one.seq <= self.inventory.last_seq for one in self.explanations)

    def fields(self) -> dict[str, object]:
        """Return it as JSON can hold it."""
        matches = [match._asdict() for match in self.matches]
        return {
            "matches": matches,
            "explanations": [asdict(explanation) for explanation in self.explanations],
        }


def _quivers(target: Target) -> list[NamedQuiver]:
    """Return the quiver in a directory, those under a root, or all of a gateway's."""
    # Dead letters as well: an event that is in none of the quivers may have ended there.
    found = [*target.quivers(), *target.dead_letter_quivers()]
    return found or [NamedQuiver("", target.path)]


def _look(seam: Seam, place: NamedQuiver, what: str, is_text: bool, limit: int) -> _QuiverMatches:
    """Search one quiver, or take the number that was given, and explain what is found."""
    inventory = inspect(seam.disk, place.directory)
    matches: list[Match] = []
    # A number is taken for the number of a bundle, since that is what logs and `ls` print.
    if what.isdecimal() and not is_text:
        seqs = [int(what)]
    else:
        matches = list(islice(search(inventory, what, readers(), anywhere=is_text), limit + 1))
        seqs = sorted({match.seq for match in matches[:limit]})
    explanations = [explain(seam.disk, inventory, seq) for seq in seqs]
    return _QuiverMatches(
        place.name, inventory, explanations, matches[:limit], len(matches) > limit
    )


def _print(what: str, found: list[_QuiverMatches], limit: int, is_text: bool) -> None:
    if not any(one.explanations for one in found):
        deleted = sum(one.inventory.ledger.state.deleted.bundles for one in found)
        click.echo(f"nothing that is still there contains {what!r}")
        if not is_text and re.fullmatch("[0-9a-fA-F]{32}", what):
            click.echo("no item has this id; --text looks for it everywhere else, too")
        if deleted:
            click.echo(
                f"{counted(deleted, 'bundle')} deleted by now:"
                " the number of one shows what became of it"
            )
    for one in found:
        if one.name and one.explanations:
            click.secho(f"\nin {one.name}", bold=True)
        for match in one.matches:
            excerpt = printable(match.excerpt)
            click.echo(f"bundle {match.seq}, slot {match.slot}, event {match.row}: {excerpt}")
        if one.more:
            click.echo(f"there are more; --limit shows more than {limit}")
        for explanation in one.explanations:
            _print_explanation(explanation)


def _print_explanation(explanation: BundleExplanation) -> None:
    click.echo()
    click.secho(
        f"bundle {explanation.seq} of quiver {explanation.quiver_id or '(unknown)'}", bold=True
    )
    click.echo(explanation.place)
    if explanation.receipt is not None:
        receipt = explanation.receipt
        rows: list[tuple[str, object]] = [
            ("accepted", moment(receipt["accepted_ns"])),
            ("events", receipt["events"]),
            ("slots", ", ".join(f"{name} ({rows})" for name, rows in receipt["slots"].items())),
            ("kind", receipt["kind"]),
            ("size", size(receipt["payload_bytes"])),
            ("producer", receipt["producer"]),
            ("epoch", receipt["epoch"]),
            ("DAMAGED", receipt["damage"]),
        ]
        print_table("receipt", ("", ""), [row for row in rows if row[1] is not None])
    if not explanation.subscribers:
        return
    columns = ("subscriber", "what became of it", "when", "why", "before that")
    print_table("subscribers", columns, [_fate_row(fate) for fate in explanation.subscribers])


def _fate_row(fate: Fate) -> tuple[object, ...]:
    state = fate.state
    if state == "pending" and fate.events_done:
        state = f"pending from event {fate.events_done} on"
    remarks = "; ".join(f"{moment(time_ns)} {what}" for time_ns, what in fate.remarks)
    when = "" if fate.time_ns is None else moment(fate.time_ns)
    return fate.subscriber, state, when, fate.reason, remarks
