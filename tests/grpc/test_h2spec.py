"""h2spec, the conformance tests of HTTP/2, against our connections (`make setup-h2spec`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.grpc.harness import TALK
from tests.grpc.test_abuse import _OpenGate
from tests.patience import SCALE

from holdfast.grpc.calls import ServerStream
from holdfast.grpc.engine import HeaderList
from holdfast.grpc.http2 import Http2
from holdfast.grpc.messages import MessageLimits
from holdfast.grpc.server import ServerConnection, ServerConnections
from holdfast.grpc.settings import GrpcSettings
from holdfast.grpc.status import CallFailed
from holdfast.seam import Seam

BUILT = Path(__file__).parents[2] / "build" / "h2spec" / "h2spec"
H2SPEC = os.environ.get("HOLDFAST_H2SPEC") or (str(BUILT) if BUILT.exists() else "h2spec")
# What is answered otherwise than h2spec expects, and why.
KNOWN = (
    # Data behind the end of a stream that is over: the stream is forgotten, and its data too, up to
    # `max_unread_bytes`, as RFC 9113 allows for streams that were reset.
    "closed: Sends a DATA frame",
    # The same, on a machine so busy that the answer has left before that data came.
    'Sends a DATA frame on the stream that is not in "open"',
    # gRPC's own framing says where a message ends, and no client sends the header.
    'Sends a HEADERS frame with the "content-length" header field',
)


class Anything:
    """Reads whatever comes, and answers when it has ended."""

    async def converse(self, stream: ServerStream) -> None:
        # What it sends are no messages.
        with contextlib.suppress(CallFailed):
            while await stream.receive() is not None:
                pass
        await stream.send(bytes(100))


class _AsCalls(ServerConnection):
    """Takes what h2spec sends for calls: it sends GET, which would be answered at once."""

    def headers_came(self, stream_id: int, headers: HeaderList, *, ended: bool) -> None:
        call = {b":method": b"POST", b":path": TALK.encode(), b"content-type": b"application/grpc"}
        others = [(name, value) for name, value in headers if name not in call]
        super().headers_came(stream_id, [*call.items(), *others], ended=ended)


async def conform() -> str:
    limits = MessageLimits(1024, 1024, 60.0, 1)
    methods = {TALK: Anything()}
    connections = ServerConnections(methods, _OpenGate(), GrpcSettings(), limits, Seam())

    def connection() -> Http2:
        side = _AsCalls(connections)
        side.http2 = Http2(side, connections.settings, connections.seam.clock, is_client=False)
        return side.http2

    loop = asyncio.get_running_loop()
    server = await loop.create_server(connection, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    command = [H2SPEC, "-p", str(port), "-o", str(round(2 * SCALE))]
    running = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    output, _ = await running.communicate()
    server.close()
    connections.cut()
    await server.wait_closed()
    return output.decode()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which(H2SPEC) is None, reason="no h2spec here: `make setup-h2spec`")
def test_connections_conform() -> None:
    output = asyncio.run(conform())
    failures = output.partition("Failures:")[2]
    failed = re.findall(r"^\s+\S \d+: (.*)", failures, re.MULTILINE)
    assert re.search(r"\d{3} tests, \d{3} passed", output), output
    assert [one for one in failed if not one.startswith(KNOWN)] == [], failures
