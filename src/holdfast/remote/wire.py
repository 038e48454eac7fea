"""The documents of the protocol: JSON in actions, descriptors and tickets, checked field by field.

Every document a client sends has `"v": 1`. A field that is unknown is passed over, one that is
missing or of the wrong kind is an error that names it. docs/reference/flight.md describes them all.

**Errors** arrive as the class, with the words, that was raised: as JSON in the error details of the
call. Anything else that goes wrong in a server is logged there and reported as "the server failed":
what a stack trace says is not the client's business.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, get_args

import pyarrow as pa

from holdfast import errors
from holdfast.errors import BadInput, DataLoss, HoldfastError, NotAccepted, NotAllowed, OwnerGone
from holdfast.quiver.base.config import AckLevel
from holdfast.quiver.engine.event_times import EventTimeStatement
from holdfast.quiver.ledger.subscriber import Position
from holdfast.quiver.log.inbox import Receipt
from holdfast.quiver.read.scan import OnDamage, TimeRange
from holdfast.quiver.read.sealed import SealedRead

if TYPE_CHECKING:  # imported where an error is turned: messages alone need no Flight
    from pyarrow import flight

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

log = logging.getLogger("holdfast.remote")

_CLASSES: dict[str, type[HoldfastError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, HoldfastError)
}


def to_flight(error: HoldfastError) -> flight.FlightError:
    """Return what a server raises so that its client gets this error."""
    from pyarrow import flight

    fields: dict[str, Any] = {
        "error": type(error).__name__,
        "message": error.message,
        "hint": error.hint,
        "path": error.path,
    }
    if isinstance(error, NotAccepted):
        fields |= {"stored": error.stored, "retry_after_s": error.retry_after_s}
    if isinstance(error, DataLoss):
        fields["ranges"] = error.ranges
    details = json.dumps(fields).encode()
    # The class of Flight's error matters to clients in other languages, which know nothing of
    # ours: gRPC's own codes say whether to log in, to try again, or to give up.
    if isinstance(error, NotAllowed):
        return flight.FlightUnauthenticatedError(error.message, details)
    if isinstance(error, NotAccepted):
        return flight.FlightUnavailableError(error.message, details)
    return flight.FlightServerError(error.message, details)


def from_flight(error: BaseException) -> HoldfastError:
    """Return the error that a server raised, or the one for a server that is not there."""
    from pyarrow import flight

    details = getattr(error, "extra_info", None)
    if details:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return _from_fields(json.loads(details))
    if isinstance(error, flight.FlightTimedOutError):
        return OwnerGone("the server did not answer in time", hint="try again; is it overloaded?")
    if isinstance(error, flight.FlightUnavailableError | flight.FlightCancelledError):
        return OwnerGone(
            "the server cannot be reached, or ended during the call",
            hint="check address, TLS and that it runs, then try again",
        )
    if isinstance(error, flight.FlightUnauthenticatedError):
        return NotAllowed("the server refused the caller", hint="check its token")
    return OwnerGone(
        f"the call failed: {type(error).__name__}",
        hint="is it a Holdfast server, of the same version? see its log",
    )


def _from_fields(fields: dict[str, Any]) -> HoldfastError:
    # A server of a later version may name a class that is not known here. Its words are still
    # right.
    kind = _CLASSES.get(fields["error"], HoldfastError)
    message, hint, path = fields["message"], fields["hint"], fields["path"]
    if issubclass(kind, DataLoss):
        ranges = [(first, end, outcome) for first, end, outcome in fields["ranges"]]
        return kind(message, hint=hint, ranges=ranges)
    if issubclass(kind, NotAccepted):
        stored, retry_after_s = fields["stored"], fields["retry_after_s"]
        return kind(message, hint=hint, path=path, stored=stored, retry_after_s=retry_after_s)
    return kind(message, hint=hint, path=path)


def answering(work: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Turn what a server's method raises into what its client gets."""

    @functools.wraps(work)
    def answer(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        with reporting():
            return work(*args, **kwargs)

    return answer


@contextlib.contextmanager
def reporting() -> Iterator[None]:
    """Raise for the client what is raised inside."""
    from pyarrow import flight

    try:
        yield
    except HoldfastError as error:
        raise to_flight(error) from error
    except flight.FlightError:
        raise
    except Exception as error:
        log.exception("a call failed")
        failed = HoldfastError(
            f"the server failed: {type(error).__name__}", hint="see the log of the server"
        )
        raise to_flight(failed) from error


@contextlib.contextmanager
def calling() -> Iterator[None]:
    """Raise in a client what its server raised inside."""
    from pyarrow import flight

    try:
        yield
    except (flight.FlightError, pa.ArrowException) as error:
        raise from_flight(error) from error


VERSION = 1
# More than any quiver will ever have, and some room for sums.
SEQ_MAX = 2**62
ROW_MAX = 2**31 - 1

_Value = TypeVar("_Value")


def encode(document: Mapping[str, Any]) -> bytes:
    """Return a document as bytes."""
    return json.dumps({"v": VERSION, **document}, separators=(",", ":")).encode()


class Fields:
    """A document that came over the wire."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Fields:
        """Return a document, or raise `BadInput`."""
        try:
            values = json.loads(bytes(data))
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise BadInput("the request is not a JSON object", hint="see docs/reference/flight.md")
        if values.get("v") != VERSION:
            raise BadInput(
                f"the request is of version {values.get('v')!r}, this server speaks {VERSION}",
                hint="use a client of the server's version",
            )
        return cls(values)

    def _get(self, name: str, kind: type[_Value], default: _Value | None) -> _Value:
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        # To JSON a whole number is a number, and to Python `True` is one.
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise _wrong(name, f"it must be of type {kind.__name__}")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text."""
        return self._get(name, str, default)

    def whole(self, name: str, default: int | None = None) -> int:
        """Return a whole number of 64 bits."""
        value = self._get(name, int, default)
        if not -(2**63) <= value < 2**63:
            raise _wrong(name, "it must fit into 64 bits")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a number."""
        return self._get(name, float, default)

    def one_of(self, name: str, known: Sequence[str], default: str) -> str:
        """Return one of some words."""
        word = self.text(name, default)
        if word not in known:
            raise _wrong(name, f"it must be one of {', '.join(known)}")
        return word

    def whole_or_none(self, name: str) -> int | None:
        """Return a whole number, if there is one."""
        return None if self.values.get(name) is None else self.whole(name)

    def text_or_none(self, name: str) -> str | None:
        """Return a text, if there is one."""
        return None if self.values.get(name) is None else self.text(name)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts."""
        values = self._get(name, list, None)
        if not all(isinstance(value, str) for value in values):
            raise _wrong(name, "it must be a list of texts")
        return tuple(values)

    def texts_or_none(self, name: str) -> tuple[str, ...] | None:
        """Return a list of texts, if there is one."""
        return None if self.values.get(name) is None else self.texts(name)

    def position(self, name: str) -> Position:
        """Return a position, written as [seq, row]."""
        value = self.values.get(name)
        if not isinstance(value, list) or [type(part) for part in value] != [int, int]:
            raise _wrong(name, "it must be [seq, row]")
        if not (0 <= value[0] <= SEQ_MAX and 0 <= value[1] <= ROW_MAX):
            raise _wrong(name, "no quiver has such a position")
        return Position(*value)

    def position_or_none(self, name: str) -> Position | None:
        """Return a position, if there is one."""
        return None if self.values.get(name) is None else self.position(name)


def _wrong(name: str, rule: str) -> BadInput:
    return BadInput(f"{name!r} is missing or wrong in the request", hint=rule)


# ----------------------------------------------------------------------- ranges


@dataclass(frozen=True)
class PlannedRange:
    """Consecutive events from `start` up to, not including, `end`, all of them sealed."""

    quiver_id: str
    start: Position
    end: Position
    events: int
    size_bytes: int
    # Where they are; each can be read apart.
    segments: tuple[str, ...]

    def to_fields(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_fields(cls, fields: Fields) -> PlannedRange:
        """Return what `to_fields` gave."""
        return cls(
            fields.text("quiver_id"),
            fields.position("start"),
            fields.position("end"),
            fields.whole("events"),
            fields.whole("size_bytes"),
            fields.texts("segments"),
        )


# ---------------------------------------------------------------------- tickets


def encode_ticket(quiver: str, wanted: SealedRead) -> bytes:
    """Return the ticket that reads sealed rows."""
    fields = asdict(wanted)
    times = fields.pop("times")
    return encode({"quiver": quiver, **fields, **times})


def decode_ticket(data: bytes) -> tuple[str, SealedRead]:
    """Return a quiver's name, and what to read of it."""
    fields = Fields.decode(data)
    on_damage = fields.one_of("on_damage", get_args(OnDamage), "fail")
    return fields.text("quiver"), SealedRead(
        quiver_id=fields.text("quiver_id"),
        segments=fields.texts("segments"),
        slot=fields.text_or_none("slot"),
        columns=fields.texts_or_none("columns"),
        start=fields.position_or_none("start"),
        end=fields.position_or_none("end"),
        times=TimeRange(fields.whole_or_none("since_us"), fields.whole_or_none("until_us")),
        on_damage=cast(OnDamage, on_damage),
    )


# ---------------------------------------------------------------------- answers


def receipt_fields(receipt: Receipt) -> dict[str, Any]:
    """Return a receipt as JSON can hold it."""
    return {**receipt._asdict(), "level": receipt.level.name}


def decode_receipt(fields: Fields) -> Receipt:
    """Return the receipt in a document."""
    return Receipt(
        fields.text("quiver_id"),
        fields.whole("seq"),
        fields.whole("bundles"),
        fields.whole("events"),
        decode_level(fields.text("level")),
        bool(fields.values.get("duplicate")),
    )


def decode_level(name: str) -> AckLevel:
    """Return the level of that name."""
    if name not in AckLevel.__members__:
        raise _wrong("level", f"it must be one of {', '.join(AckLevel.__members__)}")
    return AckLevel[name]


def statement_fields(statement: EventTimeStatement) -> dict[str, Any]:
    """Return a statement as JSON can hold it."""
    return asdict(statement)


def decode_statement(fields: Fields) -> EventTimeStatement:
    """Return the statement in a document."""
    return EventTimeStatement(
        quiver_id=fields.text("quiver_id"),
        position=fields.position("position"),
        claim_us=fields.whole_or_none("claim_us"),
        through_seq=fields.whole("through_seq"),
        min_event_us=fields.whole_or_none("min_event_us"),
        pending_events=fields.whole("pending_events"),
        max_event_us=fields.whole_or_none("max_event_us"),
        quiet_since_ns=fields.whole("quiet_since_ns"),
        clock_ns=fields.whole("clock_ns"),
        producer_watermarks=dict(fields.values["producer_watermarks"]),
    )
