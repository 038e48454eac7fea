"""What a sender asks of a data node, apart from asking it.

A worker decides what to say and what an answer means, and never says it itself: it hands out a call
and is given the reply, whenever that comes. So the same worker is driven by a thread that waits for
a network, and by a simulation in which the call, the node and the reply each have their own time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from holdfast.errors import BadInput, Damaged, HoldfastError, UnknownFormat
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.replica.messages import AnswerKind, NodeHealth, PartAnswer
from holdfast.replica.part import PartId
from holdfast.replica.transport import OutgoingPart, Transport, put_timeout_s, whole_health
from holdfast.replica.verify import verify

# What an offer, a statement or a probe may take.
CALL_TIMEOUT_S = 10.0


@dataclass
class PartsReply:
    """What became of the parts of a call."""

    answers: dict[PartId, PartAnswer] = field(default_factory=dict)
    # Found here, before it was sent.
    damaged: dict[PartId, str] = field(default_factory=dict)
    # No longer here: dropped, or resolved by somebody else.
    gone: set[PartId] = field(default_factory=set)


class Probe(NamedTuple):
    """Ask a node how it is."""

    known_digest: str
    timeout_s: float

    def run(self, transport: Transport) -> NodeHealth:
        """Ask, and return the whole statement."""
        return whole_health(transport, self.known_digest)


class TellNotOwned(NamedTuple):
    """Tell a node which seqs are none of its own."""

    node_id: str
    quiver_id: str
    ranges: IntervalSet
    timeout_s: float = CALL_TIMEOUT_S

    def run(self, transport: Transport) -> None:
        """Tell it."""
        transport.tell_not_owned(self.node_id, self.quiver_id, self.ranges)


class OfferParts(NamedTuple):
    """Ask a node which of some parts it needs."""

    node_id: str
    parts: tuple[OutgoingPart, ...]
    is_live: bool
    timeout_s: float = CALL_TIMEOUT_S

    def run(self, transport: Transport) -> PartsReply:
        """Ask."""
        answers = transport.offer(self.node_id, [one.part for one in self.parts])
        return PartsReply({answer.part: answer for answer in answers})


class SendParts(NamedTuple):
    """Send a node the parts it needs."""

    node_id: str
    parts: tuple[OutgoingPart, ...]
    is_live: bool

    @property
    def size_bytes(self) -> int:
        """The bytes of all parts."""
        return sum(one.part.size_bytes for one in self.parts)

    @property
    def timeout_s(self) -> float:
        """How long it may take."""
        return put_timeout_s(self.size_bytes)

    def run(self, transport: Transport) -> PartsReply:
        """Check every byte, and send what is sound: damage does not travel."""
        reply, sound = PartsReply(), []
        for one in self.parts:
            try:
                verify(one.disk, one.folder)
                sound.append(one)
            except (Damaged, BadInput, UnknownFormat) as error:
                if one.disk.exists(one.folder):
                    reply.damaged[one.part.id] = str(error)
                else:
                    reply.gone.add(one.part.id)
            except HoldfastError as error:
                # The disk of this machine, for the moment: neither the part nor the node.
                kind = AnswerKind.RETRY
                reply.answers[one.part.id] = PartAnswer(one.part.id, kind, str(error))
        if sound:
            for answer in transport.send(self.node_id, sound):
                reply.answers[answer.part] = answer
        return reply


NodeCall: TypeAlias = Probe | TellNotOwned | OfferParts | SendParts
# What came of it; an error is a result like any other.
Result: TypeAlias = NodeHealth | PartsReply | HoldfastError | None
