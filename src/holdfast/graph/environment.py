"""Whether this machine can run a graph: directories, files that it names, ports that are free."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from holdfast.dataflow.java import JAVA_MIN, find_java
from holdfast.errors import ConfigFinding
from holdfast.graph.document import TreePath
from holdfast.graph.loader import Loaded
from holdfast.graph.paths import dead_letters_directory, plan
from holdfast.graph.ports import flight_addresses
from holdfast.receive.listening import parse_address


def missing_in_environment(loaded: Loaded) -> list[ConfigFinding]:
    """Return what would keep the graph from starting here and now."""
    document = loaded.document
    return [
        ConfigFinding(document.file, *document.value_place(at), message, hint)
        for at, message, hint in [
            *_directories(loaded),
            *_files(loaded),
            *_ports(loaded),
            *_spark(loaded),
        ]
    ]


def _directories(loaded: Loaded) -> Iterator[tuple[TreePath, str, str]]:
    graph = loaded.graph
    wanted: list[tuple[TreePath, Path]] = [
        (("data_dir",), graph.data_dir),
        (("dead_letters", "path"), dead_letters_directory(graph)),
    ]
    wanted += [(("nodes", one.name, "config", "path"), one.directory) for one in plan(graph)]
    for at, directory in wanted:
        there = next(path for path in (directory, *directory.parents) if path.exists())
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            hint = "make it, and let the user who runs Holdfast write there"
            yield at, f"the directory {directory} cannot be written", hint


def _files(loaded: Loaded) -> Iterator[tuple[TreePath, str, str]]:
    """Look for what settings called `…_file` name: certificates, keys, tokens."""
    graph = loaded.graph
    parts: list[tuple[TreePath, object]] = [
        (("nodes", name, "config"), node.config) for name, node in graph.settings.nodes.items()
    ]
    for key in ("flight", "spark"):
        settings = getattr(graph.settings, key)
        parts.append(((key,), settings.model_dump() if settings is not None else None))
    for part, settings in parts:
        for at, value in _leaves(settings, part):
            if not (str(at[-1]).endswith("_file") and isinstance(value, str)):
                continue
            path = graph.base_dir / value
            if not path.is_file() or not os.access(path, os.R_OK):
                hint = "make it, and let the user who runs Holdfast read it"
                yield at, f"the file {path} cannot be read", hint


def _leaves(value: object, at: TreePath) -> Iterator[tuple[TreePath, object]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*at, key))
    else:
        yield at, value


def _ports(loaded: Loaded) -> Iterator[tuple[TreePath, str, str]]:
    graph = loaded.graph
    wanted: list[tuple[TreePath, str]] = []
    if graph.settings.admin.listen is not None:
        wanted.append((("admin", "listen"), graph.settings.admin.listen))
    for node in graph.of_kind("receiver"):
        listen = getattr(node.config, "listen", None)
        if listen is not None:
            wanted.append((("nodes", node.name, "config", "listen"), listen))
    wanted += [(at, text) for at, text, _ in flight_addresses(graph)]
    for at, text in wanted:
        problem = _cannot_listen(text)
        if problem is not None:
            yield at, f"cannot listen on {text}: {problem}", "who has it? `ss -ltnp` says"


def _spark(loaded: Loaded) -> Iterator[tuple[TreePath, str, str]]:
    settings = loaded.graph.settings
    if not settings.pipelines or not settings.spark.run:
        return
    if find_spec("pyspark") is None:
        yield ("pipelines",), "Spark is not installed", "pip install 'holdfast[spark]'"
        return
    java = find_java()
    if java is None or not java.is_good:
        found = "none is found" if java is None else f"{java.executable} is {java.version}"
        hint = "install one and set JAVA_HOME, or: pip install 'holdfast[spark]'"
        yield ("pipelines",), f"Spark needs Java {JAVA_MIN} or newer, and {found}", hint


def _cannot_listen(text: str) -> str | None:
    host, port = parse_address(text)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as listening:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listening.bind(address)
                listening.listen(1)
    except OSError as error:
        return error.strerror or str(error)
    return None
