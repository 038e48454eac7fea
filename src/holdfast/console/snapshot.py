"""A gateway at one moment, as pages show it: made of what its verb `status` answers.

Several workers are one gateway here. Counts are summed; of states the worst one is shown, since
that is what an operator has to look at, and each worker's own is kept beside it.

The account of a reader is the ledger's: accepted = delivered + waiting + everything else that can
become of an event. It is summed here and not derived, so that a page can say whether it holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.graph.open_quivers import DIRECT, HANDLERS
from holdfast.quiver.base.frame import Totals
from holdfast.quiver.statistics import SubscriberStatistics

# From what needs a person to what needs nobody.
WORST_FIRST = ("stalled", "auth_failed", "backing_off", "stopped", "paused", "running")
LOSSES = ("dropped", "expired", "damaged")


@dataclass(frozen=True)
class Account:
    """What became of everything that was accepted, for one reader; in events."""

    accepted: int = 0
    outcomes: Mapping[str, int] = field(default_factory=dict)
    waiting: int = 0

    @property
    def delivered(self) -> int:
        """Events that it has."""
        return self.outcomes.get("acked", 0)

    @property
    def lost(self) -> int:
        """Events that it wanted and will not get."""
        return sum(self.outcomes.get(name, 0) for name in LOSSES)

    @property
    def holds(self) -> bool:
        """Whether the equation is true."""
        return self.accepted == self.waiting + sum(self.outcomes.values())

    def plus(self, other: Account) -> Account:
        """Return the account of both."""
        outcomes = Counter(self.outcomes) + Counter(other.outcomes)
        return Account(self.accepted + other.accepted, dict(outcomes), self.waiting + other.waiting)


@dataclass(frozen=True)
class ReaderRow:
    """A subscriber of a quiver: a destination, a pipeline or a data node."""

    name: str
    quiver: str
    account: Account
    waiting_bytes: int
    oldest_age_s: float | None


@dataclass(frozen=True)
class HeldUp:
    """An event that a destination fails at; a worker's."""

    worker: int
    seq: int
    row: int
    code: str
    reason: str
    attempts: int
    age_s: float


@dataclass(frozen=True)
class DestinationRow:
    """One destination, over all workers."""

    name: str
    quiver: str
    state: str
    # By worker and core, where there are several.
    states: tuple[str, ...]
    # None where nothing is kept, or for a handler of rejected events.
    account: Account | None
    sent_events: int
    sent_bytes: int
    failed: Mapping[str, int]
    waiting_events: int
    waiting_bytes: int
    oldest_age_s: float | None
    in_flight_events: int
    breaker: str
    dead_lettered: Mapping[str, int]
    last_error: str | None
    stalled_by: str | None
    held: tuple[HeldUp, ...]

    @property
    def is_handler(self) -> bool:
        """Whether it gets rejected events, and not accepted ones."""
        return self.quiver == HANDLERS


@dataclass(frozen=True)
class ReceiverRow:
    """One receiver, over all workers."""

    name: str
    addresses: tuple[str, ...]
    received: int
    accepted: int
    rejected: Mapping[str, int]
    accepted_bytes: int
    requests: int
    connections: int


@dataclass(frozen=True)
class QuiverRow:
    """One buffer, over all workers."""

    name: str
    accepted: int
    used_bytes: int
    size_cap_bytes: int
    segments: int
    wal_bytes: int
    is_accepting: bool
    errors: tuple[str, ...]

    @property
    def fraction(self) -> float:
        """How full it is."""
        return min(1.0, self.used_bytes / max(1, self.size_cap_bytes))


@dataclass(frozen=True)
class GatewaySnapshot:
    """All of it."""

    is_ready: bool
    reasons: tuple[str, ...]
    # Whether some of it is not there yet.
    is_starting: bool
    workers: int
    # Of the worker that runs shortest.
    uptime_s: float
    receivers: tuple[ReceiverRow, ...]
    quivers: tuple[QuiverRow, ...]
    destinations: tuple[DestinationRow, ...]
    readers: tuple[ReaderRow, ...]
    # What lies in the dead letter queue, by store.
    dead_letters: Mapping[str, int]

    @property
    def accepted(self) -> int:
        """Events that all quivers accepted, ever; where nothing is kept, since the start."""
        if self.quivers:
            return sum(one.accepted for one in self.quivers)
        return sum(one.accepted for one in self.receivers)

    @property
    def lost(self) -> int:
        """Events that some reader wanted and will not get."""
        return sum(one.account.lost for one in self.readers)

    @property
    def adds_up(self) -> bool:
        """Whether every account holds."""
        return all(one.account.holds for one in self.readers)

    def destination(self, name: str) -> DestinationRow | None:
        """Return the destination of a name."""
        return next((one for one in self.destinations if one.name == name), None)


def snapshot_of(status: Mapping[str, Any]) -> GatewaySnapshot:
    """Return what `status` says, of one gateway or of the parent of several workers."""
    workers: list[Mapping[str, Any]] = status.get("workers", [status])
    readers = _readers(workers)
    letters: Counter[str] = Counter()
    for one in workers:
        letters.update(one["dead_letters"])
    return GatewaySnapshot(
        is_ready=status["ready"],
        reasons=tuple(status["reasons"]),
        is_starting=any(one["state"] in ("new", "replaying") for one in workers),
        workers=len(workers),
        uptime_s=min((one["uptime_s"] for one in workers), default=0.0),
        receivers=_receivers(workers),
        quivers=_quivers(workers),
        destinations=_destinations(workers, readers),
        readers=readers,
        dead_letters=dict(letters),
    )


