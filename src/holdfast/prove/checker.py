"""The checkers of quiver and gateway: the clients' journals against those of whoever received.

Everything that was answered must have arrived, nothing that was refused may have. An event may come
twice only if a kill explains it: nobody can know then whether the first arrival was acknowledged.

A quiver's readers note each acknowledgement, so what came before it may come again, and what came
after it may not. A backend of a gateway notes arrivals only, in order. An event must first arrive
in the order of the positions that clients were told (of telemetry, where they are told none, in the
order in which each client sent), and again only if a kill fell between the two arrivals and the
first of them was among the last that its connection could hold.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.prove.journal import CURSOR, LEASE, UNKNOWN, Sent, read_journals, whole_lines

EXAMPLES_MAX = 20
KILLS = "kills"


@dataclass
class EventVerdict:
    """What every checker of events counts, and the names of those that break a promise.

    A promise that only one of them can check is a field of its own verdict.
    """

    sent: int = 0
    accepted: int = 0
    unanswered: int = 0
    # Answered, and not there.
    lost: int = 0
    # Refused, and there.
    resurrected: int = 0
    # There, and sent by nobody.
    invented: int = 0
    equation: bool = True
    # The first few.
    examples: list[str] = field(default_factory=list)

    def note(self, text: str, count: int = 1) -> None:
        """Keep an example of a broken promise."""
        if count and len(self.examples) < EXAMPLES_MAX:
            self.examples.append(text)

    def count_sent(self, journals: Mapping[str, Sent]) -> None:
        """Count what clients sent, by what they were answered."""
        for append in journals.values():
            self.sent += append.bundles
            if append.answered:
                self.accepted += append.bundles
            elif append.refused != "no":
                self.unanswered += append.bundles


@dataclass
class Reading:
    """What one subscriber's journals say."""

    # By event: how often it was handed to the reader.
    delivered: Counter[str] = field(default_factory=Counter)
    # By event: the seq of its bundle.
    seqs: dict[str, int] = field(default_factory=dict)
    # Handed out again although the reader's acknowledgement had been accepted.
    after_acknowledgement: list[str] = field(default_factory=list)
    # Handed out again because a kill came before the acknowledgement: at-least-once allows it.
    in_flight_again: int = 0
    order_violations: int = 0


@dataclass
class QuiverVerdict(EventVerdict):
    """Events of a quiver, as its two readers got them."""

    recovered: int = 0
    delivered: int = 0
    unanswered_found: int = 0
    duplicated: int = 0
    redelivered_in_flight: int = 0
    torn_transactions: int = 0
    misplaced: int = 0
    order_violations: int = 0

    @property
    def ok(self) -> bool:
        """Whether every promise held."""
        broken = self.lost + self.duplicated + self.resurrected + self.invented
        broken += self.torn_transactions + self.misplaced + self.order_violations
        return broken == 0 and self.equation


def read_reader(directory: Path, subscriber: str) -> Reading:
    """Return what a subscriber's readers wrote down, over all incarnations."""
    reading = Reading()
    acknowledged: set[int] = set()
    for path in sorted(directory.glob(f"*.{subscriber}")):
        last_seq = -1
        for line in whole_lines(path):
            fact, seq_text, *names = line.split(" ")
            seq = int(seq_text)
            if fact == "K":
                acknowledged.add(seq)
                continue
            if subscriber == CURSOR and seq <= last_seq:
                reading.order_violations += 1
            last_seq = seq
            _take(reading, seq, names, seq in acknowledged)
    return reading


def _take(reading: Reading, seq: int, names: list[str], acknowledged: bool) -> None:
    """Add one delivery, and tell one that is allowed to be repeated from one that is not."""
    for name in names:
        if reading.delivered[name]:
            if acknowledged:
                reading.after_acknowledgement.append(name)
            else:
                reading.in_flight_again += 1
        reading.delivered[name] += 1
        reading.seqs[name] = seq


def check(journal_dir: Path) -> QuiverVerdict:
    """Compare the clients' journals with those of both readers."""
    verdict = QuiverVerdict()
    sent = read_journals(journal_dir)
    verdict.count_sent(sent)
    known = {event for one in sent.values() for event in one.events()}
    for subscriber in (CURSOR, LEASE):
        reading = read_reader(journal_dir, subscriber)
        verdict.invented += reading.delivered.pop(UNKNOWN, 0)
        for name in [name for name in reading.delivered if name not in known]:
            verdict.invented += 1
            verdict.note(f"{subscriber}: invented {name}")
        verdict.duplicated += len(reading.after_acknowledgement)
        for name in reading.after_acknowledgement:
            verdict.note(f"{subscriber}: again after acknowledgement {name}")
        verdict.redelivered_in_flight += reading.in_flight_again
        verdict.order_violations += reading.order_violations
        verdict.delivered += len(reading.delivered)
        for append in sent.values():
            _check_append(verdict, subscriber, append, reading)
        if subscriber == CURSOR:
            verdict.recovered = len(reading.delivered)
            verdict.unanswered_found = _unanswered_found(sent, reading)
    return verdict


def _unanswered_found(sent: dict[str, Sent], reading: Reading) -> int:
    """Return how many events are there whose clients never learnt what became of them."""
    unanswered = (one for one in sent.values() if not one.answered and one.refused != "no")
    return sum(event in reading.delivered for append in unanswered for event in append.events())


