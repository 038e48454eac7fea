"""Whether a gateway has a driver beside it, and what that driver is told of the gateway."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import PurePath

from holdfast.dataflow.driver.child import DriverChild
from holdfast.dataflow.driver.wire import DriverOrders
from holdfast.errors import NotInstalled
from holdfast.extras import install_command
from holdfast.graph.loader import Loaded, load
from holdfast.graph.model import Graph
from holdfast.quiver.engine.control import ask

# What runs Spark beside a gateway.
DRIVER = (sys.executable, "-m", "holdfast.operate.driver_main")


def driver_of(loaded: Loaded, orders: Callable[[], Awaitable[DriverOrders]]) -> DriverChild | None:
    """Return the driver of a file's pipelines; None if nothing is to be run."""
    settings = loaded.graph.settings
    if not settings.pipelines or not settings.spark.run:
        return None
    if find_spec("pyspark") is None:
        instead = "run them elsewhere with `spark: {run: false}`"
        raise NotInstalled(
            "the file has pipelines, and Spark is not installed",
            hint=f"{install_command('spark')}, or {instead}",
            path=loaded.document.file,
        )
    return DriverChild(settings.spark, orders, DRIVER)


def lineage_url(graph: Graph, addresses: Mapping[str, Sequence[str]]) -> str | None:
    """Return where the gateway itself takes lineage, if it does."""
    for node in graph.of_kind("receiver"):
        if node.component.type == "openlineage" and addresses.get(node.name):
            return addresses[node.name][0]
    return None


def gateway_lineage_url(config: str) -> str | None:
    """Return where the gateway of a file takes lineage, if it runs."""
    graph = load(config).graph
    told = ask(PurePath(graph.data_dir), "status")
    if told is None:
        return None
    # With several workers their parent answers; they share their ports.
    one = told["workers"][0] if told.get("workers") else told
    return lineage_url(graph, one["addresses"])
