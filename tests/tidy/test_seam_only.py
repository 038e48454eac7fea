"""Quiver, store, replica, node and handoff reach disk, clock and randomness through the seam alone.

Otherwise a fault that a test injects would miss some of their calls, and the crash matrix would
prove less than it says. The check reads names, not values: it follows imports and their aliases,
and judges every dotted name that begins with one. SQLite is the named exception; it does its own
I/O and is tested by kill -9 and copied files.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

HOLDFAST = Path(__file__).parents[2] / "src" / "holdfast"
THROUGH_THE_SEAM = ("quiver", "store", "replica", "node", "handoff")

# Nothing in these is free of I/O or chance.
BANNED_MODULES = {"fcntl", "glob", "mmap", "posix", "secrets", "shutil", "tempfile"}

PURE_PATH_FUNCTIONS = {
    "basename",
    "commonpath",
    "commonprefix",
    "dirname",
    "isabs",
    "join",
    "normpath",
    "sep",
    "split",
    "splitext",
}

# All that may be used of a module; the rest of it is banned.
ALLOWED_OF = {
    "os": {"PathLike", "cpu_count", "fspath", "getpid", "path", "sep"},
    "os.path": PURE_PATH_FUNCTIONS,
    "pathlib": {"PurePath", "PurePosixPath", "PureWindowsPath"},
    "posixpath": PURE_PATH_FUNCTIONS,
    "random": set[str](),  # `random.Random` is judged apart: as an annotation only.
    "time": {"struct_time"},
    "uuid": {"NAMESPACE_DNS", "NAMESPACE_OID", "NAMESPACE_URL", "UUID", "uuid3", "uuid5"},
}

# What may not be used of a module that is harmless otherwise.
BANNED_OF = {
    "builtins": {"open"},
    "codecs": {"open"},
    "datetime.date": {"today"},
    "datetime.datetime": {"now", "today", "utcnow"},
    "io": {"FileIO", "open", "open_code"},
    "pyarrow": {
        "OSFile",
        "create_memory_map",
        "fs",
        "input_stream",
        "memory_map",
        "output_stream",
    },
}

# Sockets are no part of the store: they keep nothing, and a quiver works on without them. One needs
# a name in a directory, its rights, and a short path where the store's own is too long.
EXCEPTIONS = {
    "quiver/engine/control.py": {
        "builtins.open",
        "os.chmod",
        "os.fsencode",
        "os.path.abspath",
        "os.rmdir",
        "os.unlink",
        "tempfile",
        "tempfile.mkdtemp",
    },
}

# Modules that may be imported, but are not to be handed around whole.
WATCHED_MODULES = ALLOWED_OF.keys() | BANNED_OF.keys() - {"datetime.date", "datetime.datetime"}


def is_banned(name: str) -> bool:
    """Judge a dotted name, such as `os.path.join` or `datetime.datetime.now`."""
    parts = name.split(".")
    if parts[0] in BANNED_MODULES or (parts[0] in WATCHED_MODULES and parts[-1] == "*"):
        return True
    for end in range(1, len(parts)):
        module, member = ".".join(parts[:end]), parts[end]
        if module in ALLOWED_OF and member not in ALLOWED_OF[module]:
            return True
        if member in BANNED_OF.get(module, ()):
            return True
    return False


def imports_of(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield, for every import, its line, the dotted name it takes, and the local name it binds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, alias.asname or alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}", alias.asname or alias.name


def annotation_nodes(tree: ast.Module) -> set[ast.AST]:
    """Return every node that stands inside an annotation."""
    annotations: list[ast.expr | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign):
            annotations.append(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            annotations.append(node.returns)
    return {inner for outer in annotations if outer for inner in ast.walk(outer)}


def dotted_name(node: ast.AST, names: dict[str, str]) -> str | None:
    """Spell out `node` if it is a name, or a chain of attributes on one, that was imported."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        base = dotted_name(node.value, names)
        return f"{base}.{node.attr}" if base else None
    return None