def _check_append(verdict: QuiverVerdict, subscriber: str, append: Sent, reading: Reading) -> None:
    """Compare what a client was answered with what one reader received of the same append."""
    events = append.events()
    present = sum(1 for event in events if event in reading.delivered)
    if append.answered:
        missing = len(events) - present
        verdict.lost += missing
        verdict.note(f"{subscriber}: lost {append.name}", missing)
        if present and reading.seqs[events[0]] != append.seq:
            verdict.misplaced += 1
            verdict.note(f"{subscriber}: misplaced {append.name}")
    elif append.refused == "no":
        verdict.resurrected += present
        verdict.note(f"{subscriber}: refused, yet there {append.name}", present)
    if 0 < present < len(events):
        verdict.torn_transactions += 1
        verdict.note(f"{subscriber}: torn transaction {append.name}")


@dataclass
class GatewayVerdict(EventVerdict):
    """Events of a gateway, as its backends got them."""

    # By destination: events that arrived, each counted once.
    delivered: dict[str, int] = field(default_factory=dict)
    order_violations: int = 0
    # Arrived again although nothing that was killed can explain it.
    duplicated: int = 0
    redelivered_in_flight: int = 0
    torn_batches: int = 0

    @property
    def ok(self) -> bool:
        """Whether every promise held."""
        broken = self.lost + self.order_violations + self.duplicated + self.resurrected
        return broken + self.invented + self.torn_batches == 0 and self.equation


def read_kills(directory: Path) -> list[int]:
    """Return when something was killed, in nanoseconds, in order."""
    path = directory / KILLS
    return [int(line) for line in whole_lines(path)] if path.exists() else []


def read_arrivals(directory: Path, destination: str) -> list[tuple[int, str]]:
    """Return time and name of every arrival at a backend, over all its lives."""
    arrivals = []
    for path in sorted(directory.glob(f"*.{destination}")):
        for line in whole_lines(path):
            _, time_ns, name = line.split(" ")
            arrivals.append((int(time_ns), name))
    return arrivals


def check_gateway(
    directory: Path, events_per_request: Mapping[str, int], *, by_client: bool = False
) -> GatewayVerdict:
    """Compare the clients' journals with those of all backends."""
    verdict = GatewayVerdict()
    sent, kills = read_journals(directory), read_kills(directory)
    verdict.count_sent(sent)
    for destination, in_flight_max in events_per_request.items():
        one_check = _DestinationCheck(destination, in_flight_max, sent, kills, verdict, by_client)
        one_check.check(read_arrivals(directory, destination))
    return verdict


class _DestinationCheck:
    """The arrivals at one backend."""

    def __init__(
        self,
        name: str,
        in_flight_max: int,
        sent: dict[str, Sent],
        kills: list[int],
        verdict: GatewayVerdict,
        by_client: bool,
    ) -> None:
        self._name = name
        self._in_flight_max = in_flight_max
        self._sent = sent
        self._kills = kills
        self._verdict = verdict
        self._by_client = by_client
        # By event: its last arrival, as a place in the journal.
        self._places: dict[str, int] = {}
        # By client, where each has its own order; else one for all.
        self._newest: dict[str, tuple[int, int]] = {}

    def check(self, arrivals: list[tuple[int, str]]) -> None:
        """Walk through the journal, then look what is missing in it."""
        times = [time_ns for time_ns, _ in arrivals]
        for place, (_, name) in enumerate(arrivals):
            if name == UNKNOWN or name.rpartition(".")[0] not in self._sent:
                self._verdict.invented += 1
                self._verdict.note(f"{self._name}: nobody sent {name}")
                continue
            if name in self._places:
                self._check_again(name, times, self._places[name], place)
            else:
                self._check_first(name)
            self._places[name] = place
        self._verdict.delivered[self._name] = len(self._places)
        for one in self._sent.values():
            self._check_append(one)

    def _check_first(self, name: str) -> None:
        """Check the order of first arrivals.

        Events of one append share its seq, so their number within it decides. One whose client got
        no answer has no known position and is not compared.
        """
        append, _, row = name.rpartition(".")
        seq = self._sent[append].seq
        if seq is None:
            return  # its client never learnt its position
        line = name.partition("-")[0] if self._by_client else ""
        newest = self._newest.get(line, (-1, -1))
        if (seq, int(row)) <= newest:
            self._verdict.order_violations += 1
            self._verdict.note(f"{self._name}: {name} at {seq} came after {newest}")
        self._newest[line] = max(newest, (seq, int(row)))

    def _check_again(self, name: str, times: list[int], before: int, now: int) -> None:
        """An event may come again after a kill, if it was in the last request before it."""
        kill = bisect.bisect_left(self._kills, times[before])
        killed = kill < len(self._kills) and self._kills[kill] <= times[now]
        behind = bisect.bisect_left(times, self._kills[kill]) - before if killed else 0
        if killed and behind <= self._in_flight_max:
            self._verdict.redelivered_in_flight += 1
            return
        self._verdict.duplicated += 1
        why = f"{behind} behind it before the kill" if killed else "nothing was killed in between"
        self._verdict.note(f"{self._name}: {name} came again, {why}")

    def _check_append(self, append: Sent) -> None:
        """Compare what a client was answered with what arrived here of the same request."""
        there = sum(event in self._places for event in append.events())
        if append.answered:
            self._verdict.lost += append.bundles - there
            if there < append.bundles:
                self._verdict.note(f"{self._name}: lost {append.name}")
        elif append.refused == "no" and there:
            self._verdict.resurrected += there
            self._verdict.note(f"{self._name}: refused, yet there {append.name}")
        if 0 < there < append.bundles:
            self._verdict.torn_batches += 1
            self._verdict.note(f"{self._name}: in part {append.name}")
