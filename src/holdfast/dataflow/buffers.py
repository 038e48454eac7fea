"""The quivers between the queries of a pipeline: owned by the driver, which serves them to itself.

Two queries cannot both have a directory open, and executors may be elsewhere: so they are served
like a gateway's, on a port of loopback.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from holdfast.dataflow.compiler.places import SINK_CONFIG, Places
from holdfast.dataflow.compiler.plan import Output, Plan
from holdfast.quiver import Quiver
from holdfast.remote import FlightSettings, QuiverServer


class Buffers:
    """The open quivers of a pipeline, and their server."""

    def __init__(self, plan: Plan, places: Places) -> None:
        self._stack = ExitStack()
        self.addresses: Mapping[Output, str] = {}
        if not plan.buffers:
            return
        with ExitStack() as opening:
            quivers = {
                buffer.name: opening.enter_context(
                    Quiver.open(places.buffer(buffer.output), SINK_CONFIG)
                )
                for buffer in plan.buffers
            }
            server = QuiverServer(quivers, FlightSettings(listen="127.0.0.1:0"))
            opening.enter_context(server)
            self._stack = opening.pop_all()
        self.addresses = {
            buffer.output: f"{server.location}/{buffer.name}" for buffer in plan.buffers
        }

    def close(self) -> None:
        """Stop serving, and close the quivers."""
        self._stack.close()
