"""The process that serves sealed data: killed, started again, orphaned; segments that go."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.patience import PATIENCE_S, until
from tests.remote.serving import Served, again, config, numbers, serving

from holdfast.errors import Overloaded, OwnerGone, UnknownPosition
from holdfast.quiver import Position
from holdfast.remote import ClientSettings, PlannedRange, RemoteCursor, RemoteQuiver
from holdfast.remote.reader import CallerToken, Secrets, ServedQuivers
from holdfast.remote.server import ReaderProcess
from holdfast.seam.clock import RealClock

# More than is ever under way between two processes (gRPC allows 16 MB, sockets some), so that a
# reader is met in the middle.
BUNDLES, BUNDLE_BYTES = 80, 600_000


def is_alive(pid: int) -> bool:
    """Whether a process is there, and not only waited for by its parent."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def fill(remote: RemoteQuiver) -> tuple[RemoteCursor, PlannedRange]:
    """Append more than fits on the wire, and plan all of it."""
    for number in range(BUNDLES):
        remote.append_raw(b"%d" % number * (BUNDLE_BYTES // len(b"%d" % number)))
    remote.flush()
    cursor = remote.cursor("spark")
    planned = cursor.plan(max_bytes=1 << 30)
    assert planned is not None
    assert planned.end == Position(BUNDLES)
    return cursor, planned


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path, own_process=True, restart_min=0.01) as served:
        yield served


def kill(served: Served) -> int:
    pid = served.server.reader.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


def test_killed_while_somebody_reads_it_is_started_again_and_the_rows_are_the_same(
    process: Served,
) -> None:
    cursor, planned = fill(process.connect())
    whole = cursor.table(planned, "events", ["_seq", "payload"])
    stream = cursor.read(planned, slot="events", columns=["_seq", "payload"])
    first = stream.read_next_batch()
    assert first.num_rows < whole.num_rows
    kill(process)
    with pytest.raises(OwnerGone, match="ended during the call"):
        list(stream)
    until(lambda: process.server.reader.starts == 2)
    repeated = again(lambda: cursor.table(planned, "events", ["_seq", "payload"]))
    assert repeated.equals(whole)
    cursor.commit(planned)


def test_the_owner_goes_on_without_it(process: Served) -> None:
    remote = process.connect()
    remote.append(numbers(1))
    port = process.server.reader.port()
    kill(process)
    remote.append(numbers(2))
    remote.flush()
    cursor = remote.cursor("spark")
    planned = cursor.plan()
    assert planned is not None
    assert remote.statement(planned.end).pending_events == 0
    table = again(lambda: cursor.table(planned, "events", ["n"]))
    assert table.column("n").to_pylist() == [1, 2]
    assert process.server.reader.port() == port, "it kept its port"


def test_a_segment_that_is_removed_while_it_is_read_is_told(tmp_path: Path) -> None:
    with serving(tmp_path, config(), own_process=True) as served:
        cursor, planned = fill(served.connect())
        stream = cursor.read(planned, slot="events", columns=["_seq", "payload"])
        rows = [stream.read_next_batch().num_rows]
        cursor.commit(planned)
        until(lambda: served.quiver.segments() == ())
        for name in planned.segments:
            assert not (tmp_path / "segments" / name).exists()
        try:
            rows += [batch.num_rows for batch in stream]
        except UnknownPosition:
            assert sum(rows) < BUNDLES
        else:
            assert sum(rows) == BUNDLES  # all of it was on its way already
        with pytest.raises(UnknownPosition, match="no longer there"):
            cursor.table(planned, "events")


def test_a_reader_that_hangs_up_half_way_frees_its_call(tmp_path: Path) -> None:
    with serving(tmp_path, own_process=True, max_calls=2) as served:
        remote = served.connect()
        cursor, planned = fill(remote)
        for _ in range(6):
            stream = cursor.read(planned, slot="events", columns=["payload"])
            stream.read_next_batch()
            stream.close()
            del stream
            until(lambda: reads_one(cursor, planned))


def reads_one(cursor: RemoteCursor, planned: PlannedRange) -> bool:
    """Whether a call is let in: until the last one has noticed, it may not be."""
    with contextlib.suppress(Overloaded):
        cursor.table(planned, "none", ["_seq"])
        return True
    return False


# ------------------------------------------------------------------------------ its life


def test_it_ends_with_the_server(tmp_path: Path) -> None:
    with serving(tmp_path, own_process=True) as served:
        pid = served.server.reader.pid
        assert pid is not None
        assert is_alive(pid)
    assert not is_alive(pid)
    with pytest.raises(OwnerGone, match="not running"):
        served.server.reader.port()


OWNER = """
    import sys, time
    from holdfast.quiver import Quiver
    from holdfast.remote import FlightSettings, QuiverServer

    server = QuiverServer({"main": Quiver.open(sys.argv[1])}, FlightSettings(listen="127.0.0.1:0"))
    server.start()
    print(server.reader.pid, server.location, flush=True)
    time.sleep(3600)
"""


def test_it_ends_when_the_owner_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(OWNER), str(tmp_path / "quiver")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid, location = owner.stdout.readline().split()
        with RemoteQuiver.open(location, "main", ClientSettings(timeout=PATIENCE_S)) as remote:
            remote.append(numbers(1))
        assert is_alive(int(pid))
        owner.kill()
    until(lambda: not is_alive(int(pid)))


def test_secrets_are_neither_arguments_nor_environment(tmp_path: Path) -> None:
    tokens = [{"name": "spark", "token": "s3cret"}]
    with serving(tmp_path, own_process=True, tokens=tokens) as served:
        pid = served.server.reader.pid
        assert b"s3cret" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert b"s3cret" not in Path(f"/proc/{pid}/environ").read_bytes()
        remote = served.connect(token="s3cret")
        remote.append(numbers(1))
        remote.flush()
        cursor = remote.cursor("spark")
        planned = cursor.plan()
        assert planned is not None
        assert cursor.table(planned, "events").num_rows == 1


def test_orders_arrive_as_they_were_given() -> None:
    credentials = (CallerToken("spark", "ä\n", ("read",)),)
    secrets = Secrets(credentials, ("cert", "key"), "ca")
    orders = ServedQuivers({"main": "/data"}, "127.0.0.1", 5, 3, 1000, secrets)
    line = orders.encode()
    assert line.count(b"\n") == 1
    assert ServedQuivers.decode(line.decode()) == orders
    assert (
        ServedQuivers.decode(ServedQuivers({}, "h", 0, 2, 1, Secrets()).encode().decode()).secrets
        == Secrets()
    )


def test_a_port_that_somebody_took_is_left_for_another(tmp_path: Path) -> None:
    with serving(tmp_path, own_process=True, restart_min=0.05) as served:
        port = served.server.reader.port()
        kill(served)
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            until(lambda: binds(taken, port))
            taken.listen()
            until(lambda: served.server.reader.starts >= 3)
            assert served.server.reader.port() != port
        remote = served.connect()
        remote.append(numbers(1))
        remote.flush()
        cursor = remote.cursor("spark")
        planned = cursor.plan()
        assert planned is not None
        assert cursor.table(planned, "events").num_rows == 1


def binds(taken: socket.socket, port: int) -> bool:
    with contextlib.suppress(OSError):
        taken.bind(("127.0.0.1", port))
        return True
    return False


def test_what_cannot_start_is_tried_again() -> None:
    orders = ServedQuivers({}, "192.0.2.1", 1, 2, 1000, Secrets())
    reader = ReaderProcess(orders, RealClock(), restart_min_s=0.01, restart_max_s=0.02)
    reader._thread.start()
    try:
        until(lambda: reader.starts >= 2)
        with pytest.raises(OwnerGone, match="not running"):
            reader.port(patience_s=0.0)
    finally:
        reader.stop()
    assert reader.pid is None


def test_many_rows_of_many_segments_are_those_of_a_scan(process: Served) -> None:
    remote = process.connect()
    for first in range(0, 3000, 100):
        remote.append(numbers(*range(first, first + 100)))
        if first % 500 == 0:
            remote.flush()
    remote.flush()
    cursor = remote.cursor("spark")
    planned = cursor.plan()
    assert planned is not None
    assert len(planned.segments) > 3
    here = process.quiver.scan(slot="events").read_all()
    assert pa.Table.equals(cursor.table(planned, "events"), here)
