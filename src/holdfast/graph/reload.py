"""Applying a changed file to a running gateway, as far as that is safe.

A destination is a subscriber with its progress in the ledger, so it can be stopped and started
with other settings at any time: nothing is lost, and what was under way is sent again at most. That
makes everything about exporters (data nodes included), their `delivery` and the processors before
them safe to change, and so are handlers of rejected events, tokens of receivers, `drain` and
`logging.level`. What a listening socket, a directory or a number of processes depends on needs a
restart; it is reported.

The file that runs is never half of two. Destinations are replaced one at a time, each is either as
the old file says or as the new one does, and the report names those that stayed. What needs a
restart is not applied in part either: the graph keeps its old settings, so that a later reload
compares with what really runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from holdfast.errors import HoldfastError
from holdfast.graph.model import Graph, Node
from holdfast.graph.open_quivers import HANDLERS
from holdfast.graph.paths import DestinationPlan, ProcessorSteps, QuiverPlan, direct_plan, plan
from holdfast.graph.runtime import Gateway

# Keys of the file that are read when they are needed, or applied by whoever reloads.
LIVE_KEYS = ("drain", "logging.level")


@dataclass
class Reloaded:
    """What a reload did, and what it could not do."""

    applied: list[str] = field(default_factory=list)
    needs_restart: list[str] = field(default_factory=list)


async def reload(gateway: Gateway, new: Graph) -> Reloaded:
    """Apply what is new; everything that needs a restart stays as it was."""
    old, report = gateway.graph, Reloaded()
    _compare_settings(old, new, report)
    before = {one.name: one for one in gateway.running()}
    after = {one.name: one for one in plan(new)}
    report.needs_restart += [f"the quiver {name}" for name in sorted(before.keys() ^ after.keys())]
    for name in before.keys() & after.keys():
        _compare_quivers(gateway, before[name], after[name], report)
        here, there = before[name].destinations, after[name].destinations
        await _replace(gateway, name, here, there, report)
        await _replace_nodes(gateway, before[name], after[name], report)
    if _direct_ways(old) != _direct_ways(new):
        report.needs_restart.append("the nodes of a graph that keeps nothing")
    handlers = [DestinationPlan(name, (node,)) for name, node in new.handlers.items()]
    await _replace(gateway, HANDLERS, gateway.running_handlers(), handlers, report)
    live = {"drain": new.settings.drain, "logging": new.settings.logging}
    gateway.graph = replace(old, settings=old.settings.model_copy(update=live))
    return report


def _direct_ways(graph: Graph) -> list[object]:
    """Return all that runs where nothing is kept: there a restart costs nothing."""
    one = direct_plan(graph)
    if one is None:
        return []
    nodes = [*one.receivers, *(node for to in one.destinations for node in to.exporters)]
    ways = [_settings_on(to.chains) for to in one.destinations]
    return [[(node.name, node.component, node.config, node.delivery) for node in nodes], ways]


def _compare_settings(old: Graph, new: Graph, report: Reloaded) -> None:
    """Note which settings beside nodes changed, and which of them need a restart."""
    here, there = (one.settings.model_dump(mode="json", by_alias=True) for one in (old, new))
    for tree in (here, there):
        tree.pop("nodes")
        tree["dead_letters"].pop("handlers")
    for key in here:
        old_part, new_part = here[key], there[key]
        if isinstance(old_part, dict) and isinstance(new_part, dict):
            # Pipelines come and go.
            parts = [*old_part, *(part for part in new_part if part not in old_part)]
            changed = [f"{key}.{p}" for p in parts if old_part.get(p) != new_part.get(p)]
        else:
            changed = [key] if old_part != new_part else []
        for name in changed:
            (report.applied if name in LIVE_KEYS else report.needs_restart).append(name)


def _compare_quivers(
    gateway: Gateway, here: QuiverPlan, there: QuiverPlan, report: Reloaded
) -> None:
    """Give receivers new settings where they can take them; quivers stay as they are."""
    if (here.directory, here.config) != (there.directory, there.config):
        report.needs_restart.append(f"the settings of the quiver {here.name}")
    if _settings_on(here.before.values()) != _settings_on(there.before.values()):
        report.needs_restart.append(f"the processors before the quiver {here.name}")
    before = {node.name: node for node in here.receivers}
    after = {node.name: node for node in there.receivers}
    for name in sorted(before.keys() ^ after.keys()):
        report.needs_restart.append(f"the receiver {name}")
    for name in sorted(before.keys() & after.keys()):
        what, problem = f"the receiver {name}", ""
        try:
            # Also one that is the same: a file that it names may have changed.
            applied = gateway.reload_receiver(here.name, after[name])
        except HoldfastError as error:
            applied, problem = False, f": {error.message}"
        if problem or not _same(before[name], after[name]):
            (report.applied if applied else report.needs_restart).append(what + problem)


async def _replace(
    gateway: Gateway,
    quiver: str,
    here: Sequence[DestinationPlan],
    there: Sequence[DestinationPlan],
    report: Reloaded,
) -> None:
    """Bring the destinations of a quiver to what the file says now, one after another.

    One that cannot be made with its new settings goes on with the old ones: better an old
    configuration than none.
    """
    before, after = {one.name: one for one in here}, {one.name: one for one in there}
    for name in [*before, *(name for name in after if name not in before)]:
        if name not in after:
            await gateway.remove_destination(quiver, name)
            report.applied.append(f"the destination {name} is gone")
        elif name not in before:
            await _add(gateway, quiver, after[name], report, f"the destination {name} is new")
        elif not _same_way(before[name], after[name]):
            # Stopped before the new one is made: both would attach under one name, and the second
            # would fence the first off in the middle of a send.
            await gateway.remove_destination(quiver, name)
            # The settings were validated; what can still fail is what only the exporter's library
            # or the disk knows. The destination continues where it was, since its progress is in
            # the ledger.
            if not await _add(gateway, quiver, after[name], report, f"the destination {name}"):
                await gateway.add_destination(quiver, before[name])


async def _replace_nodes(
    gateway: Gateway, here: QuiverPlan, there: QuiverPlan, report: Reloaded
) -> None:
    """Send to the data nodes that the file names now; as before if that cannot be."""
    old, new = here.to_nodes, there.to_nodes
    if old is None and new is None:
        return
    what = f"the data nodes of {here.name}"
    try:
        # Also to the same: a certificate that it names may have changed.
        await gateway.send_to_nodes(here.name, new)
    except HoldfastError as error:
        report.needs_restart.append(f"{what}: {error.message}")
        await gateway.send_to_nodes(here.name, old)
    else:
        if old is None or new is None or not _same(old, new):
            report.applied.append(what if new is not None else f"{what} are gone")


async def _add(
    gateway: Gateway, quiver: str, one: DestinationPlan, report: Reloaded, what: str
) -> bool:
    """Begin a destination; False, and told, if it cannot be made as the file says."""
    try:
        await gateway.add_destination(quiver, one)
    except HoldfastError as error:
        report.needs_restart.append(f"{what}: {error.message}")
        return False
    report.applied.append(what)
    return True


def _same(one: Node, other: Node) -> bool:
    return (one.component, one.config, one.delivery) == (
        other.component,
        other.config,
        other.delivery,
    )


def _same_way(one: DestinationPlan, other: DestinationPlan) -> bool:
    if len(one.exporters) != len(other.exporters):
        return False
    if not all(map(_same, one.exporters, other.exporters)):
        return False
    return _settings_on(one.chains) == _settings_on(other.chains)


def _settings_on(chains: Iterable[ProcessorSteps]) -> list[list[object]]:
    return [
        [(step.node.name, step.node.component, step.node.config, step.port) for step in chain]
        for chain in chains
    ]
