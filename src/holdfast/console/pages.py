"""The pages, their parts, and the same as JSON under `/api/`; nothing here changes anything.

Templates are loaded with the first page. What a template shows is escaped by the engine; a name
that a template misspells is an error, not an empty place.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import __version__
from holdfast.console import words
from holdfast.console.drawing import BOX_HEIGHT, BOX_WIDTH, draw
from holdfast.console.figures import LiveFigures, figures, mood
from holdfast.console.history import STEP_S
from holdfast.console.requests import ConsoleRequest, document, html
from holdfast.console.snapshot import DestinationRow, GatewaySnapshot
from holdfast.console.stores import named_stores
from holdfast.console.watch import ConsoleView
from holdfast.errors import BadInput
from holdfast.graph.paths import plan
from holdfast.handoff.control import VERB as HANDOFF_VERB
from holdfast.receive.responses import Response

if TYPE_CHECKING:
    from jinja2 import Environment

HERE = Path(__file__).parent
# What the navigation shows, in this order.
SECTIONS = (
    ("/", "Overview"),
    ("/destinations", "Destinations"),
    ("/events", "Events"),
    ("/dead-letters", "Dead letters"),
    ("/pipelines", "Pipelines"),
    ("/nodes", "Data nodes"),
    ("/store", "Store"),
)
# What programs may read, as docs/reference/http-api.md lists it.
API = (
    "/api/",
    "/api/overview",
    "/api/graph",
    "/api/history",
    "/api/destinations",
    "/api/destinations/NAME",
    "/api/pipelines",
    "/api/nodes",
    "/api/events?q=TEXT",
    "/api/dead-letters",
    "/api/dead-letters/STORE/NUMBER",
    "/api/tap/NAME",
    "/api/store",
    "/api/store/commits",
    "/api/store/files?commit=NAME",
    "/api/store/diff?old=NAME&new=NAME",
)


@functools.cache
def templates() -> Environment:
    """Return the templates; the engine is loaded here, so that an idle console has not."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    found = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals.update(
        sections=SECTIONS, version=__version__, box_width=BOX_WIDTH, box_height=BOX_HEIGHT
    )
    found.filters.update(
        number=words.number,
        rate=words.rate,
        size=words.size,
        age=words.age,
        moment=words.moment,
        plain=words.plain,
        mood=mood,
        counted=words.counted,
        spelled=words.spelled,
    )
    return found


def render(template: str, **values: Any) -> str:
    """Return what a template makes of values."""
    return templates().get_template(template).render(**values)


