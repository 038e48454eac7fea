"""Parts of pages that show events, and the same as JSON; each needs the token."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.console.commands import CommandRunner
from holdfast.console.finder import FoundEvents, find_events
from holdfast.console.letters import LetterList, WholeLetter, list_letters, show_letter
from holdfast.console.pages import render
from holdfast.console.requests import ConsoleRequest, document, html
from holdfast.console.watch import ConsoleView
from holdfast.errors import BadInput
from holdfast.receive.responses import Response

TAPPED_MAX = 20
QUESTION_CHARACTERS_MAX = 500


class EventParts:
    """Answers what shows an event."""

    def __init__(self, view: ConsoleView, commands: CommandRunner) -> None:
        self._view = view
        self._commands = commands
        self._searching = asyncio.Lock()

    # ------------------------------------------------------------- event finder

    async def events(self, request: ConsoleRequest) -> Response:
        """The timelines of what was asked for."""
        found = await self._found(request)
        return html(render("found.html", question=request.text("q"), found=found))

    async def api_events(self, request: ConsoleRequest) -> Response:
        """The same as JSON."""
        return document(await self._found(request))

    async def _found(self, request: ConsoleRequest) -> FoundEvents:
        question, graph = request.text("q"), self._view.graph
        if not question or len(question) > QUESTION_CHARACTERS_MAX:
            raise BadInput(
                "it is not clear what to look for",
                hint="enter the id of a run or a trace, the name of a job, or a bundle's number",
            )
        anywhere = bool(request.text("anywhere"))
        # One at a time: a search uses the disk and a processor.
        async with self._searching:
            return await self._view.in_thread(
                lambda: find_events(graph, question, anywhere=anywhere)
            )

    # ------------------------------------------------------------- dead letters

    async def letters(self, request: ConsoleRequest) -> Response:
        """Letters by reason, and the newest of a selection."""
        found = await self._letters(request)
        chosen = {name: request.text(name) for name in ("store", "origin", "reason")}
        return html(render("letters.html", found=found, chosen=chosen))

    async def letter(self, request: ConsoleRequest) -> Response:
        """One letter with its payload, and what can be done with it."""
        return html(render("letter.html", one=await self._letter(request)))

    async def api_letters(self, request: ConsoleRequest) -> Response:
        """The list as JSON."""
        return document(await self._letters(request))

    async def api_letter(self, request: ConsoleRequest) -> Response:
        """One letter as JSON."""
        return document(await self._letter(request))

    async def _letters(self, request: ConsoleRequest) -> LetterList:
        store, origin, reason = (request.text(name) for name in ("store", "origin", "reason"))
        graph = self._view.graph
        return await self._view.in_thread(lambda: list_letters(graph, store, origin, reason))

    async def _letter(self, request: ConsoleRequest) -> WholeLetter:
        name = f"{request.names['store']}/{request.names['seq']}"
        worker, graph = request.whole("worker"), self._view.graph
        return await self._view.in_thread(lambda: show_letter(graph, worker, name))

    # ------------------------------------------------------------------- others

    async def tap(self, request: ConsoleRequest) -> Response:
        """A sample of what passes to a destination right now."""
        events = (await self._tapped(request))["events"][-TAPPED_MAX:]
        return html(render("tap.html", events=events[::-1]))

    async def api_tap(self, request: ConsoleRequest) -> Response:
        """The same as JSON."""
        return document(await self._tapped(request))

    async def _tapped(self, request: ConsoleRequest) -> dict[str, Any]:
        return await self._view.ask("tap", destination=request.names["name"], after=None)

    async def watermark(self, request: ConsoleRequest) -> Response:
        """What holds the watermark of a pipeline."""
        file = str(self._view.graph.file)
        told = await self._commands.run(
            "dataflow", "watermark", "--json", "--", file, request.names["name"]
        )
        return html(render("watermark.html", told=told))