def past_the_seam(source: str, path: str) -> list[str]:
    """Return one line per use of disk, clock or randomness in `source` that avoids the seam."""
    tree = ast.parse(source)
    annotations = annotation_nodes(tree)
    names = {"open": "builtins.open"}
    found = set()

    for line, name, local in imports_of(tree):
        if "." in local:  # `import os.path` binds `os`.
            names[local.split(".")[0]] = name.split(".")[0]
        else:
            names[local] = name
        if is_banned(name) and name != "random.Random":
            found.add((line, name))

    inside_a_chain = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        used = dotted_name(node, names)
        if used is None or node in inside_a_chain or not isinstance(node, ast.expr):
            continue
        if used == "random.Random" and node in annotations:
            continue
        if is_banned(used) or used in WATCHED_MODULES:
            found.add((node.lineno, used))

    excepted = EXCEPTIONS.get(path, set())
    found = {(line, name) for line, name in found if name not in excepted}
    return [f"{path}:{line}: {name} goes past the seam" for line, name in sorted(found)]


def test_all_io_passes_the_seam() -> None:
    paths = sorted(path for part in THROUGH_THE_SEAM for path in (HOLDFAST / part).rglob("*.py"))
    assert paths
    found = [
        line
        for path in paths
        for line in past_the_seam(path.read_text(), str(path.relative_to(HOLDFAST)))
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "open('x')",
        "opener = open",
        "import io\nio.open('x')",
        "from io import FileIO",
        "import os\nos.fsync(3)",
        "import os\nos.path.exists('x')",
        "import os as system\nsystem.replace('a', 'b')",
        "import os.path\nos.path.getsize('x')",
        "import os.path as p\np.exists('x')",
        "from os import path\npath.exists('x')",
        "from os import fsync",
        "from os import *",
        "import os\ngetattr(os, 'open')('x', 0)",
        "from pathlib import Path",
        "import pathlib\npathlib.Path('x')",
        "import shutil",
        "from tempfile import mkdtemp",
        "import mmap",
        "import time\ntime.time()",
        "import time\ntime.monotonic()",
        "import time\ntime.time_ns()",
        "import time\ntime.perf_counter_ns()",
        "from time import sleep",
        "import datetime\ndatetime.datetime.now(datetime.UTC)",
        "from datetime import UTC, datetime\ndatetime.now(UTC)",
        "from datetime import date\ndate.today()",
        "import random\nrandom.random()",
        "import random\nrandom.Random(7)",
        "from random import Random\nRandom(7)",
        "from random import randbytes",
        "import secrets",
        "import uuid\nuuid.uuid4()",
        "from uuid import uuid4",
        "import pyarrow as pa\npa.OSFile('x')",
        "import pyarrow.fs",
        "def f():\n    import time\n    return time.time()",
    ],
)
def test_a_way_past_the_seam_is_found(source: str) -> None:
    assert len(past_the_seam(source, "offender.py")) == 1


def test_a_finding_names_its_place() -> None:
    source = '"""A module."""\n\nimport os\n\nos.unlink("x")\n'
    assert past_the_seam(source, "wal.py") == ["wal.py:5: os.unlink goes past the seam"]


def test_an_exception_holds_in_its_own_module_only() -> None:
    source = "import os\nos.unlink('x')\nos.replace('a', 'b')"
    assert len(past_the_seam(source, "quiver/log/wal.py")) == 2
    assert past_the_seam(source, "quiver/engine/control.py") == [
        "quiver/engine/control.py:3: os.replace goes past the seam"
    ]


@pytest.mark.parametrize(
    "source",
    [
        "disk.open('x')",
        "from holdfast.seam import disk\ndisk.fsync(3)",
        "import os\nos.getpid() + (os.cpu_count() or 1)",
        "import os\ndef f(path: str | os.PathLike[str]) -> str: return os.fspath(path)",
        "import os\nos.path.join('a', os.path.basename('b'))",
        "from os.path import join",
        "from pathlib import PurePath",
        "import io\nio.BytesIO()",
        "import random\ndef f(rng: random.Random) -> random.Random: return rng",
        "from random import Random\nrng: Random",
        "import uuid\nuuid.UUID(int=7)",
        "from datetime import UTC, datetime\ndatetime.fromtimestamp(0, UTC)",
        "import sqlite3\nsqlite3.connect('x')",
        "import pyarrow as pa\npa.BufferReader(b'')",
    ],
)
def test_what_is_pure_is_let_through(source: str) -> None:
    assert past_the_seam(source, "innocent.py") == []
