"""What a driver serves: under the name that Spark's driver has, for its own executors only."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pytest
from pydantic import ValidationError
from tests.dataflow.spec.pipelines import pipeline
from tests.ports import free_port
from tests.support.certificates import make_certificates

from holdfast.dataflow.compiler.explain import explain
from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.compiler.plan import Plan, make_plan
from holdfast.dataflow.driver.cluster import OwnPorts, own_authorities, own_ports, own_server
from holdfast.dataflow.driver.own_quivers import Buffers
from holdfast.dataflow.driver.run import PipelineRun
from holdfast.dataflow.driver.settings import SparkSettings
from holdfast.dataflow.spec import PipelineSettings
from holdfast.errors import BadConfig, NotAllowed, OwnerGone, PipelineFailed
from holdfast.remote import ClientSettings, FlightSettings, RemoteQuiver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class _Context(NamedTuple):
    """What is asked of a Spark context."""

    master: str
    conf: dict[str, str]
    defaultParallelism: int = 4  # noqa: N815

    def getConf(self) -> dict[str, str]:  # noqa: N802
        """As Spark does."""
        return self.conf


class _Session(NamedTuple):
    sparkContext: _Context  # noqa: N815


def session_with(conf: dict[str, str], master: str = "local[2]", cores: int = 4) -> SparkSession:
    session: Any = _Session(_Context(master, conf, cores))
    return cast("SparkSession", session)


def served_on(master: str, cores: int = 4, **conf: str) -> FlightSettings:
    settings = {f"spark.driver.{name}": value for name, value in conf.items()}
    return own_server(session_with(settings, master, cores))


@pytest.fixture
def plan() -> Plan:
    """Two queries with a quiver between."""
    durable = {"from": "a", "to": "m", "durable": True}
    return make_plan("p", pipeline(durable, "m -> z", a="source", m="map", z="sink"))


@pytest.fixture
def buffers(plan: Plan, tmp_path: Path) -> Iterator[Buffers]:
    """The quiver between them, as a driver serves it to other hosts."""
    served = served_on("spark://master:7077", host="127.0.0.2", bindAddress="0.0.0.0")
    found = Buffers(plan, Places(tmp_path / "state", tmp_path), served)
    yield found
    found.close()


def test_on_this_machine_it_is_a_port_of_loopback() -> None:
    served = served_on("local[2]", host="10.1.2.3")
    assert (served.listen, served.advertise_host) == ("127.0.0.1:0", "127.0.0.1")


def test_on_a_cluster_it_has_the_address_of_the_driver() -> None:
    served = served_on("spark://master:7077", host="10.1.2.3")
    assert (served.listen, served.advertise_host) == ("10.1.2.3:0", "10.1.2.3")
    served = served_on("yarn", host="driver.example", bindAddress="0.0.0.0")
    assert (served.listen, served.advertise_host) == ("0.0.0.0:0", "driver.example")
    served = served_on("yarn", host="[fd00::1]", bindAddress="::")
    assert (served.listen, served.advertise_host) == ("[::]:0", "fd00::1")


def test_it_answers_as_many_calls_at_once_as_the_cluster_has_tasks() -> None:
    assert served_on("yarn", cores=500, host="driver").max_calls >= 1000
    assert served_on("local[2]", cores=2).max_calls == 64


def test_every_run_has_a_token_of_its_own() -> None:
    first, second = (served_on("local[2]").tokens[0].token for _ in range(2))
    assert first != second
    assert first.get_secret_value() not in repr(served_on("local[2]")) + repr(first)


@pytest.mark.parametrize(
    ("root_level", "level"),
    [(logging.DEBUG, logging.INFO), (logging.WARNING, logging.WARNING)],
)
def test_what_is_said_to_java_is_not_logged(root_level: int, level: int) -> None:
    """At DEBUG py4j wrote down every option, and tokens are among them; nor is it louder then."""
    py4j, root = logging.getLogger("py4j"), logging.getLogger()
    before = py4j.level, root.level
    try:
        py4j.setLevel(logging.NOTSET)
        root.setLevel(root_level)
        served_on("local[2]")
        assert logging.getLogger("py4j.clientserver").getEffectiveLevel() == level
    finally:
        py4j.setLevel(before[0])
        root.setLevel(before[1])


def test_a_quiver_between_queries_is_served_on_the_address_of_the_driver(buffers: Buffers) -> None:
    (address,) = buffers.addresses.values()
    assert address.startswith("grpc://127.0.0.2:")


def test_a_quiver_between_queries_is_not_read_without_the_token(plan: Plan, tmp_path: Path) -> None:
    served = served_on("local[2]")
    buffers = Buffers(plan, Places(tmp_path / "state", tmp_path), served)
    try:
        (address,) = buffers.addresses.values()
        location, _, name = address.rpartition("/")
        with pytest.raises(NotAllowed):
            RemoteQuiver.open(location, name)
        known = ClientSettings(token=served.tokens[0].token)
        with RemoteQuiver.open(location, name, known) as quiver:
            assert quiver.name == name
    finally:
        buffers.close()


# ------------------------------------------------------------------------ fixed ports


def port_of(served: FlightSettings) -> int:
    return int(served.listen.rpartition(":")[2])


def some_ports(count: int) -> range:
    """Return so many ports in a row that nobody uses now."""
    found = [free_port() for _ in range(count)]
    while found[-1] - found[0] != count - 1:
        found = [*found[1:], free_port()]
    return range(found[0], found[-1] + 1)


@pytest.mark.parametrize(
    ("conf", "told"),
    [
        ({"ports": "42000"}, "'42000' is not a range of ports"),
        ({"ports": "42000-x"}, "not a range of ports"),
        ({"ports": "42000-42002"}, "42000-42002 is 3 ports, and a pipeline needs 4"),
        ({"ports": "42010-42000"}, "a pipeline needs 4"),
        ({"ports": "80-90"}, "ports are from 1024 to 65535"),
        ({"ports": "65530-65540"}, "ports are from 1024 to 65535"),
        ({"port": "42000-42010"}, "there is no setting 'spark.holdfast.port'"),
        ({"certFile": "/a.pem"}, "certFile and spark.holdfast.keyFile go together"),
        ({"caFile": "/a.pem"}, "spark.holdfast.caFile is of the certificate"),
    ],
)
def test_wrong_settings_of_our_own_among_sparks_are_refused(
    conf: dict[str, str], told: str
) -> None:
    given = {f"spark.holdfast.{key}": value for key, value in conf.items()}
    with pytest.raises(ValidationError, match=told):
        SparkSettings(conf=given)
    if "port" not in conf:
        with pytest.raises(BadConfig, match=told):
            own_server(session_with(given))


def test_settings_of_spark_itself_are_not_judged() -> None:
    conf = {"spark.driver.memory": "2g", "spark.holdfast.ports": "42000-42003"}
    assert SparkSettings(conf=conf).conf == conf


def test_without_a_range_any_port_will_do() -> None:
    served, ports = served_on("local[2]"), own_ports(session_with({}))
    assert ports.given_to(served) is served


def test_servers_of_a_process_have_ports_of_their_own_and_give_them_back() -> None:
    allowed, served = some_ports(4), served_on("local[2]")
    first, second = OwnPorts(allowed), OwnPorts(allowed)
    given = [ports.given_to(served) for ports in (first, second)]
    numbers = [number for one in given for number in (port_of(one), one.reader_port)]
    assert sorted(numbers) == list(allowed)
    with pytest.raises(PipelineFailed, match="no 2 of the ports"):
        second.given_to(served)
    first.close()
    assert {port_of(second.given_to(served))} <= set(numbers[:2])
    second.close()


def test_a_port_that_somebody_else_has_is_passed_over() -> None:
    allowed, served = some_ports(4), served_on("local[2]")
    with socket.socket() as somebody:
        somebody.bind(("127.0.0.1", allowed[0]))
        somebody.listen()
        ports = OwnPorts(allowed)
        given = ports.given_to(served)
        ports.close()
    assert (port_of(given), given.reader_port) == (allowed[1], allowed[2])


def test_a_quiver_between_queries_is_served_on_ports_of_the_range(
    plan: Plan, tmp_path: Path
) -> None:
    allowed = some_ports(4)
    conf = {"spark.holdfast.ports": f"{allowed[0]}-{allowed[-1]}"}
    ports = own_ports(session_with(conf))
    served = ports.given_to(own_server(session_with(conf)))
    buffers = Buffers(plan, Places(tmp_path / "state", tmp_path), served)
    try:
        (address,) = buffers.addresses.values()
        assert f":{port_of(served)}/" in address
        assert port_of(served) in allowed
        assert served.reader_port in allowed
    finally:
        buffers.close()
        ports.close()


# -------------------------------------------------------------------------------- TLS


def test_what_a_driver_serves_may_be_encrypted(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "pem").mkdir()
    pem = make_certificates(tmp_path / "pem")
    conf = {
        "spark.holdfast.certFile": str(pem.server),
        "spark.holdfast.keyFile": str(pem.server_key),
        "spark.holdfast.caFile": str(pem.ca),
    }
    session = session_with(conf)
    served = own_server(session)
    places = Places(
        tmp_path / "state", tmp_path, own_token=served.tokens[0].token,
        own_ca_file=own_authorities(session),
    )  # fmt: skip
    buffers = Buffers(plan, places, served)
    try:
        (address,) = buffers.addresses.values()
        location, _, name = address.rpartition("/")
        assert location.startswith("grpc+tls://")
        with RemoteQuiver.open(
            location, name, ClientSettings.model_validate(places.own_access)
        ) as quiver:
            assert quiver.name == name
        with pytest.raises(OwnerGone):  # in the clear
            RemoteQuiver.open(
                location.replace("+tls", ""), name, ClientSettings(token=places.own_token)
            )
    finally:
        buffers.close()


# -------------------------------------------------------------------------- the token


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_token_of_a_run_is_neither_explained_nor_logged_nor_kept(
    spark: SparkSession,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Queries with a quiver between them, and a source that the driver serves."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.ndjson").write_text('{"at": "2026-05-01T10:00:00Z", "key": "a"}')
    described = {
        "vertices": {
            "lines": {"source": {"files": "in", "columns_are": "key string", "event_time": "at"}},
            "same": {"map": {"select": {"key": "key"}}},
            "out": {"sink": {"files": "out"}},
        },
        "edges": [{"from": "lines", "to": "same", "durable": True}, "same -> out"],
    }
    settings = PipelineSettings.model_validate(described)
    with (
        caplog.at_level(logging.DEBUG),
        PipelineRun("told", settings, Places(tmp_path / "state", tmp_path), spark) as run,
    ):
        token = run._places.own_token
        assert token is not None
        run.drain()
        for one in run._ended:
            one.spark.explain(extended=True)
        told_by_us = f"{explain(run.plan)} {run.statistics()} {run._places}"
    secret = token.get_secret_value()
    printed = capfd.readouterr()
    assert list((tmp_path / "out").glob("part-*.parquet"))
    assert "Physical Plan" in printed.out
    for told in (printed.out, printed.err, caplog.text, told_by_us):
        assert secret not in told
    for path in (tmp_path / "state").rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path
