"""Writes one line per event to standard output or standard error, for people or for a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, BinaryIO, Literal

import orjson

from holdfast.deliver.exporter import (
    ALL_DELIVERED,
    Answer,
    Exporter,
    ExporterContext,
    Failure,
    FailureClass,
    all_failed,
)
from holdfast.deliver.exporters.dialects import one_line
from holdfast.own_thread import in_thread
from holdfast.settings import Settings
from holdfast.signals.event import Event
from holdfast.signals.signal import ANY_EVENTS, Takes

BATCH_EVENTS_MAX = 100
BATCH_BYTES_MAX = 2**20
# Of one word in a compact line.
WORD_CHARACTERS_MAX = 100


class Config(Settings):
    """Lines for a terminal or a pipe."""

    stream: Literal["stdout", "stderr"] = "stdout"
    """Where the lines go."""

    format: Literal["compact", "json"] = "compact"
    """`compact`: when, where, what, in a few words. `json`: the event itself."""


def takes(config: Config) -> Takes:
    """Return what it can be given: whatever can be shown."""
    return ANY_EVENTS


def make(config: Config, context: ExporterContext) -> Exporter:
    """Return the exporter."""
    line = _compact if config.format == "compact" else _json
    # Looked up when it is used: the streams of a process may be replaced.
    return ConsoleExporter(lambda: getattr(sys, config.stream).buffer, line, context.name)


class ConsoleExporter:
    """Writes in a thread, because the reader may be slow."""

    max_batch_events = BATCH_EVENTS_MAX
    max_batch_bytes = BATCH_BYTES_MAX

    def __init__(
        self, stream: Callable[[], BinaryIO], line: Callable[[Event], bytes], name: str
    ) -> None:
        self._stream = stream
        self._line = line
        self._name = name

    async def start(self) -> None:
        """Nothing to get ready."""

    async def close(self) -> None:
        """Nothing to close."""

    async def send(self, events: Sequence[Event]) -> Answer:
        lines = b"".join(self._line(event) + b"\n" for event in events)
        try:
            await in_thread(f"exporter {self._name}", lambda: self._write(lines))
        except (OSError, ValueError) as error:  # ValueError: the stream was closed
            why = (error.strerror if isinstance(error, OSError) else None) or "it is closed"
            reason = f"the stream takes no lines: {why}"
            # How many lines a broken pipe took is not known, so all of them are written again.
            # Whoever reads them has to expect repetitions; in compact lines the position tells
            # them apart.
            failure = Failure(FailureClass.TRANSIENT, reason, "stream", maybe_delivered=True)
            return all_failed(len(events), failure)
        return ALL_DELIVERED

    def _write(self, lines: bytes) -> None:
        stream = self._stream()
        stream.write(lines)
        stream.flush()


def _json(event: Event) -> bytes:
    if event.is_json:
        return one_line(event.json_text)
    return orjson.dumps({"not_json": event.payload.decode("utf-8", "backslashreplace")})


def _compact(event: Event) -> bytes:
    received = datetime.fromtimestamp(event.ingestion_ns // 1000 / 1e6, UTC)
    seq, row = event.position
    words = [received.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), f"{seq}/{row}"]
    if event.read is not None:
        words.append(f"{event.signal},")
    else:
        words += _words(event.document) if event.is_json else ["not JSON,"]
    return " ".join([*words, f"{len(event.payload)} bytes"]).encode("utf-8", "replace")


def _words(document: Any) -> list[str]:
    """Return what an OpenLineage event is about, in a few words; any JSON may come along."""
    words = [_text(document, "eventType") or "event"]
    words += [
        f"{_text(document, part, 'namespace')}/{_text(document, part, 'name')}"
        for part in ("job", "dataset")
        if _text(document, part, "name")
    ]
    run_id = _text(document, "run", "runId")
    words += [f"run {run_id}"] if run_id else []
    return [*words[:-1], f"{words[-1]},"]


def _text(document: Any, *keys: str) -> str:
    """Return a text in a document, made safe for a terminal; empty if there is none.

    Control characters are written as escapes: a job's name comes from strangers, and must not be
    able to move the cursor or recolour the operator's terminal.
    """
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    if not isinstance(document, str):
        return ""
    cut = document[:WORD_CHARACTERS_MAX]
    return cut if cut.isprintable() else ascii(cut)[1:-1]
