"""OpenLineage events of the runs of pipelines: START, RUNNING now and then, and the end.

Best effort: a thread sends them, whatever does not fit into its short queue or is not taken is left
out, and no batch ever waits for it. They may go to the gateway whose events the pipeline reads; so
that it does not count itself, sources leave out what has our `OWN_PRODUCER`.

Why best effort, in a system that keeps everything else: these events are about a run and not part
of its results. Were a batch to wait for its own lineage, a receiver that is down would stop every
pipeline that reports to it; and the gateway that stores them may be the one the pipeline reads
from.
"""

from __future__ import annotations

import http.client
import json
import logging
import queue
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from holdfast.dataflow.compiler.places import OWN_PRODUCER, Places
from holdfast.dataflow.driver.settings import TO_GATEWAY, LineageSettings
from holdfast.dataflow.driver.wire import QueryStatistics
from holdfast.dataflow.spec import PipelineSettings
from holdfast.dataflow.spec.vertices import FileSetSource, FileSetTarget, TargetSettings

EVENT_SCHEMA = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
PATH = "/api/v1/lineage"
# Events that wait to be sent, how long sending one may take, and how long an end waits for it.
WAITING_MAX = 16
SEND_S = 5.0
CLOSE_S = 6.0
_FACETS = "https://openlineage.io/spec/facets"
_REFUSED = 300

EventType = Literal["START", "RUNNING", "COMPLETE", "FAIL"]
LineageFields = dict[str, Any]

log = logging.getLogger("holdfast.pipelines")


