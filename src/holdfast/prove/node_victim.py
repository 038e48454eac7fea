"""The data node that is killed, stopped and cut off: `holdfast node`, with a point to die at.

    python -m holdfast.prove.node_victim DATA LISTEN TOKEN [DEATH]

It prints "ready" when it listens, and ends cleanly after SIGTERM; most never get that far.
"""

from __future__ import annotations

import logging
import sys
from contextlib import closing
from pathlib import Path

from holdfast.node.data_node import DataNode
from holdfast.node.service import NodeServer
from holdfast.node.settings import DataNodeSettings
from holdfast.prove.victim import deadly_seam, end_with_parent, say, terminated, wait_for
from holdfast.remote.server import secrets_of
from holdfast.seam import Seam


def run(directory: Path, listen: str, token: str, seam: Seam) -> None:
    """Serve until SIGTERM, or until its point is reached."""
    settings = DataNodeSettings.model_validate(
        {
            "min_free": 0,
            "flight": {"listen": listen, "tokens": [{"name": "prove", "token": token}]},
        }
    )
    stop = terminated()
    end_with_parent()
    with (
        closing(DataNode(directory, settings, seam)) as node,
        NodeServer(node, secrets_of(settings.flight, Path()), seam=seam),
    ):
        say("ready")
        wait_for(stop)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    run(Path(sys.argv[1]), sys.argv[2], sys.argv[3], deadly_seam(sys.argv[4:]))