class ConsolePages:
    """Makes pages of what the view knows."""

    def __init__(self, view: ConsoleView) -> None:
        self._view = view
        self._drawing = draw(view.graph)

    async def look(self) -> LiveFigures:
        """Return the figures of this moment."""
        snapshot = await self._view.snapshot()
        return figures(snapshot, self._view.rates(), self._drawing)

    async def page(self, template: str, title: str, section: str, **values: Any) -> Response:
        """Return a whole page, with the figures of this moment."""
        snapshot = await self._view.snapshot()
        live = figures(snapshot, self._view.rates(), self._drawing)
        return html(
            render(template, title=title, section=section, live=live, snapshot=snapshot, **values)
        )

    # ------------------------------------------------------------------ overview

    async def overview(self, request: ConsoleRequest) -> Response:
        """The equation, the graph, an hour of history."""
        return await self.page("overview.html", "Overview", "/", drawing=self._drawing)

    async def destinations(self, request: ConsoleRequest) -> Response:
        """Every destination, one row each."""
        return await self.page("destinations.html", "Destinations", "/destinations")

    async def destination(self, request: ConsoleRequest) -> Response:
        """One destination, with everything that can be done to it."""
        one = await self._destination(request.names["name"])
        limits = {
            to.name: to.delivery.limits
            for quiver in plan(self._view.graph)
            for to in quiver.destinations
        }
        return await self.page(
            "destination.html", one.name, "/destinations", one=one, limits=limits.get(one.name)
        )

    async def _destination(self, name: str) -> DestinationRow:
        snapshot = await self._view.snapshot()
        found = snapshot.destination(name)
        if found is None:
            known = ", ".join(one.name for one in snapshot.destinations)
            raise BadInput(
                f"there is no destination {name!r}"[:200],
                hint=f"destinations of this gateway: {known or 'none'}",
            )
        return found

    async def events(self, request: ConsoleRequest) -> Response:
        """Where events are looked for; what is found needs the token."""
        return await self.page("events.html", "Events", "/events", question=request.text("q"))

    async def letters(self, request: ConsoleRequest) -> Response:
        """How many dead letters there are; which ones needs the token."""
        return await self.page("dead-letters.html", "Dead letters", "/dead-letters")

    async def pipelines(self, request: ConsoleRequest) -> Response:
        """Pipelines: state, watermark, batches, rows that are late or failed."""
        driver = self._view.source.driver_figures
        configured = list(self._view.graph.settings.pipelines)
        return await self.page(
            "pipelines.html", "Pipelines", "/pipelines", driver=driver, configured=configured
        )

    async def nodes(self, request: ConsoleRequest) -> Response:
        """Data nodes: what waits for each, and why."""
        return await self.page("nodes.html", "Data nodes", "/nodes", nodes=await self._nodes())

    async def _nodes(self) -> list[dict[str, Any]]:
        """Return a record of each data node of each sender; none where nothing is sent to any."""
        if not any(node.sends_parts for node in self._view.graph.nodes.values()):
            return []
        told = await self._view.ask(HANDOFF_VERB, action="status")
        records: list[dict[str, Any]] = told["records"]
        return records

    async def store(self, request: ConsoleRequest) -> Response:
        """Which stores the file names; what is in them needs the token."""
        stores = named_stores(self._view.graph)
        return await self.page("store.html", "Store", "/store", stores=stores)

    # ---------------------------------------------------------------------- JSON

    async def api_index(self, request: ConsoleRequest) -> Response:
        """Which documents there are."""
        return document({"version": __version__, "documents": list(API)})

    async def api_overview(self, request: ConsoleRequest) -> Response:
        """The whole snapshot, with the verdict and the rates."""
        snapshot = await self._view.snapshot()
        fields = {
            "accepted": snapshot.accepted,
            "lost": snapshot.lost,
            "adds_up": snapshot.adds_up,
            "rates_per_s": self._view.rates(),
        }
        return document({**fields, **_snapshot_fields(snapshot)})

    async def api_destinations(self, request: ConsoleRequest) -> Response:
        """Every destination."""
        snapshot = await self._view.snapshot()
        return document({"destinations": _snapshot_fields(snapshot)["destinations"]})

    async def api_destination(self, request: ConsoleRequest) -> Response:
        """One destination."""
        return document(await self._destination(request.names["name"]))

    async def api_pipelines(self, request: ConsoleRequest) -> Response:
        """What the driver of the pipelines reported last."""
        return document(self._view.source.driver_figures)

    async def api_nodes(self, request: ConsoleRequest) -> Response:
        """Every data node, as each sender sees it."""
        return document({"nodes": await self._nodes()})

    async def api_store(self, request: ConsoleRequest) -> Response:
        """The stores that the file names."""
        stores = named_stores(self._view.graph)
        return document({"stores": [{"store": one.url, "used_by": one.used_by} for one in stores]})

    async def api_graph(self, request: ConsoleRequest) -> Response:
        """The components and who leads to whom, with the figures on the lines."""
        found, live = self._drawing, await self.look()
        return document(
            {
                "nodes": [
                    {
                        "name": one.box.name,
                        "kind": one.box.kind,
                        "type": one.box.type,
                        "state": live.states[f"box:{one.box.name}"],
                    }
                    for one in found.boxes
                ],
                "edges": [
                    {
                        "from": one.start.name,
                        "to": one.end.name,
                        "rate": live.texts[f"line:{one.start.name}>{one.end.name}:rate"],
                        "waiting": live.texts[f"line:{one.start.name}>{one.end.name}:waiting"],
                    }
                    for one in found.lines
                ],
            }
        )

    async def api_history(self, request: ConsoleRequest) -> Response:
        """An hour of figures; the charts read it."""
        history = self._view.history
        return document(
            {"step_s": STEP_S, "times_s": history.times_s(), "series": history.series()}
        )


def _snapshot_fields(snapshot: GatewaySnapshot) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(document(snapshot).body)
    return fields
