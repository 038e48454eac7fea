"""What the console can change; each is a verb of the control socket, or a command."""

from __future__ import annotations

from typing import Any

from holdfast.console.commands import CommandRunner
from holdfast.console.pages import render
from holdfast.console.requests import ConsoleRequest, html
from holdfast.console.watch import ConsoleView
from holdfast.console.words import counted
from holdfast.dead_letters.stored import LetterId
from holdfast.errors import BadInput
from holdfast.graph.control import SKIP_VERB
from holdfast.handoff.control import VERB as HANDOFF_VERB
from holdfast.receive.responses import Response

REASON_CHARACTERS_MAX = 500


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
        return _done(f"{name} resumes.")

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
        """Send one letter again, or all of a destination."""
        what = _meant(request)
        told = await self._dead_letters("replay", request, *what)
        counts = [one for told_of in told.values() for one in told_of.items()]
        figures = [f"{name.replace('_', ' ')} {value}" for name, value in counts if value]
        return _done(f"Redriven: {', '.join(figures) or 'nothing was there'}.")

    async def purge(self, request: ConsoleRequest) -> Response:
        """Give letters up."""
        because = ("--yes", "--because", _reason(request))
        told = await self._dead_letters("purge", request, *because, *_meant(request))
        return _done(f"{counted(told['purged'], 'dead letter')} given up.")

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
        return await self._node(request, "resume", "resumes.")

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


def _meant(request: ConsoleRequest) -> tuple[str, ...]:
    """Return which letters an action is about: one, or a pile. Never all by an empty field."""
    if request.text("letter"):
        return (str(LetterId.parse(request.text("letter"))),)
    store, origin, reason = (request.text(name) for name in ("store", "origin", "why"))
    if store == "undelivered" and origin and reason:
        return ("--destination", origin, "--reason", reason)
    raise BadInput("it is not clear which letters are meant", hint="choose one, or a pile")


def _done(text: str) -> Response:
    return html(render("done.html", text=text))
