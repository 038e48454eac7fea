"""What a data node is measured against, each in a process of its own.

    python -m holdfast.bench.handoff_peers sink DIR       writes the files of parts, with all syncs
    python -m holdfast.bench.handoff_peers quiver DIR     a quiver that rows are appended to

The sink takes the same bytes over the same Flight call as a data node, makes the same files and
folders and syncs them as often, and does nothing else: it looks at no checksum and remembers
nothing. Both print where they listen, and end when their input does.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Self

from pyarrow import flight

from holdfast.errors import CheckFailed
from holdfast.quiver import Quiver, QuiverConfig, RetentionConfig
from holdfast.remote import FlightSettings, QuiverServer
from holdfast.remote.wire import Fields, encode
from holdfast.replica.flight import batch_slices
from holdfast.replica.messages import AnswerKind, PartAnswer, decode_parts
from holdfast.replica.part import Part
from holdfast.seam.disk import Handle, RealDisk

QUIVER = "rows"
_STEP = "bench"


class PartSink(flight.FlightServerBase):  # type: ignore[misc]
    """Makes folders of what comes, one after another."""

    def __init__(self, directory: Path) -> None:
        self._disk = RealDisk()
        self._numbers = itertools.count()
        self._staging, self._segments = directory / "staging", directory / "segments"
        for folder in (self._staging, self._segments):
            folder.mkdir(parents=True)
        super().__init__("grpc://127.0.0.1:0")

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        """Write parts, and answer each when its name is durable."""
        parts = decode_parts(Fields.decode(descriptor.command))
        current, folder, handle = (-1, -1), self._staging, None
        for chunk in reader:
            for place, piece in batch_slices(chunk.data):
                if current != (place, piece.file):
                    if handle is not None:
                        self._finish(handle)
                    if current[0] not in (-1, place):
                        self._adopt(folder)
                        self._answer(writer, parts[current[0]])
                    if current[0] != place:
                        folder = self._staging / str(next(self._numbers))
                        self._disk.make_dir(folder, _STEP)
                    current = (place, piece.file)
                    handle = self._disk.create(folder / parts[place].files[piece.file].name, _STEP)
                if piece.data and handle is not None:
                    self._disk.write(handle, [piece.data], _STEP)
        if handle is not None:
            self._finish(handle)
            self._adopt(folder)
            self._answer(writer, parts[current[0]])

    def _finish(self, handle: Handle) -> None:
        self._disk.sync(handle, _STEP)
        self._disk.close(handle)

    def _adopt(self, folder: Path) -> None:
        self._disk.sync_dir(folder, _STEP)
        self._disk.rename(folder, self._segments / folder.name, _STEP)
        for one in (self._segments, self._staging):
            self._disk.sync_dir(one, _STEP)

    def _answer(self, writer: flight.FlightMetadataWriter, part: Part) -> None:
        writer.write(encode(PartAnswer(part.id, AnswerKind.ACK).to_fields()))


class Peer:
    """A peer in its process."""

    def __init__(self, kind: str, directory: Path) -> None:
        command = [sys.executable, "-m", "holdfast.bench.handoff_peers", kind, str(directory)]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.location = self._line()

    def _line(self) -> str:
        assert self._child.stdout is not None
        line = self._child.stdout.readline().decode().strip()
        if not line:
            raise CheckFailed("a process of the benchmark ended", hint="it says why above")
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        with self._child:  # closes its input: it ends
            pass


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _run_sink(directory: Path) -> None:
    sink = PartSink(directory)
    _say(f"grpc://127.0.0.1:{sink.port}")
    sys.stdin.read()
    os._exit(0)


def _run_quiver(directory: Path) -> None:
    config = QuiverConfig(retention=RetentionConfig(size_cap_bytes=64 << 30))
    with Quiver.open(directory, config) as quiver:
        quiver.register("keep")
        with QuiverServer({QUIVER: quiver}, FlightSettings(listen="127.0.0.1:0")) as server:
            _say(server.location)
            sys.stdin.read()


if __name__ == "__main__":
    run = {"sink": _run_sink, "quiver": _run_quiver}[sys.argv[1]]
    run(Path(sys.argv[2]))
