"""Credentials: they arrive, tokens are renewed in time, and no secret is ever shown."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from typing import Any

import pytest
from pydantic import ValidationError
from tests.deliver.exporters.backend import (
    Backend,
    Step,
    answer,
    close_at_once,
    close_mid_body,
    endless_body,
    hang_before_headers,
)
from tests.deliver.exporters.sending import context, event, events, send, send_one, with_exporter
from tests.deliver.exporters.token_endpoint import CLIENT_ID, CLIENT_SECRET, Tokens
from tests.patience import PATIENCE_S, SCALE
from tests.support.certificates import Certificates
from tests.support.clock import ManualClock

from holdfast.deliver.exporter import Answer, Exporter, FailureClass
from holdfast.deliver.exporters import http
from holdfast.errors import BadConfig
from holdfast.seam import Seam

HUSH = "hush-hush-42"


def exporter(url: str, seam: Seam | None = None, **config: Any) -> Exporter:
    return http.make(http.Config(url=url, **config), context(seam=seam))


@pytest.mark.parametrize(
    ("auth", "header", "value"),
    [
        ({"type": "api_key", "key": "k1"}, "x-api-key", "k1"),
        ({"type": "api_key", "key": "k1\n", "header": "Api-Token"}, "api-token", "k1"),
        ({"type": "bearer", "token": "t.o.k"}, "authorization", "Bearer t.o.k"),
        (
            {"type": "basic", "username": "me", "password": "p:é"},
            "authorization",
            "Basic " + base64.b64encode("me:p:é".encode()).decode(),
        ),
    ],
)
def test_credentials_arrive(
    backend: Backend, auth: dict[str, str], header: str, value: str
) -> None:
    assert send_one(exporter(backend.url, auth=auth)) is None
    assert backend.requests[0].headers[header] == value


def test_further_headers(backend: Backend) -> None:
    headers = {"X-Tenant": "a", "User-Agent": "mine"}
    assert send_one(exporter(backend.url, headers=headers)) is None
    assert backend.requests[0].headers["x-tenant"] == "a"
    assert backend.requests[0].headers["user-agent"] == "mine"


@pytest.mark.parametrize("status", [401, 403])
def test_fixed_credentials_are_not_tried_twice(backend: Backend, status: int) -> None:
    backend.steps = [answer(status)]
    failure = send_one(exporter(backend.url, auth={"type": "bearer", "token": HUSH}))
    assert failure is not None
    assert failure.kind is FailureClass.AUTH
    assert len(backend.requests) == 1


@pytest.mark.parametrize(
    "config",
    [
        {"auth": {"type": "bearer", "token": f"{HUSH}\nX-Evil: 1"}},
        {"auth": {"type": "bearer", "token": "\n"}},
        {"auth": {"type": "api_key", "key": f"{HUSH}\x00"}},
        {"headers": {"X-A": f"{HUSH}\r\nX-Evil: 1"}},
    ],
)
def test_secrets_that_no_header_can_hold(config: dict[str, Any]) -> None:
    with pytest.raises(BadConfig) as raised:
        exporter("http://h", **config)
    assert HUSH not in str(raised.value)


@pytest.mark.parametrize(
    "auth",
    [
        {"type": "api_key"},
        {"type": "bearer"},
        {"type": "kerberos"},
        {"type": "basic", "username": "a:b", "password": "c"},
        {"type": "api_key", "key": "k", "header": "Host"},
        {"type": "oauth2", "token_url": "h", "client_id": "a", "client_secret": "b"},
    ],
)
def test_credentials_that_cannot_be_meant(auth: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        http.Config.model_validate({"url": "http://h", "auth": auth})


# OAuth2.


def oauth2(endpoint: Backend, **changes: Any) -> dict[str, Any]:
    given = {
        "type": "oauth2",
        "token_url": f"{endpoint.url}/oauth/token",
        "client_id": CLIENT_ID,
        "client_secret": CLIENT_SECRET,
    }
    return given | changes


@pytest.mark.parametrize("client_auth", ["basic", "body"])
def test_a_token_is_fetched_once_and_used(client_auth: str) -> None:
    tokens = Tokens()
    with tokens.endpoint() as endpoint, tokens.backend() as backend:
        auth = oauth2(endpoint, client_auth=client_auth, scope="a b", audience="lineage")
        made = exporter(backend.url, auth=auth)
        assert send(made, *([e] for e in events(5))) == [Answer()] * 5
        assert (len(endpoint.requests), len(backend.requests)) == (1, 5)
    (form,) = tokens.forms
    assert form["scope"] == "a b"
    assert form["audience"] == "lineage"
    assert ("client_secret" in form) is (client_auth == "body")


def test_lanes_share_one_token() -> None:
    tokens = Tokens()

    async def use(started: Exporter) -> list[Answer]:
        return await asyncio.gather(*(started.send([event(seq)]) for seq in range(12)))

    with tokens.endpoint() as endpoint, tokens.backend() as backend:
        made = exporter(backend.url, auth=oauth2(endpoint), max_connections=4)
        assert with_exporter(made, use) == [Answer()] * 12
        assert tokens.given == 1


@pytest.mark.parametrize(
    ("expires_in", "still_good_s", "renewed_s"),
    [
        (3600, 3560, 3571),
        ("3600", 3560, 3571),
        (10, 8.9, 9.1),
        (None, 260, 271),
        ("soon", 260, 271),
        (1e12, 86_360, 86_371),
    ],
)
def test_a_token_is_renewed_shortly_before_it_ends(
    expires_in: Any, still_good_s: float, renewed_s: float
) -> None:
    tokens, clock = Tokens(expires_in=expires_in), ManualClock(1000.0)

    async def use(started: Exporter) -> None:
        for after_s, given in ((0, 1), (still_good_s, 1), (renewed_s, 2)):
            clock.now_s = 1000.0 + after_s
            assert await started.send([event()]) == Answer()
            assert tokens.given == given

    with tokens.endpoint() as endpoint, tokens.backend() as backend:
        with_exporter(exporter(backend.url, Seam(clock=clock), auth=oauth2(endpoint)), use)


def test_a_token_without_any_life_is_used_for_one_request() -> None:
    tokens = Tokens(expires_in=0)
    with tokens.endpoint() as endpoint, tokens.backend() as backend:
        made = exporter(backend.url, auth=oauth2(endpoint))
        assert send(made, [event()], [event()]) == [Answer(), Answer()]
        assert tokens.given == 2


def test_a_revoked_token_is_renewed_once_and_the_event_sent_again() -> None:
    tokens = Tokens()

    async def use(started: Exporter) -> None:
        assert await started.send([event(1)]) == Answer()
        tokens.revoke()
        assert await started.send([event(2)]) == Answer()

    with tokens.endpoint() as endpoint, tokens.backend() as backend:
        with_exporter(exporter(backend.url, auth=oauth2(endpoint)), use)
        keys = [request.headers["idempotency-key"] for request in backend.requests]
    assert tokens.given == 2
    assert keys == [event(seq).idempotency_key for seq in (1, 2, 2)]


def test_a_backend_that_takes_no_token_is_asked_twice_and_no_more() -> None:
    tokens = Tokens()
    with tokens.endpoint() as endpoint, Backend(steps=[answer(401)]) as backend:
        failure = send_one(exporter(backend.url, auth=oauth2(endpoint)))
        assert (len(endpoint.requests), len(backend.requests)) == (2, 2)
    assert failure is not None
    assert (failure.kind, failure.code) == (FailureClass.AUTH, "401")


def test_a_forbidden_request_is_no_reason_for_a_new_token() -> None:
    tokens = Tokens()
    with tokens.endpoint() as endpoint, Backend(steps=[answer(403)]) as backend:
        failure = send_one(exporter(backend.url, auth=oauth2(endpoint)))
        assert (len(endpoint.requests), len(backend.requests)) == (1, 1)
    assert failure is not None
    assert failure.kind is FailureClass.AUTH


def json_answer(status: int = 200, **fields: Any) -> Step:
    return answer(status, json.dumps(fields).encode())


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        *((answer(s), FailureClass.AUTH) for s in (400, 401, 403, 413)),
        *((answer(s), FailureClass.TRANSIENT) for s in (301, 404, 408, 429, 500, 502, 503)),
        (answer(200, b"<html>" + HUSH.encode()), FailureClass.TRANSIENT),
        (answer(200, b"[]"), FailureClass.TRANSIENT),
        (answer(200), FailureClass.TRANSIENT),
        (json_answer(token_type="bearer"), FailureClass.AUTH),
        (json_answer(access_token=3), FailureClass.AUTH),
        (json_answer(access_token=""), FailureClass.AUTH),
        (json_answer(access_token=f"{HUSH}\r\nX-Evil: 1"), FailureClass.AUTH),
        (json_answer(access_token=HUSH, token_type="mac"), FailureClass.AUTH),
        (close_at_once, FailureClass.TRANSIENT),
        (close_mid_body(200), FailureClass.TRANSIENT),
        (endless_body(200), FailureClass.TRANSIENT),
        (hang_before_headers, FailureClass.TRANSIENT),
    ],
)
def test_token_endpoints_that_give_none(backend: Backend, step: Step, kind: FailureClass) -> None:
    # Short only where it is to be over: any other answer may take its time.
    timeout = 1.0 * SCALE if step is hang_before_headers else PATIENCE_S
    with Backend(steps=[step]) as endpoint:
        failure = send_one(exporter(backend.url, auth=oauth2(endpoint, timeout=timeout)))
    assert failure is not None
    assert failure.kind is kind
    assert "token" in failure.reason
    assert not failure.maybe_delivered
    assert backend.requests == []
    assert HUSH not in repr(failure)


def test_a_token_endpoint_that_returns() -> None:
    tokens = Tokens()
    with tokens.endpoint() as endpoint, tokens.backend() as backend:
        endpoint.steps.insert(0, answer(503))
        made = exporter(backend.url, auth=oauth2(endpoint))
        failed, then = send(made, [event()], [event()])
    assert failed.failed[0].kind is FailureClass.TRANSIENT
    assert then == Answer()


def test_an_untrusted_token_endpoint_is_our_trouble(
    backend: Backend, certificates: Certificates
) -> None:
    with Backend(tls=certificates.server_context()) as endpoint:
        failure = send_one(exporter(backend.url, auth=oauth2(endpoint)))
    assert failure is not None
    assert failure.kind is FailureClass.AUTH


# No secret is ever shown.


@pytest.mark.parametrize(
    "auth",
    [
        {"type": "api_key", "key": HUSH},
        {"type": "bearer", "token": HUSH},
        {"type": "basic", "username": "me", "password": HUSH},
        {
            "type": "oauth2",
            "token_url": "http://127.0.0.1:1/",
            "client_id": "me",
            "client_secret": HUSH,
        },
    ],
)
@pytest.mark.parametrize("step", [answer(401), answer(500), close_at_once])
def test_no_secret_is_shown(
    backend: Backend, auth: dict[str, str], step: Step, caplog: pytest.LogCaptureFixture
) -> None:
    backend.steps = [step]
    config = http.Config.model_validate(
        {"url": backend.url, "auth": auth, "headers": {"X-Other": HUSH}}
    )
    made = http.make(config, context())
    with caplog.at_level(logging.DEBUG):
        failure = send_one(made)
    assert failure is not None
    shown = [repr(failure), repr(config), str(config), config.model_dump_json(), repr(made)]
    shown += [record.getMessage() for record in caplog.records]
    encoded = base64.b64encode(f"me:{HUSH}".encode()).decode()
    assert not [text for text in shown if HUSH in text or encoded in text]


@pytest.mark.parametrize(
    "given",
    [
        {"auth": {"type": "bearer", "token": [HUSH]}},
        {"auth": {"type": "basic", "username": "a:b", "password": HUSH}},
        {"headers": {"X-A": HUSH}, "unknown": 1},
        {"headers": {"Bad Name": HUSH}},
    ],
)
def test_no_secret_is_in_the_error_of_a_wrong_configuration(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as raised:
        http.Config.model_validate({"url": "http://h"} | given)
    assert HUSH not in str(raised.value)
