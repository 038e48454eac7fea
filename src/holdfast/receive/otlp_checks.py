"""Checking OTLP requests without standing still: ordinary ones at once, large ones elsewhere.

protobuf's reader and orjson hold the interpreter's lock, so that a body of many megabytes would
stop everybody else. Such a body goes to a child process (`child.py`), which is `python -m` this
module. There memory is bounded, too: two bytes of a request can be an empty message that takes
fifty in memory, and a text of JSON takes ten times its size.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from holdfast.receive.child import CheckingChild, ChildAnswer, be_child
from holdfast.receive.responses import Reason, Refused
from holdfast.signals.otlp import codec
from holdfast.signals.otlp.json_form import to_protobuf
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.partial import divide
from holdfast.signals.otlp.problem import NotOtlp, TooMuchMemory

MB = 1024 * 1024
# A body is checked elsewhere from here on: as protobuf (3 ms), and as JSON (5 ms).
HEAVY_BYTES = MB
HEAVY_JSON_BYTES = 64 * 1024
# What the child may hold.
CHILD_MEMORY_BYTES = 1536 * MB


class CheckedRequest(NamedTuple):
    """A request that is one."""

    # As protobuf.
    body: bytes
    # Spans, data points or log records.
    items: int
    # What was left out of it, as a request of its own, and how many items that is.
    rejected: bytes = b""
    rejected_items: int = 0


class OtlpChecks:
    """Checks the requests of one receiver."""

    def __init__(self, *, takes_parts: bool = False) -> None:
        """With `takes_parts`, of a request that is not sound as a whole the sound items count."""
        self.takes_parts = takes_parts
        self.child = CheckingChild("holdfast.receive.otlp_checks", {"memory": CHILD_MEMORY_BYTES})

    async def check(self, kind: OtlpKind, body: bytes, *, is_json: bool) -> CheckedRequest:
        """Return a request as it is stored; raises `NotOtlp`, or `Refused` if it is too much."""
        if len(body) <= (HEAVY_JSON_BYTES if is_json else HEAVY_BYTES):
            return check_here(kind, body, is_json=is_json, takes_parts=self.takes_parts)
        asked = {"kind": kind.value, "is_json": is_json, "takes_parts": self.takes_parts}
        fields, data = await self.child.ask(asked, body)
        if "reason" in fields:
            raise NotOtlp(fields["reason"], fields["path"])
        if "items" not in fields:
            raise Refused(
                Reason.TOO_LARGE,
                f"reading this request takes more than {CHILD_MEMORY_BYTES} bytes of memory",
                "send smaller requests",
            )
        if not data:
            return CheckedRequest(b"" if is_json else body, fields["items"])
        sound_bytes, rejected_items = fields["sound_bytes"], fields["rejected_items"]
        return CheckedRequest(
            data[:sound_bytes], fields["items"], data[sound_bytes:], rejected_items
        )

    async def close(self) -> None:
        """End the child, if there is one."""
        await self.child.close()


def check_here(
    kind: OtlpKind, body: bytes, *, is_json: bool, takes_parts: bool = False
) -> CheckedRequest:
    """Return a request as it is stored, without waiting; raises `NotOtlp`."""
    binary = to_protobuf(kind, body) if is_json else body
    if takes_parts:
        return CheckedRequest(*divide(kind, binary))
    return CheckedRequest(binary, codec.check(kind, binary))


def _in_child(settings: Mapping[str, Any]) -> Callable[[Mapping[str, Any], bytes], ChildAnswer]:
    """Return what the child answers with."""
    # A bound that the kernel holds: protobuf takes memory outside of what Python could count. The
    # child may die of it and is started again; the gateway around it does not notice.
    memory_bytes = settings["memory"]
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))

    def answer(request: Mapping[str, Any], raw: bytes) -> ChildAnswer:
        try:
            checked = check_here(
                OtlpKind(request["kind"]),
                raw,
                is_json=request["is_json"],
                takes_parts=request["takes_parts"],
            )
        except NotOtlp as error:
            return ChildAnswer({"reason": error.reason, "path": error.path}, b"")
        except (MemoryError, TooMuchMemory):
            return ChildAnswer({}, b"")
        told = {
            "items": checked.items,
            "sound_bytes": len(checked.body),
            "rejected_items": checked.rejected_items,
        }
        # What came is not sent back as it came.
        is_new = request["is_json"] or checked.rejected_items
        return ChildAnswer(told, checked.body + checked.rejected if is_new else b"")

    return answer


if __name__ == "__main__":
    be_child(_in_child)
