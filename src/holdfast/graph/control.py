"""What tools may ask of a running gateway, over a control socket in its data directory.

The socket is the quivers' own (quiver/engine/control.py): one line of JSON asks, one answers. It
serves from a thread; everything here is handed to the event loop that owns the gateway, but for the
senders to data nodes, which have threads and locks of their own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from holdfast.deliver.redrive import TURN_S
from holdfast.deliver.redrive import VERB as REPLAY_VERB
from holdfast.deliver.statistics import DestinationStatistics
from holdfast.errors import BadInput, Overloaded
from holdfast.graph.runtime import Gateway
from holdfast.graph.serving import ACCESS_VERB
from holdfast.handoff.control import VERB as HANDOFF_VERB
from holdfast.handoff.control import HandoffVerbs
from holdfast.quiver import Position
from holdfast.quiver.engine.control import Verb, Verbs
from holdfast.receive.receiver import ReceiverStatistics
from holdfast.seam import Seam

# How long a verb may take before its caller is asked to try again; a replay takes its turns.
ANSWER_S = 10.0
REPLAY_ANSWER_S = TURN_S + 40.0
# As long as a send may take by default, and its settling.
SKIP_ANSWER_S = 40.0
SKIP_VERB = "skip"
SKIP_REASON_CHARACTERS_MAX = 500


Work = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


def gateway_verbs(gateway: Gateway, loop: asyncio.AbstractEventLoop) -> Verbs:
    """Return what a gateway does on request."""
    verbs = _GatewayVerbs(gateway)
    return {
        "ping": on_loop(loop, verbs.ping),
        "status": on_loop(loop, verbs.status),
        "pause": on_loop(loop, verbs.pause),
        "resume": on_loop(loop, verbs.resume),
        SKIP_VERB: on_loop(loop, verbs.skip, SKIP_ANSWER_S),
        "tap": on_loop(loop, verbs.tap),
        ACCESS_VERB: on_loop(loop, verbs.access),
        REPLAY_VERB: on_loop(loop, gateway.replay_dead_letters, REPLAY_ANSWER_S),
        HANDOFF_VERB: HandoffVerbs(
            lambda: [one for runners in gateway.handoffs.values() for one in runners], Seam()
        ),
    }


def on_loop(loop: asyncio.AbstractEventLoop, work: Work, wait_s: float = ANSWER_S) -> Verb:
    """Return a verb that does its work on an event loop, while its own thread waits."""

    def verb(request: dict[str, Any]) -> dict[str, Any]:
        future = asyncio.run_coroutine_threadsafe(_awaited(work(request)), loop)
        try:
            return future.result(wait_s)
        except concurrent.futures.TimeoutError:
            # Also taken back: a caller that was told to try again must not find that the first try
            # was done after all, minutes later.
            future.cancel()
            raise Overloaded(
                f"the gateway did not answer within {wait_s:g} s", hint="try again in a moment"
            ) from None

    return verb


async def _awaited(work: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    return await work


class _GatewayVerbs:
    """What is asked comes from whoever may write to the data directory: it is checked like input,
    but no token is asked for.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def ping(self, request: dict[str, Any]) -> dict[str, Any]:
        """Say who is there."""
        return {"process": os.getpid(), "worker": self._gateway.worker}

    async def status(self, request: dict[str, Any]) -> dict[str, Any]:
        """Say how it is: receivers, destinations, dead letters, and why it is not ready."""
        gateway = self._gateway
        told, reasons = await gateway.statistics(), await gateway.not_ready()
        letters = told.dead_letters
        return {
            "process": os.getpid(),
            "worker": gateway.worker,
            "state": told.state,
            "ready": not reasons,
            "reasons": reasons,
            "uptime_s": told.uptime_s,
            "addresses": gateway.addresses,
            "receivers": {name: _fields(one) for name, one in told.receivers.items()},
            "destinations": [
                {**_destination_fields(one.figures), "quiver": one.quiver, "core_id": one.core_id}
                for one in told.destinations
            ],
            "dead_letters": {}
            if letters is None
            else {name: store.events for name, store in letters._asdict().items()},
            "quivers": {
                name: [asdict(core) for core in cores] for name, cores in told.quivers.items()
            },
        }

    async def access(self, request: dict[str, Any]) -> dict[str, Any]:
        """Say how its quivers are reached; the token is for who may use this socket."""
        access = self._gateway.access
        return {"access": None if access is None else access.to_fields()}

    async def pause(self, request: dict[str, Any]) -> dict[str, Any]:
        """Deliver nothing to a destination until it is resumed."""
        self._gateway.pause(_text(request, "destination"))
        return {}

    async def resume(self, request: dict[str, Any]) -> dict[str, Any]:
        """Go on delivering to a destination."""
        self._gateway.resume(_text(request, "destination"))
        return {}

    async def skip(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make a dead letter of the event that holds a destination up."""
        seq, row = request.get("seq"), request.get("row", 0)
        if not (isinstance(seq, int) and isinstance(row, int)):
            raise BadInput("`seq` and `row` name no event", hint="send two numbers")
        name, reason = _text(request, "destination"), _text(request, "reason")
        await self._gateway.skip(name, Position(seq, row), reason[:SKIP_REASON_CHARACTERS_MAX])
        return {}

    async def tap(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return samples of events on their way to a destination."""
        after = request.get("after") or 0
        if not isinstance(after, int):
            raise BadInput("`after` is not what a tap gave", hint="send `next` of the last answer")
        return self._gateway.tap(_text(request, "destination"), after)


def _fields(figures: DestinationStatistics | ReceiverStatistics) -> dict[str, Any]:
    """Return figures as JSON has them: those of items are records themselves."""
    items = {signal: asdict(counts) for signal, counts in figures.items.items()}
    return {**figures._asdict(), "items": items}


def _destination_fields(figures: DestinationStatistics) -> dict[str, Any]:
    held = figures.held
    return {**_fields(figures), "held": None if held is None else held._asdict()}


def _text(request: dict[str, Any], name: str) -> str:
    value = request.get(name)
    if not isinstance(value, str):
        raise BadInput(f"`{name}` is missing", hint="send text")
    return value
