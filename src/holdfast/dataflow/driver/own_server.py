"""How executors reach what a driver serves: quivers between queries, retry lanes, its intakes.

On this machine that is a port of loopback. The executors of a cluster are on other hosts, and
connect to the driver anyway: Spark has settings for where it listens (`spark.driver.bindAddress`)
and what it is called there (`spark.driver.host`), and both are ours, too.

Nobody else is to read the rows of a pipeline: each run makes a token, which executors get with
their tasks. It is never written down, and Spark leaves options of that name out of what it shows.
Three settings are our own, among Spark's: the ports, and files for TLS.
"""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING

from holdfast.dataflow.driver.own_ports import OwnPorts
from holdfast.dataflow.driver.settings import (
    CA_FILE,
    CERT_FILE,
    KEY_FILE,
    PORTS,
    checked_conf,
    parse_ports,
)
from holdfast.errors import BadConfig
from holdfast.remote import FlightSettings
from holdfast.remote.settings import FlightTls, FlightToken
from holdfast.settings import Secret

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"
_TOKEN_BYTES = 32
# For whatever else the driver does beside its tasks, each of which has two calls at most.
_SPARE_CALLS = 16


def own_server(session: SparkSession) -> FlightSettings:
    """Return how a run on this session serves its own quivers, with a new token."""
    # At DEBUG it writes down all that is said to Java, with every option of every source.
    py4j = logging.getLogger("py4j")
    py4j.setLevel(max(py4j.getEffectiveLevel(), logging.INFO))
    context = session.sparkContext
    listen = advertise = LOOPBACK
    if not str(context.master).startswith("local"):
        conf = context.getConf()
        advertise = _bare(conf.get("spark.driver.host") or LOOPBACK)
        listen = _bare(conf.get("spark.driver.bindAddress") or advertise)
    token = FlightToken(name="executors", token=Secret(secrets.token_hex(_TOKEN_BYTES)))
    calls = 2 * context.defaultParallelism + _SPARE_CALLS
    return FlightSettings(
        listen=f"[{listen}]:0" if ":" in listen else f"{listen}:0",
        advertise_host=advertise,
        tokens=(token,),
        tls=_tls(_own_conf(session)),
        max_calls=max(calls, FlightSettings.model_fields["max_calls"].default),
    )


def own_ports(session: SparkSession) -> OwnPorts:
    """Return the ports that a run on this session may have."""
    return OwnPorts(parse_ports(_own_conf(session).get(PORTS, "")))


def own_authorities(session: SparkSession) -> str:
    """Return where executors find who signed the certificate of the driver; "": the system's."""
    return _own_conf(session).get(CA_FILE, "")


def _own_conf(session: SparkSession) -> dict[str, str]:
    """Return our own settings among Spark's."""
    conf = session.sparkContext.getConf()
    given = {key: conf.get(key) for key in (PORTS, CERT_FILE, KEY_FILE, CA_FILE)}
    try:
        return checked_conf({key: value for key, value in given.items() if value})
    except ValueError as error:
        raise BadConfig(str(error), hint="change it among the settings of Spark") from error


def _tls(conf: dict[str, str]) -> FlightTls | None:
    if CERT_FILE not in conf:
        return None
    return FlightTls(cert_file=conf[CERT_FILE], key_file=conf[KEY_FILE])


def _bare(host: str) -> str:
    """Return an address as it is, without the brackets that Spark puts around those with colons."""
    return host.removeprefix("[").removesuffix("]")
