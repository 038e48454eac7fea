"""`holdfast files cp | rm | commit | compact`: make commits of other commits.

Nothing is ever changed in place. Each makes one more layer, which says what differs, and a new
commit that refers to it and to the layers before; content is not read, let alone copied.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import click

from holdfast.errors import BadInput
from holdfast.operate.cli.base.asking import ask
from holdfast.operate.cli.base.output import Command, counted, json_option, print_json
from holdfast.operate.cli.base.target import Target, store_options
from holdfast.operate.cli.base.work import engine_option, spark_session
from holdfast.operate.cli.files.commits import STORED_PATH, opened_job, opened_parent, tag_option
from holdfast.operate.cli.files.show import commit_fields

if TYPE_CHECKING:
    from holdfast.store.filesets import Commit, FileSet, FileSetWriter, Layer
    from holdfast.store.filesets.layer_builder import Compact
    from holdfast.store.gc.leases import Job
    from holdfast.store.store import Store

as_option: Callable[[Command], Command] = click.option(
    "--as", "new_name", required=True, metavar="NAME", help="The name of the new commit."
)
message_option: Callable[[Command], Command] = click.option(
    "-m", "--message", default="", help="A message to keep with it."
)


def tell(commit: Commit, as_json: bool, more: Mapping[str, object] | None = None) -> None:
    """Say which commit was made, and in JSON whatever else there is to say."""
    if as_json:
        print_json({**commit_fields(commit), **(more or {})})
    else:
        entries = sum(layer.entries for layer in commit.layers)
        layers = counted(len(commit.layers), "layer")
        click.echo(f"{commit.name}: {counted(entries, 'entry', 'entries')} in {layers}")


def added(
    store: Store,
    name: str,
    parent: str | None,
    message: str,
    write: Callable[[FileSetWriter], object],
) -> Commit:
    """Make a commit of a new layer, on top of those of a parent."""
    from holdfast.store.filesets import Commits, FileSetWriter

    with opened_job(store, name) as job, opened_parent(store, parent) as files:
        with FileSetWriter(store, job) as writer:
            write(writer)
            layer = writer.close()
        older = list(files.layers) if files is not None else []
        return Commits(store).create(job, name, [*older, layer], parent=parent, message=message)


@click.command("cp")
@click.argument("commit")
@click.argument("source", metavar="PATH", type=STORED_PATH)
@click.argument("target", metavar="NEW_PATH", type=STORED_PATH)
@as_option
@message_option
@store_options
@json_option
def copy_command(
    commit: str,
    source: str,
    target: str,
    new_name: str,
    message: str,
    chosen: Target,
    as_json: bool,
) -> None:
    """Copy a file or a folder within a commit, by reference; the result is a new commit."""
    from holdfast.store.filesets.paths import after_folder

    def change(files: FileSet, writer: FileSetWriter) -> None:
        found = files.stat(source)
        if not found.is_folder:
            writer.copy(target, found)
            return
        below = target.rstrip("/") + "/"
        for file in files.files(found.path, after_folder(found.path)):
            writer.copy(below + file.path[len(found.path) :], file)

    with chosen.open_store() as store:
        tell(_changed(store, commit, new_name, message, change), as_json)


@click.command("rm")
@click.argument("commit")
@click.argument("paths", nargs=-1, type=STORED_PATH)
@click.option("--as", "new_name", metavar="NAME", help="The name of the new commit.")
@tag_option("Delete only what the files hold under this tag.")
@click.option("-y", "--yes", is_flag=True, help="Delete a whole commit without asking.")
@message_option
@store_options
@json_option
def remove_command(
    commit: str,
    paths: Sequence[str],
    new_name: str | None,
    tag: bytes | None,
    yes: bool,
    message: str,
    chosen: Target,
    as_json: bool,
) -> None:
    """Make a commit without some paths; without any PATH, delete the commit itself.

    What nothing refers to any more is collected in the background (`holdfast gc`).
    """
    if tag is not None and not paths:
        raise BadInput("a tag is of a file, not of a commit", hint="Name the files.")
    with chosen.open_store() as store:
        if paths:
            if new_name is None:
                raise BadInput(
                    "a commit never changes", hint="Name the one without these paths with --as."
                )
            change = functools.partial(_take_away, paths, tag)
            tell(_changed(store, commit, new_name, message, change), as_json)
            return
        _delete(store, commit, yes, as_json)


def _take_away(
    paths: Sequence[str], tag: bytes | None, files: FileSet, writer: FileSetWriter
) -> None:
    """Delete files and folders, or what files hold under a tag."""
    for path in paths:
        found = files.stat(path)
        if tag is not None:
            found.tag_range(tag)  # raises if there is no such tag
            writer.delete_tag(path, tag=tag)
        elif found.is_folder:
            writer.delete_prefix(found.path)
        else:
            writer.delete(path)


def _delete(store: Store, commit: str, yes: bool, as_json: bool) -> None:
    from holdfast.store.filesets import Commits

    commits = Commits(store)
    found = commits.get(commit)
    if not yes:
        ask(f"Delete commit {found.name}, made from {counted(len(found.layers), 'layer')}?")
    commits.delete(commit)
    if as_json:
        print_json({"deleted": commit})
    else:
        click.echo(f"deleted {commit}; its space comes back with the next collection")


@click.command("forget")
@click.argument("prefix", default="")
@click.option("--keep-last", type=click.IntRange(min=0), default=0, help="So many, the newest.")
@click.option("--keep-daily", type=click.IntRange(min=0), default=0, help="One of so many days.")
@click.option("--keep-weekly", type=click.IntRange(min=0), default=0, help="One of so many weeks.")
@click.option("--keep-monthly", type=click.IntRange(min=0), default=0, help="Of so many months.")
@click.option("--keep-yearly", type=click.IntRange(min=0), default=0, help="Of so many years.")
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, and delete nothing.")
@click.option("-y", "--yes", is_flag=True, help="Delete without asking.")
@store_options
@json_option
def forget_command(
    prefix: str, dry_run: bool, yes: bool, chosen: Target, as_json: bool, **keep: int
) -> None:
    """Delete old commits whose names begin with PREFIX, and keep some: by the day, by the week.

    Of commits of one folder, the newest of each day, week, month or year is kept, as many as are
    asked for, in UTC; only days on which there is one count. Commits that no folder was put as
    belong together if they have the same name up to the last slash.
    """
    from holdfast.store.filesets import Commits
    from holdfast.store.filesets.retention import KeepPolicy, kept_of, series_of

    policy = KeepPolicy(*(keep[f"keep_{name}"] for name in KeepPolicy._fields))
    if not any(policy):
        raise BadInput("nothing would be kept", hint="Say what is, such as --keep-daily 7.")
    with chosen.open_store() as store:
        commits = Commits(store)
        found = commits.list(prefix)
        kept = {name for series in series_of(found).values() for name in kept_of(series, policy)}
        gone = [one.name for one in found if one.name not in kept]
        if gone and not dry_run and not yes:
            ask(f"Delete {counted(len(gone), 'commit')}, and keep {len(kept):,}?")
        for name in gone if not dry_run else ():
            commits.delete(name)
    if as_json:
        print_json({"dry_run": dry_run, "deleted": gone, "kept": sorted(kept)})
        return
    for name in gone:
        click.echo(f"{'would delete' if dry_run else 'deleted'} {name}")
    click.echo(f"kept {counted(len(kept), 'commit')} of {len(found):,}")


def _changed(
    store: Store,
    commit: str,
    new_name: str,
    message: str,
    change: Callable[[FileSet, FileSetWriter], None],
) -> Commit:
    """Put one more layer on a commit, and give the result a name."""
    from holdfast.store.filesets import Commits, FileSetWriter

    commits = Commits(store)
    # Job and pin before anything is looked up: what the new commit refers to must not be collected
    # between reading it and committing.
    with opened_job(store, new_name) as job, commits.open(commit) as files:
        with FileSetWriter(store, job) as writer:
            change(files, writer)
            layer = writer.close()
        return commits.create(job, new_name, [*files.layers, layer], parent=commit, message=message)


@click.command("commit")
@click.argument("new_name", metavar="NAME")
@click.option(
    "--from",
    "sources",
    multiple=True,
    required=True,
    metavar="COMMIT",
    help="What it is made of; later ones are laid over earlier ones. May be repeated.",
)
@message_option
@store_options
@json_option
def commit_command(
    new_name: str,
    sources: Sequence[str],
    message: str,
    chosen: Target,
    as_json: bool,
) -> None:
    """Give commits another name, or lay several on top of each other; no content is copied."""
    from holdfast.store.filesets import Commits

    with (
        chosen.open_store() as store,
        opened_job(store, new_name) as job,
        ExitStack() as held,
    ):
        commits = Commits(store)
        opened = [held.enter_context(commits.open(source)) for source in sources]
        layers = [*opened[0].layers, *(_on_top(store, job, files) for files in opened[1:])]
        made = commits.create(job, new_name, layers, parent=sources[0], message=message)
    tell(made, as_json)


def _on_top(store: Store, job: Job, files: FileSet) -> Layer:
    """Return one layer that puts these files over others, and takes no others away.

    A layer of copies and not the layers themselves: a snapshot's layer takes everything older
    away, which is the opposite of laying it over another commit.
    """
    from holdfast.store.filesets import FileSetWriter

    with FileSetWriter(store, job) as writer:
        for file in files.files():
            writer.copy(file.path, file)
        return writer.close()


@click.command("compact")
@click.argument("commit")
@as_option
@click.option("--whole", is_flag=True, help="Into one layer, however large the oldest ones are.")
@engine_option("Where the layers are merged.")
@store_options
@json_option
def compact_command(
    commit: str, new_name: str, whole: bool, engine: str, chosen: Target, as_json: bool
) -> None:
    """Make a commit with the same files in fewer layers, which is read faster."""
    from holdfast.store.filesets import Commits

    with (
        chosen.open_store() as store,
        opened_job(store, new_name) as job,
        _merging(engine) as merge,
    ):
        tell(Commits(store).compact(job, commit, new_name, whole=whole, merge=merge), as_json)


@contextmanager
def _merging(engine: str) -> Iterator[Compact]:
    if engine == "local":
        from holdfast.store.filesets.layer_builder import compact

        yield compact
        return
    with spark_session("holdfast-compact") as session:
        from holdfast.dataflow.filesets.compaction import compact_on_spark

        yield functools.partial(compact_on_spark, session)
