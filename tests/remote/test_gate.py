"""Who may call: tokens and their rights, TLS, client certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight
from pydantic import ValidationError
from tests.remote.serving import Served, numbers, serving
from tests.support.certificates import Certificates, make_certificates

from holdfast.errors import BadConfig, NotAllowed, OwnerGone
from holdfast.quiver import Quiver
from holdfast.remote import FlightSettings, QuiverServer, RemoteQuiver
from holdfast.remote.settings import split_address
from holdfast.remote.wire import from_flight

TOKENS = [
    {"name": "spark", "token": "s3cret-of-spark", "rights": ["read", "subscribe"]},
    {"name": "etl", "token": "s3cret-of-etl", "rights": ["read", "append"]},
    {"name": "both", "token": "s3cret-of-both"},
]


def settings_of(**given: Any) -> FlightSettings:
    """Return settings as a file has them."""
    return FlightSettings.model_validate(given)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


# -------------------------------------------------------------------------------- tokens


@pytest.mark.parametrize("token", [None, "", "wrong", "s3cret-of-spar", "s3cret-of-spark2"])
def test_without_a_known_token_nothing_is_answered(tmp_path: Path, token: str | None) -> None:
    with serving(tmp_path, tokens=TOKENS) as served:
        with pytest.raises(NotAllowed, match="token"):
            served.connect(token=token)
        with flight.connect(served.server.location) as client:
            for call in (
                lambda: list(client.list_flights()),
                lambda: client.get_flight_info(flight.FlightDescriptor.for_path("main", "events")),
                lambda: client.do_get(flight.Ticket(b"")).read_all(),
                lambda: list(client.list_actions()),
                lambda: put_nothing(client),
            ):
                with pytest.raises(flight.FlightUnauthenticatedError):
                    call()
        with flight.connect(f"grpc://127.0.0.1:{served.server.reader.port()}") as client:
            with pytest.raises(flight.FlightUnauthenticatedError) as refused:
                client.do_get(flight.Ticket(b"")).read_all()
            assert isinstance(from_flight(refused.value), NotAllowed)


def put_nothing(client: flight.FlightClient) -> None:
    descriptor = flight.FlightDescriptor.for_command(b"{}")
    writer, reader = client.do_put(descriptor, numbers(1).schema)
    writer.done_writing()
    reader.read()
    writer.close()


def test_a_token_gives_the_rights_it_was_given(tmp_path: Path) -> None:
    with serving(tmp_path, tokens=TOKENS) as served:
        both = served.connect(token="s3cret-of-both")
        both.append(numbers(1))
        both.flush()
        planned = both.cursor("spark").plan()
        assert planned is not None
        spark = served.connect(token="s3cret-of-spark")
        assert spark.cursor("spark").table(planned, "events", ["n"]).num_rows == 1
        for refused in (
            lambda: spark.append(numbers(1)),
            lambda: spark.heartbeat("p", 1),
            spark.flush,
        ):
            with pytest.raises(NotAllowed, match="'spark' may not append"):
                refused()
        etl = served.connect(token="s3cret-of-etl")
        etl.append(numbers(2))
        with pytest.raises(NotAllowed, match="'etl' may not subscribe"):
            etl.cursor("spark")
        with pytest.raises(NotAllowed, match="'etl' may not subscribe"):
            etl.unregister("spark")


def test_the_right_to_read_is_needed_to_read(tmp_path: Path) -> None:
    tokens = [{"name": "etl", "token": "t", "rights": ["append"]}]
    with serving(tmp_path, tokens=tokens) as served, pytest.raises(NotAllowed, match="not read"):
        served.connect(token="t")


def test_a_token_never_shows(tmp_path: Path) -> None:
    settings = settings_of(tokens=TOKENS)
    assert "s3cret" not in repr(settings)
    assert "s3cret" not in settings.model_dump_json()
    with serving(tmp_path, tokens=TOKENS) as served:
        with pytest.raises(NotAllowed) as refused:
            served.connect(token="s3cret-but-wrong")
        assert "s3cret" not in str(refused.value)


def test_two_clients_have_two_tokens(tmp_path: Path) -> None:
    tokens = [{"name": name, "token": "same"} for name in ("a", "b")]
    with Quiver.open(tmp_path) as quiver, pytest.raises(BadConfig, match="of 'b' is another"):
        QuiverServer({"main": quiver}, settings_of(tokens=tokens))


@pytest.mark.parametrize("listen", ["0.0.0.0:0", ":0", "[::]:0", "some.host:1"])
def test_an_open_door_to_everybody_is_refused(tmp_path: Path, listen: str) -> None:
    with Quiver.open(tmp_path) as quiver:
        with pytest.raises(BadConfig, match="could read and append"):
            QuiverServer({"main": quiver}, settings_of(listen=listen))
        QuiverServer({"main": quiver}, settings_of(listen=listen, tokens=TOKENS))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:8815", ("127.0.0.1", 8815)),
        ("[::1]:0", ("::1", 0)),
        ("name:1", ("name", 1)),
        (":5", ("0.0.0.0", 5)),
    ],
)
def test_addresses_are_read(text: str, expected: tuple[str, int]) -> None:
    assert split_address(text) == expected


@pytest.mark.parametrize(
    "text", ["", "host", "host:", "host:x", "host:70000", "::1:5", "a@b:1", "a:1/x"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="not an address"):
        FlightSettings(listen=text)


def test_a_port_or_address_that_cannot_be_had_is_told(served: Served) -> None:
    taken = served.server.location.removeprefix("grpc://")
    for listen in (taken, "192.0.2.1:1"):
        server = QuiverServer({"main": served.quiver}, settings_of(listen=listen, tokens=TOKENS))
        with pytest.raises(BadConfig, match="cannot be listened on"):
            server.start()


def test_keys_that_do_not_belong_together_are_told(
    tmp_path: Path, certificates: Certificates
) -> None:
    wrong = {**tls(certificates), "key_file": str(certificates.client_key)}
    with Quiver.open(tmp_path) as quiver:
        settings = settings_of(listen="127.0.0.1:0", tls=wrong)
        server = QuiverServer({"main": quiver}, settings)
        with pytest.raises(BadConfig, match="cannot be served"):
            server.start()


# ----------------------------------------------------------------------------------- TLS


def tls(certificates: Certificates, **more: Any) -> dict[str, Any]:
    return {
        "cert_file": str(certificates.server),
        "key_file": str(certificates.server_key),
        **{name: str(path) for name, path in more.items()},
    }


def test_an_encrypted_server_is_read_by_clients_that_trust_it(
    tmp_path: Path, certificates: Certificates
) -> None:
    with serving(tmp_path, tls=tls(certificates)) as served:
        assert served.server.location.startswith("grpc+tls://")
        remote = served.connect(ca_file=str(certificates.ca))
        remote.append(numbers(1))
        remote.flush()
        cursor = remote.cursor("spark")
        planned = cursor.plan()
        assert planned is not None
        assert cursor.table(planned, "events", ["n"]).num_rows == 1


def test_an_unknown_authority_and_plain_text_are_refused(
    tmp_path: Path, certificates: Certificates
) -> None:
    with serving(tmp_path, tls=tls(certificates)) as served:
        with pytest.raises(OwnerGone):
            served.connect(ca_file=str(certificates.other_ca), timeout=5)
        plain = served.server.location.replace("grpc+tls", "grpc")
        with pytest.raises(OwnerGone):
            RemoteQuiver.open(plain, "main")


def test_client_certificates_are_asked_for_by_both_processes(
    tmp_path: Path, certificates: Certificates
) -> None:
    known = {
        "ca_file": str(certificates.ca),
        "cert_file": str(certificates.client),
        "key_file": str(certificates.client_key),
    }
    settings = tls(certificates, client_ca_file=certificates.ca)
    with serving(tmp_path, tls=settings, own_process=True) as served:
        with pytest.raises(OwnerGone):
            served.connect(ca_file=str(certificates.ca), timeout=5)
        stranger = {
            **known,
            "cert_file": str(certificates.other_client),
            "key_file": str(certificates.other_key),
        }
        with pytest.raises(OwnerGone):
            served.connect(timeout=5, **stranger)
        remote = served.connect(**known)
        remote.append(numbers(1))
        remote.flush()
        cursor = remote.cursor("spark")
        planned = cursor.plan()
        assert planned is not None
        assert cursor.table(planned, "events", ["n"]).num_rows == 1
        location = served.server._reader_location()
        options = flight.FlightCallOptions(timeout=5)
        with (
            flight.FlightClient(location, tls_root_certs=certificates.ca.read_bytes()) as nobody,
            pytest.raises(flight.FlightUnavailableError),
        ):
            nobody.do_get(flight.Ticket(b""), options).read_all()


@pytest.mark.parametrize("option", ["cert_file", "key_file", "client_ca_file"])
def test_a_missing_file_is_named(tmp_path: Path, certificates: Certificates, option: str) -> None:
    settings = {**tls(certificates, client_ca_file=certificates.ca), option: "nowhere.pem"}
    with Quiver.open(tmp_path) as quiver, pytest.raises(BadConfig, match=f"tls.{option}"):
        QuiverServer({"main": quiver}, settings_of(tls=settings), base_dir=tmp_path)
