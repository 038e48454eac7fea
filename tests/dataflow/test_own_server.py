"""What a driver serves: under the name that Spark's driver has, for its own executors only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pytest
from tests.dataflow.spec.pipelines import pipeline

from holdfast.dataflow.buffers import Buffers
from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.compiler.plan import Plan, make_plan
from holdfast.dataflow.own_server import own_server
from holdfast.errors import NotAllowed
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


def served_on(master: str, cores: int = 4, **conf: str) -> FlightSettings:
    settings = {f"spark.driver.{name}": value for name, value in conf.items()}
    session: Any = _Session(_Context(master, settings, cores))
    return own_server(cast("SparkSession", session))


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
