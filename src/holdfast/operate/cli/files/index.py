"""`holdfast files index show`: the chunks of an index, and what layers say of a path."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import click

from holdfast.operate.cli.files.place import (
    STORED_PATH,
    ChosenStore,
    opened_commit,
    place_options,
    shown_path,
)
from holdfast.operate.cli.groups import CommandGroup
from holdfast.operate.cli.output import (
    json_option,
    print_json,
    print_table,
    printable,
    short_hash,
    size,
)

if TYPE_CHECKING:
    from holdfast.store.filesets import fileset_pb2 as pb
    from holdfast.store.filesets.index_chunks import IndexChunk, LayerEntry

_CHUNK_COLUMNS = ("layer", "level", "kind", "entries", "files", "size", "chunk", "first", "last")
_ENTRY_COLUMNS = ("layer", "operation", "bytes", "refs", "tags")


@click.group("index", cls=CommandGroup)
def index_group() -> None:
    """Look into the indexes of a commit."""


@index_group.command("show")
@click.argument("commit")
@click.argument("path", default="", type=STORED_PATH)
@click.option(
    "--level",
    "lowest_level",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Show no chunks below this level.",
)
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True)
@place_options
@json_option
def show_command(
    commit: str, path: str, lowest_level: int, limit: int, place: ChosenStore, as_json: bool
) -> None:
    """List the index chunks of each layer, from the root down, with the paths they span.

    A chunk holds entries of kind i (one path each, level 1) or r (one range each, above). With
    PATH, only chunks that may hold it or what is below it, and what each layer says of it.
    """
    from holdfast.store.filesets.index_chunks import entries_of, index_chunks

    with place.open() as store, opened_commit(store, commit) as files:
        chunks = index_chunks(files.nodes, files.layers, path, lowest_level=lowest_level)
        found = list(itertools.islice(chunks, limit))
        more = next(chunks, None) is not None
        entries = list(entries_of(files.nodes, files.layers, path)) if path else []
    if as_json:
        chunk_fields = [{**chunk._asdict(), "hash": chunk.hash.hex()} for chunk in found]
        entry_fields = [_entry_fields(entry) for entry in entries]
        print_json({"chunks": chunk_fields, "entries": entry_fields, "more": more})
        return
    if not found:
        click.echo("there are none")
        return
    print_table(f"index of {commit}", _CHUNK_COLUMNS, map(_chunk_row, found))
    if more:
        click.echo(f"and more than these {limit:,}; say --limit")
    if entries:
        title = f"what layers say of {shown_path(path)}"
        print_table(title, _ENTRY_COLUMNS, map(_entry_row, entries))
    faults = [(one.layer_seq, one.fault) for one in found]
    for layer_seq, fault in faults + [(one.layer_seq, one.fault) for one in entries]:
        if fault:
            click.echo(f"layer {layer_seq}: {printable(fault)}", err=True)


def _chunk_row(chunk: IndexChunk) -> list[object]:
    return [
        chunk.layer_seq,
        chunk.level,
        chunk.kind,
        chunk.entries,
        chunk.files,
        size(chunk.size_bytes),
        short_hash(chunk.hash),
        shown_path(chunk.first_path),
        shown_path(chunk.last_path),
    ]


def _entry_fields(entry: LayerEntry) -> dict[str, object]:
    from holdfast.store.filesets import shown_tag
    from holdfast.store.filesets.fileset_pb2 import Op

    if entry.message is None:
        return {"layer_seq": entry.layer_seq, "fault": entry.fault}
    operation = entry.message.data_op
    tags = [
        {"tag": shown_tag(tag.id), "size_bytes": tag.size_bytes, "does": _does(tag)}
        for tag in operation.tags
    ]
    return {
        "layer_seq": entry.layer_seq,
        "operation": Op.Name(operation.op),
        "size_bytes": entry.message.size_bytes,
        "refs": len(operation.data_ref),
        "tags": tags,
    }


def _entry_row(entry: LayerEntry) -> list[object]:
    from holdfast.store.filesets import shown_tag

    if entry.message is None:
        return [entry.layer_seq, "cannot be read", None, None, None]
    fields = _entry_fields(entry)
    tags = [f"{_does(tag)} '{shown_tag(tag.id)}'" for tag in entry.message.data_op.tags]
    counts = [fields[name] for name in ("layer_seq", "operation", "size_bytes", "refs")]
    return [*counts, ", ".join(tags)]


def _does(tag: pb.Tag) -> str:
    return "deletes" if tag.deleted else "replaces" if tag.set else "appends"
