"""How the drivers of pipelines run: where Spark is, when they restart, where lineage is sent."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field, field_validator

from holdfast.settings import DurationS, LocalPath, Secret, Settings

# Where lineage goes when it goes to the gateway of the same file.
TO_GATEWAY = "gateway"
# Where a driver serves its own quivers if all executors are on its machine.
LOOPBACK = "127.0.0.1"
# Our own settings among Spark's: of what a driver serves to its executors.
PORTS = "spark.holdfast.ports"
CERT_FILE = "spark.holdfast.certFile"
KEY_FILE = "spark.holdfast.keyFile"
CA_FILE = "spark.holdfast.caFile"
_OWN_PREFIX = "spark.holdfast."
# For the owner of some quivers, and for the process that reads them.
PORTS_OF_A_SERVER = 2
# A run has a server for what lies between its queries, and one for its intakes.
PORTS_OF_A_RUN = 2 * PORTS_OF_A_SERVER
_PORT_MIN, _PORT_MAX = 1024, 65535


def parse_ports(text: str) -> range:
    """Return the ports that `42000-42015` names; none for an empty text."""
    if not text:
        return range(0)
    first, dash, last = text.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal()):
        raise ValueError(f"{text!r} is not a range of ports; write 42000-42015")
    ports = range(int(first), int(last) + 1)
    if int(first) < _PORT_MIN or int(last) > _PORT_MAX:
        raise ValueError(f"ports are from {_PORT_MIN} to {_PORT_MAX}, not {text}")
    if len(ports) < PORTS_OF_A_RUN:
        raise ValueError(f"{text} is {len(ports)} ports, and a pipeline needs {PORTS_OF_A_RUN}")
    return ports


def checked_conf(conf: Mapping[str, str]) -> dict[str, str]:
    """Return settings of Spark; raise `ValueError` if those that are our own are wrong."""
    known = (PORTS, CERT_FILE, KEY_FILE, CA_FILE)
    unknown = [key for key in conf if key.startswith(_OWN_PREFIX) and key not in known]
    if unknown:
        raise ValueError(f"there is no setting {unknown[0]!r}, only {', '.join(known)}")
    try:
        parse_ports(conf.get(PORTS, ""))
    except ValueError as error:
        raise ValueError(f"{PORTS}: {error}") from None
    if (CERT_FILE in conf) != (KEY_FILE in conf):
        raise ValueError(f"{CERT_FILE} and {KEY_FILE} go together")
    if CA_FILE in conf and CERT_FILE not in conf:
        raise ValueError(f"{CA_FILE} is of the certificate {CERT_FILE}")
    return dict(conf)


class LineageSettings(Settings):
    """OpenLineage events about the runs of pipelines; best effort, nothing waits for them."""

    to: str = TO_GATEWAY
    """`gateway`, for the receiver of the same file, or the address of another (`http://host/…`)."""
    token: Secret | None = None
    """Its bearer token."""
    namespace: str = Field(default="holdfast", min_length=1, max_length=256)
    """The namespace of the jobs; a job is called as its pipeline."""
    every: DurationS = Field(default=60.0, ge=1)
    """The shortest time between two `RUNNING` events of a pipeline."""


class SparkSettings(Settings):
    """Where pipelines run, and how their driver is kept going."""

    run: bool = True
    """Whether `holdfast up` runs the pipelines of its file, in one driver process."""
    master: str = Field(default="local[*]", min_length=1)
    """Where Spark runs: this machine, or a cluster (`spark://host:7077`, `yarn`, `k8s://…`)."""
    conf: dict[str, str] = Field(default_factory=dict)
    """Settings of Spark, such as `spark.driver.memory: 2g`, and our own: `spark.holdfast.ports`."""
    restart_min: DurationS = Field(default=1.0, gt=0)
    """The pause before a pipeline or driver that failed is restarted: doubles from this …"""
    restart_max: DurationS = Field(default=60.0, le=3600)
    """… up to this; it is the first again after a run of that length."""
    ca_file: LocalPath | None = None
    """Authorities (PEM) of this gateway's own certificate, if `flight.tls` is set."""
    lineage: LineageSettings | None = None
    """Send OpenLineage events about the runs of pipelines; by default none are sent."""

    @field_validator("conf")
    @classmethod
    def _has_own_settings(cls, conf: dict[str, str]) -> dict[str, str]:
        return checked_conf(conf)
