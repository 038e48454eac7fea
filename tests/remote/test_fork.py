"""A fork beside a server or a client: the child is refused, the parent goes on."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from tests.remote.serving import Served
from tests.seam.forking import in_child

from holdfast.errors import Forked
from holdfast.remote import RemoteQuiver

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def test_a_child_uses_neither_the_server_nor_the_connection(
    served: Served, remote: RemoteQuiver
) -> None:
    served.quiver.append_raw(b"one")
    cursor = remote.cursor("c")

    calls: list[Callable[[], object]] = [
        served.server.stop,
        served.server.statistics,
        lambda: remote.append_raw(b"x"),
        cursor.plan,
    ]

    def work() -> None:
        for call in calls:
            with pytest.raises(Forked):
                call()
        with remote, cursor:
            pass
        served.server.__exit__()

    in_child(work)
    remote.append_raw(b"two")
    planned = cursor.plan(wait_s=30)
    assert planned is not None
    cursor.commit(planned)
