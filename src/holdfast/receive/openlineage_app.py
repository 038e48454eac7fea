"""The OpenLineage endpoints as an ASGI app: check, append, answer.

    path, method, token, rate, headers     refused at once, nothing read
    body                                   read and unpacked within bounds
    parse, validate, namespaces            what is wrong goes to the dead letters: 400
    append                                 one bundle per request, in the commit group of the moment
    200                                    after the sync

No framework stands between uvicorn and this: a request is one pass through `__call__`. What it
stores are the bytes that came, never a re-serialisation.

Nearly all requests are one small event with nothing wrong about it. `take_at_once` takes those in
one step, and everything else not at all: then the same request comes through `__call__`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache, partial

import orjson

from holdfast.deadletter.letter import Letter
from holdfast.errors import BundleTooLarge, NotAccepted
from holdfast.quiver import Intake, Receipt
from holdfast.quiver.config import AckLevel
from holdfast.receive.admission import Admission, Slot
from holdfast.receive.answers import (
    Answer,
    Disconnected,
    Reason,
    Receive,
    Refused,
    Scope,
    Send,
    json_answer,
    refusal,
    send_answer,
)
from holdfast.receive.batches import NotABatch, split_json, split_lines
from holdfast.receive.body import encodings_of, read_body
from holdfast.receive.checks import LIGHT_BYTES, Checks
from holdfast.receive.openapi import openapi_document
from holdfast.receive.openlineage_answers import (
    batch_answer,
    fields_of,
    forbidden,
    summary_of,
    wrong_method,
)
from holdfast.receive.receiver import ReceiverContext, ReceiverStatistics
from holdfast.receive.request_limits import RequestLimits
from holdfast.receive.tokens import Client, Tokens, TokenSettings
from holdfast.signals.openlineage.names import names_of
from holdfast.signals.openlineage.problem import Problem
from holdfast.signals.openlineage.validation import ValidationSettings, Verdict

SLOT = "openlineage"
OPENAPI_PATH = "/openapi.json"

_JSON_TYPES = {b"", b"application/json", b"text/json"}
_LINES_TYPES = {b"application/x-ndjson", b"application/ndjson", b"application/jsonl"}
_CHARSETS = {b"utf-8", b"utf8", b"us-ascii"}
# An announced length with more digits than this is too large whatever they are.
_LENGTH_DIGITS_MAX = 18
# After so many events of a batch, others get their turn.
_TURN_EVENTS = 64
# A quiver that takes nothing, or a fault of ours, is told of so often.
_WARNING_INTERVAL_S = 60.0

log = logging.getLogger("holdfast.receive")


class Route(StrEnum):
    """What a path is for."""

    SINGLE = "single"
    BATCH = "batch"
    VALIDATE = "validate"
    OPENAPI = "openapi"


@dataclass(slots=True)
class _Request:
    """What the headers of one request say."""

    client: Client
    headers: Sequence[tuple[bytes, bytes]]
    is_lines: bool
    encodings: list[bytes]
    announced_bytes: int
    # How many events are lost to the client if it is refused now.
    events: int = 1


class OpenLineageApp:
    """Takes events for one quiver. Usable without a socket."""

    def __init__(
        self,
        context: ReceiverContext,
        *,
        paths: Sequence[str],
        level: str = "fsynced",
        limits: RequestLimits | None = None,
        tokens: Sequence[TokenSettings] = (),
        validation: ValidationSettings | None = None,
    ) -> None:
        self._name = context.name
        self._quiver = context.quiver
        self._dead_letters = context.dead_letters
        self._clock = context.seam.clock
        self._limits = limits or RequestLimits()
        self._body_limits = self._limits.body
        self._level = AckLevel[level.upper()]
        self._tokens = Tokens(tokens, context.seam)
        self._checks = Checks(validation, context.base_dir)
        self._admission = Admission(self._limits.max_requests, self._limits.max_in_flight_bytes)
        self._routes = _routes(paths)
        single = [path for path, route in self._routes.items() if route is Route.SINGLE]
        self.at_once_targets = frozenset(path.encode() for path in single)
        self._intake: Intake | None = None
        self._openapi = Answer(200, orjson.dumps(openapi_document(paths, asks_token=bool(tokens))))
        self._accepted_head = b'{"status":"accepted","level":"%s","position":"%s/' % (
            level.encode(),
            context.quiver.quiver_id.encode(),
        )
        self._stopping = False
        self._requests = 0
        self._accepted_events = 0
        self._accepted_bytes = 0
        self._rejected: Counter[str] = Counter()
        self._warned_s: dict[type[BaseException], float] = {}
        for notice in self._checks.validator.notices:
            log.warning("%s: %s", self._name, notice)

    def refuse_from_now_on(self) -> None:
        """Answer every new request with 503; what is under way goes on."""
        self._stopping = True

    async def close(self) -> None:
        """Let go of what checks heavy events."""
        await self._checks.close()

    def use_tokens(self, tokens: Tokens) -> None:
        """Ask for these from now on; what is under way is not asked again."""
        self._tokens = tokens

    def statistics(self) -> ReceiverStatistics:
        """Return a picture of this moment; connections are the server's."""
        return ReceiverStatistics(
            received=self._accepted_events + self._rejected.total(),
            accepted=self._accepted_events,
            rejected={str(reason): count for reason, count in self._rejected.items() if count},
            received_bytes=self._admission.received_bytes,
            accepted_bytes=self._accepted_bytes,
            requests=self._requests,
            in_flight_requests=self._admission.in_flight_requests,
            in_flight_bytes=self._admission.in_flight_bytes,
            connections=0,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await _refuse_other(scope, receive, send)
            return
        self._requests += 1
        try:
            answer = await self._answer(scope, receive)
        except Disconnected:
            return
        await send_answer(send, answer)

    # ------------------------------------------------------------- one request

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        """Return the answer to a request, whatever happens."""
        method: str = scope["method"]
        route = self._routes.get(scope["path"]) or self._tolerant_route(scope["path"])
        if route is None:
            if method == "POST":
                self._rejected[Reason.NOT_FOUND] += 1
            return self._not_found()
        if route is Route.OPENAPI:
            return self._openapi if method in ("GET", "HEAD") else wrong_method(b"GET, HEAD")
        if method != "POST":
            return wrong_method(b"POST")
        counted = self._rejected if route is not Route.VALIDATE else Counter[str]()
        request: _Request | None = None
        try:
            request = self._examine(scope, route)
            return await self._take(route, request, receive)
        except Refused as refused:
            counted[refused.reason] += request.events if request else 1
            return refused.answer
        except Disconnected:
            counted[Reason.DISCONNECTED] += 1
            raise
        except Exception as error:
            counted[Reason.UNAVAILABLE] += request.events if request else 1
            return self._unavailable(error)

    def _unavailable(self, error: BaseException) -> Answer:
        """Return the answer to a request that the quiver did not take, or that we failed at."""
        if isinstance(error, NotAccepted):
            self._warn(f"events are not accepted: {error.message}", error)
            return refusal(
                Reason.UNAVAILABLE, error.message, error.hint, retry_after_s=error.retry_after_s
            )
        # A fault of ours. The event may be fine, and its sender keeps it.
        self._warn("BUG: a request failed", error, exc_info=error)
        return refusal(
            Reason.UNAVAILABLE,
            "the gateway failed to handle this request",
            "send it again; the gateway's log says what happened",
        )

    def _examine(self, scope: Scope, route: Route) -> _Request:
        """Read the headers, and refuse at once what can be refused by them."""
        if self._stopping:
            raise Refused(
                Reason.STOPPING,
                "the gateway is stopping",
                "send it again",
                headers=((b"connection", b"close"),),
            )
        authorization = content_type = content_encoding = b""
        announced_bytes = 0
        headers = scope["headers"]
        for name, value in headers:
            if name == b"content-type":
                content_type = value
            elif name == b"content-length":
                announced_bytes = _length(value)
            elif name == b"content-encoding":
                content_encoding = b"%s,%s" % (content_encoding, value)
            elif name == b"authorization":
                authorization = value
        client = self._tokens.client(authorization)
        if client.bucket is not None:
            _hold_to_rate(client)
        return _Request(
            client=client,
            headers=headers,
            is_lines=_is_lines(content_type, route),
            encodings=encodings_of(content_encoding) if content_encoding else [],
            announced_bytes=announced_bytes,
        )

    async def _take(self, route: Route, request: _Request, receive: Receive) -> Answer:
        slot = self._admission.enter(min(request.announced_bytes, self._limits.max_body_bytes))
        try:
            body = await read_body(
                receive, request.announced_bytes, request.encodings, self._body_limits, slot
            )
            if route is Route.SINGLE:
                return await self._take_one(body, request)
            if route is Route.BATCH:
                return await self._take_batch(body, request)
            return await self._dry_run(body)
        except BundleTooLarge as error:
            raise Refused(Reason.TOO_LARGE, error.message, error.hint) from error
        finally:
            slot.leave()

    # ------------------------------------------------------------- single event

    async def _take_one(self, body: bytes, request: _Request) -> Answer:
        client = request.client
        verdict, names = await self._checks.check(body, with_names=client.namespaces is not None)
        if verdict.errors:
            return await self._reject_one(body, verdict, request)
        if names is not None and (why := client.forbidden(names)) is not None:
            raise forbidden(why)
        stored = client.event_headers
        receipt = await self._quiver.append_raw_async(
            body, slot=SLOT, headers=None if stored is None else [stored], level=self._level
        )
        answer = self._accepted(receipt, len(body))
        if verdict.warnings:
            body = b'%s,"warnings":%s}' % (answer.body[:-1], fields_of(verdict.warnings))
            return answer._replace(body=body)
        return answer

    def _accepted(self, receipt: Receipt, size_bytes: int) -> Answer:
        self._accepted_events += 1
        self._accepted_bytes += size_bytes
        return Answer(200, b'%s%d/0"}' % (self._accepted_head, receipt.seq))

    async def _reject_one(self, body: bytes, verdict: Verdict, request: _Request) -> Answer:
        kept = await self._dead_letters.reject([self._letter(body, verdict.errors, request)])
        self._rejected[Reason.INVALID] += 1
        return refusal(
            Reason.INVALID,
            "the event is not valid",
            "see errors; the event was not accepted",
            kept=kept,
            errors=[problem.to_fields() for problem in verdict.errors],
            warnings=[problem.to_fields() for problem in verdict.warnings],
        )

    async def _dry_run(self, body: bytes) -> Answer:
        verdict, _ = await self._checks.check(body, thorough=True)
        return json_answer(
            200,
            {
                "valid": verdict.ok,
                "kind": verdict.kind,
                "errors": [problem.to_fields() for problem in verdict.errors],
                "warnings": [problem.to_fields() for problem in verdict.warnings],
            },
        )

    # ------------------------------------------------- single event, the short way

    def take_at_once(
        self,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
        answered: Callable[[Answer], None],
    ) -> bool:
        """Take an event that nothing is wrong with; False: nothing was done."""
        client = self._plain_client(headers)
        if client is None or len(body) > min(LIGHT_BYTES, self._limits.max_body_bytes):
            return False
        document, verdict = self._checks.validator.parse_and_check(body)
        if verdict.errors or verdict.warnings:
            return False
        if client.namespaces is not None and client.forbidden(names_of(body, document)):
            return False
        if self._intake is None:
            self._intake = self._quiver.intake(slot=SLOT, level=self._level)
        try:
            slot = self._admission.enter(len(body))
        except Refused:
            return False
        told = partial(self._stored, slot, len(body), answered)
        try:
            taken = self._intake.offer(body, client.event_headers, told)
        except BundleTooLarge:
            taken = False
        if not taken:
            slot.leave()
            return False
        slot.received(len(body))  # there was room for them when it entered
        self._requests += 1
        return True

    def _plain_client(self, headers: Sequence[tuple[bytes, bytes]]) -> Client | None:
        """Return who sends, if the headers ask for nothing that takes more than one step."""
        authorization = content_type = b""
        for name, value in headers:
            if name == b"content-type":
                content_type = value
            elif name == b"authorization":
                authorization = value
            elif name == b"content-encoding":
                return None
        if self._stopping:
            return None
        try:
            _is_lines(content_type, Route.SINGLE)
            client = self._tokens.client(authorization)
        except Refused:
            return None
        # A rate is charged once, by whoever answers.
        return client if client.bucket is None else None

    def _stored(
        self,
        slot: Slot,
        size_bytes: int,
        answered: Callable[[Answer], None],
        outcome: Receipt | BaseException,
    ) -> None:
        slot.leave()
        if isinstance(outcome, Receipt):
            answered(self._accepted(outcome, size_bytes))
        else:
            self._rejected[Reason.UNAVAILABLE] += 1
            answered(self._unavailable(outcome))

    # -------------------------------------------------------------------- batch

    async def _take_batch(self, body: bytes, request: _Request) -> Answer:
        """Append all good events as one bundle; only then set the bad ones aside.

        In this order, because a batch that is refused as a whole is sent again as a whole.
        """
        try:
            events = await self._split(body, request)
        except NotABatch as error:
            return await self._reject_batch(body, str(error), request)
        request.events = max(1, len(events))
        if request.client.bucket is not None:
            request.client.bucket.charge(len(events) - 1)
        good, failed, letters = await self._sort(events, request)
        position = None
        if good:
            stored = request.client.event_headers
            headers = None if stored is None else [stored] * len(good)
            receipt = await self._quiver.append_raw_async(
                good, slot=SLOT, headers=headers, level=self._level
            )
            position = f"{receipt.quiver_id}/{receipt.seq}/0"
        self._accepted_events += len(good)
        self._accepted_bytes += sum(map(len, good))
        self._rejected[Reason.INVALID] += len(letters)
        self._rejected[Reason.FORBIDDEN] += len(failed) - len(letters)
        kept = await self._dead_letters.reject(letters) if letters else True
        return batch_answer(len(events), failed, position, kept=kept)

    async def _split(self, body: bytes, request: _Request) -> list[bytes]:
        events: list[bytes] = []
        for event in split_lines(body) if request.is_lines else split_json(body):
            if event is None:
                await asyncio.sleep(0)
                continue
            events.append(event)
            if len(events) > self._limits.max_batch_events:
                raise Refused(
                    Reason.TOO_LARGE,
                    f"the batch has more than {self._limits.max_batch_events} events",
                    "send smaller batches, or raise limits.max_batch_events",
                )
        return events

    async def _sort(
        self, events: Sequence[bytes], request: _Request
    ) -> tuple[list[bytes], dict[int, str], list[Letter]]:
        """Return the good events, why each of the others failed, and what is to be kept of them."""
        good: list[bytes] = []
        failed: dict[int, str] = {}
        letters = []
        client = request.client
        for index, event in enumerate(events):
            if index % _TURN_EVENTS == _TURN_EVENTS - 1:
                await asyncio.sleep(0)
            checked = self._checks.check(event, with_names=client.namespaces is not None)
            verdict, names = await checked
            if verdict.errors:
                failed[index] = summary_of(verdict.errors)
                letters.append(self._letter(event, verdict.errors, request))
                await asyncio.sleep(0)  # explaining takes a thousand times as long as accepting
            elif names is not None and (why := client.forbidden(names)) is not None:
                failed[index] = f"forbidden: {why}"
            else:
                good.append(event)
        return good, failed, letters

    async def _reject_batch(self, body: bytes, message: str, request: _Request) -> Answer:
        hint = 'send a JSON array, {"events": […]}, or NDJSON as application/x-ndjson'
        problem = Problem("", None, "batch", message, hint)
        kept = await self._dead_letters.reject([self._letter(body, (problem,), request)])
        self._rejected[Reason.INVALID] += 1
        return refusal(
            Reason.INVALID, message, hint, kept=kept, errors=[problem.to_fields()], warnings=[]
        )

    # ----------------------------------------------------------------- in here

    def _letter(self, payload: bytes, problems: Sequence[Problem], request: _Request) -> Letter:
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

    def _tolerant_route(self, path: str) -> Route | None:
        """Find a path that was put together with a slash too many."""
        if "//" not in path:
            return None
        return self._routes.get("/" + "/".join(part for part in path.split("/") if part))

    def _not_found(self) -> Answer:
        proper = next(iter(self._routes))
        return refusal(
            Reason.NOT_FOUND,
            "nothing is here",
            f"send events to {proper}; other paths: `aliases` and `prefixes`, or {OPENAPI_PATH}",
        )

    def _warn(
        self, message: str, error: BaseException, *, exc_info: BaseException | None = None
    ) -> None:
        """Say what goes wrong, each kind of it now and then."""
        now_s = self._clock.monotonic_s()
        warned_s = self._warned_s.get(type(error))
        if warned_s is None or now_s - warned_s >= _WARNING_INTERVAL_S:
            self._warned_s[type(error)] = now_s
            log.warning("%s: %s", self._name, message, exc_info=exc_info)


def _routes(paths: Sequence[str]) -> Mapping[str, Route]:
    routes = {}
    for path in paths:
        for suffix, route in (
            ("", Route.SINGLE),
            ("/batch", Route.BATCH),
            ("/validate", Route.VALIDATE),
        ):
            routes[path + suffix] = route
            # No redirect: it would turn a POST into a GET.
            routes[path + suffix + "/"] = route
    return {**routes, OPENAPI_PATH: Route.OPENAPI}


@lru_cache(maxsize=64)
def _is_lines(content_type: bytes, route: Route) -> bool:
    """Whether the body is NDJSON; raises `Refused` if it is nothing we read."""
    kind, *parameters = [part.strip().lower() for part in content_type.split(b";")]
    for parameter in parameters:
        name, _, value = parameter.partition(b"=")
        if name.strip() == b"charset" and value.strip().strip(b'"') not in _CHARSETS:
            raise Refused(Reason.CONTENT_TYPE, "the charset is not UTF-8", "send JSON as UTF-8")
    if kind in _JSON_TYPES or (kind.startswith(b"application/") and kind.endswith(b"+json")):
        return False
    if kind in _LINES_TYPES and route is Route.BATCH:
        return True
    hint = "send Content-Type: application/json"
    if kind in _LINES_TYPES:
        hint = "send several events to the batch endpoint"
    raise Refused(Reason.CONTENT_TYPE, "the content type is not supported", hint)


def _length(value: bytes) -> int:
    if not value.isdigit():
        return 0
    return int(value[: _LENGTH_DIGITS_MAX + 1])


def _hold_to_rate(client: Client) -> None:
    assert client.bucket is not None
    wait_s = client.bucket.wait_s()
    if wait_s > 0:
        raise Refused(
            Reason.RATE,
            "this producer sends faster than it may",
            "send it again after the seconds in Retry-After; see tokens.events_per_s",
            retry_after_s=wait_s,
        )
    client.bucket.charge(1)


async def _refuse_other(scope: Scope, receive: Receive, send: Send) -> None:
    """Let a server start and stop around the app; there are no WebSockets."""
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
