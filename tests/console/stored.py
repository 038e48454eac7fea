"""A store with a few commits, and the pipeline by which a gateway's file names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.store.filesets import Commits, FileSetWriter
from holdfast.store.store import Store

# As `caf\xe9` is stored, which is not UTF-8.
ODD_NAME = "caf\U0010ffe9"
TREES = {
    "reports/1": {"a.csv": b"1", "daily/old.csv": b"2"},
    "reports/2": {"a.csv": b"12", "daily/<b>new.csv": b"3", ODD_NAME: b"", " x ": b"space"},
}


def make_store(folder: Path, *, many: int = 0) -> Path:
    """Make a store in a folder: two commits, and a third of `many` files in a folder, if any."""
    trees: dict[str, dict[str, bytes]] = dict(TREES)
    if many:
        trees["many"] = {f"all/{number:04}": b"x" for number in range(many)}
    with Store.create(str(folder)) as store, store.references.open_job("test") as job:
        parent = None
        for name, files in trees.items():
            with FileSetWriter(store, job) as writer:
                for path, data in files.items():
                    writer.put(path, data)
                layers = [writer.close()]
            Commits(store).create(job, name, layers, parent=parent, message=f"made {name}")
            parent = name
    return folder


def using(store: str) -> dict[str, Any]:
    """Return pipelines that commit to a store."""
    return {
        "reporting": {
            "vertices": {
                "events": {"source": {"quiver": "buffer", "decode": "openlineage"}},
                "reports": {"sink": {"fileset": {"store": store, "commit": "reports"}}},
            },
            "edges": ["events -> reports"],
        }
    }
