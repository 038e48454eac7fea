"""`holdfast store`: the place where chunks, commits and their references lie."""

from __future__ import annotations

import click

from holdfast.operate.cli.files.place import ChosenStore, place_options
from holdfast.operate.cli.groups import CommandGroup
from holdfast.operate.cli.output import json_option, print_json, print_table, size
from holdfast.operate.cli.store_checking import fsck_command, rebuild_command, scrub_command


@click.group(cls=CommandGroup)
def command() -> None:
    """Make a store, look at its totals, check and repair it.

    A store is a folder, or a bucket with a database beside it. What lies in it is handled with
    `holdfast files`, and what nothing refers to any more is collected by `holdfast gc`.
    """


@command.command("create")
@place_options
@json_option
def create_command(place: ChosenStore, as_json: bool) -> None:
    """Make a new store, and its database."""
    with place.create() as store:
        if as_json:
            print_json({"url": store.url, "store_id": store.id})
        else:
            click.echo(f"made store {store.id} in {store.url}")


@command.command("info")
@place_options
@json_option
def info_command(place: ChosenStore, as_json: bool) -> None:
    """Say what a store holds, by state of its chunks; `files ls` lists its commits."""
    with place.open() as store:
        found = store.references.statistics()
        chunking = store.chunks.chunking
        fields = {
            "url": store.url,
            "store_id": store.id,
            "commits": found.commits,
            "jobs": found.jobs,
            "pins": found.pins,
            "chunks": {state.value: totals.chunks for state, totals in found.states.items()},
            "plain_bytes": {
                state.value: totals.size_bytes for state, totals in found.states.items()
            },
            "chunking": chunking.model_dump(),
        }
    if as_json:
        print_json(fields)
        return
    click.echo(f"store {store.id} in {store.url}")
    click.echo(f"commits: {sum(found.commits.values()):,}, jobs: {found.jobs}, pins: {found.pins}")
    click.echo(
        f"chunks of about {size(chunking.average_bytes)}, at most {size(chunking.max_bytes)}"
    )
    rows = [
        (state.value, totals.chunks, size(totals.size_bytes))
        for state, totals in found.states.items()
    ]
    print_table("chunks, before compression", ("state", "chunks", "bytes"), rows)


for _checking in (fsck_command, scrub_command, rebuild_command):
    command.add_command(_checking)
