"""NATS JetStream as a peer: a durable stream that syncs before it acknowledges, as we do."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

from holdfast.bench.gateway_load import STREAM, SUBJECT
from holdfast.bench.gateway_process import ServerProcess, free_ports

# Its own retries and heartbeats stay out of the measurement.
_CONFIG = """
listen: 127.0.0.1:{port}
jetstream {{ store_dir: "{folder}", sync_interval: always, max_file_store: 64GB }}
"""


def nats_server() -> str | None:
    """Return the server's program: beside this interpreter, or on the path."""
    return shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which(
        "nats-server"
    )


class JetStream(ServerProcess):
    """A server with one stream in files."""

    def __init__(self, folder: Path) -> None:
        program = nats_server()
        assert program is not None, "BUG: no nats-server"
        folder.mkdir(parents=True)
        (self.port,) = free_ports(1)
        config = folder / "nats.conf"
        config.write_text(_CONFIG.format(port=self.port, folder=folder / "data"))
        super().__init__([program, "-c", str(config)], folder / "log")
        self.wait_for_port(self.port)
        asyncio.run(self._make_stream())

    async def _make_stream(self) -> None:
        import nats
        from nats.js.api import StorageType

        connection = await nats.connect(f"nats://127.0.0.1:{self.port}")
        stream = connection.jetstream()
        await stream.add_stream(name=STREAM, subjects=[SUBJECT], storage=StorageType.FILE)
        await connection.close()