def _receivers(workers: Iterable[Mapping[str, Any]]) -> tuple[ReceiverRow, ...]:
    found: dict[str, list[tuple[tuple[str, ...], Mapping[str, Any]]]] = {}
    for worker in workers:
        for name, one in worker["receivers"].items():
            addresses = tuple(worker["addresses"].get(name, ()))
            found.setdefault(name, []).append((addresses, one))
    return tuple(
        ReceiverRow(
            name,
            tuple(dict.fromkeys(address for addresses, _ in parts for address in addresses)),
            received=sum(one["received"] for _, one in parts),
            accepted=sum(one["accepted"] for _, one in parts),
            rejected=_summed(one["rejected"] for _, one in parts),
            accepted_bytes=sum(one["accepted_bytes"] for _, one in parts),
            requests=sum(one["requests"] for _, one in parts),
            connections=sum(one["connections"] for _, one in parts),
        )
        for name, parts in found.items()
    )


def _quivers(workers: Iterable[Mapping[str, Any]]) -> tuple[QuiverRow, ...]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for worker in workers:
        for name, cores in worker["quivers"].items():
            found.setdefault(name, []).extend(cores)
    return tuple(
        QuiverRow(
            name,
            accepted=sum(one["accepted_events"] for one in cores),
            used_bytes=sum(one["used_bytes"] for one in cores),
            size_cap_bytes=sum(one["size_cap_bytes"] for one in cores),
            segments=sum(one["segments"] for one in cores),
            wal_bytes=sum(one["wal_bytes"] for one in cores),
            # One that is only drained takes nothing, and need not.
            is_accepting=all(one["accepting"] or one["adopted"] for one in cores),
            errors=tuple(
                text
                for one in cores
                for text in (one["last_seal_error"], one["last_keeper_error"])
                if text
            ),
        )
        for name, cores in found.items()
    )


def _readers(workers: Iterable[Mapping[str, Any]]) -> tuple[ReaderRow, ...]:
    found: dict[tuple[str, str], list[SubscriberStatistics]] = {}
    for worker in workers:
        for quiver, cores in worker["quivers"].items():
            for core in cores:
                for fields in core["subscribers"]:
                    # A record here, a list where it came through a socket.
                    one = SubscriberStatistics(*fields)
                    found.setdefault((quiver, one.name), []).append(one)
    return tuple(
        ReaderRow(
            name,
            quiver,
            _joined(_account(one) for one in parts),
            sum(one.pending_bytes for one in parts),
            _oldest(one.oldest_age_s for one in parts),
        )
        for (quiver, name), parts in found.items()
    )


def _account(one: SubscriberStatistics) -> Account:
    outcomes = {name: Totals(*counts).events for name, counts in one.outcomes.items()}
    return Account(Totals(*one.accepted).events, outcomes, Totals(*one.pending).events)


def _joined(accounts: Iterable[Account]) -> Account:
    whole = Account()
    for one in accounts:
        whole = whole.plus(one)
    return whole


def _destinations(
    workers: Iterable[Mapping[str, Any]], readers: Iterable[ReaderRow]
) -> tuple[DestinationRow, ...]:
    found: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
    for worker in workers:
        for one in worker["destinations"]:
            found.setdefault(one["name"], []).append((worker["worker"], one))
    accounts = {(one.quiver, one.name): one.account for one in readers}
    return tuple(_destination(name, parts, accounts) for name, parts in found.items())


def _destination(
    name: str,
    parts: list[tuple[int, Mapping[str, Any]]],
    accounts: Mapping[tuple[str, str], Account],
) -> DestinationRow:
    all_parts = [one for _, one in parts]
    states = tuple(str(one["state"]) for one in all_parts)
    quiver: str = all_parts[0]["quiver"]
    # Several quivers may lead to one destination.
    quivers = dict.fromkeys(one["quiver"] for one in all_parts)
    known = [accounts[one, name] for one in quivers if (one, name) in accounts]
    return DestinationRow(
        name=name,
        quiver=quiver,
        state=min(states, key=_badness),
        states=states,
        account=_joined(known) if known and quiver not in (DIRECT, HANDLERS) else None,
        sent_events=sum(one["sent_events"] for one in all_parts),
        sent_bytes=sum(one["sent_bytes"] for one in all_parts),
        failed=_summed(one["failed"] for one in all_parts),
        waiting_events=sum(one["lag_events"] for one in all_parts),
        waiting_bytes=sum(one["lag_bytes"] for one in all_parts),
        oldest_age_s=_oldest(one["oldest_age_s"] for one in all_parts),
        in_flight_events=sum(one["in_flight_events"] for one in all_parts),
        breaker=next((b for one in all_parts if (b := str(one["breaker"])) != "closed"), "closed"),
        dead_lettered=_summed(one["dead_lettered_by_reason"] for one in all_parts),
        last_error=next((e for one in all_parts if (e := one["last_error"])), None),
        stalled_by=next((e for one in all_parts if (e := one["stalled_by"])), None),
        held=tuple(HeldUp(worker, **one["held"]) for worker, one in parts if one["held"]),
    )


def _badness(state: str) -> int:
    return WORST_FIRST.index(state) if state in WORST_FIRST else 0


def _summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    whole: Counter[str] = Counter()
    for one in counts:
        whole.update(one)
    return dict(whole)


def _oldest(ages_s: Iterable[float | None]) -> float | None:
    return max((age for age in ages_s if age is not None), default=None)
