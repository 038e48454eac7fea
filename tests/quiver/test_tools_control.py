"""The control socket: what tools may ask of an owner, and what nobody can do to it."""

from __future__ import annotations

import json
import os
import random
import socket
import stat
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_S
from tests.quiver.machine import Machine
from tests.quiver.owner import CONFIG, Owner
from tests.quiver.reading import acknowledge

from holdfast.errors import (
    BadInput,
    HoldfastError,
    Overloaded,
    OwnerGone,
    UnknownPosition,
    UnknownSubscriber,
)
from holdfast.quiver import Outcome, Quiver
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.engine import control
from holdfast.quiver.engine.control import ControlServer, Verbs, ask
from holdfast.seam.clock import RealClock


@pytest.fixture
def quiver(tmp_path: Path) -> Iterator[Quiver]:
    with Quiver.open(tmp_path / "data", CONFIG) as quiver:
        yield quiver


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


def connect(root: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(PATIENCE_S)
    connection.connect(str(root / "control.sock"))
    return connection


def read_all(connection: socket.socket) -> list[dict[str, Any]]:
    """Return all answers until the owner closes the connection."""
    received = b""
    try:
        while data := connection.recv(1 << 16):
            received += data
    except ConnectionResetError:
        pass
    return [json.loads(line) for line in received.splitlines()]


def send(root: Path, data: bytes) -> list[dict[str, Any]]:
    """Send bytes and no more; return the answers."""
    with connect(root) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the owner had enough before the end
        return read_all(connection)


# Where it is.


def test_only_the_owners_user_may_connect(quiver: Quiver, root: Path) -> None:
    mode = (root / "control.sock").stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


def test_the_owner_answers_and_says_who_it_is(quiver: Quiver, root: Path) -> None:
    assert ask(root, "ping") == {"process": os.getpid(), "quiver_id": quiver.quiver_id}


def test_the_socket_goes_with_the_owner(quiver: Quiver, root: Path) -> None:
    quiver.close()
    assert not (root / "control.sock").exists()
    assert ask(root, "ping") is None


def test_nobody_listens_where_the_configuration_says_so(root: Path) -> None:
    with Quiver.open(root, replace(CONFIG, control=False)):
        assert not (root / "control.sock").exists()
        assert ask(root, "ping") is None


def test_nobody_listens_on_a_disk_that_other_processes_do_not_see(machine: Machine) -> None:
    assert machine.start(CONFIG)._control is None


def test_a_socket_that_a_killed_owner_left_is_replaced(root: Path) -> None:
    with Owner(root) as owner:
        owner.kill()
    assert (root / "control.sock").exists()
    assert ask(root, "ping") is None
    with Quiver.open(root, CONFIG):
        assert ask(root, "ping") is not None


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, empty and short."""
    with tempfile.TemporaryDirectory(prefix="hf", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield Path(folder)
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_a_path_too_long_for_a_socket_gets_one_elsewhere(tmp_path: Path, temporary: Path) -> None:
    root = tmp_path / ("long" * 30)
    with Quiver.open(root, CONFIG) as quiver:
        assert not (root / "control.sock").exists()
        noted = Path((root / "control.path").read_text())
        assert noted.parent.parent == temporary
        assert stat.S_IMODE(noted.stat().st_mode) == 0o600
        told = ask(root, "ping")
        assert told is not None
        assert told["quiver_id"] == quiver.quiver_id
    assert list(temporary.iterdir()) == []
    assert not (root / "control.path").exists()


def test_what_a_killed_owner_left_elsewhere_goes_with_the_next(
    tmp_path: Path, temporary: Path
) -> None:
    root = tmp_path / ("long" * 30)
    with Owner(root) as owner:
        owner.kill()
    assert len(list(temporary.iterdir())) == 1
    assert ask(root, "ping") is None
    with Quiver.open(root, CONFIG):
        assert ask(root, "ping") is not None
        assert len(list(temporary.iterdir())) == 1
    assert list(temporary.iterdir()) == []


def test_a_note_that_names_a_strangers_file_removes_nothing(root: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.touch()
    root.mkdir()
    (root / "control.path").write_text(str(precious))
    with Quiver.open(root, CONFIG):
        assert ask(root, "ping") is not None
    assert precious.exists()


def test_a_filesystem_without_sockets_gets_one_elsewhere(
    root: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen = control._listen

    def refuse_in_root(path: str) -> socket.socket:
        if path.startswith(str(root)):
            raise OSError(95, "not supported")
        return listen(path)

    monkeypatch.setattr(control, "_listen", refuse_in_root)
    with Quiver.open(root, CONFIG):
        assert (root / "control.path").exists()
        assert ask(root, "ping") is not None


def test_a_quiver_opens_where_no_socket_can_be_had(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> socket.socket:
        raise OSError(95, "not supported")

    monkeypatch.setattr(control, "_listen", refuse)
    with Quiver.open(root, CONFIG) as quiver:
        quiver.append_raw(b"event")
        assert ask(root, "ping") is None


# What can be asked.


def fill(quiver: Quiver) -> None:
    """Append four bundles, of which `archive` has acknowledged three."""
    quiver.register("archive")
    for number in range(4):
        quiver.append_raw([b"%d" % number, b"more"])
    acknowledge(quiver, "archive", 3)


def test_balance_is_the_owners_own(quiver: Quiver, root: Path) -> None:
    fill(quiver)
    told = ask(root, "balance")
    assert told is not None
    (account,) = told["subscribers"]
    assert account["accepted"] == {"bundles": 4, "events": 8}
    assert account["outcomes"]["acked"] == {"bundles": 3, "events": 6}
    assert account["pending"] == {"bundles": 1, "events": 2}
    assert account["holds"]


def test_replay_hands_out_again(quiver: Quiver, root: Path) -> None:
    fill(quiver)
    told = ask(root, "replay", subscriber="archive", first_seq=0, end_seq=2)
    assert told == {"bundles": 2, "events": 4}
    with quiver.lease("archive") as deliveries:
        got = [delivery.seq for _ in range(3) if (delivery := deliveries.poll())]
    assert got == [0, 1, 3]
    assert quiver.balance("archive").holds


def test_a_reader_at_work_sees_a_replay_at_once(quiver: Quiver, root: Path) -> None:
    fill(quiver)
    with quiver.lease("archive") as deliveries:
        delivery = deliveries.poll()
        assert delivery is not None
        assert delivery.seq == 3
        assert deliveries.poll() is None
        ask(root, "replay", subscriber="archive", first_seq=1, end_seq=3)
        assert [again.seq for _ in range(3) if (again := deliveries.poll())] == [1, 2]


def test_drop_subscriber_gives_up_what_waited(quiver: Quiver, root: Path) -> None:
    fill(quiver)
    told = ask(root, "drop_subscriber", subscriber="archive", reason="it is dead")
    assert told == {"bundles": 1, "events": 2}
    assert quiver.subscribers() == ()


def test_an_error_of_the_owner_is_raised_here(quiver: Quiver, root: Path) -> None:
    fill(quiver)
    with pytest.raises(UnknownSubscriber, match="registered subscribers: archive"):
        ask(root, "drop_subscriber", subscriber="nobody", reason="")
    with pytest.raises(UnknownPosition):
        ask(root, "replay", subscriber="archive", first_seq=2, end_seq=2)
    with pytest.raises(BadInput, match="first_seq"):
        ask(root, "replay", subscriber="archive", first_seq="0", end_seq=2)
    with pytest.raises(BadInput, match="there is no verb 'dance'"):
        ask(root, "dance")


def test_checkpoint_seals_and_keeps_what_nobody_needs(quiver: Quiver, root: Path) -> None:
    fill(quiver)
    acknowledge(quiver, "archive")
    told = ask(root, "checkpoint", seconds=60)
    assert told is not None
    assert (root / "ledger" / told["ledger_file"]).exists()
    quiver._engine.retention.tick()
    assert len(quiver.segments()) == 1
    ask(root, "hold", seconds=0)
    quiver._engine.retention.tick()
    assert quiver.segments() == ()


def test_nothing_is_held_for_ever(quiver: Quiver, root: Path) -> None:
    with pytest.raises(BadInput, match="seconds"):
        ask(root, "hold", seconds=1_000_000)


# What nobody can do to the owner.

GARBAGE = [
    b"",
    b"\n",
    b"\n\n\n",
    b"\0" * 1000 + b"\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b'{"verb": "ping"',
    b'{"verb": ["ping"]}\n',
    b'{"verb": null}\n',
    b'["ping"]\n',
    b"17\n",
    b'{"verb": "replay", "subscriber": 3}\n',
    b'{"verb": "replay", "subscriber": "a", "first_seq": -1, "end_seq": 1e400}\n',
    b'{"verb": "replay", "subscriber": "a", "first_seq": true, "end_seq": 99999999999999999999}\n',
    b'{"verb": "hold", "seconds": NaN}\n',
    b'{"verb": "drop_subscriber", "subscriber": "../../etc", "reason": "x"}\n',
    b"\xff\xfe{}\n",
    b"[" * 60_000 + b"\n",
    b"x" * 1_000_000,
    random.Random(1).randbytes(300_000),
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_answered_and_forgotten(
    quiver: Quiver, root: Path, garbage: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The last one has so many lines that neither side reads while it sends.
    monkeypatch.setattr(control, "SEND_S", 0.1)
    for answer in send(root, garbage):
        assert answer["error"]["type"] in ("BadInput", "UnknownSubscriber")
        assert answer["error"]["hint"]
    assert ask(root, "ping") is not None
    assert quiver.append_raw(b"event").seq == 0


def test_many_requests_on_one_connection_are_answered_in_order(quiver: Quiver, root: Path) -> None:
    answers = send(root, b'{"verb": "ping"}\n{"verb": "x"}\n{"verb": "balance"}\n')
    assert [list(answer) for answer in answers] == [["answer"], ["error"], ["answer"]]


def test_a_client_that_says_nothing_is_let_go(
    quiver: Quiver, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "IDLE_S", 0.05)
    with connect(root) as connection:
        connection.sendall(b'{"verb"')
        assert read_all(connection) == []
    assert ask(root, "ping") is not None


def test_too_many_clients_are_told_to_come_back(quiver: Quiver, root: Path) -> None:
    waiting = [connect(root) for _ in range(control.CONNECTIONS_MAX)]
    try:
        # Each is known to be open once it is answered.
        for connection in waiting:
            connection.sendall(b'{"verb": "ping"}\n')
            assert connection.recv(1000)
        with pytest.raises(Overloaded, match="16 tools"):
            ask(root, "ping")
    finally:
        for connection in waiting:
            connection.close()


def test_a_client_that_reads_no_answer_stops_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "SEND_S", 0.05)
    verbs: Verbs = {"much": lambda _: {"text": "x" * 10_000_000}, "ping": lambda _: {"here": True}}
    server = ControlServer(str(tmp_path), verbs, RealClock())
    try:
        with connect(tmp_path) as deaf:
            deaf.sendall(b'{"verb": "much"}\n')
            assert ask(tmp_path, "ping") == {"here": True}
    finally:
        server.close()


def test_a_bug_behind_a_verb_is_told_and_survived(tmp_path: Path) -> None:
    def broken(request: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("oops")

    verbs: Verbs = {
        "broken": broken,
        "unwritable": lambda _: {"value": object()},
        "ping": lambda _: {"here": True},
    }
    server = ControlServer(str(tmp_path), verbs, RealClock())
    try:
        with pytest.raises(HoldfastError, match="BUG: ValueError: oops"):
            ask(tmp_path, "broken")
        with pytest.raises(HoldfastError, match=r"BUG: TypeError: .* not JSON"):
            ask(tmp_path, "unwritable")
        assert ask(tmp_path, "ping") == {"here": True}
    finally:
        server.close()


def test_an_owner_that_takes_too_long_is_given_up_on(tmp_path: Path) -> None:
    done = threading.Event()

    def slow(request: dict[str, Any]) -> dict[str, Any]:
        done.wait(PATIENCE_S)
        return {}

    server = ControlServer(str(tmp_path), {"slow": slow}, RealClock())
    try:
        with pytest.raises(OwnerGone, match="did not answer 'slow' within"):
            ask(tmp_path, "slow", timeout_s=0.05)
    finally:
        done.set()
        server.close()


def test_an_owner_closes_while_tools_are_connected(quiver: Quiver, root: Path) -> None:
    with connect(root) as connection:
        connection.sendall(b'{"verb": "ping"}\n')
        assert connection.recv(1000)
        quiver.close()
        assert read_all(connection) == []


@pytest.mark.parametrize("point", [QuiverPoint.LEDGER_WRITE, QuiverPoint.LEDGER_SYNC])
def test_an_owner_killed_in_the_middle_of_a_request_is_reported_and_its_data_is_whole(
    root: Path, point: QuiverPoint
) -> None:
    with Quiver.open(root, CONFIG) as quiver:
        fill(quiver)
    with Owner(root, dies_at=point) as owner:
        with pytest.raises(OwnerGone, match="ended before it answered 'replay'"):
            ask(root, "replay", subscriber="archive", first_seq=0, end_seq=2)
        assert owner.wait() == -9
    with Quiver.open(root, CONFIG) as quiver:
        account = quiver.balance("archive")
        assert account.holds
        # The line was written, or it was not; it is never half true.
        done = point == QuiverPoint.LEDGER_SYNC
        assert account.pending == ((3, 6) if done else (1, 2))
        assert account.outcomes[Outcome.ACKED] == (3, 6)
