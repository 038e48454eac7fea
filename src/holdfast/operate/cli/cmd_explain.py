"""`holdfast explain`: from receipt to outcome, the story of one bundle."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from pathlib import PurePath

import click

from holdfast.operate.cli.output import json_option, moment, print_json, print_table, size
from holdfast.operate.cli.quiver.options import Directory
from holdfast.quiver.inspect import Inventory, inspect
from holdfast.quiver.tools.explain import Explanation, Fate, explain
from holdfast.quiver.tools.search import Match, search
from holdfast.seam import Seam


@click.command()
@click.argument("what", metavar="SEQ|TEXT")
@click.argument("directory", type=Directory(), default=".")
@click.option("--text", "is_text", is_flag=True, help="Search for digits, too.")
@click.option("--limit", type=click.IntRange(min=1), default=5, show_default=True)
@json_option
def command(what: str, directory: PurePath, is_text: bool, limit: int, as_json: bool) -> int:
    """Say what became of a bundle, by its number or by a text in one of its events.

    DIRECTORY is the data directory, by default the current one.
    """
    seam = Seam()
    inventory = inspect(seam.disk, directory)
    matches: list[Match] = []
    if what.isdecimal() and not is_text:
        seqs = [int(what)]
    else:
        matches = list(islice(search(inventory, what), limit + 1))
        seqs = sorted({match.seq for match in matches[:limit]})
    stories = [explain(seam.disk, inventory, seq) for seq in seqs]
    if as_json:
        told = [match._asdict() for match in matches[:limit]]
        print_json({"matches": told, "explanations": [asdict(story) for story in stories]})
    else:
        _tell(what, inventory, stories, matches, limit)
    return 0 if stories else 1


def _tell(
    what: str,
    inventory: Inventory,
    stories: list[Explanation],
    matches: list[Match],
    limit: int,
) -> None:
    if not stories:
        deleted = inventory.ledger.state.deleted.bundles
        click.echo(f"nothing that is still there contains {what!r}")
        click.echo(f"{deleted:,} bundles are gone by now; their story is told by their numbers")
    for match in matches[:limit]:
        click.echo(f"bundle {match.seq}, slot {match.slot}, event {match.row}: {match.excerpt}")
    if len(matches) > limit:
        click.echo(f"there are more; --limit shows more than {limit}")
    for story in stories:
        _tell_story(story)


def _tell_story(story: Explanation) -> None:
    click.echo()
    click.secho(f"bundle {story.seq} of quiver {story.quiver_id or '(unknown)'}", bold=True)
    click.echo(story.place)
    if story.receipt is not None:
        receipt = story.receipt
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
    columns = ("subscriber", "what became of it", "when", "why", "before that")
    print_table("subscribers", columns, [_fate_row(fate) for fate in story.subscribers])


def _fate_row(fate: Fate) -> tuple[object, ...]:
    state = fate.state
    if state == "pending" and fate.events_done:
        state = f"pending from event {fate.events_done} on"
    remarks = "; ".join(f"{moment(time_ns)} {what}" for time_ns, what in fate.remarks)
    when = "" if fate.time_ns is None else moment(fate.time_ns)
    return fate.subscriber, state, when, fate.reason, remarks