class LineageSender:
    """Sends events to one address, in a thread."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self._url = urlsplit(url)
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._waiting: queue.Queue[LineageFields | None] = queue.Queue(WAITING_MAX)
        self._has_warned = False
        self._thread = threading.Thread(target=self._run, name="lineage", daemon=True)
        self._thread.start()

    def send(self, event: LineageFields) -> None:
        """Take an event; one too many is left out."""
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            log.debug("dropped a lineage event of a pipeline: too many are waiting")

    def close(self) -> None:
        """Send what waits, for `CLOSE_S` at most."""
        try:
            self._waiting.put(None, timeout=CLOSE_S)
        except queue.Full:
            return
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (event := self._waiting.get()) is not None:
            try:
                self._post(json.dumps(event).encode())
            except (OSError, http.client.HTTPException) as error:
                # A warning once: a receiver that is down will not take the next ones either.
                log.log(
                    logging.DEBUG if self._has_warned else logging.WARNING,
                    "an event about a pipeline was not sent: %s",
                    error,
                )
                self._has_warned = True

    def _post(self, body: bytes) -> None:
        """Send one event on a connection of its own: they are minutes apart."""
        url = self._url
        is_encrypted = url.scheme == "https"
        kind = http.client.HTTPSConnection if is_encrypted else http.client.HTTPConnection
        connection = kind(url.netloc, timeout=SEND_S)
        try:
            path = url.path if url.path.strip("/") else PATH
            query = f"?{url.query}" if url.query else ""
            connection.request("POST", path + query, body, self._headers)
            status = connection.getresponse().status
        finally:
            connection.close()
        if status >= _REFUSED:
            raise http.client.HTTPException(f"{url.netloc} answered {status}")


def lineage_sender(
    settings: LineageSettings | None, gateway_url: str | None
) -> LineageSender | None:
    """Return what sends the events of pipelines; None if they are not sent."""
    if settings is None:
        return None
    url = gateway_url if settings.to == TO_GATEWAY else settings.to
    if url is None:
        log.warning("no gateway accepts the pipelines' lineage; set an address in `to`")
        return None
    return LineageSender(url, None if settings.token is None else settings.token.get_secret_value())


class RunReporter:
    """Sends the events of one run of a pipeline.

    A run is from one start of the queries to their end: a restart after a failure is another run of
    the same job, as OpenLineage has it.
    """

    def __init__(
        self,
        settings: LineageSettings,
        sender: LineageSender,
        name: str,
        pipeline: PipelineSettings,
        places: Places,
    ) -> None:
        self._settings = settings
        self._sender = sender
        self._name = name
        self._datasets = {
            "inputs": list(_inputs(pipeline, places)),
            "outputs": list(_outputs(pipeline, places)),
        }
        self._run_id = str(uuid.uuid4())
        self._sent_s: float | None = None
        self._counts: Mapping[str, int] = {}

    def started(self) -> None:
        """The queries run."""
        self._sent_s = time.monotonic()
        self._send("START")

    def running(self, statistics: Sequence[QueryStatistics]) -> None:
        """They are running; sent at most once in `every`."""
        self._counts = {name: n for one in statistics for name, n in one.counts.items()}
        if self._sent_s is not None and time.monotonic() >= self._sent_s + self._settings.every:
            self._sent_s = time.monotonic()
            self._send("RUNNING")

    def ended(self, error: str = "") -> None:
        """They have ended, orderly or not; nothing is sent about a run that never started."""
        if self._sent_s is not None:
            self._send("FAIL" if error else "COMPLETE", error)
            self._sent_s = None

    def _send(self, kind: EventType, error: str = "") -> None:
        facets: LineageFields = {}
        if error:
            facets["errorMessage"] = _facet(
                "1-0-1/ErrorMessageRunFacet", message=error, programmingLanguage="PYTHON"
            )
        job_type = _facet(
            "2-0-3/JobTypeJobFacet",
            processingType="STREAMING", integration="HOLDFAST", jobType="PIPELINE",
        )  # fmt: skip
        self._sender.send(
            {
                "eventType": kind,
                "eventTime": datetime.now(UTC).isoformat(),
                "producer": OWN_PRODUCER,
                "schemaURL": EVENT_SCHEMA,
                "run": {"runId": self._run_id, "facets": facets},
                "job": {
                    "namespace": self._settings.namespace,
                    "name": self._name,
                    "facets": {"jobType": job_type},
                },
                "inputs": self._datasets["inputs"],
                "outputs": [self._counted(one) for one in self._datasets["outputs"]],
            }
        )

    def _counted(self, output: LineageFields) -> LineageFields:
        """Return an output with the rows that were written to it."""
        dataset = {key: value for key, value in output.items() if key != "vertex"}
        rows = self._counts.get(f"written.{output['vertex']}")
        if rows is None:
            return dataset
        statistics = _facet("1-0-2/OutputStatisticsOutputDatasetFacet", rowCount=rows)
        return {**dataset, "outputFacets": {"outputStatistics": statistics}}


def _facet(schema: str, **fields: Any) -> LineageFields:
    name = schema.rpartition("/")[2]
    return {
        "_producer": OWN_PRODUCER,
        "_schemaURL": f"{_FACETS}/{schema}.json#/$defs/{name}",
        **fields,
    }


def _inputs(pipeline: PipelineSettings, places: Places) -> Sequence[LineageFields]:
    sources = [v.source for v in pipeline.vertices.values() if v.source is not None]
    named = dict.fromkeys(quiver for source in sources for quiver in source.quiver)
    folders = dict.fromkeys(source.files for source in sources if source.files is not None)
    return [
        *(_quiver(name, places) for name in named),
        *(_folder(places.base_dir / folder) for folder in folders),
        *(_fileset(source.fileset, places) for source in sources if source.fileset is not None),
    ]


def _outputs(pipeline: PipelineSettings, places: Places) -> Sequence[LineageFields]:
    sinks = {name: v.sink for name, v in pipeline.vertices.items() if v.sink is not None}
    return [
        {"vertex": name, **dataset}
        for name, sink in sinks.items()
        if (dataset := _target(sink, places)) is not None
    ]


def _target(sink: TargetSettings, places: Places) -> LineageFields | None:
    if sink.files is not None:
        return _folder(places.base_dir / sink.files)
    if sink.fileset is not None:
        return _fileset(sink.fileset, places)
    return None if sink.quiver is None else _quiver(sink.quiver, places)


def _quiver(name: str, places: Places) -> LineageFields:
    """Return a quiver as a dataset: by its name in the file, its address, or its directory.

    The name must be the same for whoever writes it and whoever reads it, or two pipelines in a row
    would have no edge between them.
    """
    if name in places.quivers:
        return {"namespace": "holdfast", "name": name}
    if "://" in name:
        parts = urlsplit(name)
        return {"namespace": f"{parts.scheme}://{parts.netloc}", "name": parts.path.strip("/")}
    return _folder(places.base_dir / name)


def _fileset(fileset: FileSetSource | FileSetTarget, places: Places) -> LineageFields:
    store = places.store(fileset.store)
    return {"namespace": store if "://" in store else f"file:{store}", "name": fileset.commit}


def _folder(path: Path) -> LineageFields:
    return {"namespace": "file", "name": str(path.resolve())}
