"""What the OpenLineage endpoints say: refusals of their own, and the answer to a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from holdfast.receive.answers import Answer, Reason, Refused, json_answer, refusal
from holdfast.signals.openlineage.problem import Problem


def forbidden(why: str) -> Refused:
    """Return the refusal of an event that is not its sender's to send."""
    return Refused(Reason.FORBIDDEN, why, "see `namespaces` and `references` of its token")


def wrong_method(allowed: bytes) -> Answer:
    """Return the answer to a method that a path does not know."""
    return refusal(
        Reason.METHOD,
        "this method is not allowed here",
        f"use {allowed.decode()}",
        headers=((b"allow", allowed),),
    )


def fields_of(problems: Sequence[Problem]) -> bytes:
    """Return problems as JSON."""
    return orjson.dumps([problem.to_fields() for problem in problems])


def summary_of(problems: Sequence[Problem]) -> str:
    """Return what is wrong with an event of a batch, in one line."""
    first = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"invalid: {first.pointer or '/'}: {first.message}{more}. {first.hint}"


def batch_answer(
    received: int, failed: Mapping[int, str], position: str | None, *, kept: bool
) -> Answer:
    """Return the answer that the OpenLineage specification gives to a batch.

    Beside what it asks for: where the first accepted event is; the others follow it.
    """
    document: dict[str, object] = {
        "status": "partial_success" if failed else "success",
        "summary": {
            "received": received,
            "successful": received - len(failed),
            "failed": len(failed),
            "retriable": 0,
            "non_retriable": len(failed),
        },
    }
    if position is not None:
        document["position"] = position
    if failed:
        note = "" if kept else " Not all invalid events were kept as dead letters."
        document["failed_events"] = [
            {"index": index, "reason": reason + note, "retriable": False}
            for index, reason in failed.items()
        ]
    return json_answer(200, document)
