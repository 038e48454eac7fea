"""What is in a store, as parts of its page and as JSON: names of files are content, as events are.

Only stores that the gateway's file names are looked into: a request says which of them by its
number. Its database's address may hold a password, so it goes to the reading process by a pipe.
"""

from __future__ import annotations

import json
from typing import Any

from holdfast.console.commands import CommandRunner
from holdfast.console.pages import render
from holdfast.console.requests import ConsoleRequest, document, html
from holdfast.console.stores import named_stores
from holdfast.console.watch import ConsoleView
from holdfast.errors import BadInput
from holdfast.receive.responses import Response

READER = "holdfast.console.store_reader"
# How long one look may take.
LOOK_S = 20.0
# What asks for the same, and is not bounded.
BY_HAND = {
    "commits": "holdfast files ls",
    "files": "holdfast files ls",
    "diff": "holdfast files diff",
}


class StoreParts:
    """Answers what looks into a store; one look at a time."""

    def __init__(self, view: ConsoleView) -> None:
        self._view = view
        self.reader = CommandRunner(READER, LOOK_S)

    async def commits(self, request: ConsoleRequest) -> Response:
        """The commits, and the state of the collector."""
        found = await self._look("commits", request)
        return html(render("store-commits.html", found=found, number=request.whole("store")))

    async def files(self, request: ConsoleRequest) -> Response:
        """One folder of a commit."""
        found = await self._look("files", request)
        return html(render("store-files.html", found=found, number=request.whole("store")))

    async def diff(self, request: ConsoleRequest) -> Response:
        """What differs between two commits."""
        return html(render("store-diff.html", found=await self._look("diff", request)))

    async def api_commits(self, request: ConsoleRequest) -> Response:
        """Commits and collector as JSON."""
        return document(await self._look("commits", request))

    async def api_files(self, request: ConsoleRequest) -> Response:
        """A folder as JSON."""
        return document(await self._look("files", request))

    async def api_diff(self, request: ConsoleRequest) -> Response:
        """Differences as JSON."""
        return document(await self._look("diff", request))

    async def _look(self, what: str, request: ConsoleRequest) -> dict[str, Any]:
        stores, number = named_stores(self._view.graph), request.whole("store")
        if number >= len(stores):
            raise BadInput(
                f"the file of this gateway names no store {number}",
                hint="`/api/store` lists those that it names; they are counted from 0",
            )
        one = stores[number]
        # As they are: a path may begin or end with a space.
        fields = ("commit", "path", "after", "old", "new")
        question = {name: request.query.get(name, "") for name in fields}
        question |= {"what": what, "url": one.url}
        question["database"] = one.database.get_secret_value() if one.database else ""
        stdin = json.dumps(question).encode()
        told: dict[str, Any] = await self.reader.run(stdin=stdin, by_hand=BY_HAND[what])
        return told
