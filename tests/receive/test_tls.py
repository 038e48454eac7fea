"""TLS and client certificates, with certificates made here."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S
from tests.receive.harness import (
    Reply,
    Running,
    event_bytes,
    is_closed,
    read_reply,
    request_bytes,
    running,
)
from tests.support.certificates import identity

from holdfast.errors import BadConfig
from holdfast.receive.listening import ListenerTls, server_context
from holdfast.receive.openlineage import Config
from holdfast.receive.server_state import ConnectionSettings
from holdfast.settings import Secret


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    authority, stranger = identity("authority"), identity("stranger")
    authority.write(folder, "ca")
    identity("server", authority).write(folder, "server")
    identity("server", authority).write(folder, "locked", "open sesame")
    identity("client", authority).write(folder, "client")
    identity("client", stranger).write(folder, "stranger")
    return folder


def tls(folder: Path, *, mutual: bool = False) -> ListenerTls:
    return ListenerTls(
        cert_file=str(folder / "server.pem"),
        key_file=str(folder / "server.key"),
        client_ca_file=str(folder / "ca.pem") if mutual else None,
    )


def post(server: Running, folder: Path, client: str | None = None) -> Reply:
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    if client is not None:
        context.load_cert_chain(str(folder / f"{client}.pem"), str(folder / f"{client}.key"))
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        connection.sendall(request_bytes(event_bytes()))
        return read_reply(connection)


def test_events_come_over_tls(tmp_path: Path, certificates: Path) -> None:
    with running(tmp_path, Config(listen="127.0.0.1:0", tls=tls(certificates))) as server:
        assert server.url.startswith("https://127.0.0.1:")
        assert post(server, certificates).status == 200
        assert server.place.stored() == [event_bytes()]


def test_a_client_without_the_right_certificate_is_refused(
    tmp_path: Path, certificates: Path
) -> None:
    config = Config(listen="127.0.0.1:0", tls=tls(certificates, mutual=True))
    with running(tmp_path, config) as server:
        assert post(server, certificates, "client").status == 200
        for client in (None, "stranger"):
            with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
                post(server, certificates, client)
        assert len(server.place.stored()) == 1


def test_plain_http_on_a_tls_port_is_closed(tmp_path: Path, certificates: Path) -> None:
    with (
        running(tmp_path, Config(listen="127.0.0.1:0", tls=tls(certificates))) as server,
        server.connect() as client,
    ):
        client.sendall(request_bytes(event_bytes()))
        assert is_closed(client)
        assert server.place.stored() == []


def test_a_handshake_that_does_not_end_is_closed(tmp_path: Path, certificates: Path) -> None:
    config = Config(
        listen="127.0.0.1:0",
        tls=tls(certificates),
        connections=ConnectionSettings(header_timeout_s=0.2),
    )
    with running(tmp_path, config) as server, server.connect() as client:
        client.sendall(b"\x16\x03\x01")
        assert is_closed(client)


def test_paths_are_relative_to_the_configuration(certificates: Path) -> None:
    settings = ListenerTls(cert_file="server.pem", key_file="server.key", min_version="1.3")
    context = server_context(settings, certificates)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    assert context.verify_mode is ssl.CERT_NONE


def test_a_locked_key_needs_its_password(certificates: Path) -> None:
    def locked(password: str | None) -> ListenerTls:
        secret = None if password is None else Secret(password)
        return ListenerTls(cert_file="locked.pem", key_file="locked.key", key_password=secret)

    server_context(locked("open sesame"), certificates)
    for password in (None, "wrong"):
        with pytest.raises(BadConfig, match="TLS") as error:
            server_context(locked(password), certificates)
        assert "wrong" not in str(error.value)


@pytest.mark.parametrize(
    "files",
    [
        {"cert_file": "none.pem", "key_file": "server.key"},
        {"cert_file": "server.pem", "key_file": "client.key"},
        {"cert_file": "server.key", "key_file": "server.key"},
        {"cert_file": "server.pem", "key_file": "server.key", "client_ca_file": "none.pem"},
    ],
)
def test_wrong_files_are_a_configuration_error(certificates: Path, files: dict[str, str]) -> None:
    with pytest.raises(BadConfig, match="TLS cannot be set up") as error:
        server_context(ListenerTls.model_validate(files), certificates)
    assert "tls." in error.value.hint
