"""The intakes of a pipeline: its sources that are not quivers, and the quivers they fill.

They are owned by the driver and served like a gateway's (see buffers.py). A thread for each looks
for something new; what fails is logged and tried again, because a folder may be created later, or
disk space freed. `take_in` does the same once, for a run that reads what is there now and ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.compiler.plan import Plan
from holdfast.dataflow.driver.cluster import LOOPBACK
from holdfast.dataflow.source.intake import SLOT, FilesIntake, GeneratorIntake, SourceIntake
from holdfast.dataflow.spec.vertices import FileSetSource, SourceSettings
from holdfast.errors import HoldfastError
from holdfast.quiver import ColumnExtractor, Quiver, QuiverConfig
from holdfast.remote import FlightSettings, QuiverServer

# How often to look for something new, and how long to wait after a failure.
LOOK_EVERY_S = 0.5
AFTER_ERROR_S = 5.0
_LOOPBACK = FlightSettings(listen=f"{LOOPBACK}:0")

log = logging.getLogger("holdfast.dataflow")


class Intakes:
    """The intakes of a pipeline, by vertex."""

    def __init__(self, plan: Plan, places: Places, served: FlightSettings = _LOOPBACK) -> None:
        self._stack = ExitStack()
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self.intakes: dict[str, SourceIntake] = {}
        # Where sources read what was taken in.
        self.addresses: Mapping[str, str] = {}
        wanted = {
            name: source
            for name, vertex in plan.pipeline.vertices.items()
            if (source := vertex.source) is not None and not source.quiver
        }
        if not wanted:
            return
        with ExitStack() as opening:
            quivers = {
                name: self._open(name, source, places, opening) for name, source in wanted.items()
            }
            server = QuiverServer(quivers, served)
            opening.enter_context(server)
            self._stack = opening.pop_all()
        self.addresses = {name: f"{server.location}/{name}" for name in quivers}

    def _open(
        self, name: str, source: SourceSettings, places: Places, opening: ExitStack
    ) -> Quiver:
        folder = places.intake(name)
        config = QuiverConfig(extractors={SLOT: ColumnExtractor(source.event_time)})
        quiver = opening.enter_context(Quiver.open(folder / "rows", config))
        if source.generator is not None:
            made = source.generator
            self.intakes[name] = GeneratorIntake(
                folder, quiver, made.rows_per_s, made.keys, made.rows
            )
            return quiver
        rejected = opening.enter_context(Quiver.open(folder / "rejected"))
        schema = None
        if source.columns_are:
            parsed = StructType.fromDDL(source.columns_are)
            assert isinstance(parsed, StructType), "BUG: columns are a struct"
            schema = to_arrow_schema(parsed, timezone="UTC")
        kinds = (source.format, source.event_time, schema)
        if source.fileset is not None:
            self.intakes[name] = _fileset_intake(
                folder, (quiver, rejected), source.fileset, places, kinds
            )
        else:
            incoming = places.base_dir / Path(source.files or "")
            self.intakes[name] = FilesIntake(folder, quiver, rejected, incoming, *kinds)
        return quiver

    def take_in(self) -> None:
        """Take in what is there now."""
        for intake in self.intakes.values():
            intake.take(self._stopped.is_set)

    def start(self) -> None:
        """Take in what comes, until it is closed."""
        for name, intake in self.intakes.items():
            thread = threading.Thread(
                target=self._run, args=(name, intake), name=f"intake-{name}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _run(self, name: str, intake: SourceIntake) -> None:
        pause_s = 0.0
        while not self._stopped.wait(pause_s):
            try:
                intake.take(self._stopped.is_set)
                pause_s = LOOK_EVERY_S
            except (HoldfastError, OSError) as error:
                log.warning("%s: could not take anything in: %s", name, error)
                pause_s = AFTER_ERROR_S

    def stop(self) -> None:
        """Take in no more."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        self._threads = []
        self._stopped.clear()

    def close(self) -> None:
        """Take in no more, and close the quivers."""
        self.stop()
        self._stack.close()


def _fileset_intake(
    folder: Path,
    quivers: tuple[Quiver, Quiver],
    source: FileSetSource,
    places: Places,
    kinds: tuple[str, str, pa.Schema | None],
) -> SourceIntake:
    # Not everybody who runs pipelines has installed what a store needs.
    from holdfast.dataflow.filesets.intake import FileSetIntake

    database = source.database.get_secret_value() if source.database else None
    place = (places.store(source.store), database, source.commit)
    return FileSetIntake(folder, quivers, place, *kinds)
