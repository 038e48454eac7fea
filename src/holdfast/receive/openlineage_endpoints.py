"""The OpenLineage endpoints: one event, a batch of them, and a dry run.

    parse, validate, namespaces    what is wrong goes to the dead letters: 400
    append                         one bundle per request, in the commit group of the moment
    200                            after the sync

What is stored are the bytes that came, never a re-serialisation. What comes before, and the bounds
around it, are those of every protocol: http_app.py.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import orjson

from holdfast.dead_letters.letter import Letter
from holdfast.errors import BundleTooLarge
from holdfast.quiver import Receipt
from holdfast.quiver.base.config import AckLevel
from holdfast.receive.admission import TokenClient, Tokens, TokenSettings
from holdfast.receive.batches import NotABatch, split_json, split_lines
from holdfast.receive.body import RequestLimits
from holdfast.receive.checks import LIGHT_BYTES, Checked, Checks
from holdfast.receive.http_app import Endpoint, HttpApp, HttpRequest, RequestCounts
from holdfast.receive.openapi import openapi_document
from holdfast.receive.receiver import FastIntake, ReceiverContext
from holdfast.receive.responses import OnStored, Reason, Refused, Response, json_response, refusal
from holdfast.signals.openlineage.names import SLOT, Names
from holdfast.signals.openlineage.problem import Problem
from holdfast.signals.openlineage.validation import ValidationSettings, Verdict

OPENAPI_PATH = "/openapi.json"

_JSON_TYPES = {b"", b"application/json", b"text/json"}
_LINES_TYPES = {b"application/x-ndjson", b"application/ndjson", b"application/jsonl"}
_CHARSETS = {b"utf-8", b"utf8", b"us-ascii"}
# In a namespace they are nobody's: no pattern matches across lines.
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")
# After so many events of a batch, others get their turn.
_TURN_EVENTS = 64

# To an event of which processors before the buffer left nothing: it has no position.
_DROPPED = Response(200, b'{"status":"dropped"}')

log = logging.getLogger("holdfast.receive")


def openlineage_app(
    context: ReceiverContext,
    *,
    paths: Sequence[str],
    level: str,
    limits: RequestLimits,
    tokens: Sequence[TokenSettings],
    validation: ValidationSettings,
) -> HttpApp:
    """Return the app with all endpoints; `paths` are those of single events."""
    counts = RequestCounts()
    checks = Checks(validation, context.base_dir)
    for notice in checks.validator.notices:
        log.warning("%s: %s", context.name, notice)
    single = SingleEvent(context, counts, checks, AckLevel[level.upper()])
    batch = EventBatch(context, counts, checks, AckLevel[level.upper()], limits.max_batch_events)
    dry_run = DryRun(checks)
    endpoints: dict[str, Endpoint] = {}
    for path in paths:
        endpoints |= {path: single, path + "/batch": batch, path + "/validate": dry_run}
    document = openapi_document(paths, asks_token=bool(tokens))
    return HttpApp(
        context,
        counts,
        endpoints=endpoints,
        pages={OPENAPI_PATH: Response(200, orjson.dumps(document))},
        limits=limits,
        tokens=Tokens(tokens, context.seam),
        not_found_hint=f"send events to {paths[0]}; other paths: `aliases` and `prefixes`, "
        f"or {OPENAPI_PATH}",
        on_close=checks.close,
    )


class _LineageEndpoint:
    """What the endpoints that append have in common."""

    is_counted = True

    def __init__(
        self, context: ReceiverContext, counts: RequestCounts, checks: Checks, level: AckLevel
    ) -> None:
        self._name = context.name
        self._quiver = context.quiver
        self._before = context.before
        self._dead_letters = context.dead_letters
        self._clock = context.seam.clock
        self._counts = counts
        self._checks = checks
        self._level = level

    async def _check(self, event: bytes, request: HttpRequest) -> Checked:
        return await self._checks.check(event, with_names=request.client.namespaces is not None)

    async def _led_through(self, event: bytes, request: HttpRequest) -> bytes:
        """Return what processors before the buffer leave of an event; empty: nothing."""
        if self._before is None:
            return event
        passed = await self._before(SLOT, event, request.client.event_headers)
        return passed.payload

    async def _append(self, events: Sequence[bytes] | bytes, request: HttpRequest) -> Receipt:
        count = 1 if isinstance(events, bytes) else len(events)
        stored = request.client.event_headers
        headers = None if stored is None else [stored] * count
        appending = self._quiver.append_raw_async(
            events, slot=SLOT, headers=headers, level=self._level
        )
        del events
        return await appending

    def _letter(self, payload: bytes, problems: Sequence[Problem], request: HttpRequest) -> Letter:
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers
        }
        return Letter(
            payload=payload,
            reason=Reason.INVALID,
            origin=self._name,
            problems=tuple(problem.to_fields() for problem in problems),
            headers={**headers, **(request.client.event_headers or {})},
            received_ns=self._clock.wall_ns(),
            slot=SLOT,
        )


class SingleEvent(_LineageEndpoint):
    """Takes one event."""

    def __init__(
        self, context: ReceiverContext, counts: RequestCounts, checks: Checks, level: AckLevel
    ) -> None:
        super().__init__(context, counts, checks, level)
        self._intake: FastIntake | None = None
        self._accepted_head = b'{"status":"accepted","level":"%s","position":"%s/' % (
            level.name.lower().encode(),
            context.quiver.quiver_id.encode(),
        )

    def check_type(self, content_type: bytes) -> None:
        _check_json(content_type)

    async def handle(self, request: HttpRequest, body: bytes) -> Response:
        verdict, names = await self._check(body, request)
        # Validity first: namespaces are read from an event that is known to have its fields. What
        # is forbidden becomes no dead letter (see `EventBatch.handle`).
        if verdict.errors:
            return await self._reject(body, verdict, request)
        if names is not None and (why := forbidden(request.client, names)) is not None:
            raise Refused(Reason.FORBIDDEN, why, "see `namespaces` and `references` of its token")
        body = await self._led_through(body, request)
        if not body:
            self._counts.dropped_before_buffer += 1
            return _DROPPED
        size_bytes, appending = len(body), self._append(body, request)
        del body  # see `HttpApp._handle`
        answer = self.accepted(await appending, size_bytes)
        # Warnings never cost an event. They are spliced into the answer that is ready: most events
        # have none.
        if verdict.warnings:
            warnings = orjson.dumps([problem.to_fields() for problem in verdict.warnings])
            return answer._replace(body=b'%s,"warnings":%s}' % (answer.body[:-1], warnings))
        return answer

    def offer(self, request: HttpRequest, body: bytes, on_stored: OnStored) -> bool:
        # False is never an answer to the client: the request then takes the long way, `handle`,
        # which checks it once more and explains what is wrong. So this path may give up at any
        # step before the append, and at none behind it.
        if len(body) > LIGHT_BYTES or self._before is not None:
            return False
        client = request.client
        checked = self._checks.check_here(body, with_names=client.namespaces is not None)
        if checked.verdict.errors or checked.verdict.warnings:
            return False
        if checked.names is not None and forbidden(client, checked.names) is not None:
            return False
        if self._intake is None:
            # Made with the first event, because it belongs to the event loop that is running then.
            self._intake = self._quiver.intake(slot=SLOT, level=self._level)
        try:
            return self._intake.offer(body, client.event_headers, on_stored)
        except BundleTooLarge:
            return False

    def accepted(self, receipt: Receipt, size_bytes: int) -> Response:
        self._counts.accepted_events += 1
        self._counts.accepted_bytes += size_bytes
        # Put together by hand: this is the answer to nearly every request, and only a number in it
        # changes. The 0 is the row of the event in its bundle.
        return Response(200, b'%s%d/0"}' % (self._accepted_head, receipt.seq))

    async def _reject(self, body: bytes, verdict: Verdict, request: HttpRequest) -> Response:
        kept = await self._dead_letters.reject([self._letter(body, verdict.errors, request)])
        self._counts.rejected[Reason.INVALID] += 1
        return refusal(
            Reason.INVALID,
            "the event is not valid",
            "see errors; the event was not accepted",
            kept=kept,
            errors=[problem.to_fields() for problem in verdict.errors],
            warnings=[problem.to_fields() for problem in verdict.warnings],
        )


class EventBatch(_LineageEndpoint):
    """Takes many events, good ones and bad ones."""

    def __init__(
        self,
        context: ReceiverContext,
        counts: RequestCounts,
        checks: Checks,
        level: AckLevel,
        max_events: int,
    ) -> None:
        super().__init__(context, counts, checks, level)
        self._max_events = max_events

    def check_type(self, content_type: bytes) -> None:
        if not _is_lines(content_type):
            _check_json(content_type)

    async def handle(self, request: HttpRequest, body: bytes) -> Response:
        """Append all good events as one bundle; only then set the bad ones aside.

        In this order, because a batch that is refused as a whole is sent again as a whole.
        """
        try:
            events = await self._split(body, request)
        except NotABatch as error:
            return await self._reject(body, str(error), request)
        request.events = max(1, len(events))
        # One was charged when the request was admitted, before anybody knew how many events it
        # holds. The rest is charged as a debt: a batch is never cut in the middle; requests behind
        # it are refused until it is paid off.
        if request.client.bucket is not None:
            request.client.bucket.charge(len(events) - 1)
        good, failed, letters = await self._sort(events, request)
        stored = [left for event in good if (left := await self._led_through(event, request))]
        position = None
        if stored:
            receipt = await self._append(stored, request)
            position = f"{receipt.quiver_id}/{receipt.seq}/0"
        self._counts.accepted_events += len(stored)
        self._counts.accepted_bytes += sum(map(len, stored))
        self._counts.dropped_before_buffer += len(good) - len(stored)
        self._counts.rejected[Reason.INVALID] += len(letters)
        # Forbidden events become no dead letters: they belong to somebody else's namespace, and an
        # operator who sends them again would do what the producer was not allowed to do.
        self._counts.rejected[Reason.FORBIDDEN] += len(failed) - len(letters)
        kept = await self._dead_letters.reject(letters) if letters else True
        return _batch_response(len(events), failed, position, kept=kept)

    async def _split(self, body: bytes, request: HttpRequest) -> list[bytes]:
        """The body is cut, not parsed into objects, so that the stored bytes are the producer's
        own. None is a pause that the splitter offers: a large body must not keep other
        connections waiting.
        """
        events: list[bytes] = []
        is_lines = _is_lines(request.content_type)
        for event in split_lines(body) if is_lines else split_json(body):
            if event is None:
                await asyncio.sleep(0)
                continue
            events.append(event)
            if len(events) > self._max_events:
                raise Refused(
                    Reason.TOO_LARGE,
                    f"the batch has more than {self._max_events} events",
                    "send smaller batches, or raise limits.max_batch_events",
                )
        return events

    async def _sort(
        self, events: Sequence[bytes], request: HttpRequest
    ) -> tuple[list[bytes], dict[int, str], list[Letter]]:
        """Return the good events, why each of the others failed, and what is to be kept of them."""
        good: list[bytes] = []
        failed: dict[int, str] = {}
        letters = []
        for index, event in enumerate(events):
            if index % _TURN_EVENTS == _TURN_EVENTS - 1:
                await asyncio.sleep(0)
            verdict, names = await self._check(event, request)
            if verdict.errors:
                failed[index] = _summary(verdict.errors)
                letters.append(self._letter(event, verdict.errors, request))
                await asyncio.sleep(0)  # explaining takes a thousand times as long as accepting
            elif names is not None and (why := forbidden(request.client, names)) is not None:
                failed[index] = f"forbidden: {why}"
            else:
                good.append(event)
        return good, failed, letters

    async def _reject(self, body: bytes, message: str, request: HttpRequest) -> Response:
        hint = 'send a JSON array, {"events": […]}, or NDJSON as application/x-ndjson'
        problem = Problem("", None, "batch", message, hint)
        kept = await self._dead_letters.reject([self._letter(body, (problem,), request)])
        self._counts.rejected[Reason.INVALID] += 1
        return refusal(
            Reason.INVALID, message, hint, kept=kept, errors=[problem.to_fields()], warnings=[]
        )


class DryRun:
    """Checks an event more closely, and keeps nothing."""

    is_counted = False

    def __init__(self, checks: Checks) -> None:
        self._checks = checks

    def check_type(self, content_type: bytes) -> None:
        _check_json(content_type)

    async def handle(self, _: HttpRequest, body: bytes) -> Response:
        verdict, _names = await self._checks.check(body, thorough=True)
        return json_response(
            200,
            {
                "valid": verdict.ok,
                "kind": verdict.kind,
                "errors": [problem.to_fields() for problem in verdict.errors],
                "warnings": [problem.to_fields() for problem in verdict.warnings],
            },
        )


def forbidden(client: TokenClient, names: Names) -> str | None:
    """Say why an event is not the client's to send; None if it is.

    One with a duplicate key is not: readers differ in which of the two they keep, so that a
    backend might see another namespace than the one that was looked at here.
    """
    if client.namespaces is None:
        return None
    if not _all_match(names.namespaces, client.namespaces):
        return "this producer may not speak for one of its namespaces"
    if not _all_match(names.referred_namespaces, client.namespaces + client.references):
        return "this producer may not refer to one of its namespaces"
    if names.has_equal_keys:
        return "an object has a duplicate key, which this producer may not send"
    return None


def _all_match(names: Iterable[str], patterns: tuple[re.Pattern[str], ...]) -> bool:
    # Control characters are refused whatever the pattern says: its `*` would match them, too.
    return all(
        _CONTROL.search(name) is None and any(pattern.match(name) for pattern in patterns)
        for name in names
    )


@lru_cache(maxsize=64)
def _is_lines(content_type: bytes) -> bool:
    """Whether the body is NDJSON; raises `Refused` if it is not UTF-8."""
    kind, *parameters = [part.strip().lower() for part in content_type.split(b";")]
    for parameter in parameters:
        name, _, value = parameter.partition(b"=")
        if name.strip() == b"charset" and value.strip().strip(b'"') not in _CHARSETS:
            raise Refused(Reason.CONTENT_TYPE, "the charset is not UTF-8", "send JSON as UTF-8")
    return kind in _LINES_TYPES


@lru_cache(maxsize=64)
def _check_json(content_type: bytes) -> None:
    """Raise `Refused` unless the body is one JSON text."""
    hint = "send Content-Type: application/json"
    if _is_lines(content_type):
        hint = "send several events to the batch endpoint"
    kind = content_type.partition(b";")[0].strip().lower()
    if kind in _JSON_TYPES or (kind.startswith(b"application/") and kind.endswith(b"+json")):
        return
    raise Refused(Reason.CONTENT_TYPE, "the content type is not supported", hint)


def _summary(problems: Sequence[Problem]) -> str:
    """Return what is wrong with an event of a batch, in one line."""
    first = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"invalid: {first.pointer or '/'}: {first.message}{more}. {first.hint}"


def _batch_response(
    received: int, failed: Mapping[int, str], position: str | None, *, kept: bool
) -> Response:
    """Return the answer that the OpenLineage specification gives to a batch.

    Beside what it asks for: where the first accepted event is; the others follow it. It is a 200
    even if all events failed: any other status would make clients send the good ones again. No
    event is ever `retriable`: what may go well later was refused as a whole batch, before this.
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
    return json_response(200, document)
