"""The console as an ASGI app: paths, who may ask for them, and what an error looks like.

/…           pages, for everybody who reaches the port: figures, and no event
/static/…    script, style and the two libraries
/live        figures while a page is open
/api/…       the same as JSON, read-only
/parts/…     what needs the token: parts of pages that show events
/actions/…   POST, with the token: what changes something
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import PurePosixPath
from typing import NamedTuple

from holdfast.console.access import SECURITY_HEADERS, ConsoleGate
from holdfast.console.actions import Actions
from holdfast.console.commands import CommandRunner
from holdfast.console.live import LiveStreams
from holdfast.console.pages import HERE, ConsolePages, render
from holdfast.console.parts import EventParts
from holdfast.console.requests import (
    ConsoleRequest,
    Gone,
    WrongBody,
    document,
    form_of,
    html,
    query_of,
    status_of,
)
from holdfast.console.store_parts import StoreParts
from holdfast.console.watch import ConsoleSource, ConsoleView
from holdfast.errors import HoldfastError
from holdfast.graph.model import Graph
from holdfast.receive.responses import Receive, Response, Scope, Send, send_response

NEEDS_TOKEN = "this shows events or changes something, and needs the token of the console"
TOKEN_HINT = "`holdfast console CONFIG` prints an address that brings it along"
CONTENT_TYPES = {
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".txt": b"text/plain; charset=utf-8",
}
# A browser asks again after an update at the latest then.
STATIC_AGE_S = 3600

log = logging.getLogger("holdfast.console")

Answering = Callable[[ConsoleRequest], Awaitable[Response]]


class Route(NamedTuple):
    """A path with `{names}` in it, and what answers."""

    pattern: re.Pattern[str]
    method: str
    needs_token: bool
    answer: Answering


@dataclass(frozen=True)
class _PageFault:
    """Why a request is not answered as it wished."""

    status: int
    message: str
    hint: str


class Console:
    """Serves the console of one gateway. One event loop uses it."""

    def __init__(self, graph: Graph, source: ConsoleSource, gate: ConsoleGate) -> None:
        self._gate = gate
        self._view = ConsoleView(graph, source)
        self._pages = ConsolePages(self._view)
        commands = CommandRunner()
        self._parts = EventParts(self._view, commands)
        self._store = StoreParts(self._view)
        self._actions = Actions(self._view, commands)
        self._live = LiveStreams(self._pages.look)
        self._static = StaticFiles()
        self._routes = [
            _route(method, path, answer, needs_token=needs_token)
            for method, needs_token, table in (
                ("GET", False, self._open_to_all()),
                ("GET", True, self._with_events()),
                ("POST", True, self._changing()),
            )
            for path, answer in table.items()
        ]

    def _open_to_all(self) -> Mapping[str, Answering]:
        pages = self._pages
        return {
            "/": pages.overview,
            "/destinations": pages.destinations,
            "/destinations/{name}": pages.destination,
            "/events": pages.events,
            "/dead-letters": pages.letters,
            "/pipelines": pages.pipelines,
            "/nodes": pages.nodes,
            "/store": pages.store,
            "/api/": pages.api_index,
            "/api/overview": pages.api_overview,
            "/api/graph": pages.api_graph,
            "/api/history": pages.api_history,
            "/api/destinations": pages.api_destinations,
            "/api/destinations/{name}": pages.api_destination,
            "/api/pipelines": pages.api_pipelines,
            "/api/nodes": pages.api_nodes,
            "/api/store": pages.api_store,
        }

    def _with_events(self) -> Mapping[str, Answering]:
        parts, store = self._parts, self._store
        return {
            "/parts/events": parts.events,
            "/parts/letters": parts.letters,
            "/parts/letters/{store}/{seq}": parts.letter,
            "/parts/tap/{name}": parts.tap,
            "/parts/watermark/{name}": parts.watermark,
            "/api/events": parts.api_events,
            "/api/dead-letters": parts.api_letters,
            "/api/dead-letters/{store}/{seq}": parts.api_letter,
            "/api/tap/{name}": parts.api_tap,
            "/parts/store/commits": store.commits,
            "/parts/store/files": store.files,
            "/parts/store/diff": store.diff,
            "/api/store/commits": store.api_commits,
            "/api/store/files": store.api_files,
            "/api/store/diff": store.api_diff,
        }

    def _changing(self) -> Mapping[str, Answering]:
        actions = self._actions
        return {
            "/actions/destinations/{name}/pause": actions.pause,
            "/actions/destinations/{name}/resume": actions.resume,
            "/actions/destinations/{name}/skip": actions.skip,
            "/actions/letters/redrive": actions.redrive,
            "/actions/letters/purge": actions.purge,
            "/actions/letters/fix": actions.fix,
            "/actions/nodes/{name}/pause": actions.pause_node,
            "/actions/nodes/{name}/resume": actions.resume_node,
        }

    def start(self) -> None:
        """Begin to remember figures."""
        self._view.start()

    async def close(self) -> None:
        """End all streams, and stop asking the gateway."""
        self._live.close()
        await self._view.close()

    # ----------------------------------------------------------------- answering

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        stranger = self._gate.stranger(scope)
        if stranger is not None:
            fault = _PageFault(
                HTTPStatus.FORBIDDEN, stranger, "open the console by its own address"
            )
            await _answer(scope, send, _refused(scope["path"], fault))
        elif scope["path"] == "/live" and scope["method"] == "GET" and not self._live.is_full:
            await self._live.serve(receive, send)
        else:
            try:
                await _answer(scope, send, await self._served(scope, receive))
            except Gone:
                return

    async def _served(self, scope: Scope, receive: Receive) -> Response:
        path: str = scope["path"]
        file = self._static.find(path) if scope["method"] in ("GET", "HEAD") else None
        if file is not None:
            return file
        found = await self._try(scope, receive)
        return found if isinstance(found, Response) else _refused(path, found)

    async def _try(self, scope: Scope, receive: Receive) -> Response | _PageFault:
        path, method = scope["path"], scope["method"].replace("HEAD", "GET")
        found = [(route, match) for route in self._routes if (match := route.pattern.match(path))]
        if path == "/live":
            hint = "close some pages of it, then reload this one"
            return _PageFault(HTTPStatus.SERVICE_UNAVAILABLE, "too many pages are open", hint)
        if not found:
            return _PageFault(
                HTTPStatus.NOT_FOUND, "there is no such page", "start at the overview"
            )
        route, match = next((one for one in found if one[0].method == method), found[0])
        if route.method != method:
            return _PageFault(HTTPStatus.METHOD_NOT_ALLOWED, f"use {route.method}", "")
        has_token = self._gate.has_token(scope)
        if route.needs_token and not has_token:
            return _PageFault(HTTPStatus.UNAUTHORIZED, NEEDS_TOKEN, TOKEN_HINT)
        try:
            form = await form_of(scope, receive) if method == "POST" else {}
            request = ConsoleRequest(path, match.groupdict(), query_of(scope), form, has_token)
            return await route.answer(request)
        except WrongBody as error:
            return _PageFault(HTTPStatus.BAD_REQUEST, str(error), "")
        except HoldfastError as error:
            return _PageFault(status_of(error), error.message, error.hint or "")
        except (Gone, asyncio.CancelledError):
            raise
        except Exception as error:
            log.exception("console: %s %s failed", method, path)
            message = f"BUG: {type(error).__name__}"
            return _PageFault(
                HTTPStatus.INTERNAL_SERVER_ERROR, message, "the log has more; report it"
            )


def _route(method: str, path: str, answer: Answering, *, needs_token: bool) -> Route:
    # Names of the configuration have no slash in them.
    pattern = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path) + r"\Z")
    return Route(pattern, method, needs_token, answer)


def _refused(path: str, fault: _PageFault) -> Response:
    """Return an error as the asker can show it: JSON, a message within a page, or a page."""
    if path.startswith("/api/"):
        return document({"error": fault.message, "hint": fault.hint}, fault.status)
    if path.startswith(("/parts/", "/actions/")):
        return html(render("message.html", mood="bad", fault=fault), fault.status)
    return html(render("error.html", title="Error", section="", fault=fault), fault.status)


async def _answer(scope: Scope, send: Send, response: Response) -> None:
    response = response._replace(headers=(*response.headers, *SECURITY_HEADERS))
    if scope["method"] == "HEAD":
        about = (
            (b"content-type", response.content_type),
            (b"content-length", b"%d" % len(response.body)),
        )
        headers = [*about, *response.headers]
        start = {"type": "http.response.start", "status": response.status, "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": b""})
        return
    await send_response(send, response)


class StaticFiles:
    """The files of the folder `static`, read when first asked for."""

    def __init__(self) -> None:
        folder = HERE / "static"
        self._paths = {
            f"/static/{PurePosixPath(path.relative_to(folder))}": path
            for path in folder.rglob("*")
            if path.suffix in CONTENT_TYPES
        }
        self._read: dict[str, Response] = {}

    def find(self, path: str) -> Response | None:
        """Return the file at a path; None if there is none."""
        file = self._paths.get(path)
        if file is not None and path not in self._read:
            age = (b"cache-control", b"max-age=%d" % STATIC_AGE_S)
            self._read[path] = Response(200, file.read_bytes(), (age,), CONTENT_TYPES[file.suffix])
        return self._read.get(path)
