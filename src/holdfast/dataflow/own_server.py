"""How executors reach what a driver serves: quivers between queries, retry lanes, its intakes.

On this machine that is a port of loopback. The executors of a cluster are on other hosts, and
connect to the driver anyway: Spark has settings for where it listens (`spark.driver.bindAddress`)
and what it is called there (`spark.driver.host`), and both are ours, too.

Nobody else is to read the rows of a pipeline: each run makes a token, which executors get with
their tasks. It is never written down, and Spark leaves options of that name out of what it shows.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from holdfast.remote import FlightSettings
from holdfast.remote.settings import FlightToken
from holdfast.settings import Secret

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"
_TOKEN_BYTES = 32
# For whatever else the driver does beside its tasks, each of which has two calls at most.
_SPARE_CALLS = 16


def own_server(session: SparkSession) -> FlightSettings:
    """Return how a run on this session serves its own quivers, with a new token."""
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
        max_calls=max(calls, FlightSettings.model_fields["max_calls"].default),
    )


def _bare(host: str) -> str:
    """Return an address as it is, without the brackets that Spark puts around those with colons."""
    return host.removeprefix("[").removesuffix("]")
