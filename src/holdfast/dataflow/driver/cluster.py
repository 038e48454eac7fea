"""What executors need of their driver, on this machine or on the hosts of a cluster.

They read over Flight what the driver serves: quivers between queries, retry lanes, its intakes. On
this machine that is a port of loopback. The executors of a cluster are on other hosts, and
connect to the driver anyway: Spark has settings for where it listens (`spark.driver.bindAddress`)
and what it is called there (`spark.driver.host`), and both are ours, too.

Nobody else is to read the rows of a pipeline: each run makes a token, which executors get with
their tasks. It is never written down, and Spark leaves options of that name out of what it shows.
Three settings are our own, among Spark's: the ports, and files for TLS.

Where a firewall stands between driver and executors, the ports are fixed (`OwnPorts`). gRPC shares
a port with any other process that listens there, so a port is tried before it is given away, and
the runs of one process do not get the same.

And they open folders that the pipeline names as plain paths: the state directory (checkpoints, and
what tasks stage there), the folders of `files` sinks, the data directories that sources read. On
another host such a path leads to nothing, or to something else: rows would be lost there, or a
batch would fail for ever. So a run on a cluster begins with a question to the executors that are
there (`check_shared`): do you find in each folder what I have put there? One that joins later is
not asked; what it cannot open, its tasks say.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.compiler.plan import Plan
from holdfast.dataflow.driver.failures import reason_of
from holdfast.dataflow.driver.settings import (
    CA_FILE,
    CERT_FILE,
    KEY_FILE,
    LOOPBACK,
    PORTS,
    PORTS_OF_A_RUN,
    PORTS_OF_A_SERVER,
    checked_conf,
    parse_ports,
)
from holdfast.dataflow.spec.vertices import SinkSettings, TargetSettings
from holdfast.errors import BadConfig, PipelineFailed
from holdfast.local_path import problem_of
from holdfast.quiver.base.names import FORMAT
from holdfast.remote import FlightSettings
from holdfast.remote.reader import require_free
from holdfast.remote.settings import FlightTls, FlightToken, split_address
from holdfast.settings import Secret

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TOKEN_BYTES = 32
# For whatever else the driver does beside its tasks, each of which has two calls at most.
_SPARE_CALLS = 16
# Tasks that ask about folders, for each core that Spark knows of: they are short, and each
# executor should get one.
TASKS_PER_CORE = 4


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
    """Return the certificate of what the driver serves; None: it is not encrypted."""
    if CERT_FILE not in conf:
        return None
    return FlightTls(cert_file=conf[CERT_FILE], key_file=conf[KEY_FILE])


def _bare(host: str) -> str:
    """Return an address as it is, without the brackets that Spark puts around those with colons."""
    return host.removeprefix("[").removesuffix("]")


_taken: set[int] = set()
_taking = threading.Lock()


class OwnPorts:
    """The ports of one run, until it ends; without a range any that are free."""

    def __init__(self, allowed: range) -> None:
        self._allowed = allowed
        self._mine: set[int] = set()

    def given_to(self, served: FlightSettings) -> FlightSettings:
        """Return the settings of one more server, with ports of its own."""
        if not self._allowed:
            return served
        host, _ = split_address(served.listen)
        ports = self._take(host)
        listen = f"[{host}]:{ports[0]}" if ":" in host else f"{host}:{ports[0]}"
        return served.model_copy(update={"listen": listen, "reader_port": ports[1]})

    def _take(self, host: str) -> list[int]:
        """Return free ports of the range for one server, which no other run here gets.

        Whether a port is free can only be tried. Two runs that try at the same time would both find
        it free, so this is done under a lock.
        """
        with _taking:
            free: list[int] = []
            for port in self._allowed:
                if port not in _taken and _is_free(host, port):
                    free.append(port)
                if len(free) == PORTS_OF_A_SERVER:
                    _taken.update(free)
                    self._mine.update(free)
                    return free
        named = f"{self._allowed[0]}-{self._allowed[-1]}"
        # Not a wrong setting: a driver before this one may still be ending.
        raise PipelineFailed(
            f"no {PORTS_OF_A_SERVER} of the ports {named} are free on {host}",
            hint=f"a pipeline needs {PORTS_OF_A_RUN}: allow more, or stop what uses them",
        )

    def close(self) -> None:
        """Let others have them."""
        with _taking:
            _taken.difference_update(self._mine)
            self._mine.clear()


def _is_free(host: str, port: int) -> bool:
    """Whether a port can be listened on now."""
    try:
        require_free(host, port)
    except BadConfig:
        return False
    return True


# ------------------------------------------------------------------ shared folders


def refuse_address(state_dir: Path) -> None:
    """Raise if the state directory is an address of an object store; sinks refuse theirs."""
    problem = problem_of(state_dir)
    if problem is not None:
        raise BadConfig(
            f"the state directory is an address: {problem}",
            hint="checkpoints are synced and renamed: mount storage that can do that on all hosts",
            path=str(state_dir),
        )


def check_shared(session: SparkSession, plan: Plan, places: Places) -> None:
    """Raise if an executor does not see a folder of the pipeline as the driver does."""
    context = session.sparkContext
    if str(context.master).startswith("local"):
        return
    with ExitStack() as marked:
        marks = dict(_marks(plan, places, marked))
        tasks = TASKS_PER_CORE * max(1, context.defaultParallelism)
        asked = context.parallelize(range(tasks), tasks)
        try:
            missing = asked.map(lambda _: (socket.gethostname(), unseen(marks))).collect()
        except Py4JJavaError as error:
            raise PipelineFailed(
                f"the executors cannot be asked what they see: {reason_of(error)}",
                hint="is Holdfast installed for their Python (`spark.pyspark.python`)?",
            ) from error
    for host, folders in missing:
        if folders:
            raise not_shared(host, folders)


def unseen(marks: Mapping[str, bytes]) -> list[str]:
    """Return the folders of those files that are not here as they are there."""
    return [os.path.dirname(path) for path, content in marks.items() if _read(path) != content]


def not_shared(host: str, folders: list[str]) -> BadConfig:
    """Return the error for folders that a host has not, or not the same."""
    return BadConfig(
        f"{host} does not see {', '.join(folders)} as the driver does",
        hint="the state directory and the folders of files sinks have to be on storage that all "
        "hosts mount at the same place; quivers can be read over Flight (grpc://host:port/name)",
        path=folders[0],
    )


def _marks(plan: Plan, places: Places, marked: ExitStack) -> Iterator[tuple[str, bytes]]:
    """Yield files that are in the folders now, and what is in them.

    Folders that the pipeline writes get a new file with random content; data directories have one
    of their own already, and nothing is written to a quiver that may be another process's.
    """
    name, content = f"driver-{uuid.uuid4().hex}", os.urandom(16)
    own = [places.base_dir / one.files / "_holdfast" for _, one in _targets(plan) if one.files]
    for folder in dict.fromkeys((places.state_dir, *own)):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        marked.callback((folder / name).unlink, missing_ok=True)
        yield str(folder / name), content
    for vertex in plan.pipeline.vertices.values():
        for quiver in () if vertex.source is None else vertex.source.quiver:
            for path in places.quiver(quiver).get("path", "").split(","):
                if path and (text := _read(str(Path(path) / FORMAT))) is not None:
                    yield str(Path(path) / FORMAT), text


def _targets(plan: Plan) -> Iterator[tuple[str, TargetSettings]]:
    """Yield everything that sinks write to, fallbacks included."""
    for name, vertex in plan.pipeline.vertices.items():
        sink: SinkSettings | None = vertex.sink
        if sink is not None:
            further = (sink.fallback, sink.on_success)
            yield from ((name, one) for one in (sink, *further) if one is not None)


def _read(path: str) -> bytes | None:
    """Return what is in a file; None if it is not here."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None
