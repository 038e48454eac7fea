"""`holdfast node`: run a data node."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from holdfast.errors import BadConfig
from holdfast.node.data_node import DataNode
from holdfast.node.probe import ProbeServer
from holdfast.node.service import NodeServer
from holdfast.node.settings import DataNodeSettings
from holdfast.operate.cli.base.work import wait_for_signal
from holdfast.remote.server import secrets_of


@click.command()
@click.option(
    "--data",
    "directory",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The directory of the node; it is made if it is not there.",
)
@click.option(
    "--listen", default="127.0.0.1:8816", show_default=True, help="Where senders and readers call."
)
@click.option("--advertise-host", help="The host that readers are sent to; default: --listen's.")
@click.option("--http", help="Answer /healthz and /readyz at this address.")
@click.option("--max-age", help="Remove parts whose newest event came longer ago, such as 30d.")
@click.option("--max-size", help="Remove the oldest parts beyond this size, such as 500GB.")
@click.option("--min-free", help="Take nothing while the disk has less free than this.")
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file with the token that callers must send.",
)
@click.option("--tls-cert", type=click.Path(dir_okay=False), help="Certificate, as PEM.")
@click.option("--tls-key", type=click.Path(dir_okay=False), help="Its private key, as PEM.")
@click.option(
    "--tls-client-ca",
    type=click.Path(dir_okay=False),
    help="Authorities of client certificates; then every caller must present one.",
)
def command(directory: Path, http: str | None, **options: Any) -> None:
    """Run a data node until it is told to stop, by SIGTERM or Ctrl-C.

    It adopts the parts that senders hand over, each exactly once, and keeps them until --max-age or
    --max-size take them; without either, for ever.
    """
    settings = _settings(options)
    secrets = secrets_of(settings.flight, Path())
    stop = threading.Event()
    with contextlib.ExitStack() as held:
        node = DataNode(directory.absolute(), settings)
        held.callback(node.close)
        if http is not None:
            held.enter_context(ProbeServer(node, http))
        server = NodeServer(node, secrets)
        form = "%(levelname)s %(message)s"
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=form)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        held.enter_context(server)
        click.echo(f"data node {node.node_id} listens on {server.location}")
        wait_for_signal(stop)


def _settings(options: Mapping[str, Any]) -> DataNodeSettings:
    """Return what the options say; those that are not given have their defaults."""
    flight: dict[str, Any] = {name: options[name] for name in ("listen", "advertise_host")}
    if options["token_file"] is not None:
        flight["tokens"] = [{"name": "callers", "token": _token(options["token_file"])}]
    tls = {f"{name}_file": options[f"tls_{name}"] for name in ("cert", "key", "client_ca")}
    if any(tls.values()):
        flight["tls"] = {name: path for name, path in tls.items() if path}
    bounds = {name: options[name] for name in ("max_age", "max_size", "min_free") if options[name]}
    try:
        return DataNodeSettings.model_validate({"flight": flight, **bounds})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = "-".join(str(part) for part in first["loc"] if part != "flight")
        where = where.replace("_", "-").removesuffix("-file")
        raise BadConfig(f"--{where}: {first['msg']}", hint="see holdfast node --help") from error


def _token(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError) as error:
        raise BadConfig(
            "the token cannot be read", hint="give a text file with --token-file", path=str(path)
        ) from error
