"""Holdfast's own log: lines of JSON, or for people, on standard error, and never in the way.

Everything logs through the standard library; structlog makes the lines for people. A line is cut
at a length, each severity has a limit of lines per second, and a separate thread writes them:
the reader of the log may be slow, and an event loop must not wait. Lines left out are counted and
reported.

A log that blocks is a denial of service: a gateway whose standard error is a pipe to a stuck
program would stop in the middle of whatever it was about to say. Between losing lines and losing
time, lines lose, and the next one that gets through says how many.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sys
import threading
import time
from datetime import UTC, datetime
from typing import Any, TextIO

import orjson

from holdfast.graph.model import LoggingSettings

# Lines that wait for the writing thread.
WAITING_LINES_MAX = 1000
# How long `close` waits for them.
CLOSE_S = 2.0
_CUT = " …cut"
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S.%fZ"
# What every record has; the rest was given by `extra`. The last two are made by other formatters.
_OWN_OF_A_RECORD = {*logging.makeLogRecord({}).__dict__, "message", "asctime"}


class LogHandler(logging.Handler):
    """Formats, bounds, and hands over to a thread that writes."""

    def __init__(self, stream: TextIO, settings: LoggingSettings) -> None:
        super().__init__()
        self.left_out = 0
        self._stream = stream
        self._max_lines_per_s = settings.max_lines_per_s
        self._max_line_bytes = settings.max_line
        # Lines of the current second, by severity: a flood of one does not hide the others.
        self._second = 0
        self._counts: dict[int, int] = {}
        self._untold = 0
        self._lines: queue.Queue[bytes | None] = queue.Queue(WAITING_LINES_MAX)
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Take one record; the caller holds the handler's lock."""
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._counts = second, {}
        # Counted before it is formatted: formatting is the dear part, and a flood is what the
        # limit is for.
        self._counts[record.levelno] = self._counts.get(record.levelno, 0) + 1
        if self._counts[record.levelno] > self._max_lines_per_s:
            self._leave_out()
            return
        if self._untold:
            # Only with the next line that is let through. A notice for each line left out would be
            # a flood itself.
            untold, self._untold = self._untold, 0
            self._put(self._line(_left_out_record(untold)))
        try:
            line = self._line(record)
        except Exception:
            self.handleError(record)
            return
        self._put(line)

    def _line(self, record: logging.LogRecord) -> bytes:
        """Return a record as one line of at most `max_line` bytes.

        A line that is cut after it was formatted would no longer be JSON, so the message is cut
        first.
        """
        line = self.format(record).encode("utf-8", "backslashreplace")
        if len(line) > self._max_line_bytes:
            # JSON that is cut is no JSON: the formatter's own fields are short, the message is not.
            message = record.getMessage()[: self._max_line_bytes // 4] + _CUT
            changes = {"msg": message, "args": None, "exc_info": None}
            record = logging.makeLogRecord({**record.__dict__, **changes})
            line = self.format(record).encode("utf-8", "backslashreplace")[: self._max_line_bytes]
        return line + b"\n"

    def _put(self, line: bytes) -> None:
        """Hand a line to the writing thread, or count it as left out if the queue is full."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._leave_out()

    def _leave_out(self) -> None:
        self.left_out += 1
        self._untold += 1

    def _write(self) -> None:
        """Write lines until None comes; runs in a thread of its own."""
        # Bytes straight to the buffer: lines are encoded already, and the text layer's own
        # encoding may be ASCII under a service manager. A stream of a test may have no buffer.
        raw = getattr(self._stream, "buffer", None)
        while (line := self._lines.get()) is not None:
            with contextlib.suppress(OSError, ValueError):  # its reader is gone
                if raw is not None:
                    raw.write(line)
                    raw.flush()
                else:
                    self._stream.write(line.decode("utf-8", "replace"))
                    self._stream.flush()

    def close(self) -> None:
        """Write the lines that wait; give up after `CLOSE_S`."""
        super().close()
        try:
            self._lines.put(None, timeout=CLOSE_S)
        except queue.Full:  # no reader: the oldest line makes room for the end
            self._lines.get_nowait()
            self._lines.put_nowait(None)
        self._thread.join(CLOSE_S)


def _left_out_record(count: int) -> logging.LogRecord:
    fields = {"msg": f"{count} lines were left out", "levelno": logging.WARNING}
    return logging.makeLogRecord({**fields, "levelname": "WARNING", "name": "holdfast.log"})


def set_up(
    settings: LoggingSettings, *, worker: int | None = None, stream: TextIO | None = None
) -> LogHandler:
    """Send everything that is logged from now on to a stream, by default standard error."""
    stream = stream or sys.stderr
    people = settings.format == "console" or (settings.format == "auto" and stream.isatty())
    handler = LogHandler(stream, settings)
    handler.setFormatter(_formatter(people, stream, worker))
    # Replaced and not added to: a second set-up in one process must not write every line twice.
    root = logging.getLogger()
    for old in [one for one in root.handlers if isinstance(one, LogHandler)]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    set_level(settings)
    return handler


def set_level(settings: LoggingSettings) -> None:
    """Log from this severity on."""
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    logging.getLogger("holdfast").setLevel(level)
    # Libraries log a lot at INFO that says nothing about this gateway.
    logging.getLogger().setLevel(max(level, logging.WARNING))


def _formatter(people: bool, stream: TextIO, worker: int | None) -> logging.Formatter:
    """Return the formatter of lines: coloured columns for people, JSON for programs."""
    return _columns(stream, worker) if people else JsonLines(worker)


class JsonLines(logging.Formatter):
    """An object in each line, with whatever a record was given by `extra`."""

    def __init__(self, worker: int | None) -> None:
        super().__init__()
        self._worker = {} if worker is None else {"worker": worker}

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {"level": record.levelname.lower(), "logger": record.name}
        fields |= {key: v for key, v in record.__dict__.items() if key not in _OWN_OF_A_RECORD}
        fields |= self._worker
        fields["time"] = datetime.fromtimestamp(record.created, UTC).strftime(_TIME_FORMAT)
        if record.stack_info:
            fields["stack_info"] = record.stack_info
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        fields["message"] = record.getMessage()
        return orjson.dumps(fields, default=str).decode()


def _columns(stream: TextIO, worker: int | None) -> logging.Formatter:
    """Return what makes lines for people.

    Imported here: with it comes rich, which is 6 MB that a service, whose log nobody watches, does
    not need.
    """
    import structlog

    def add_worker(logger: Any, method: str, event: Any) -> Any:
        if worker is not None:
            event["worker"] = worker
        return event

    colors = stream.isatty() and "NO_COLOR" not in os.environ
    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        add_worker,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    ]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.dev.ConsoleRenderer(colors=colors, timestamp_key="time"),
        ],
    )
