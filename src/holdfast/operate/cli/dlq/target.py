"""Where dead letters are stored, and where a corrected event is submitted.

An event is submitted to the running gateway over HTTP, as a producer does; without a gateway it is
appended to the quiver that its receiver fills.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Self

import click

from holdfast.dead_letters.queue import KEEPER, REJECTED_DIR, UNDELIVERED_DIR
from holdfast.dead_letters.stored import LetterId, LetterSelection, StoredLetter, letters_at
from holdfast.errors import BadInput, CannotOpen, NotAccepted, OwnerGone
from holdfast.graph.model import Graph
from holdfast.graph.paths import DEAD_LETTERS_DIR, dead_letters_directory, plan
from holdfast.operate.cli.base.output import Command
from holdfast.operate.cli.base.target import Target
from holdfast.quiver import Outcome, Quiver, QuiverConfig, RetentionConfig, SegmentConfig
from holdfast.quiver.base import names
from holdfast.quiver.base.frame import Totals
from holdfast.quiver.tools import changes
from holdfast.quiver.tools.inspect import require_quiver
from holdfast.receive.openlineage import Config as OpenLineageConfig
from holdfast.seam import Seam
from holdfast.signals.openlineage.names import SLOT, OpenLineageExtractor
from holdfast.signals.openlineage.validation import ValidationSettings, Validator

STORES = (REJECTED_DIR, UNDELIVERED_DIR)

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
    """A dead letter queue, and the gateway it belongs to."""

    # Holds the two stores: rejected, undelivered.
    queue: PurePath
    # Where the gateway listens for tools, if it runs.
    data_dir: PurePath
    worker: int
    # None if a directory was named, not a configuration.
    graph: Graph | None

    @classmethod
    def find(cls, target: Target, worker: int) -> DeadLetterTarget:
        """Return the queue of a gateway, or the one in a directory; raises if there is none."""
        if target.graph is not None:
            queue = _of_worker(dead_letters_directory(target.graph), worker)
            return cls(PurePath(queue), PurePath(target.graph.data_dir), worker, target.graph)
        directory = Path(target.path)
        if not directory.exists():
            raise click.BadParameter(f"{target.named!r} does not exist", param_hint="TARGET")
        for queue, data_dir in (
            (_of_worker(directory / DEAD_LETTERS_DIR, worker), directory),
            (directory, directory.parent),
        ):
            if any((queue / store).is_dir() for store in STORES):
                return cls(PurePath(queue), PurePath(data_dir), worker, None)
        raise CannotOpen(
            "there are no dead letters here",
            hint="name a configuration, its data directory, or the directory of dead letters",
            path=target.named,
        )

    def letters(self, store: str, selection: LetterSelection) -> Iterator[StoredLetter]:
        """Yield the letters of a store that are meant, oldest first."""
        if not Path(self.queue / store).is_dir():
            return iter(())
        return letters_at(Seam(), self.queue, store, selection)

    def letter(self, letter_id: LetterId) -> StoredLetter:
        """Return one letter."""
        selection = LetterSelection(seqs=frozenset({letter_id.seq}), from_seq=letter_id.seq)
        found = next(self.letters(letter_id.store, selection), None)
        if found is None:
            raise BadInput(
                f"there is no letter {letter_id}, or no longer",
                hint="`holdfast dlq ls` lists those that are there",
                path=str(self.queue),
            )
        return found

    def resolve(self, store: str, seqs: list[int], outcome: Outcome, reason: str) -> Totals:
        """Decide letters, through the gateway if it runs."""
        return changes.resolve(Seam(), self.queue / store, KEEPER, seqs, outcome, reason)

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


def _of_worker(queue: Path, worker: int) -> Path:
    return queue.with_name(f"{queue.name}-{worker:02d}") if worker else queue


TIMEOUT_S = 60.0
ANSWER_BYTES_MAX = 64 * 1024
TOKEN_VARIABLE = "HOLDFAST_TOKEN"
# More than any disk: the cap of the quiver is its owner's business, not ours.
NO_CAP_BYTES = 1 << 60
NEVER_S = 24 * 3600.0


class Submitter:
    """Takes events as a gateway does. A context manager: it may hold a quiver open."""

    def __init__(self, url: str | None, directory: PurePath | None) -> None:
        self._url = url
        self._directory = directory
        self._quiver: Quiver | None = None

    @classmethod
    def to(
        cls, letters: DeadLetterTarget, url: str | None, quiver: PurePath | None, receiver: str
    ) -> Submitter:
        """Return the way to a gateway: the URL given, the receiver if it runs, or its quiver."""
        if url is not None:
            if not url.startswith(("http://", "https://")):
                raise BadInput(
                    f"{url!r} is not an HTTP address", hint="write http://HOST:PORT/PATH"
                )
            return cls(url, None)
        # Through the front door wherever there is one: the event passes validation, admission and
        # the ledger as any other. Only without a gateway is the quiver opened.
        status = letters.ask_gateway("status")
        if status is not None:
            return cls(_address(status, letters, receiver), None)
        directory = quiver or letters.quiver_directory(receiver)
        if directory is None:
            raise OwnerGone(
                "no gateway runs here",
                hint="name its configuration instead of the directory, or say --url or --quiver",
                path=str(letters.data_dir),
            )
        return cls(None, directory)

    @property
    def target(self) -> str:
        """Where events go, for people."""
        return self._url or str(self._directory)

    def submit(self, payload: bytes) -> None:
        """Hand over one event; returns once it is on stable storage."""
        if self._url is not None:
            _post(self._url, payload)
            return
        if self._quiver is None:
            assert self._directory is not None, "BUG: nowhere to submit to"
            self._quiver = _open(self._directory)
        self._quiver.append_raw([payload], slot=SLOT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._quiver is not None:
            self._quiver.close()


def _address(status: dict[str, Any], letters: DeadLetterTarget, receiver: str) -> str:
    """Return where a running gateway takes OpenLineage events: the same receiver, or any."""
    workers = status.get("workers")
    answer = workers[0] if isinstance(workers, list) and workers else status
    addresses: dict[str, list[str]] = answer.get("addresses") or {}
    nodes = letters.graph.nodes if letters.graph else {}
    for name in sorted(addresses, key=lambda name: name != receiver):
        config = nodes[name].config if name in nodes else OpenLineageConfig()
        if addresses[name] and isinstance(config, OpenLineageConfig):
            return f"{addresses[name][0]}{config.path}"
    raise BadInput(
        "the gateway has no receiver for OpenLineage events",
        hint="say --url, the address of one",
        path=str(letters.data_dir),
    )


def _post(url: str, payload: bytes) -> None:
    """Submit an event over HTTP. If the connection breaks, it may be stored: the error says so.

    It is not tried again here: the letter is still there, and whether a second copy is harmless is
    for a person to say.
    """
    headers = {"Content-Type": "application/json"}
    token = os.environ.get(TOKEN_VARIABLE)
    if token:
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url, payload, headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            answer.read(ANSWER_BYTES_MAX)
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(url, error.code, error.read(ANSWER_BYTES_MAX)) from None
    except OSError as error:
        raise NotAccepted(
            f"the gateway was not reached: {getattr(error, 'reason', error)}",
            hint="is it running, and is this its address?",
            path=url,
            stored="maybe",
        ) from None


def _refused(url: str, status: int, body: bytes) -> NotAccepted | BadInput:
    """Return a gateway's refusal as the error that it would be here."""
    try:
        answer = json.loads(body)
        message, hint = str(answer["message"]), str(answer["hint"])
    except (ValueError, KeyError, TypeError):
        message, hint = "it did not say why", "is this the address of a Holdfast gateway?"
    if status in (401, 403):
        hint = f"put a token into the environment variable {TOKEN_VARIABLE}"
    kind = NotAccepted if status >= 500 else BadInput  # noqa: PLR2004
    return kind(f"the gateway answered {status}: {message}", hint=hint, path=url)


def _open(directory: PurePath) -> Quiver:
    """Open a quiver without its owner, to append to it and leave everything else as it is."""
    try:
        require_quiver(Seam().disk, directory)
    except CannotOpen as error:
        hint = "start the gateway once, or name its quiver with --quiver"
        raise CannotOpen(error.message, hint=hint, path=error.path) from None
    # A tool does not know its owner's configuration. So nothing may happen here that depends on
    # it: no seal by age, no removal by size, age or absence. Appending is all that is left.
    config = QuiverConfig(
        extractors={SLOT: OpenLineageExtractor()},
        segment=SegmentConfig(max_open_duration_s=NEVER_S),
        # Nothing is removed here: what may go, and when, the owner's configuration says.
        retention=RetentionConfig(
            size_cap_bytes=NO_CAP_BYTES,
            steady_state_headroom_bytes=NO_CAP_BYTES,
            orphan_ttl_s=None,
            tick_s=NEVER_S,
        ),
        control=False,
    )
    return Quiver.open(directory, config)
