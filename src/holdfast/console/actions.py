"""What the console can change; each is a verb of the control socket, or a command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.console.commands import CommandRunner
from holdfast.console.letters import give_up, show_letter
from holdfast.console.pages import render
from holdfast.console.requests import ConsoleRequest, html
from holdfast.console.watch import ConsoleView
from holdfast.console.words import counted, plain
from holdfast.dead_letters.queue import REJECTED_DIR, UNDELIVERED_DIR
from holdfast.dead_letters.stored import LetterId, LetterSelection
from holdfast.deliver.redrive import VERB as REPLAY_VERB
from holdfast.deliver.redrive import replay_request
from holdfast.errors import BadInput
from holdfast.graph.control import SKIP_VERB
from holdfast.handoff.control import VERB as HANDOFF_VERB
from holdfast.receive.responses import Response

REASON_CHARACTERS_MAX = 500
# What can become of a letter that is sent again.
RESULTS = ("delivered", "filtered", "filed_again", "skipped")


class Actions:
    """Does what an operator asks for, and says what became of it."""

    def __init__(self, view: ConsoleView, commands: CommandRunner) -> None:
        self._view = view
        self._commands = commands

    # -------------------------------------------------------------- destinations

    async def pause(self, request: ConsoleRequest) -> Response:
        """Deliver nothing to a destination until it is resumed."""
        name = request.names["name"]
        await self._view.ask("pause", destination=name)
        return _done(f"{name} is paused. Events wait for it.")

    async def resume(self, request: ConsoleRequest) -> Response:
        """Deliver to a destination again."""
        name = request.names["name"]
        await self._view.ask("resume", destination=name)
        return _done(f"{name} is resumed.")

    async def skip(self, request: ConsoleRequest) -> Response:
        """Make a dead letter of the event that holds a destination up."""
        name, seq, row = request.names["name"], request.whole("seq"), request.whole("row")
        await self._view.ask(
            SKIP_VERB,
            destination=name,
            seq=seq,
            row=row,
            reason=_reason(request),
            worker=request.whole("worker"),
        )
        return _done(f"Event {seq}/{row} is a dead letter now. {name} continues behind it.")

    # -------------------------------------------------------------- dead letters

    async def redrive(self, request: ConsoleRequest) -> Response:
        """Send one letter again, or a pile of a destination.

        An undelivered one goes to its destination, by the gateway; a rejected one is a new event.
        """
        letter = request.text("letter")
        if letter and LetterId.parse(letter).store == REJECTED_DIR:
            told = (await self._dead_letters("replay", request, letter))["rejected"]
            return _redriven({"submitted": told["submitted"], "invalid": told["still_invalid"]}, "")
        meant = await self._selected(request)
        # A pile lies with every worker.
        everyone = range(self._view.graph.settings.workers)
        total: Counter[str] = Counter()
        for worker in [request.whole("worker")] if letter else everyone:
            selection: LetterSelection | None = meant
            while selection is not None:
                fields = replay_request(selection)
                told = await self._view.ask(REPLAY_VERB, **fields, worker=worker)
                total.update({name: told[name] for name in RESULTS})
                if told["stopped_by"]:
                    return _redriven(total, told["stopped_by"])
                # The gateway works in turns; where it ends was fixed with the first answer.
                turn = {"from_seq": told["next_seq"], "end_seq": told["end_seq"]}
                selection = None if told["next_seq"] is None else replace(selection, **turn)
        return _redriven(total, "")

    async def _selected(self, request: ConsoleRequest) -> LetterSelection:
        """Return which undelivered letters are meant. An empty field never means all of them."""
        letter, graph = request.text("letter"), self._view.graph
        if letter:
            worker = request.whole("worker")
            found = await self._view.in_thread(lambda: show_letter(graph, worker, letter))
            seqs = frozenset({LetterId.parse(letter).seq})
            return LetterSelection(destination=found.row.destination, seqs=seqs)
        origin, reason = request.text("origin"), request.text("why")
        if not (request.text("store") == UNDELIVERED_DIR and origin and reason):
            hint = "choose one, or a pile"
            raise BadInput("it is not clear which letters are meant", hint=hint)
        return LetterSelection(destination=origin, reason=reason)

    async def purge(self, request: ConsoleRequest) -> Response:
        """Give one letter up."""
        letter, reason = LetterId.parse(request.text("letter")), _reason(request)
        worker, graph = request.whole("worker"), self._view.graph
        count = await self._view.in_thread(lambda: give_up(graph, worker, letter, reason))
        return _done(f"{counted(count, 'dead letter')} given up.")

    async def fix(self, request: ConsoleRequest) -> Response:
        """Submit a corrected letter as a new event."""
        letter = LetterId.parse(request.text("letter"))
        everywhere = ("--everywhere",) if request.text("everywhere") else ()
        payload = request.form.get("payload", "").encode()
        told = await self._dead_letters(
            "fix", request, "--file", "-", *everywhere, str(letter), stdin=payload
        )
        return _done(f"{letter} was submitted to {told['submitted_to']}, and is resolved.")

    async def _dead_letters(
        self, verb: str, request: ConsoleRequest, *words: str, stdin: bytes = b""
    ) -> Any:
        options = ("--json", "--worker", str(request.whole("worker")))
        file = str(self._view.graph.file)
        words = ("dead-letters", verb, file, *options, *words)
        return await self._commands.run(*words, stdin=stdin)

    # ---------------------------------------------------------------- data nodes

    async def pause_node(self, request: ConsoleRequest) -> Response:
        """Send nothing to a data node until it is resumed."""
        return await self._node(request, "pause", "is paused. Parts wait for it.")

    async def resume_node(self, request: ConsoleRequest) -> Response:
        """Send to a data node again."""
        return await self._node(request, "resume", "is resumed.")

    async def _node(self, request: ConsoleRequest, action: str, said: str) -> Response:
        name = request.names["name"]
        told = await self._view.ask(HANDOFF_VERB, action=action, node=name)
        if not told["records"]:
            raise BadInput(f"there is no data node {name!r}"[:200], hint="reload the page")
        return _done(f"{name} {said}")


def _reason(request: ConsoleRequest) -> str:
    reason = request.text("reason")
    if not reason:
        raise BadInput("a reason is missing", hint="say why: it is kept in the ledger")
    return reason[:REASON_CHARACTERS_MAX]


def _redriven(counts: Mapping[str, int], stopped_by: str) -> Response:
    figures = ", ".join(f"{plain(name)} {count}" for name, count in counts.items() if count)
    if stopped_by:
        raise BadInput(
            f"redriven: {figures or 'none'}; stopped, {stopped_by}",
            hint="the rest is as it was: try again when the destination answers",
        )
    return _done(f"Redriven: {figures or 'nothing was there'}.")


def _done(text: str) -> Response:
    return html(render("done.html", text=text))
