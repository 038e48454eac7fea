"""A fork while a store is open: the child is refused, and ends none of its parent's leases."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.seam.forking import in_child

from holdfast.errors import Forked
from holdfast.store.store import Store

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def test_a_child_does_not_end_its_parents_leases(tmp_path: Path) -> None:
    with Store.create(str(tmp_path / "store")) as store:
        job = store.references.open_job("parent")
        with store.chunks.writer(job) as writer:
            writer.put(b"one")

            calls: list[Callable[[], object]] = [
                lambda: store.chunks,
                lambda: writer.put(b"two"),
                job.check,
                job.release,
            ]

            def work() -> None:
                for call in calls:
                    with pytest.raises(Forked):
                        call()
                with store, job, writer:
                    pass
                store.close()

            in_child(work)
            writer.put(b"three")
            writer.barrier()
        job.check()
        job.release()
