"""The figures of a page by key: rendered into it at first, and sent to it while it is open.

One function makes both, so that a page that is open for an hour says the same as one opened now.
A key names what it is the figure of, such as `dest:marquez:waiting`; an element that shows it has
that key in `data-live`, one that is coloured by a state has it in `data-state-key`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.console.drawing import Drawing, PlacedBox, PlacedLine
from holdfast.console.snapshot import Account, DestinationRow, GatewaySnapshot, ReaderRow
from holdfast.console.words import age, counted, number, plain, rate, size
from holdfast.handoff.membership import SUBSCRIBER_PREFIX

# Above this share of its cap a buffer is shown as one to look at.
FULL_FRACTION = 0.8
# What needs a person, what is being tried again, and what is as it should be.
BAD = frozenset({"stalled", "auth_failed"})
UNEASY = frozenset({"backing_off", "paused", "stopped"})


@dataclass(frozen=True)
class LiveFigures:
    """Texts and states by key; what is sent to open pages."""

    texts: Mapping[str, str]
    # good, uneasy or bad.
    states: Mapping[str, str]
    # From 0 to 1, for bars.
    parts: Mapping[str, float]


def mood(state: str) -> str:
    """Return how a state of a destination is to be taken."""
    return "bad" if state in BAD else "uneasy" if state in UNEASY else "good"


def figures(snapshot: GatewaySnapshot, rates: Mapping[str, float], drawing: Drawing) -> LiveFigures:
    """Return everything that changes on the pages with live figures."""
    texts: dict[str, str] = {}
    states: dict[str, str] = {}
    parts: dict[str, float] = {}
    _whole(snapshot, rates, texts, states)
    for one in snapshot.destinations:
        texts |= _destination(one, rates)
        states[f"dest:{one.name}"] = mood(one.state)
    for reader in snapshot.readers:
        key = f"reader:{reader.quiver}/{reader.name}"
        texts |= {f"{key}:{name}": text for name, text in _account(reader.account).items()}
        states[key] = "good" if reader.account.holds else "bad"
    for receiver in snapshot.receivers:
        key = f"receiver:{receiver.name}"
        texts[f"{key}:accepted"] = number(receiver.accepted)
        texts[f"{key}:rejected"] = number(sum(receiver.rejected.values()))
        texts[f"{key}:rate"] = rate(rates.get(f"accepted:{receiver.name}"))
        texts[f"{key}:connections"] = number(receiver.connections)
    for buffer in snapshot.quivers:
        key = f"quiver:{buffer.name}"
        texts[f"{key}:accepted"] = number(buffer.accepted)
        texts[f"{key}:used"] = f"{size(buffer.used_bytes)} of {size(buffer.size_cap_bytes)}"
        texts[f"{key}:segments"] = number(buffer.segments)
        texts[f"{key}:log"] = size(buffer.wal_bytes)
        parts[key] = round(buffer.fraction, 3)
        is_full = buffer.fraction >= FULL_FRACTION
        states[key] = "bad" if not buffer.is_accepting else "uneasy" if is_full else "good"
    for box in drawing.boxes:
        note, state = _box(box, snapshot)
        texts[f"box:{box.box.name}"], states[f"box:{box.box.name}"] = note, state
    for line in drawing.lines:
        key = f"line:{line.start.name}>{line.end.name}"
        texts[f"{key}:rate"], texts[f"{key}:waiting"], states[key] = _line(line, snapshot, rates)
    return LiveFigures(texts, states, parts)


def verdict(snapshot: GatewaySnapshot) -> tuple[str, str]:
    """Return what an operator wants to know first, and how it is to be taken."""
    if not snapshot.adds_up:
        return "The accounts do not add up. Run `holdfast quiver fsck`.", "bad"
    if snapshot.lost:
        return f"{counted(snapshot.lost, 'event')} did not reach a destination.", "bad"
    return "Every accepted event is accounted for. Nothing is lost.", "good"


def _whole(
    snapshot: GatewaySnapshot,
    rates: Mapping[str, float],
    texts: dict[str, str],
    states: dict[str, str],
) -> None:
    waiting = max((one.account.waiting for one in snapshot.readers), default=0)
    texts["accepted"] = number(snapshot.accepted)
    texts["accepted:rate"] = rate(rates.get("accepted"))
    texts["waiting"] = number(waiting)
    texts["lost"] = number(snapshot.lost)
    texts["letters"] = number(sum(snapshot.dead_letters.values()))
    texts["uptime"] = age(snapshot.uptime_s)
    texts["ready"] = "ready" if snapshot.is_ready else "not ready"
    texts["reasons"] = "; ".join(snapshot.reasons)
    texts["verdict"], states["verdict"] = verdict(snapshot)
    states["ready"] = "good" if snapshot.is_ready else "bad"
    for name, count in snapshot.dead_letters.items():
        texts[f"letters:{name}"] = number(count)


def _destination(one: DestinationRow, rates: Mapping[str, float]) -> dict[str, str]:
    figures = {
        "state": plain(one.state),
        "waiting": number(one.waiting_events),
        "waiting_size": size(one.waiting_bytes),
        "age": age(one.oldest_age_s),
        "rate": rate(rates.get(f"sent:{one.name}")),
        "sent": number(one.sent_events),
        "in_flight": number(one.in_flight_events),
        "failed": number(sum(one.failed.values())),
        "error": one.last_error or "",
        **({} if one.account is None else _account(one.account)),
    }
    return {f"dest:{one.name}:{name}": text for name, text in figures.items()}


def _account(account: Account) -> dict[str, str]:
    outcomes = account.outcomes
    return {
        "accepted": number(account.accepted),
        "delivered": number(account.delivered),
        "pending": number(account.waiting),
        "filtered": number(outcomes.get("filtered", 0)),
        "dead_lettered": number(outcomes.get("dead_lettered", 0)),
        "given_up": number(outcomes.get("given_up", 0)),
        "lost": number(account.lost),
        "holds": "adds up" if account.holds else "does not add up",
    }


def _box(placed: PlacedBox, snapshot: GatewaySnapshot) -> tuple[str, str]:
    """Return the second line of a box, and its state."""
    box = placed.box
    if box.kind == "quiver":
        for one in snapshot.quivers:
            if one.name == box.name:
                state = "good" if one.is_accepting else "bad"
                return f"{size(one.used_bytes)}, {100 * one.fraction:.0f} % full", state
    destination = snapshot.destination(box.shows) if box.kind == "exporter" else None
    if destination is not None:
        return f"{box.type}, {plain(destination.state)}", mood(destination.state)
    return box.type, "good"


def _line(
    line: PlacedLine, snapshot: GatewaySnapshot, rates: Mapping[str, float]
) -> tuple[str, str, str]:
    """Return rate, what waits, and state of a line."""
    if line.label == "accepted":
        per_s = rates.get(f"accepted:{line.start.name}")
        return rate(per_s), "", "flowing" if per_s else "idle"
    if line.label != "read":
        return "", "", "idle"
    behind = _readers_of(line, snapshot)
    destination = snapshot.destination(line.end.shows)
    if destination is not None:
        per_s = rates.get(f"sent:{destination.name}")
        waiting, oldest_s = destination.waiting_events, destination.oldest_age_s
        state = mood(destination.state)
    else:
        per_s = sum(rates.get(f"read:{one.quiver}/{one.name}", 0.0) for one in behind)
        waiting = sum(one.account.waiting for one in behind)
        ages_s = [one.oldest_age_s for one in behind if one.oldest_age_s is not None]
        oldest_s, state = max(ages_s, default=None), "good"
    text = "" if not waiting else f"{number(waiting)} waiting, {age(oldest_s)}"
    return rate(per_s), text, state if state != "good" else "flowing" if per_s else "idle"


def _readers_of(line: PlacedLine, snapshot: GatewaySnapshot) -> list[ReaderRow]:
    """Return the readers that a box stands for: all data nodes are one box."""
    is_nodes = line.end.kind == "nodes"
    return [
        one
        for one in snapshot.readers
        if one.quiver == line.end.quiver
        and (one.name.startswith(SUBSCRIBER_PREFIX) if is_nodes else one.name == line.end.shows)
    ]
