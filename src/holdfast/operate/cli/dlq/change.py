"""`holdfast dlq fix | redrive | purge`: give letters another way, or none.

A letter is resolved only after its event is stored again somewhere. A crash between the two leaves
both, the event and its letter: doing it twice is visible, losing it would not be.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import PurePath
from typing import Any, BinaryIO, NamedTuple

import click

from holdfast.dead_letters.queue import REJECTED_DIR, UNDELIVERED_DIR
from holdfast.dead_letters.stored import LetterId, LetterSelection, StoredLetter
from holdfast.deliver.redrive import VERB, replay_request
from holdfast.errors import BadInput, OwnerGone
from holdfast.operate.cli.base.output import counted, json_option, print_json, print_table, size
from holdfast.operate.cli.base.target import Directory, Target, as_ns, target_argument, time_option
from holdfast.operate.cli.dlq.show import (
    destination_option,
    echo_verdict,
    reason_option,
    store_option,
)
from holdfast.operate.cli.dlq.target import (
    STORES,
    DeadLetterTarget,
    Submitter,
    level_option,
    worker_option,
)
from holdfast.quiver import Outcome
from holdfast.signals.openlineage.validation import Validator

url_option = click.option(
    "--url", help="Where the gateway takes events; by default it is asked, or its quiver is used."
)
quiver_option = click.option(
    "--quiver", type=Directory(), help="Without a gateway: the quiver that takes the event."
)

# --------------------------------------------------------------------------- fix


@click.command("fix")
@target_argument
@click.argument("letter")
@click.option("--file", type=click.File("rb"), help="The corrected event; - is standard input.")
@click.option("--everywhere", is_flag=True, help="An undelivered event goes to ALL destinations.")
@level_option
@url_option
@quiver_option
@worker_option
@json_option
def fix_command(  # noqa: PLR0913, PLR0917  (its options)
    target: Target,
    letter: str,
    file: BinaryIO | None,
    everywhere: bool,
    level: str | None,
    url: str | None,
    quiver: PurePath | None,
    worker: int,
    as_json: bool,
) -> None:
    """Correct one letter and submit it as a new event; the letter is then resolved.

    Without --file your editor is opened. Nothing is submitted before it is valid.
    """
    queue = DeadLetterTarget.find(target, worker)
    stored = queue.letter(LetterId.parse(letter))
    # An undelivered event was accepted once, and its other destinations have it. As a new event it
    # gets a new position, and nobody could tell that it is the same.
    if stored.id.store == UNDELIVERED_DIR and not everywhere:
        raise BadInput(
            "as a new event it would go to every destination, also to those that have it",
            hint="say --everywhere if it should, or `holdfast dlq redrive` to send it to its own",
        )
    validator = queue.validator(level, stored.letter.origin)
    with Submitter.to(queue, url, quiver, stored.letter.origin) as submitter:
        payload = _edited(stored, validator) if file is None else _checked(file.read(), validator)
        submitter.submit(payload)
    queue.resolve(stored.id.store, [stored.id.seq], Outcome.ACKED, "fixed, submitted again")
    if as_json:
        print_json({"letter": letter, "submitted_to": submitter.target})
    else:
        click.echo(f"{letter} was submitted to {submitter.target}, and is resolved")


def _edited(stored: StoredLetter, validator: Validator) -> bytes:
    """Let a person correct a letter until it is valid, or until they give up."""
    try:
        text = stored.letter.payload.decode()
    except UnicodeDecodeError:
        raise BadInput(
            "the payload is not text, and an editor would change it",
            hint="write it with `holdfast dlq show --raw`, correct it, and say --file",
        ) from None
    while True:
        edited = click.edit(text, extension=".json", require_save=False)
        if edited is None:
            raise click.Abort
        _, verdict = validator.parse_and_check(edited.encode(), thorough=True)
        if verdict.ok:
            return edited.encode()
        echo_verdict(verdict)
        click.confirm("It is still invalid. Edit again?", default=True, abort=True)
        text = edited


def _checked(payload: bytes, validator: Validator) -> bytes:
    """Return a corrected payload, or raise its first error."""
    _, verdict = validator.parse_and_check(payload, thorough=True)
    if not verdict.ok:
        first = verdict.errors[0]
        raise BadInput(
            f"{counted(len(verdict.errors), 'error')}, the first at {first.pointer or '/'}:"
            f" {first.message}",
            hint="`holdfast lineage lint FILE` shows them all",
        )
    return payload


# ------------------------------------------------------------------------ redrive


@click.command("redrive")
@target_argument
@click.argument("letters", nargs=-1)
@click.option("--rejected", is_flag=True, help="Whatever is valid by now of what was rejected.")
@destination_option
@reason_option
@time_option("--since", "Filed at this time or later.")
@level_option
@url_option
@quiver_option
@worker_option
@json_option
def redrive_command(  # noqa: PLR0913, PLR0917  (its options)
    target: Target,
    letters: tuple[str, ...],
    rejected: bool,
    destination: str | None,
    reason: str | None,
    since: datetime | None,
    level: str | None,
    url: str | None,
    quiver: PurePath | None,
    worker: int,
    as_json: bool,
) -> None:
    """Send LETTERS again, by name, or all of --destination, or --rejected.

    An undelivered letter goes to the destination that did not take it, out of order, through the
    running gateway. A rejected one is checked again and submitted as a new event.
    """
    queue = DeadLetterTarget.find(target, worker)
    if sum([bool(letters), rejected, destination is not None]) != 1:
        raise BadInput(
            "it is not clear what to redrive",
            hint="name letters, or a --destination, or say --rejected",
        )
    chosen = LetterSelection(destination=destination, reason=reason, since_ns=as_ns(since))
    ids = [LetterId.parse(letter) for letter in letters]
    outcomes: dict[str, Any] = {}
    for one in _undelivered(queue, ids, chosen):
        outcomes[f"to {one.destination}"] = _redrive(queue, one)
    seqs = frozenset(one.seq for one in ids if one.store == REJECTED_DIR)
    if rejected or seqs:
        with ExitStack() as held:

            def submitter_for(receiver: str) -> Submitter:
                return held.enter_context(Submitter.to(queue, url, quiver, receiver))

            again = replace(chosen, seqs=seqs)
            outcomes["rejected"] = _submit_valid(queue, again, submitter_for, level)
    if as_json:
        print_json(outcomes)
        return
    for what, counts in outcomes.items():
        figures = [f"{name} {value}" for name, value in counts.items() if value is not None]
        click.echo(f"{what}: {', '.join(figures)}")


def _undelivered(
    queue: DeadLetterTarget, ids: Sequence[LetterId], chosen: LetterSelection
) -> Iterator[LetterSelection]:
    """Yield what to redrive, destination by destination."""
    if chosen.destination is not None:
        yield chosen
    by_destination: dict[str, set[int]] = {}
    for letter_id in ids:
        if letter_id.store == UNDELIVERED_DIR:
            destination = queue.letter(letter_id).letter.destination or ""
            by_destination.setdefault(destination, set()).add(letter_id.seq)
    for destination, seqs in by_destination.items():
        yield replace(chosen, destination=destination, seqs=frozenset(seqs))


def _redrive(queue: DeadLetterTarget, selection: LetterSelection) -> dict[str, Any]:
    """Ask the gateway to send letters, in as many turns as it takes."""
    total: Counter[str] = Counter()
    while True:
        answer = queue.ask_gateway(VERB, **replay_request(selection), worker=queue.worker)
        if answer is None:
            raise OwnerGone(
                "no gateway runs here, and only it can send to its destinations",
                hint="start it with `holdfast up`, then try again",
                path=str(queue.data_dir),
            )
        names = ("delivered", "filtered", "filed_again", "skipped")
        total.update({name: answer[name] for name in names})
        # The gateway answers after a bounded number of letters, so that its loop stays free; the
        # end was fixed with the first answer, or letters that fail again would be sent again and
        # again.
        if answer["next_seq"] is None:
            return {**{name: total[name] for name in names}, "stopped_by": answer["stopped_by"]}
        selection = replace(selection, from_seq=answer["next_seq"], end_seq=answer["end_seq"])


def _submit_valid(
    queue: DeadLetterTarget,
    selection: LetterSelection,
    submitter_for: Callable[[str], Submitter],
    level: str | None,
) -> dict[str, Any]:
    """Submit what is valid by the present rules; what is not stays."""
    # By the receiver that rejected it.
    ways: dict[str, tuple[Validator, Submitter]] = {}
    submitted: list[int] = []
    still_invalid = 0
    try:
        for stored in queue.letters(REJECTED_DIR, selection):
            letter = stored.letter
            origin = letter.origin
            if origin not in ways:
                ways[origin] = (queue.validator(level, origin), submitter_for(origin))
            validator, submitter = ways[origin]
            _, verdict = validator.parse_and_check(letter.payload)
            if verdict.ok:
                submitter.submit(letter.payload)
                submitted.append(stored.id.seq)
            else:
                still_invalid += 1
    finally:
        # Also what was submitted before something went wrong.
        if submitted:
            reason = "valid now, submitted again"
            queue.resolve(REJECTED_DIR, submitted, Outcome.ACKED, reason)
    return {"submitted": len(submitted), "still_invalid": still_invalid}


# ------------------------------------------------------------------------- purge


@click.command("purge")
@target_argument
@click.argument("letters", nargs=-1)
@store_option
@destination_option
@reason_option
@time_option("--before", "Filed before this time.")
@click.option("--all", "everything", is_flag=True, help="Every letter there is.")
@click.option(
    "--because", default="purged by an operator", show_default=True, help="For the ledger."
)
@click.option("--yes", is_flag=True, help="Do it, and do not ask.")
@worker_option
@json_option
def purge_command(  # noqa: PLR0913, PLR0917  (its options)
    target: Target,
    letters: tuple[str, ...],
    store: str | None,
    destination: str | None,
    reason: str | None,
    before: datetime | None,
    everything: bool,
    because: str,
    yes: bool,
    worker: int,
    as_json: bool,
) -> None:
    """Purge LETTERS by name, or by filters. Without --yes it only lists what would go."""
    queue = DeadLetterTarget.find(target, worker)
    chosen = LetterSelection(destination=destination, reason=reason, before_ns=as_ns(before))
    if not (letters or everything or store or chosen != LetterSelection()):
        raise BadInput("it is not clear what to purge", hint="name letters, a filter, or --all")
    ids = [LetterId.parse(letter) for letter in letters]
    # Without their payloads: there may be more letters than memory.
    planned = [_Doomed.of(one) for one in _planned(queue, store, ids, chosen)]
    if planned and not as_json:
        _tell_plan(planned)
    # Never without a word: with --json there is nobody to ask, and without a terminal neither.
    if planned and (yes or (not as_json and _may_ask() and _confirmed(planned))):
        for one in STORES:
            seqs = [doomed.id.seq for doomed in planned if doomed.id.store == one]
            if seqs:
                queue.resolve(one, seqs, Outcome.GIVEN_UP, because)
        purged = len(planned)
    else:
        purged = 0
    if as_json:
        names = [str(doomed.id) for doomed in planned]
        print_json({"planned": names, "purged": purged})
    else:
        click.echo(f"{purged} purged" + ("" if purged or not planned else "; say --yes"))


class _Doomed(NamedTuple):
    """A letter to be given up."""

    id: LetterId
    destination: str
    reason: str
    size_bytes: int

    @classmethod
    def of(cls, stored: StoredLetter) -> _Doomed:
        letter = stored.letter
        return cls(stored.id, letter.destination or "", letter.reason, len(letter.payload))


def _planned(
    queue: DeadLetterTarget, only: str | None, ids: Sequence[LetterId], chosen: LetterSelection
) -> Iterator[StoredLetter]:
    """Yield the letters that are meant, from one store or from both."""
    for store in STORES if only is None else (only,):
        seqs = frozenset(one.seq for one in ids if one.store == store)
        if seqs or not ids:
            yield from queue.letters(store, replace(chosen, seqs=seqs))


def _tell_plan(planned: Sequence[_Doomed]) -> None:
    """Print what would be given up, by store, destination and reason."""
    counts: Counter[tuple[str, str, str]] = Counter()
    sizes: Counter[tuple[str, str, str]] = Counter()
    for doomed in planned:
        key = (doomed.id.store, doomed.destination, doomed.reason)
        counts[key] += 1
        sizes[key] += doomed.size_bytes
    rows = [(*key, count, size(sizes[key])) for key, count in sorted(counts.items())]
    print_table("to be given up", ("store", "destination", "reason", "letters", "size"), rows)


def _may_ask() -> bool:
    return sys.stdin.isatty()


def _confirmed(planned: Sequence[_Doomed]) -> bool:
    return click.confirm(f"Give up {counted(len(planned), 'dead letter')} for good?")
