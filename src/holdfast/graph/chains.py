"""Chains as functions: what the processors on one way to a destination make of an event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from holdfast.graph.paths import Chain
from holdfast.graph.taps import Taps
from holdfast.processors.processor import Processor, Router
from holdfast.signals.event import Unit

Way = Callable[[Any], Unit | None]


def follow(chain: Chain) -> Way:
    """Return the function of a chain: the event as it arrives, or None if it does not."""
    steps: list[Way] = []
    for step in chain:
        if step.port is None:
            steps.append(cast("Processor", step.node.processor).process)
        else:
            steps.append(_leaves_by(cast("Router", step.node.processor), step.port))

    def way(event: Unit) -> Unit | None:
        passed: Unit | None = event
        for step in steps:
            if passed is None:
                return None
            passed = step(passed)
        return passed

    return way


def first_of(ways: list[Way]) -> Way:
    """Return the function of several ways: the event as it comes by the first that lets it pass."""

    def way(event: Unit) -> Unit | None:
        return next((passed for one in ways if (passed := one(event)) is not None), None)

    return way


def tapped(way: Way, taps: Taps, destination: str) -> Way:
    """Return the same way, with somebody looking on if asked to."""

    def seen(event: Unit) -> Unit | None:
        passed = way(event)
        if passed is not None:
            taps.see(destination, passed)
        return passed

    return seen


def _leaves_by(router: Router, port: str) -> Way:
    return lambda event: event if router.port(event) == port else None
