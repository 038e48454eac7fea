"""Imports point one way: from what serves to what is served, never back or sideways.

The order is the one drawn in ARCHITECTURE.md. A package may import what stands on a lower level,
and itself. Two packages of one level do not know each other; what they share belongs below.
Imports inside functions and under TYPE_CHECKING count like any other.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"

LEVELS = (
    {"errors"},
    {"bodies", "bucket_url", "extras", "local_path", "own_thread", "self_watch", "units"}
    | {"watched_files"},
    {"happy_eyeballs"},
    {"seam", "settings"},
    {"grpc", "quiver", "store"},
    {"signals"},
    {"remote", "dead_letters"},
    # What a sender and a data node both know; they talk through `remote`'s gate and faults.
    {"replica"},
    # `deadletter` is the former name of `dead_letters`.
    {"processors", "receive", "deliver", "handoff", "node", "dataflow", "deadletter", "query"},
    {"graph"},
    {"console", "prove", "bench"},
    {"demo"},
    # `operate` holds the CLI, which starts everything else: it stands alone on top.
    {"operate"},
    # `holdfast/__init__.py` and `holdfast/__main__.py`: the doors of the house.
    {"__init__", "__main__"},
)
LEVEL_OF = {package: level for level, packages in enumerate(LEVELS) for package in packages}

# Inside a package: its sub-packages and root modules, from what serves to what is served. Those in
# one set do not know each other.
ROOMS: dict[str, tuple[set[str], ...]] = {
    "dataflow": (
        {"base", "watermark"},
        {"spec"},
        {"source"},
        {"sink", "filesets"},
        {"compiler"},
        {"driver"},
        {"kit"},
        # What users and Spark name: nothing inside imports these.
        {"data_source", "run", "session"},
        {"__init__"},
    ),
    "operate": (
        {"logs", "metrics", "sd_notify"},
        {"handoff_metrics", "node_metrics", "telemetry_messages", "telemetry_metrics"},
        {"gateway_metrics"},
        {"driver_main", "monitoring", "telemetry"},
        {"up"},
        {"supervisor"},
        {"cli"},
        {"__init__"},
    ),
    "operate.cli": (
        {"base"},
        # A command knows no other command; what they share is in `base`.
        {
            *("cmd_bench", "cmd_config", "cmd_console", "cmd_demo", "cmd_destination"),
            "cmd_doctor",
            *(
                "cmd_explain",
                "cmd_gc",
                "cmd_handoff",
                "cmd_init",
                "cmd_lineage",
                "cmd_node",
                "cmd_prove",
                "cmd_report",
                "cmd_send",
                "cmd_status",
                "cmd_store",
            ),
            "cmd_up",
            *("dataflow", "dlq", "files", "quiver"),
        },
        {"__init__"},
    ),
    "console": (
        {"access", "commands", "drawing", "finder", "history", "letters", "snapshot", "words"}
        | {"store_reader", "stores"},
        {"figures", "requests", "watch"},
        {"live", "pages"},
        {"actions", "parts", "store_parts"},
        {"app"},
        {"__init__"},
    ),
    "grpc": (
        {"settings", "status", "windows"},
        {"engine", "messages"},
        {"outgoing", "streams"},
        {"http2"},
        {"calls"},
        {"client", "server"},
        {"health"},
        {"__init__"},
    ),
    "node": (
        {"points", "settings"},
        {"layout"},
        {"cold", "replica"},
        {"data_node"},
        {"probe", "service"},
        {"__init__"},
    ),
    "replica": (
        {"copies", "part"},
        {"messages", "verify"},
        {"transport"},
        {"flight"},
        {"__init__"},
    ),
    "dead_letters": (
        {"letter"},
        {"queue"},
        {"stored"},
        {"__init__"},
    ),
    "deliver": (
        {"exporter", "settings", "window"},
        {"context", "feed", "sending"},
        {"exporters", "lanes", "statistics"},
        {"judge"},
        {"settling"},
        {"delivery"},
        {"destination", "direct"},
        {"redrive"},
        {"__init__"},
    ),
    "graph": (
        {"document", "quiver_node", "registry", "statistics", "worker_quivers"},
        {"model", "otap_spelling", "shorthand", "validation"},
        {"addresses", "paths", "schema"},
        {"delivery", "direct_checks", "node_senders", "nodes_checks", "pipeline_checks", "serving"},
        {"checks", "open_quivers"},
        {"loader", "runtime"},
        {"control", "environment", "pipelines", "printing", "reload"},
        {"__init__"},
    ),
    "quiver": (
        {"base"},
        {"segments"},
        {"log"},
        {"ledger"},
        {"read"},
        {"keep"},
        {"engine"},
        {"statistics", "tools"},
        {"quiver"},
        {"cores"},
        {"__init__"},
    ),
    "query": (
        {"kept"},
        {"datasets"},
        {"sql"},
        {"__init__"},
    ),
    "receive": (
        {"batches", "listening", "receiver", "responses"},
        {"before_buffer", "exchange", "fast_path", "request_head"},
        {"admission", "child", "cors", "openapi", "server_state"},
        {"body", "checks", "connection", "otlp_checks"},
        {"http_server"},
        {"http_app", "otlp_intake"},
        {"grpc_server", "openlineage_endpoints", "otlp_http"},
        {"openlineage", "otap_streams", "otlp_grpc"},
        {"otlp"},
        {"otap"},
        {"__init__"},
    ),
    "remote": (
        {"sessions", "settings", "wire"},
        {"connection", "reader", "stored"},
        {"client", "owner", "reader_process"},
        {"server"},
        {"__init__"},
    ),
    "seam": (
        {
            "bucket",
            "clock",
            "holder",
            "names",
            "owners",
            "points",
            "process",
            "randomness",
            "usage",
        },
        {"disk"},
        {"bucket_disk", "faulty", "folder_bucket", "folders", "rate", "simulated_files", "workers"},
        {"simulated"},
        {"__init__"},
    ),
    "signals": (
        {"event", "openlineage", "otlp"},
        {"otap"},
        {"item_tables", "otap_units", "signal"},
        {"registry"},
        {"__init__"},
    ),
    "store": (
        {"base", "objects"},
        {"gc"},
        {"chunks"},
        {"store"},
        {"filesets"},
        {"fsck"},
        {"__init__"},
    ),
}

# The only name that anything inside may take from the package's own front door.
OPEN_TO_ALL = {"holdfast.__version__"}


def imports_of(source: str, package: str) -> Iterator[tuple[int, str]]:
    """Yield line and absolute dotted name of everything that `source` in `package` imports."""
    for node in import_nodes(source):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        else:
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base]).rstrip(".")
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


@cache
def import_nodes(source: str) -> list[ast.Import | ast.ImportFrom]:
    """Return the imports of a module; every one is asked for twice, and to parse all takes long."""
    nodes = ast.walk(ast.parse(source))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def wrong_imports(source: str, module: str) -> list[str]:
    """Return one line per import by which `module` (dotted, with `__init__`) breaks the order."""
    importer = module.split(".")[1]
    if importer not in LEVEL_OF:
        return [f"{module}: '{importer}' has no level yet; give it one in {Path(__file__).name}"]
    wrong = []
    for line, name in imports_of(source, package=module.rpartition(".")[0]):
        if name.split(".")[0] != "holdfast" or name in OPEN_TO_ALL:
            continue
        imported = name.split(".")[1] if "." in name else "__init__"
        if imported == importer:
            continue
        level = LEVEL_OF.get(imported, LEVEL_OF["__init__"])
        if level >= LEVEL_OF[importer]:
            wrong.append(f"{module}:{line}: '{importer}' may not import '{name}'")
    return wrong


def wrong_rooms(source: str, module: str, package: str = "") -> list[str]:
    """Return one line per import by which `module` breaks the order inside a package of its own."""
    package = package or module.split(".")[1]
    depth = len(package.split(".")) + 1
    room = module.split(".")[depth]
    level_of = {name: level for level, names in enumerate(ROOMS[package]) for name in names}
    if room not in level_of:
        return [f"{module}: '{room}' has no level yet; give it one in {Path(__file__).name}"]
    wrong = []
    for line, name in imports_of(source, package=module.rpartition(".")[0]):
        parts = name.split(".")
        is_inside = parts[:depth] == ["holdfast", *package.split(".")] and len(parts) > depth
        if not is_inside or parts[depth] == room:
            continue
        if level_of.get(parts[depth], level_of["__init__"]) >= level_of[room]:
            wrong.append(f"{module}:{line}: '{package}.{room}' may not import '{name}'")
    return wrong


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts)


def test_imports_point_one_way() -> None:
    paths = sorted((SRC / "holdfast").rglob("*.py"))
    assert paths
    wrong = [line for path in paths for line in wrong_imports(path.read_text(), module_name(path))]
    assert wrong == []


@pytest.mark.parametrize("package", ROOMS)
def test_imports_inside_a_package_point_one_way(package: str) -> None:
    paths = sorted((SRC / "holdfast" / package.replace(".", "/")).rglob("*.py"))
    assert paths
    wrong = [
        line for path in paths for line in wrong_rooms(path.read_text(), module_name(path), package)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("holdfast.dataflow.source.stream", "from holdfast.dataflow.sink import records"),
        ("holdfast.dataflow.sink.records", "from holdfast.dataflow.filesets.reader import Names"),
        ("holdfast.dataflow.driver.run", "from holdfast.dataflow import session"),
        ("holdfast.dataflow.spec.pipeline", "def f():\n    from ..source import options"),
        ("holdfast.dataflow.leftovers", ""),
        ("holdfast.quiver.segments.rows", "from holdfast.quiver.log import wal"),
        ("holdfast.quiver.log.wal", "from holdfast.quiver import Quiver"),
        ("holdfast.deliver.exporters.files", "from holdfast.deliver.judge import Judge"),
        ("holdfast.signals.openlineage.names", "from holdfast.signals.signal import Signal"),
    ],
)
def test_a_wrong_import_inside_a_package_is_found(module: str, source: str) -> None:
    assert len(wrong_rooms(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("holdfast.seam.disk", "from holdfast.quiver import Quiver"),
        ("holdfast.quiver.log.wal", "import holdfast.store.chunks"),
        ("holdfast.quiver.log.wal", "from holdfast import store"),
        ("holdfast.quiver.log.wal", "from holdfast import Quiver"),
        ("holdfast.quiver.log.wal", "import holdfast"),
        ("holdfast.quiver.log.wal", "from ...graph import model"),
        ("holdfast.quiver.__init__", "from ..graph import model"),
        ("holdfast.quiver.log.wal", "def f():\n    from holdfast.prove import run"),
        ("holdfast.quiver.log.wal", "if TYPE_CHECKING:\n    from holdfast.operate import cli"),
        ("holdfast.processors.filter", "from holdfast.receive import http"),
        ("holdfast.prove.quiver", "from holdfast.bench import quiver"),
        ("holdfast.errors", "from holdfast.seam import disk"),
        ("holdfast.leftovers.thing", ""),
    ],
)
def test_a_wrong_import_is_found(module: str, source: str) -> None:
    assert len(wrong_imports(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("holdfast.quiver.log.wal", "from holdfast.quiver.base.frame import MAGIC"),
        ("holdfast.quiver.log.wal", "from . import frame"),
        ("holdfast.quiver.__init__", "from . import frame"),
        ("holdfast.quiver.log.wal", "from holdfast.errors import DiskFull"),
        ("holdfast.quiver.log.wal", "from holdfast import __version__, errors"),
        ("holdfast.operate.cli.bench", "from holdfast.bench import quiver"),
        ("holdfast.__init__", "from holdfast.quiver import Quiver"),
        ("holdfast.seam.disk", "import holdfastened, os"),
    ],
)
def test_a_right_import_is_let_through(module: str, source: str) -> None:
    assert wrong_imports(source, module) == []


def loaded_by(statement: str) -> set[str]:
    """Return the top-level modules a fresh interpreter holds after `statement`."""
    return {name.split(".")[0] for name in modules_after(statement)}


def modules_after(statement: str) -> set[str]:
    """Return all modules a fresh interpreter holds after `statement`."""
    program = f"import json, sys\n{statement}\nsys.stdout.write(json.dumps(list(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(json.loads(result.stdout))


def test_loaded_modules_are_seen() -> None:
    assert "xxhash" in loaded_by("import xxhash")
    assert "xxhash" not in loaded_by("pass")


def test_import_holdfast_is_light() -> None:
    assert not loaded_by("import holdfast") & {"pyarrow", "click"}


def test_the_embedded_quiver_needs_pyarrow_and_xxhash_alone() -> None:
    heavy = {"pyspark", "grpc", "pydantic", "click", "rich", "numpy", "pandas"}
    # pyarrow takes numpy along where it is installed; that is not ours to prevent.
    assert not (loaded_by("from holdfast import Quiver") - loaded_by("import pyarrow")) & heavy


def test_what_is_not_needed_takes_no_memory() -> None:
    """A child that checks telemetry has no quiver; a gateway that serves nobody has no Flight."""
    assert not loaded_by("import holdfast.receive.otlp_checks") & {"pyarrow", "pydantic"}
    gateway = "import holdfast.operate.up, holdfast.receive.otlp, holdfast.deliver.exporters.otlp"
    assert "pyarrow.flight" not in modules_after(gateway)
    assert "pyarrow.flight" in modules_after("import holdfast.remote.server")


def test_public_names_are_there() -> None:
    import holdfast

    assert [name for name in holdfast.__all__ if not hasattr(holdfast, name)] == []
    assert set(holdfast.__all__) <= set(dir(holdfast))
    with pytest.raises(AttributeError, match="no attribute 'Arrow'"):
        getattr(holdfast, "Arrow")  # noqa: B009
