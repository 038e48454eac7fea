"""Errors on the wire: every Holdfast error arrives as the class, with the words, that was raised.

They travel as JSON in the error details of the call (docs/reference/flight.md). Anything else that
goes wrong in a server is logged there and told as "the server failed": what a stack trace says is
not the client's business.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import pyarrow as pa
from pyarrow import flight

from holdfast import errors
from holdfast.errors import DataLoss, HoldfastError, NotAccepted, NotAllowed, OwnerGone

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
    if isinstance(error, NotAllowed):
        return flight.FlightUnauthenticatedError(error.message, details)
    if isinstance(error, NotAccepted):
        return flight.FlightUnavailableError(error.message, details)
    return flight.FlightServerError(error.message, details)


def from_flight(error: BaseException) -> HoldfastError:
    """Return the error that a server raised, or the one for a server that is not there."""
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
        hint="is it a Holdfast server, of the same version? its log tells more",
    )


def _from_fields(fields: dict[str, Any]) -> HoldfastError:
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
        with told():
            return work(*args, **kwargs)

    return answer


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Raise for the client what is raised inside."""
    try:
        yield
    except HoldfastError as error:
        raise to_flight(error) from error
    except flight.FlightError:
        raise
    except Exception as error:
        log.exception("a call failed")
        failed = HoldfastError(
            f"the server failed: {type(error).__name__}", hint="its log tells more"
        )
        raise to_flight(failed) from error


@contextlib.contextmanager
def calling() -> Iterator[None]:
    """Raise in a client what its server raised inside."""
    try:
        yield
    except (flight.FlightError, pa.ArrowException) as error:
        raise from_flight(error) from error
