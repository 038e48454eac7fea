"""The control socket: how an operator's tools speak to the process that owns a quiver.

A Unix socket in the data directory, mode 0600: whoever may connect is the user who runs the owner.
A request is one line of JSON, `{"verb": "replay", …}`; the answer is one line, `{"answer": {…}}` or
`{"error": {…}}` with the fields of a `HoldfastError`. One daemon thread serves all connections, one
request at a time. Requests, connections and patience are bounded, and nothing that a client sends
or leaves out reaches further than its own connection: the owner has other work to do.

The owner holds the directory's lock, so a socket that is there before it listens is a dead one's,
and is replaced. A path too long for a socket (or a filesystem without sockets) gets one in a
temporary directory instead, and `control.path` says where.

This is the one module of the quiver that goes past the seam: a socket is no part of the store, it
keeps nothing, and when it fails the quiver works on without it.

One thread is enough because a verb takes milliseconds, except `flush` inside `checkpoint`, and
tools are started by hand. It also means that no two verbs ever race each other: a replay and a
drop of the same subscriber happen one after the other.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import socket
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePath
from typing import Any

from holdfast import errors
from holdfast.errors import BadInput, CannotOpen, HoldfastError, OwnerGone
from holdfast.quiver.base import names
from holdfast.seam.clock import Clock
from holdfast.seam.process import bind_to_process

REQUEST_BYTES_MAX = 64 * 1024
# A client stops reading beyond this: a tool's memory is bounded, whatever is at the other end.
ANSWER_BYTES_MAX = 64 * 1024 * 1024
# Open connections; a further one gets an error and is closed.
CONNECTIONS_MAX = 16
# How long a connection may stay without a complete request, and an answer without being read.
IDLE_S = 10.0
SEND_S = 5.0
ACCEPT_PAUSE_S = 0.1
# How long `close` waits for a request that is being served; the thread is left behind after that.
CLOSING_S = 2.0
# macOS has room for 103 bytes, Linux for 107.
SOCKET_PATH_BYTES_MAX = 103

_TEMPORARY_PREFIX = "holdfast-control-"

log = logging.getLogger("holdfast.quiver")

Verb = Callable[[dict[str, Any]], dict[str, Any]]
Verbs = Mapping[str, Verb]


# ----------------------------------------------------------------------- owner


def serve(root: PurePath, verbs: Verbs, clock: Clock) -> ControlServer | None:
    """Listen for tools; None where that is not possible, which stops nothing else."""
    if not hasattr(socket, "AF_UNIX"):
        return None
    try:
        return ControlServer(os.path.abspath(root), verbs, clock)
    except OSError as error:
        log.warning("no control socket, tools cannot reach this process: %s", error)
        return None


def _close_all(sockets: Iterable[socket.socket]) -> None:
    for one in sockets:
        one.close()


@dataclass
class _ControlConnection:
    socket: socket.socket
    closes_s: float
    received: bytearray = field(default_factory=bytearray)


class ControlServer:
    """Serves one quiver's tools, in a thread of its own."""

    def __init__(self, root: str, verbs: Verbs, clock: Clock) -> None:
        self._verbs = verbs
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, _ControlConnection] = {}
        self._closing = threading.Event()
        self._place = _ControlFolder(root)
        self._listener = self._place.listen()
        self._listener.setblocking(False)
        # `select` has no other way to be interrupted: one byte through this pair ends the wait.
        self._wake_out, self._wake_in = socket.socketpair()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        # A forked child inherits the listener. If it kept it open, tools would connect to a queue
        # that nobody serves after the parent has closed.
        bind_to_process(self, partial(_close_all, (self._listener, self._wake_in, self._wake_out)))
        self._thread = threading.Thread(target=self._run, name="quiver-control", daemon=True)
        self._thread.start()

    @property
    def path(self) -> str:
        """Where it listens."""
        return self._place.path

    def close(self) -> None:
        """Stop listening and remove the socket."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._wake_out.send(b"x")
        # The name goes first: a tool that asks while the last verb still runs gets "nobody
        # listens" and falls back to the files, instead of waiting for an answer that never comes.
        self._place.remove()
        self._thread.join(CLOSING_S)

    # ------------------------------------------------------------------ thread

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                for key, _ in self._selector.select(self._patience_s()):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj is not self._wake_in:
                        self._receive(self._connections[key.fd])
                self._close_idle()
        except Exception:
            log.exception("the control socket is closed, everything else goes on")
        finally:
            for connection in list(self._connections.values()):
                self._drop(connection)
            _close_all((self._listener, self._wake_in, self._wake_out))
            self._selector.close()

    def _patience_s(self) -> float | None:
        closing = [connection.closes_s for connection in self._connections.values()]
        return max(0.0, min(closing) - self._clock.monotonic_s()) if closing else None

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except BlockingIOError:
            return  # it went away again
        except OSError:
            self._closing.wait(ACCEPT_PAUSE_S)  # no descriptors left: not in a hot loop
            return
        connection = _ControlConnection(accepted, self._clock.monotonic_s() + IDLE_S)
        if len(self._connections) >= CONNECTIONS_MAX:
            self._answer(connection, _refusal(_too_many()))
            accepted.close()
            return
        accepted.setblocking(False)
        self._connections[accepted.fileno()] = connection
        self._selector.register(accepted, selectors.EVENT_READ)

    def _receive(self, connection: _ControlConnection) -> None:
        try:
            data = connection.socket.recv(REQUEST_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, connection.received = (connection.received + data).split(b"\n")
        # Lines that arrive in one packet are answered in order. The first answer that is not taken
        # ends the connection; later requests in the packet are not carried out, because their
        # sender is gone and would ask again elsewhere.
        taken = True
        for line in lines:
            taken = taken and self._answer(connection, self._serve(bytes(line)))
            connection.closes_s = self._clock.monotonic_s() + IDLE_S
        # What is left after the last newline is an unfinished request. Bounding it bounds the
        # memory of a connection that never ends its line.
        if len(connection.received) > REQUEST_BYTES_MAX:
            self._answer(connection, _refusal(_too_long()))
            taken = False
        if not data or not taken:
            self._drop(connection)

    def _serve(self, line: bytes) -> bytes:
        """Return the answer to one request, whatever the request is, and whatever was found."""
        try:
            verb, request = self._parse(line)
            return json.dumps({"answer": verb(request)}).encode()
        except HoldfastError as error:
            return _refusal(error)
        except Exception as error:
            log.exception("a control request failed")
            message = f"BUG: {type(error).__name__}: {error}"
            return _refusal(HoldfastError(message, hint="the owner's log has more; report it"))

    def _parse(self, line: bytes) -> tuple[Verb, dict[str, Any]]:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            hint = 'send one line of JSON, such as {"verb": "ping"}'
            raise BadInput("the request is not JSON", hint=hint) from None
        verb = request.get("verb") if isinstance(request, dict) else None
        if not isinstance(verb, str) or verb not in self._verbs:
            hint = f"verbs: {', '.join(self._verbs)}"
            raise BadInput(f"there is no verb {verb!r}"[:200], hint=hint)
        return self._verbs[verb], request

    def _answer(self, connection: _ControlConnection, answer: bytes) -> bool:
        """Send an answer; False if the client did not take it."""
        try:
            # Blocking, with a limit: an answer is usually smaller than the socket's buffer, and a
            # client that does not read it may hold up the others for no longer than this.
            connection.socket.settimeout(SEND_S)
            connection.socket.sendall(answer + b"\n")
            connection.socket.setblocking(False)
        except OSError:
            return False
        return True

    def _close_idle(self) -> None:
        now_s = self._clock.monotonic_s()
        for connection in [c for c in self._connections.values() if c.closes_s <= now_s]:
            self._drop(connection)

    def _drop(self, connection: _ControlConnection) -> None:
        del self._connections[connection.socket.fileno()]
        self._selector.unregister(connection.socket)
        connection.socket.close()


class _ControlFolder:
    """Where a server listens: in the data directory, or elsewhere with a note there."""

    def __init__(self, root: str) -> None:
        self.path = os.path.join(root, names.CONTROL_SOCKET)
        self._note = os.path.join(root, names.CONTROL_PATH)
        self._temporary: str | None = None

    def listen(self) -> socket.socket:
        """Return a listening socket; what a dead owner left is replaced."""
        self._remove_dead()
        if len(os.fsencode(self.path)) <= SOCKET_PATH_BYTES_MAX:
            try:
                return _listen(self.path)
            except OSError as error:
                log.info("no socket in the data directory: %s", error)
        self._temporary = tempfile.mkdtemp(prefix=_TEMPORARY_PREFIX)
        self.path = os.path.join(self._temporary, names.CONTROL_SOCKET)
        try:
            listening = _listen(self.path)
            with open(self._note, "w", encoding="utf-8") as note:
                note.write(self.path)
        except OSError:
            self.remove()
            raise
        return listening

    def _remove_dead(self) -> None:
        """Called with the directory's lock held, so whoever listened here is dead. The note is a
        file that anybody with write access could have changed: only a folder with our own
        prefix is removed.
        """
        _unlink(self.path)
        old = _noted_path(self._note)
        if old is not None and os.path.dirname(old).rpartition(os.sep)[2].startswith(
            _TEMPORARY_PREFIX
        ):
            _unlink(old)
            with contextlib.suppress(OSError):
                os.rmdir(os.path.dirname(old))
        _unlink(self._note)

    def remove(self) -> None:
        """Remove the socket and the note."""
        _unlink(self.path)
        if self._temporary is not None:
            _unlink(self._note)
            with contextlib.suppress(OSError):
                os.rmdir(self._temporary)


def _listen(path: str) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(path)
        os.chmod(path, 0o600)  # before `listen`: until then nobody can connect
        listening.listen(CONNECTIONS_MAX)
    except OSError:
        listening.close()
        raise
    return listening


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _noted_path(note: str) -> str | None:
    try:
        with open(note, encoding="utf-8") as file:
            return file.read(4096).strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _too_many() -> HoldfastError:
    return errors.Overloaded(
        f"{CONNECTIONS_MAX} tools speak to this process already", hint="try again in a moment"
    )


def _too_long() -> HoldfastError:
    return BadInput(f"the request is over {REQUEST_BYTES_MAX} bytes", hint="send less")


def _refusal(error: HoldfastError) -> bytes:
    fields = {"type": type(error).__name__, "message": error.message, "hint": error.hint}
    return json.dumps({"error": {**fields, "path": error.path}}).encode()


# ----------------------------------------------------------------------- tools


def ask(
    root: PurePath, verb: str, *, timeout_s: float = 60.0, **fields: Any
) -> dict[str, Any] | None:
    """Ask the owner of a directory; None if nobody listens there. Raises what it answers."""
    connection = _connect(root, timeout_s)
    if connection is None:
        return None
    with connection:
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                # An owner that is too busy answers without reading: its answer still counts.
                connection.sendall(json.dumps({"verb": verb, **fields}).encode() + b"\n")
            line = _read_line(connection)
        except TimeoutError:
            raise _gone(root, f"did not answer {verb!r} within {timeout_s:g} s") from None
        except OSError:
            line = None
    if line is None:
        raise _gone(root, f"ended before it answered {verb!r}")
    reply: dict[str, Any] = json.loads(line)
    if "error" in reply:
        raise _error_of(reply["error"])
    answer: dict[str, Any] = reply["answer"]
    return answer


def _connect(root: PurePath, timeout_s: float) -> socket.socket | None:
    if not hasattr(socket, "AF_UNIX"):
        return None
    noted = _noted_path(os.path.join(root, names.CONTROL_PATH))
    for path in (os.path.join(root, names.CONTROL_SOCKET), noted):
        # `connect` with a longer path raises an error that says nothing about length; the owner of
        # such a directory listens elsewhere, and has noted where.
        if path is None or len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
            continue
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(timeout_s)
        try:
            connection.connect(path)
        except PermissionError:
            connection.close()
            raise CannotOpen(
                "you may not speak to the process that owns this directory",
                hint="run the command as the user who runs that process",
                path=path,
            ) from None
        except OSError:
            connection.close()
        else:
            return connection
    return None


def _read_line(connection: socket.socket) -> bytes | None:
    received = bytearray()
    while not received.endswith(b"\n"):
        data = connection.recv(1 << 16)
        if not data or len(received) > ANSWER_BYTES_MAX:
            return None
        received += data
    return bytes(received)


def _gone(root: PurePath, what: str) -> OwnerGone:
    return OwnerGone(
        f"the process that owns the directory {what}",
        hint="it may or may not have done it: look with `holdfast quiver ledger`, then try again",
        path=str(root),
    )


def _error_of(fields: dict[str, Any]) -> HoldfastError:
    """Turn an answer back into the exception that the owner raised, so that a command behaves alike
    whether it did the work itself or asked for it. Only classes of ours, by name: the type is text
    from a socket. `DataLoss` needs ranges that the answer does not carry.
    """
    kind = getattr(errors, fields["type"], HoldfastError)
    is_known = isinstance(kind, type) and issubclass(kind, HoldfastError)
    if not is_known or kind is errors.DataLoss:
        kind = HoldfastError
    return kind(fields["message"], hint=fields["hint"], path=fields["path"])
