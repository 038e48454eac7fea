"""Certificates on both sides, and a proxy in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.deliver.exporters.backend import Backend
from tests.deliver.exporters.proxy import forward_proxy, refusing_proxy
from tests.deliver.exporters.sending import PAYLOAD, context, event, send, send_one
from tests.support.certificates import KEY_PASSWORD, Certificates

from holdfast.deliver.exporter import Answer, Exporter, Failure, FailureClass
from holdfast.deliver.exporters import http
from holdfast.errors import BadConfig


def exporter(url: str, base_dir: Path = Path(), **config: Any) -> Exporter:
    return http.make(http.Config(url=url, **config), context(base_dir))


def kind_of(failure: Failure | None) -> FailureClass | None:
    return failure.kind if failure else None


def test_a_custom_authority_relative_to_the_configuration(certificates: Certificates) -> None:
    with Backend(tls=certificates.server_context()) as backend:
        made = exporter(backend.url, certificates.ca.parent, tls={"ca_file": certificates.ca.name})
        assert send(made, [event()], [event()]) == [Answer(), Answer()]
        assert backend.bodies == [PAYLOAD, PAYLOAD]


@pytest.mark.parametrize(
    ("which", "trusted", "word"),
    [
        ("whole_server", False, "certificate"),
        ("expired", True, "expired"),
        ("wrong_host", True, "valid for"),
    ],
)
def test_a_bad_certificate_is_our_trouble(
    certificates: Certificates, which: str, trusted: bool, word: str
) -> None:
    tls = {"ca_file": str(certificates.ca)} if trusted else {}
    with Backend(tls=certificates.server_context(getattr(certificates, which))) as backend:
        failure = send_one(exporter(backend.url, tls=tls))
        assert backend.requests == []
    assert failure is not None
    assert (failure.kind, failure.code) == (FailureClass.AUTH, "tls")
    assert word in failure.reason
    assert "`tls.ca_file`" in failure.reason
    assert not failure.maybe_delivered


@pytest.mark.parametrize(
    "keys",
    [
        {"key_file": "client_key.pem"},
        {"key_file": "client_locked_key.pem", "key_password": KEY_PASSWORD},
    ],
)
def test_mutual_tls(certificates: Certificates, keys: dict[str, str]) -> None:
    tls = {"ca_file": "ca.pem", "cert_file": "client.pem"} | keys
    with Backend(tls=certificates.server_context(mutual=True)) as backend:
        assert send_one(exporter(backend.url, certificates.ca.parent, tls=tls)) is None
        assert backend.bodies == [PAYLOAD]


def test_a_certificate_that_is_wanted_and_missing(certificates: Certificates) -> None:
    with Backend(tls=certificates.server_context(mutual=True)) as backend:
        # In TLS 1.3 the server says so after the handshake, and what it says is lost if our request
        # meets its closed socket: then the loop tries again.
        failure: Failure | None = None
        for _ in range(20):
            failure = send_one(exporter(backend.url, tls={"ca_file": str(certificates.ca)}))
            assert backend.requests == []
            if failure is None or failure.code != "disconnected":
                break
    assert failure is not None
    assert failure.kind is FailureClass.AUTH
    assert "`tls.cert_file`" in failure.reason


def test_tls_to_a_port_that_speaks_none(backend: Backend) -> None:
    failure = send_one(exporter(backend.url.replace("http:", "https:")))
    assert failure is not None
    assert (failure.kind, failure.code) == (FailureClass.TRANSIENT, "tls")
    assert "speak TLS" in failure.reason


@pytest.mark.parametrize(
    ("tls", "key"),
    [
        ({"ca_file": "missing.pem"}, "ca_file"),
        ({"ca_file": "empty.pem"}, "ca_file"),
        ({"cert_file": "missing.pem"}, "cert_file"),
        ({"cert_file": "client.pem"}, "cert_file"),
        ({"cert_file": "client.pem", "key_file": "server.pem"}, "cert_file"),
        # Without a password nobody is asked on the terminal.
        ({"cert_file": "client.pem", "key_file": "client_locked_key.pem"}, "cert_file"),
        (
            {
                "cert_file": "client.pem",
                "key_file": "client_locked_key.pem",
                "key_password": "hush",
            },
            "cert_file",
        ),
    ],
)
def test_unusable_files_are_named(
    certificates: Certificates, tls: dict[str, str], key: str
) -> None:
    directory = certificates.ca.parent
    (directory / "empty.pem").write_text("")
    with pytest.raises(BadConfig, match=rf"`tls\.{key}` cannot be used") as raised:
        exporter("https://h", directory, tls=tls)
    assert raised.value.path == str(directory / tls[key])
    assert "hush" not in str(raised.value)


def test_a_key_needs_a_certificate() -> None:
    with pytest.raises(ValidationError, match="cert_file"):
        http.Config.model_validate({"url": "https://h", "tls": {"key_file": "x"}})


# Proxies.


@pytest.mark.parametrize("over_tls", [False, True])
@pytest.mark.parametrize("password", [None, "pass:w0rd é"])
def test_through_a_proxy(certificates: Certificates, over_tls: bool, password: str | None) -> None:
    tls = certificates.server_context() if over_tls else None
    wanted = f"me:{password}" if password else None
    with Backend(tls=tls) as backend, forward_proxy(wanted) as proxy:
        settings = {"url": proxy.url}
        if password:
            settings |= {"username": "me", "password": password}
        config: dict[str, Any] = {"proxy": settings, "tls": {"ca_file": str(certificates.ca)}}
        assert send(exporter(backend.url, **config), [event()], [event(2)]) == [Answer(), Answer()]
        assert backend.bodies == [PAYLOAD, PAYLOAD]
        assert all("proxy-authorization" not in request.headers for request in backend.requests)
        assert {request.method for request in proxy.requests} == {"CONNECT" if over_tls else "POST"}


@pytest.mark.parametrize("over_tls", [False, True])
def test_a_proxy_that_does_not_let_us_through(certificates: Certificates, over_tls: bool) -> None:
    tls = certificates.server_context() if over_tls else None
    with Backend(tls=tls) as backend, forward_proxy("me:right") as proxy:
        settings = {"url": proxy.url, "username": "me", "password": "wrong"}
        config: dict[str, Any] = {"proxy": settings, "tls": {"ca_file": str(certificates.ca)}}
        failure = send_one(exporter(backend.url, **config))
        assert backend.requests == []
    assert failure is not None
    assert (failure.kind, failure.code) == (FailureClass.AUTH, "407")
    assert "wrong" not in failure.reason


@pytest.mark.parametrize(
    ("status", "kind"), [(502, FailureClass.TRANSIENT), (404, FailureClass.TRANSIENT)]
)
def test_a_proxy_that_cannot_reach_the_backend(status: int, kind: FailureClass) -> None:
    with refusing_proxy(status) as proxy:
        failure = send_one(exporter("https://127.0.0.1:9", proxy={"url": proxy.url}))
    assert failure is not None
    assert (failure.kind, failure.code) == (kind, f"proxy_{status}")


def test_a_proxy_that_is_not_there() -> None:
    failure = send_one(exporter("http://127.0.0.1:9", proxy={"url": "http://127.0.0.1:1"}))
    assert kind_of(failure) is FailureClass.TRANSIENT
    assert failure is not None
    assert failure.code == "proxy_connect"


def test_proxies_of_the_environment_are_not_used(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert send_one(exporter(backend.url)) is None


@pytest.mark.parametrize("url", ["https://p:1", "p:3128", "http://me:hush@p:1"])
def test_proxies_that_cannot_be_meant(url: str) -> None:
    with pytest.raises(ValidationError):
        http.Config.model_validate({"url": "http://h", "proxy": {"url": url}})
