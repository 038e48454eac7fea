"""What the commands of `holdfast files` share: commits they open, paths and tags as typed."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.operate.cli.base.output import Command, printable
from holdfast.operate.cli.base.target import Target
from holdfast.seam.names import disk_name, stored_name

if TYPE_CHECKING:
    from holdfast.seam.workers import TaskHandler, WorkerPool
    from holdfast.store.filesets import FileSet
    from holdfast.store.filesets.folder_walk import ForkedWalk
    from holdfast.store.filesets.selection import OutsideLinks, Selection
    from holdfast.store.gc.leases import Job
    from holdfast.store.store import Store


# It was done, except for some files, which are named: other tools of this kind exit so, too.
INCOMPLETE_EXIT_CODE = 3


def outside_links_option(default: OutsideLinks) -> Callable[[Command], Command]:
    """Return an option for what becomes of links that lead out of the folder."""
    return click.option(
        "--outside-links",
        type=click.Choice(["keep", "skip", "refuse"]),
        default=default,
        show_default=True,
        help="What becomes of links that lead out of the folder.",
    )


class _StoredPath(click.ParamType):  # type: ignore[type-arg]
    """A path in a commit as a shell gives it: its bytes may be any."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return stored_name(value)


STORED_PATH = _StoredPath()


def shown_path(path: str) -> str:
    """Return a path for a terminal; bytes that are not UTF-8 are spelled."""
    return "".join(
        f"\\x{ord(c) - 0xDC00:02x}" if 0xDC80 <= ord(c) <= 0xDCFF else printable(c)  # noqa: PLR2004
        for c in disk_name(path)
    )


def put_record(folder: Path) -> bytes:
    """Return what a commit keeps of where it came from: the machine, and the folder."""
    told = {"host": socket.gethostname(), "folder": stored_name(str(folder.resolve()))}
    return json.dumps(told, sort_keys=True).encode()


@contextlib.contextmanager
def forked_walk(chosen: Target, folder: Path, selection: Selection) -> Iterator[ForkedWalk | None]:
    """Give a walk that a process has begun; None: the folder is to be walked in this one.

    For a command that has loaded nothing but this: what else it needs is loaded meanwhile. Workers
    that are forked later have to end before it: each holds an end of its pipe.
    """
    from holdfast.store.filesets.folder_walk import ForkedWalk

    walk = ForkedWalk.begin(folder, selection) if "://" not in chosen.named else None
    if walk is None:
        yield None
        return
    with walk:
        yield walk


@contextlib.contextmanager
def forked_workers(
    chosen: Target, begin: Callable[[Any], TaskHandler]
) -> Iterator[WorkerPool | None]:
    """Give processes that do the work, forked before anything is opened; None: threads are to.

    A remote store is bound by its requests, which threads send as well.
    """
    from holdfast.seam.workers import fork_workers

    pool = fork_workers(begin) if "://" not in chosen.named else None
    if pool is None:
        yield None
        return
    with pool:
        yield pool


@contextlib.contextmanager
def opened_commit(store: Store, name: str) -> Iterator[FileSet]:
    """Give the files of a commit, which stays readable meanwhile."""
    from holdfast.store.filesets import Commits

    with Commits(store).open(name) as files:
        yield files


@contextlib.contextmanager
def opened_parent(store: Store, name: str | None) -> Iterator[FileSet | None]:
    """Give the files of a parent commit, if there is to be one."""
    if name is None:
        yield None
        return
    with opened_commit(store, name) as files:
        yield files


@contextlib.contextmanager
def opened_job(store: Store, what: str) -> Iterator[Job]:
    """Give a lease to write under."""
    with store.references.open_job(f"holdfast files {what}") as job:
        yield job


class _Tag(click.ParamType):  # type: ignore[type-arg]
    """A tag as a person types it."""

    name = "tag"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> bytes:
        from holdfast.store.filesets import tag_of

        if isinstance(value, bytes):
            return value
        try:
            if value.startswith("#"):
                return tag_of(int(value[1:]))
            return bytes.fromhex(value[2:]) if value.startswith("0x") else value.encode()
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r} is not a tag: write text, #NUMBER of 64 bits, or 0x and hex digits"
            )


TAG = _Tag()


def tag_option(what: str) -> Callable[[Command], Command]:
    """Return an option that takes a tag."""
    return click.option("--tag", type=TAG, help=what)
