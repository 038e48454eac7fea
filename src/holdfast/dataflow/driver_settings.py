"""How the drivers of pipelines run: where Spark is, how often they are begun again, who is told."""

from __future__ import annotations

from pydantic import Field

from holdfast.settings import DurationS, LocalPath, Secret, Settings

# Where lineage goes when it goes to the gateway of the same file.
TO_GATEWAY = "gateway"
# Of the events that pipelines tell about their own runs; sources leave them out.
OWN_PRODUCER = "urn:holdfast:pipelines"


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
    """Settings of Spark, such as `spark.driver.memory: 2g`."""
    restart_min: DurationS = Field(default=1.0, gt=0)
    """Before a pipeline, or the driver, that ended unasked is begun again: doubles from this …"""
    restart_max: DurationS = Field(default=60.0, le=3600)
    """… to this, and starts over once it ran that long."""
    ca_file: LocalPath | None = None
    """Authorities (PEM) of this gateway's own certificate, if `flight.tls` is set."""
    lineage: LineageSettings | None = None
    """Tell OpenLineage of the runs of pipelines; by default nobody is told."""
