"""Gateways of the tests, within their process: toys behind a real receiver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.graph.files import TOYS
from tests.graph.lineage import post

from holdfast.graph.loader import load
from holdfast.graph.registry import COMPONENTS, Registry
from holdfast.graph.runtime import Gateway

REGISTRY = Registry([*TOYS, *(one for one in COMPONENTS if one.type in ("openlineage", "log"))])


GRAPH = """\
data_dir: data
nodes:
  lineage:
    kind: receiver
    type: openlineage
    config: {listen: "127.0.0.1:0"}
    to: [left, clean]
  clean: {kind: processor, type: drop, config: {drop: "secret"}, to: [right]}
  left: {kind: exporter, type: memory}
  right: {kind: exporter, type: memory, config: {mark: ">"}}
"""


def gateway_of(folder: Path, text: str = GRAPH, *, worker: int = 0) -> Gateway:
    path = folder / "graph.yaml"
    path.write_text(text)
    return Gateway(load(path, registry=REGISTRY).graph, worker=worker)


@asynccontextmanager
async def running(gateway: Gateway) -> AsyncIterator[Gateway]:
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop(5.0)


def address(gateway: Gateway) -> str:
    return gateway.addresses["lineage"][0].removeprefix("http://")


async def send(gateway: Gateway, *events: Any) -> list[int]:
    return [(await asyncio.to_thread(post, address(gateway), one))[0] for one in events]
