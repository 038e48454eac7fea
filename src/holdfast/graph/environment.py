"""Whether this machine can run a graph: directories, files that it names, ports that are free.

Apart from the other checks, because these are about here and now. A file is validated in CI, on a
machine that has neither the directories nor the ports; these are run where a gateway is about to
start.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from holdfast.dataflow.driver.java import JAVA_MIN, find_java
from holdfast.deliver.exporter import ExporterContext
from holdfast.errors import ConfigFinding, HoldfastError, NotInstalled
from holdfast.extras import install_command, missing_modules, not_installed
from holdfast.graph import quiver_node
from holdfast.graph.addresses import flight_addresses, listeners_of
from holdfast.graph.document import TreePath
from holdfast.graph.loader import Loaded
from holdfast.graph.model import Node
from holdfast.graph.paths import dead_letters_directory, plan
from holdfast.quiver.segments.archive import open_place
from holdfast.receive.listening import parse_address
from holdfast.seam import Seam
from holdfast.units import written_size

# Where in the file, what is the matter, what to do.
EnvironmentProblem = tuple[TreePath, str, str]


def missing_in_environment(loaded: Loaded) -> list[ConfigFinding]:
    """Return what would keep the graph from starting here and now."""
    problems = [
        *_directories(loaded),
        *_files(loaded),
        *_ports(loaded),
        *_packages(loaded),
        *_exporters(loaded),
        *_archives(loaded),
        *_java(loaded),
    ]
    return _findings(loaded, problems)


def missing_packages(loaded: Loaded) -> list[ConfigFinding]:
    """Return what has to be installed before the graph can run here.

    A warning: a file is often checked where it will not run.
    """
    return [found._replace(severity="warning") for found in _findings(loaded, _packages(loaded))]


def caps_beyond_disks(loaded: Loaded) -> list[ConfigFinding]:
    """Return the size caps that the disk does not have: there the disk is the cap."""
    problems: list[EnvironmentProblem] = []
    for one in plan(loaded.graph):
        cap_bytes = one.config.retention.size_cap
        directory = one.directory.absolute()
        # The directory itself may not exist yet: what counts is the disk it would be made on.
        there = next(path for path in (directory, *directory.parents) if path.exists())
        disk_bytes = shutil.disk_usage(there).total
        if cap_bytes > disk_bytes:
            at: TreePath = ("nodes", one.name, "config", "retention", "size_cap")
            message = (
                f"size_cap is {written_size(cap_bytes)},"
                f" but the disk of {directory} has only {disk_bytes:,} bytes"
            )
            hint = "events are refused when the disk is full; set a `size_cap` that it can hold"
            problems.append((at, message, hint))
    return [found._replace(severity="warning") for found in _findings(loaded, problems)]


def _findings(loaded: Loaded, problems: Iterable[EnvironmentProblem]) -> list[ConfigFinding]:
    document = loaded.document
    return [
        ConfigFinding(document.file, *document.value_place(at), message, hint)
        for at, message, hint in problems
    ]


def _directories(loaded: Loaded) -> Iterator[EnvironmentProblem]:
    graph = loaded.graph
    wanted: list[tuple[TreePath, Path]] = [
        (("data_dir",), graph.data_dir),
        (("dead_letters", "path"), dead_letters_directory(graph)),
    ]
    wanted += [(("nodes", one.name, "config", "path"), one.directory) for one in plan(graph)]
    for at, directory in wanted:
        # The nearest one that exists: the others are made at the start.
        there = next(path for path in (directory, *directory.parents) if path.exists())
        problem = _cannot_write(there)
        if problem is not None:
            hint = "make it, and let the user who runs Holdfast write there"
            yield at, f"the directory {directory} cannot be written: {problem}", hint


def _cannot_write(folder: Path) -> str | None:
    """Try it: what the permissions say is not the whole truth, for root or on `/proc`."""
    try:
        with tempfile.TemporaryDirectory(prefix=".holdfast-check-", dir=folder):
            return None
    except OSError as error:
        return error.strerror or str(error)


def _files(loaded: Loaded) -> Iterator[EnvironmentProblem]:
    """Look for what settings called `…_file` name: certificates, keys, tokens.

    By the name of the key, so that this holds for components that others bring, too.
    """
    graph = loaded.graph
    parts: list[tuple[TreePath, object]] = [
        (("nodes", name, "config"), node.config) for name, node in graph.settings.nodes.items()
    ]
    if graph.settings.telemetry is not None:
        parts.append((("telemetry", "config"), graph.settings.telemetry.config))
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


def _ports(loaded: Loaded) -> Iterator[EnvironmentProblem]:
    graph = loaded.graph
    wanted: list[tuple[TreePath, str]] = []
    if graph.settings.admin.listen is not None:
        wanted.append((("admin", "listen"), graph.settings.admin.listen))
    for node in graph.of_kind("receiver"):
        for key, listen in listeners_of(node.config).items():
            wanted.append((("nodes", node.name, "config", key), listen))
    wanted += [(at, text) for at, text, _ in flight_addresses(graph)]
    for at, text in wanted:
        problem = _cannot_listen(text)
        if problem is not None:
            yield at, f"cannot listen on {text}: {problem}", "who has it? `ss -ltnp` says"


def _packages(loaded: Loaded) -> Iterator[EnvironmentProblem]:
    for at, node in _exporter_nodes(loaded):
        extra = node.component.extra
        if extra is not None and missing_modules(extra):
            message = f"the exporter {node.component.type!r} is not installed"
            yield at, message, install_command(extra)
            continue
        yield from _needed(at, node)
    for node in loaded.graph.quivers:
        yield from _needed(("nodes", node.name), node)
    if _runs_pipelines(loaded) and find_spec("pyspark") is None:
        yield ("pipelines",), "Spark is not installed", install_command("spark")


def _needed(at: TreePath, node: Node) -> Iterator[EnvironmentProblem]:
    """Look for what some settings of a node need, and others do not."""
    for needed in node.component.needs(node.config):
        for module in missing_modules(needed)[:1]:
            error = not_installed(needed, module)
            yield (*at, "config"), error.message, error.hint


def _archives(loaded: Loaded) -> Iterator[EnvironmentProblem]:
    """Make what reaches each archive: settings of buckets that only its library can judge."""
    for node in loaded.graph.nodes.values():
        if not isinstance(node.config, quiver_node.Config) or node.config.segment.archive is None:
            continue
        try:
            open_place(node.config.segment.archive.as_config(), Seam())
        except NotInstalled:
            continue  # told already
        except HoldfastError as error:
            yield ("nodes", node.name, "config"), error.message, error.hint


def _exporters(loaded: Loaded) -> Iterator[EnvironmentProblem]:
    """Make each exporter, which starts nothing: settings that only its library can judge."""
    for at, node in _exporter_nodes(loaded):
        if node.sends_parts:
            continue
        context = ExporterContext(node.name, Seam(), loaded.graph.base_dir, loaded.graph.data_dir)
        try:
            node.component.code.make(node.config, context)
        except NotInstalled:
            continue  # told already
        except HoldfastError as error:
            yield (*at, "config"), error.message, error.hint


def _exporter_nodes(loaded: Loaded) -> Iterator[tuple[TreePath, Node]]:
    for node in loaded.graph.of_kind("exporter"):
        yield ("nodes", node.name), node
    for node in loaded.graph.handlers.values():
        yield ("dead_letters", "handlers", node.name), node
    if loaded.graph.telemetry is not None:
        yield ("telemetry",), loaded.graph.telemetry


def _runs_pipelines(loaded: Loaded) -> bool:
    settings = loaded.graph.settings
    return bool(settings.pipelines) and settings.spark.run


def _java(loaded: Loaded) -> Iterator[EnvironmentProblem]:
    if not _runs_pipelines(loaded) or find_spec("pyspark") is None:
        return
    java = find_java()
    if java is None or not java.is_good:
        found = "none is found" if java is None else f"{java.executable} is {java.version}"
        hint = f"install one and set JAVA_HOME, or: {install_command('spark')}"
        yield ("pipelines",), f"Spark needs Java {JAVA_MIN} or newer, and {found}", hint


def _cannot_listen(text: str) -> str | None:
    """By listening, for a moment: whether a port is free, and whether this user may have it, is
    known to nobody but the kernel. With SO_REUSEADDR, as the servers do: a port in TIME_WAIT is
    free to them.
    """
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
