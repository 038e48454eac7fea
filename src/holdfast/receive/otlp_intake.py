"""What is done with a request of OTLP, whichever transport brought it.

    check     in full; what is not OTLP goes to the dead letters, and its sender is told
    append    the bytes that came (JSON as protobuf), one bundle per request, in its kind's slot
    count     items by signal: spans, data points, log records

Nothing here knows HTTP or gRPC: a transport hands over a body and its headers, and makes an answer
of what it gets back, or of the exception.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast import self_watch
from holdfast.dead_letters.letter import Letter
from holdfast.errors import BundleTooLarge
from holdfast.quiver import Receipt
from holdfast.quiver.base.config import AckLevel
from holdfast.receive.admission import TokenClient
from holdfast.receive.otlp_checks import HEAVY_BYTES, CheckedRequest, OtlpChecks, check_here
from holdfast.receive.receiver import FastIntake, ItemCounts, LeftPayload, ReceiverContext
from holdfast.receive.responses import OnStored, Reason, Refused
from holdfast.signals.event import unsendable_header
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.problem import NotOtlp

# What is larger is checked elsewhere, and has to wait for that.
FAST_BYTES = HEAVY_BYTES
# What the headers that are kept of a request may have together: more is refused by many backends.
KEPT_HEADERS_CHARACTERS_MAX = 4096


class OtlpSender(NamedTuple):
    """Who sent a request, and with which headers."""

    client: TokenClient
    headers: Iterable[tuple[bytes, bytes]]


class TakenRequest(NamedTuple):
    """What became of a request that was taken."""

    # False: processors before the buffer left nothing of it.
    is_stored: bool = True
    # What was left out because it is not valid.
    left_out: PartialSuccess | None = None


class PartialSuccess(NamedTuple):
    """What a sender is told of a request of which some items were not taken."""

    rejected_items: int
    message: str


def check_kept(headers: Mapping[str, str]) -> None:
    """Raise `Refused` if no backend would take headers that are sent on to it.

    Told to the sender now: later they would hold up everybody whose telemetry goes the same way.
    """
    hint = "send another value; the headers that are kept are those of `keep_headers`"
    if (name := unsendable_header(headers)) is not None:
        message = f"the header {name} begins or ends with a blank, or has control characters"
        raise Refused(Reason.INVALID, message, hint)
    if sum(map(len, headers.values())) > KEPT_HEADERS_CHARACTERS_MAX:
        message = f"headers that are kept have more than {KEPT_HEADERS_CHARACTERS_MAX} characters"
        raise Refused(Reason.INVALID, message, hint)


class OtlpIntake:
    """The way of requests into the quiver of one receiver."""

    def __init__(
        self,
        context: ReceiverContext,
        level: AckLevel,
        kept_headers: Sequence[str],
        *,
        takes_parts: bool = False,
    ) -> None:
        self.name = context.name
        self._quiver = context.quiver
        self._dead_letters = context.dead_letters
        self._before = context.before
        self._clock = context.seam.clock
        self._level = level
        self._kept_headers = {name.lower().encode(): name.lower() for name in kept_headers}
        self._checks = OtlpChecks(takes_parts=takes_parts)
        self._intakes: dict[OtlpKind, FastIntake] = {}
        self.counts = {kind: ItemCounts() for kind in OtlpKind}

    async def close(self) -> None:
        """End the child that checks large requests."""
        await self._checks.close()

    async def take(
        self, kind: OtlpKind, body: bytes, sender: OtlpSender, *, is_json: bool
    ) -> TakenRequest:
        """Make a request durable, and return what of it was left out.

        Raises `Refused` if it is not OTLP or too large, `NotAccepted` if there is no room.
        """
        if self_watch.installed is not None:
            self_watch.installed.look(body)
        try:
            checked = await self._checks.check(kind, body, is_json=is_json)
        except NotOtlp as error:
            raise await self._reject(kind, body, sender, error) from error
        binary, items, is_stored = checked.body, checked.items, True
        del body
        checked = checked._replace(body=b"")
        # Charged afterwards, because only now the items are known. One was charged when the request
        # was admitted; the rest may overdraw the account, and holds up what comes next.
        if sender.client.bucket is not None:
            sender.client.bucket.charge(max(0, items - 1))
        # An empty request is legal in OTLP, and there is nothing to keep of it.
        if not binary:
            return TakenRequest()
        try:
            headers = self._event_headers(sender)
        except Refused:
            self.counts[kind].refused += items
            raise
        dropped = 0
        if self._before is not None:
            binary, dropped = await self._led_through(kind, binary, headers, items)
            is_stored = bool(binary)
        try:
            if is_stored:
                appending = self._quiver.append_raw_async(
                    binary, slot=kind.slot, headers=[headers], level=self._level
                )
                del binary  # see `HttpApp._handle`
                await appending
        except BundleTooLarge as error:
            self.counts[kind].refused += items
            raise Refused(Reason.TOO_LARGE, error.message, error.hint) from error
        except BaseException:
            # Also if the call was cancelled because its client is gone: nobody was told that these
            # items are safe, and the client will send them again.
            self.counts[kind].refused += items
            raise
        self.counts[kind].accepted += items - dropped
        self.counts[kind].dropped_before_buffer += dropped
        # Only now: what was stored and not answered is sent again, and so are these.
        if not checked.rejected_items:
            return TakenRequest(is_stored)
        return TakenRequest(is_stored, await self._leave_out(kind, checked, sender))

    async def _led_through(
        self, kind: OtlpKind, body: bytes, headers: Mapping[str, str] | None, items: int
    ) -> LeftPayload:
        """Return what processors before the buffer leave of a request."""
        assert self._before is not None, "BUG: there are no processors"
        try:
            return await self._before(kind.slot, body, headers)
        except Refused:
            self.counts[kind].refused += items
            raise

    async def _leave_out(
        self, kind: OtlpKind, checked: CheckedRequest, sender: OtlpSender
    ) -> PartialSuccess:
        """Keep items that are not valid as a dead letter, and return what their sender is told."""
        count = checked.rejected_items
        self.counts[kind].rejected += count
        what = f"{count} of {count + checked.items} {kind.items} are not valid and were left out"
        kept = await self._keep_letter(kind, checked.rejected, sender, NotOtlp(what))
        where = "they are in the dead letters" if kept else "they were not kept"
        return PartialSuccess(count, f"{what}; {where}; do not send them again")

    def offer(self, kind: OtlpKind, body: bytes, sender: OtlpSender, on_stored: OnStored) -> bool:
        """Take an ordinary request in protobuf and call `on_stored` later, once; else False.

        False says nothing to the client: whatever is unusual takes the long way, `take`, which can
        wait, ask a child process and explain.
        """
        if len(body) > FAST_BYTES or not body or sender.client.bucket is not None:
            return False
        if self._before is not None:
            return False
        # Where parts are taken, the ids of spans are looked at, too.
        if kind is OtlpKind.TRACES and self._checks.takes_parts:
            return False
        try:
            items = check_here(kind, body, is_json=False).items
        except NotOtlp:
            return False
        if self_watch.installed is not None:
            self_watch.installed.look(body)
        intake = self._intakes.get(kind)
        if intake is None:
            intake = self._quiver.intake(slot=kind.slot, level=self._level)
            self._intakes[kind] = intake
        counts = self.counts[kind]

        def stored(outcome: Receipt | BaseException) -> None:
            if isinstance(outcome, Receipt):
                counts.accepted += items
            else:
                counts.refused += items
            on_stored(outcome)

        try:
            return intake.offer(body, self._event_headers(sender), stored)
        except (BundleTooLarge, Refused):
            return False

    def _event_headers(self, sender: OtlpSender) -> Mapping[str, str] | None:
        """Return what is stored beside a request: who sent it, and the headers that are kept."""
        known = sender.client.event_headers
        if not self._kept_headers:
            return known
        kept = {
            self._kept_headers[name]: value.decode("latin-1")
            for name, value in sender.headers
            if name in self._kept_headers
        }
        check_kept(kept)
        return {**(known or {}), **kept} or None

    async def _reject(
        self, kind: OtlpKind, body: bytes, sender: OtlpSender, error: NotOtlp
    ) -> Refused:
        """Keep a request that is not OTLP as a dead letter, and return what its sender is told."""
        kept = await self._keep_letter(kind, body, sender, error)
        hint = "it is in the dead letters" if kept else "it was not kept"
        return Refused(Reason.INVALID, str(error), f"send {kind.items} as OTLP says; {hint}")

    async def _keep_letter(
        self, kind: OtlpKind, body: bytes, sender: OtlpSender, error: NotOtlp
    ) -> bool:
        """Store a dead letter; False if there is no room for it."""
        names = {name.decode("latin-1"): value.decode("latin-1") for name, value in sender.headers}
        problem = {
            "pointer": error.path,
            "rule": "otlp",
            "message": error.reason,
            "hint": "check what sends it; it was not accepted",
        }
        letter = Letter(
            payload=body,
            reason=Reason.INVALID,
            origin=self.name,
            problems=(problem,),
            headers={**names, **(sender.client.event_headers or {})},
            received_ns=self._clock.wall_ns(),
            slot=kind.slot,
        )
        # Kept before the sender is told: clients drop what was answered with 400, and then this is
        # the only copy.
        return bool(await self._dead_letters.reject([letter]))
