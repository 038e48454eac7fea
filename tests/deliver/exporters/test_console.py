"""Lines on a terminal or in a pipe: one per event, whatever is in it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest
from tests.deliver.exporters.sending import PAYLOAD, context, event, events, send, send_one
from tests.patience import PATIENCE_S

from holdfast.deliver.exporter import Answer, Exporter, FailureClass
from holdfast.deliver.exporters import console

RUN = json.dumps(
    {
        "eventType": "START",
        "run": {"runId": "0190f8c2"},
        "job": {"namespace": "prod", "name": "daily"},
    },
    indent=1,
).encode()


def exporter(**config: Any) -> Exporter:
    return console.make(console.Config(**config), context())


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_the_event_itself(capfdbinary: pytest.CaptureFixture[bytes], stream: str) -> None:
    batch = [event(1), event(2, RUN), event(3, b"\xff{")]
    assert send(exporter(stream=stream, format="json"), batch) == [Answer()]
    written = getattr(capfdbinary.readouterr(), "out" if stream == "stdout" else "err")
    lines = written.splitlines()
    assert lines[0] == PAYLOAD
    assert json.loads(lines[1]) == json.loads(RUN)
    assert json.loads(lines[2]) == {"not_json": "\\xff{"}
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("payload", "line"),
    [
        (RUN, f"START prod/daily run 0190f8c2, {len(RUN)} bytes"),
        (PAYLOAD, f"COMPLETE n/j, {len(PAYLOAD)} bytes"),
        (b'{"dataset":{"namespace":"a","name":"b"}}', "event a/b, 40 bytes"),
        (b"{}", "event, 2 bytes"),
        (b"[1]", "event, 3 bytes"),
        (b'{"job": 3, "run": null, "eventType": {}}', "event, 40 bytes"),
        (b"{", "not JSON, 1 bytes"),
        (b'{"eventType":"\\u001b[2J\\nx"}', "\\x1b[2J\\nx, 28 bytes"),
        (b'{"eventType":"%s"}' % (b"x" * 500), f"{'x' * 100}, 516 bytes"),
    ],
)
def test_a_few_words(capfdbinary: pytest.CaptureFixture[bytes], payload: bytes, line: str) -> None:
    assert send_one(exporter(), event(12, payload, row=3)) is None
    assert capfdbinary.readouterr().out.decode() == f"2025-06-15T15:06:40.000000Z 12/3 {line}\n"


def test_nobody_reads_any_more() -> None:
    program = """
        import sys
        from tests.deliver.exporters.sending import context, send_one
        from holdfast.deliver.exporters import console
        failure = send_one(console.make(console.Config(), context()))
        sys.stderr.write(f"{failure.kind} {failure.code}")
        sys.stderr.flush()
        import os
        os._exit(0)
    """
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            env={"PYTHONPATH": "."},
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
    finally:
        os.close(writing)
    assert result.stderr == "transient stream"


def test_a_closed_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.TextIOWrapper(io.BytesIO())
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    made = exporter(stream="stderr")
    (result,) = send(made, events(2))
    assert {f.kind for f in result.failed.values()} == {FailureClass.TRANSIENT}
