"""The configuration of a receiver: what is refused, and what the defaults are."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.receive.harness import PATH, Place, call, event_bytes

from holdfast.errors import BadConfig
from holdfast.receive.http_server import HttpServer
from holdfast.receive.listening import Address, parse_address
from holdfast.receive.openlineage import Config, OpenLineageReceiver, make
from holdfast.receive.responses import AsgiApp, Receive, Scope, Send, json_response, send_response

TOKEN = {"tokens": [{"name": "airflow", "token": "s3cret"}]}
TLS = {"cert_file": "a", "key_file": "b"}


def test_by_default_only_this_machine_may_send() -> None:
    config = Config()
    assert config.listen == "127.0.0.1:5000"
    assert config.level == "fsynced"
    assert config.validation.level == "standard"


@pytest.mark.parametrize(
    "listen", ["0.0.0.0:5000", ":5000", "[::]:5000", "gateway:5000", "10.0.0.1:1"]
)
def test_other_machines_are_let_in_only_if_they_say_who_they_are(listen: str) -> None:
    strangers: list[dict[str, Any]] = [{}, {"tls": TLS}]
    known: list[dict[str, Any]] = [
        TOKEN,
        {"token_file": "tokens"},
        {"tls": {**TLS, "client_ca_file": "c"}},
        {"allow_anonymous": True},
    ]
    for more in strangers:
        with pytest.raises(ValidationError, match="allow_anonymous"):
            Config.model_validate({"listen": listen, **more})
    for more in known:
        Config.model_validate({"listen": listen, **more})


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.9.9.9:1", "[::1]:5000", "localhost:5000"])
def test_this_machine_needs_no_token(listen: str) -> None:
    assert Config(listen=listen).listen == listen


@pytest.mark.parametrize(
    "wrong",
    [
        {"listen": "5000"},
        {"listen": "127.0.0.1"},
        {"listen": "127.0.0.1:http"},
        {"listen": "127.0.0.1:65536"},
        {"listen": "::1:5000"},
        {"path": "api"},
        {"path": "/api/"},
        {"aliases": ["/a?b"]},
        {"prefixes": [""]},
        {"level": "segment"},
        {"unknown": 1},
        {"tokens": [{"name": "", "token": "x"}]},
        {"tokens": [{"name": "x", "token": ""}]},
        {"tokens": [{"name": "x", "token": "y", "events_per_s": 0}]},
        {"limits": {"max_body_bytes": "1GB"}},
        {"limits": {"max_requests": 0}},
        {"limits": {"body_timeout_s": 0}},
        {"connections": {"max_connections": 0}},
        {"connections": {"keep_alive_s": 0}},
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Config.model_validate(wrong)


def test_sizes_and_durations_are_written_as_people_do() -> None:
    config = Config.model_validate({"limits": {"max_body_bytes": "8MB", "body_timeout_s": "500ms"}})
    assert (config.limits.max_body_bytes, config.limits.body_timeout_s) == (8 * 1024 * 1024, 0.5)


def test_secrets_are_not_shown() -> None:
    assert "s3cret" not in repr(Config.model_validate(TOKEN))


@pytest.mark.parametrize(
    ("text", "address", "shown"),
    [
        ("127.0.0.1:5000", Address("127.0.0.1", 5000), "127.0.0.1:5000"),
        ("[::1]:0", Address("::1", 0), "[::1]:0"),
        (":80", Address("0.0.0.0", 80), "0.0.0.0:80"),
        ("name.example:80", Address("name.example", 80), "name.example:80"),
    ],
)
def test_addresses_are_read(text: str, address: Address, shown: str) -> None:
    assert parse_address(text) == address
    assert str(address) == shown


def test_paths_are_put_together() -> None:
    config = Config(aliases=("/b",), prefixes=("/p", "/q"))
    assert config.all_paths == [PATH, "/b", f"/p{PATH}", "/p/b", f"/q{PATH}", "/q/b"]


def test_a_token_file_is_used(place: Place) -> None:
    (place.folder / "tokens").write_text("airflow s3cret jobs\n")
    app = place.app(Config(token_file="tokens"))
    assert call(app, event_bytes()).status == 401
    headers = {"authorization": "Bearer s3cret"}
    assert call(app, event_bytes(), headers=headers).status == 200
    assert call(app, event_bytes(0, "other"), headers=headers).status == 403
    with pytest.raises(BadConfig):
        place.app(Config(token_file="missing"))


def test_tokens_change_while_listening(place: Place) -> None:
    file = place.folder / "tokens"
    file.write_text("airflow old\n")
    receiver = OpenLineageReceiver(Config(token_file="tokens"), place.context())
    old, new = ({"authorization": f"Bearer {token}"} for token in ("old", "new"))
    assert call(receiver.app, event_bytes(), headers=old).status == 200
    file.write_text("airflow new\n")
    assert receiver.reload(Config(token_file="tokens"))
    assert call(receiver.app, event_bytes(), headers=old).status == 401
    assert call(receiver.app, event_bytes(), headers=new).status == 200
    # Whatever cannot be read changes nothing.
    file.write_text("")
    with pytest.raises(BadConfig):
        receiver.reload(Config(token_file="tokens"))
    assert call(receiver.app, event_bytes(), headers=new).status == 200
    assert not receiver.reload(Config(token_file="tokens", level="memory"))


def test_make_makes_a_receiver(place: Place) -> None:
    receiver = make(Config(), place.context())
    assert isinstance(receiver, OpenLineageReceiver)
    assert receiver.addresses == []
    assert receiver.statistics().received == 0


# ------------------------------------------------------------------ the server


def answering(text: str) -> AsgiApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send_response(send, json_response(200, text))

    return app


async def get(address: str, path: str) -> bytes:
    host, port = address.removeprefix("http://").rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer.partition(b"\r\n\r\n")[2]


def test_a_server_serves_any_app_and_extra_routes() -> None:
    async def scenario() -> None:
        server = HttpServer(
            answering("app"), "localhost:0", extra_routes={"/healthz": answering("well")}
        )
        await server.start()
        for address in server.addresses:
            assert await get(address, "/") == b'"app"'
            assert await get(address, "/healthz?x") == b'"well"'
        assert server.requests == 2 * len(server.addresses)
        await server.stop(1.0)
        assert (server.addresses, server.connections) == ([], 0)

    asyncio.run(scenario())


def test_two_servers_may_share_a_port_if_both_want_to() -> None:
    async def scenario() -> None:
        first = HttpServer(answering("a"), "127.0.0.1:0", reuse_port=True)
        await first.start()
        listen = first.addresses[0].removeprefix("http://")
        second = HttpServer(answering("b"), listen, reuse_port=True)
        await second.start()
        assert await get(first.addresses[0], "/") in (b'"a"', b'"b"')
        await first.stop(1.0)
        assert await get(second.addresses[0], "/") == b'"b"'
        await second.stop(1.0)

    asyncio.run(scenario())


def test_a_taken_port_is_a_configuration_error(tmp_path: Path) -> None:
    async def scenario(listen: str) -> None:
        server = HttpServer(answering("a"), listen)
        with pytest.raises(BadConfig, match="cannot listen") as error:
            await server.start()
        assert "listen" in error.value.hint

    with socket.create_server(("127.0.0.1", 0)) as taken:
        asyncio.run(scenario(f"127.0.0.1:{taken.getsockname()[1]}"))
    asyncio.run(scenario("192.0.2.1:5000"))
    asyncio.run(scenario("no-such-host.invalid:5000"))
    asyncio.run(scenario("x" * 300 + ":5000"))
