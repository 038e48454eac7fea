"""Where dead letters lie: found from a configuration, a data directory, or their own directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import click

from holdfast.dead_letters.queue import KEEPER, REJECTED_DIR, UNDELIVERED_DIR
from holdfast.dead_letters.stored import LetterId, LetterSelection, StoredLetter, letters_at
from holdfast.errors import BadInput, CannotOpen
from holdfast.graph.loader import load
from holdfast.graph.model import Graph
from holdfast.graph.paths import DEAD_LETTERS_DIR, dead_letters_directory, plan
from holdfast.operate.cli.output import Command
from holdfast.quiver import Outcome
from holdfast.quiver.base import names
from holdfast.quiver.base.frame import Totals
from holdfast.quiver.tools import changes
from holdfast.receive.openlineage import Config as OpenLineageConfig
from holdfast.seam import Seam
from holdfast.signals.openlineage.validation import ValidationSettings, Validator

STORES = (REJECTED_DIR, UNDELIVERED_DIR)

place_argument: Callable[[Command], Command] = click.argument(
    "place", type=click.Path(exists=True, path_type=Path)
)
worker_option: Callable[[Command], Command] = click.option(
    "--worker",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Of several workers, each has its own dead letters.",
)
level_option: Callable[[Command], Command] = click.option(
    "--level",
    type=click.Choice(["off", "core", "standard", "strict"]),
    help="How closely events are checked; by default as the receiver of the configuration does.",
)


@dataclass(frozen=True)
class DeadLetterTarget:
    """An office, and the gateway it belongs to."""

    # Holds the two stores.
    office: PurePath
    # Where the gateway listens for tools, if it runs.
    data_dir: PurePath
    worker: int
    # None if a directory was named, not a configuration.
    graph: Graph | None

    @classmethod
    def find(cls, path: Path, worker: int) -> DeadLetterTarget:
        """Return what a user named."""
        if path.is_file():
            graph = load(path).graph
            office = _of_worker(dead_letters_directory(graph), worker)
            return cls(PurePath(office), PurePath(graph.data_dir), worker, graph)
        directory = path.resolve()
        for office, data_dir in (
            (_of_worker(directory / DEAD_LETTERS_DIR, worker), directory),
            (directory, directory.parent),
        ):
            if any((office / store).is_dir() for store in STORES):
                return cls(PurePath(office), PurePath(data_dir), worker, None)
        raise CannotOpen(
            "there are no dead letters here",
            hint="name a configuration, its data directory, or the directory of dead letters",
            path=str(path),
        )

    def letters(self, store: str, selection: LetterSelection) -> Iterator[StoredLetter]:
        """Yield the letters of a store that are meant, oldest first."""
        if not Path(self.office / store).is_dir():
            return iter(())
        return letters_at(Seam(), self.office, store, selection)

    def letter(self, letter_id: LetterId) -> StoredLetter:
        """Return one letter."""
        selection = LetterSelection(seqs=frozenset({letter_id.seq}), from_seq=letter_id.seq)
        found = next(self.letters(letter_id.store, selection), None)
        if found is None:
            raise BadInput(
                f"there is no letter {letter_id}, or no longer",
                hint="`holdfast dlq ls` lists those that are there",
                path=str(self.office),
            )
        return found

    def resolve(self, store: str, seqs: list[int], outcome: Outcome, reason: str) -> Totals:
        """Decide letters, through the gateway if it runs."""
        return changes.resolve(Seam(), self.office / store, KEEPER, seqs, outcome, reason)

    def ask_gateway(self, verb: str, **fields: Any) -> dict[str, Any] | None:
        """Ask the running gateway; None if there is none."""
        return changes.ask_owner(Seam(), self.data_dir, verb, timeout_s=120.0, **fields)

    def validator(self, level: str | None, origin: str = "") -> Validator:
        """Return what checks events: as asked for, or as the receiver that rejected them does."""
        if level is not None:
            return Validator(ValidationSettings.model_validate({"level": level}))
        for node in self.graph.of_kind("receiver") if self.graph else ():
            if isinstance(node.config, OpenLineageConfig) and origin in ("", node.name):
                base_dir = self.graph.base_dir if self.graph else None
                return Validator(node.config.validation, base_dir)
        return Validator()

    def quiver_directory(self, receiver: str) -> PurePath | None:
        """Return the quiver that a receiver fills, or the first one; None if it is not known."""
        if self.graph is None:
            return None
        first, *others = plan(self.graph)
        for one in others:
            if receiver in {node.name for node in one.receivers}:
                first = one
        return PurePath(first.directory / names.core_dir(self.worker))


def _of_worker(office: Path, worker: int) -> Path:
    return office.with_name(f"{office.name}-{worker:02d}") if worker else office
