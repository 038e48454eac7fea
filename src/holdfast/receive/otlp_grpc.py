"""OTLP over gRPC: one call, `Export`, for each signal.

Nothing is answered with a partial success: a request is stored as a whole or not at all. A client
does not repeat what was left out of a partial success, so that would be a way to lose data.
"""

from __future__ import annotations

from holdfast import self_watch
from holdfast.grpc.calls import Method, ServerCall
from holdfast.quiver import Receipt
from holdfast.receive.grpc_server import client_of
from holdfast.receive.http_app import RequestCounts
from holdfast.receive.otlp_intake import OtlpIntake, OtlpSender
from holdfast.signals.otlp.codec import response
from holdfast.signals.otlp.kinds import OtlpKind

# An `Export…Response` without a partial success.
_ALL_TAKEN = b""


def otlp_methods(intake: OtlpIntake, counts: RequestCounts) -> dict[str, Method]:
    """Return the methods of all signals, by their paths."""
    return {kind.grpc_path: OtlpMethod(kind, intake, counts) for kind in OtlpKind}


class OtlpMethod:
    """Takes the requests of one signal."""

    def __init__(self, kind: OtlpKind, intake: OtlpIntake, counts: RequestCounts) -> None:
        self._kind = kind
        self._intake = intake
        self._counts = counts

    async def handle(self, body: bytes, call: ServerCall) -> bytes:
        began_ns = self_watch.begin()
        sender = OtlpSender(client_of(call), call.headers)
        size_bytes = len(body)
        taking = self._intake.take(self._kind, body, sender, is_json=False)
        del body  # it would stay beside the bundle that is made of it
        try:
            is_stored, left_out = await taking
        except Exception as error:
            self._tell_of(began_ns, error)
            raise
        if is_stored:
            self._count(size_bytes)
        else:
            self._counts.dropped_before_buffer += 1
        self._tell_of(began_ns)
        return _ALL_TAKEN if left_out is None else response(self._kind, *left_out)

    def offer(self, body: bytes, call: ServerCall) -> bool:
        began_ns = self_watch.begin()
        size_bytes = len(body)

        def stored(outcome: Receipt | BaseException) -> None:
            if isinstance(outcome, Receipt):
                self._count(size_bytes)
                call.answer(_ALL_TAKEN)
                self._tell_of(began_ns)
            else:
                call.fail(outcome)
                self._tell_of(began_ns, outcome)

        sender = OtlpSender(client_of(call), call.headers)
        return self._intake.offer(self._kind, body, sender, stored)

    def _tell_of(self, began_ns: int, error: BaseException | None = None) -> None:
        if began_ns:
            told = {"receiver": self._intake.name, "rpc.method": self._kind.grpc_path}
            # Not its text, which may quote what came.
            failure = "" if error is None else f"refused: {type(error).__name__}"
            self_watch.end(self_watch.OwnSpan("receive", True, began_ns, told, failure))

    def _count(self, size_bytes: int) -> None:
        self._counts.accepted_events += 1
        self._counts.accepted_bytes += size_bytes
