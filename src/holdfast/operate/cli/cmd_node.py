"""`holdfast node`: run a data node, or scrub one.

A data node has flags and no file: it knows no graph, no senders and no other nodes, and a handful
of bounds are all there is to set.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from holdfast.errors import BadConfig, BadInput, Damaged, DirectoryLocked
from holdfast.node import layout
from holdfast.node.cold import ColdTier
from holdfast.node.data_node import DataNode
from holdfast.node.probe import ProbeServer
from holdfast.node.service import NodeServer
from holdfast.node.settings import DataNodeSettings
from holdfast.operate.cli.base.groups import CommandGroup
from holdfast.operate.cli.base.output import counted, json_option, print_json, print_table, size
from holdfast.operate.cli.base.work import progress, wait_for_signal
from holdfast.operate.node_metrics import render_node
from holdfast.remote import ClientSettings
from holdfast.remote.server import secrets_of
from holdfast.replica.flight import FlightTransport
from holdfast.replica.messages import ScrubPage
from holdfast.replica.part import PartId
from holdfast.settings import Secret

# How long a running node may take for one page of a scrub: its largest part has to be read.
CALL_S = 600.0


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.option(
    "--data",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="The directory of the node; it is made if it is not there.",
)
@click.option(
    "--listen", default="127.0.0.1:8816", show_default=True, help="Where senders and readers call."
)
@click.option("--advertise-host", help="The host that readers are sent to; default: --listen's.")
@click.option("--http", help="Answer /healthz, /readyz and /metrics at this address.")
@click.option("--max-age", help="Remove parts whose newest event came longer ago, such as 30d.")
@click.option("--max-size", help="Remove the oldest parts beyond this size, such as 500GB.")
@click.option("--cold-store", help="A store into which goes what is to be removed, by the hour.")
@click.option("--cold-database", help="Its database, if the store is in a bucket.")
@click.option("--min-free", help="Take nothing while the disk has less free than this.")
@click.option(
    "--quarantine-max-size", help="Nor while damaged parts that were not replaced have more."
)
@click.option("--quarantine-max-parts", help="Nor while there are more of them than this.")
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
@click.pass_context
def command(
    ctx: click.Context, /, directory: Path | None, http: str | None, **options: Any
) -> None:
    """Run a data node until it is told to stop, by SIGTERM or Ctrl-C.

    It adopts the parts that senders hand over, each exactly once, and keeps them until --max-age or
    --max-size take them; without either, for ever.
    """
    if ctx.invoked_subcommand is not None:
        return
    if directory is None:
        raise click.UsageError("Missing option '--data'.")
    settings = _settings(options)
    secrets = secrets_of(settings.flight, Path())
    stop = threading.Event()
    with contextlib.ExitStack() as held:
        node = DataNode(directory.absolute(), settings, cold=_cold_tier(settings))
        held.callback(node.close)
        if http is not None:
            figures = functools.partial(_figures, node)
            held.enter_context(ProbeServer(node, http, figures))
        server = NodeServer(node, secrets)
        # Handlers before the port: a signal that comes right after it is heard of must end it
        # cleanly.
        form = "%(levelname)s %(message)s"
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=form)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        held.enter_context(server)
        click.echo(f"data node {node.node_id} listens on {server.location}")
        wait_for_signal(stop)


def _cold_tier(settings: DataNodeSettings) -> ColdTier | None:
    """Return the cold tier that the settings name; its store is opened once, to see that it is."""
    url = settings.cold_store
    if url is None:
        return None
    from holdfast.store.store import Store

    # Opened for each hour that goes there, not held for weeks; and once now, because a store that
    # is not there should stop a start and not be found by the first sweep.
    open_store = functools.partial(Store.open, url, database=settings.cold_database)
    open_store().close()
    return ColdTier(open_store)


def _figures(node: DataNode) -> str:
    return render_node(node.statistics())


@command.command("scrub")
@click.argument("target", metavar="TARGET")
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file with the node's token.",
)
@click.option("--tls-ca", type=click.Path(dir_okay=False), help="Authorities of it, as PEM.")
@click.option("--tls-cert", type=click.Path(dir_okay=False), help="Our certificate, as PEM.")
@click.option("--tls-key", type=click.Path(dir_okay=False), help="Its private key, as PEM.")
@click.option("--max-mb-s", type=click.FloatRange(min=0.001), help="Read at most this many MB/s.")
@json_option
def scrub_command(
    target: str,
    token_file: Path | None,
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    max_mb_s: float | None,
    as_json: bool,
) -> int:
    """Compare every byte of every part with its checksum; exits with 65 if any is damaged.

    TARGET is the address of a running data node (grpc://host:port), or the directory of one that
    does not run. A damaged part is set aside in the folder `quarantine` of its replica, and the
    node needs it again: `holdfast handoff repair` fetches it from another node.
    """
    scrub: Callable[[PartId | None], ScrubPage]
    with contextlib.ExitStack() as held:
        if "://" in target:
            token = None if token_file is None else Secret(_token(token_file))
            client = ClientSettings(
                token=token, ca_file=tls_ca, cert_file=tls_cert, key_file=tls_key, timeout=CALL_S
            )
            transport = FlightTransport(target, client)
            held.callback(transport.close)
            scrub = functools.partial(transport.scrub, transport.health().node_id)
        else:
            scrub = _opened(Path(target), held).scrub
        pages: list[ScrubPage] = []
        with progress("scrub", max_mb_s=max_mb_s, quiet=as_json) as pace:
            for page in _pages(scrub):
                pages.append(page)
                pace(page.size_bytes)
    return _report(pages, as_json=as_json)


def _opened(directory: Path, held: contextlib.ExitStack) -> DataNode:
    """Open the directory of a node that does not run."""
    if not (directory / layout.NODE).is_file():
        raise BadInput(
            "there is no data node in it",
            hint="name a directory of `holdfast node --data`, or the address of a running one",
            path=str(directory),
        )
    try:
        node = DataNode(directory.absolute())
    except DirectoryLocked as error:
        raise DirectoryLocked(
            error.message,
            hint="scrub it while it runs: holdfast node scrub grpc://HOST:PORT",
            path=error.path,
        ) from error
    held.callback(node.close)
    return node


def _pages(scrub: Callable[[PartId | None], ScrubPage]) -> Iterator[ScrubPage]:
    """Yield page after page of a scrub, up to the last part."""
    page = scrub(None)
    yield page
    while page.after is not None:
        page = scrub(page.after)
        yield page


def _report(pages: Sequence[ScrubPage], *, as_json: bool) -> int:
    damaged = [one for page in pages for one in page.damaged]
    parts, size_bytes = sum(one.parts for one in pages), sum(one.size_bytes for one in pages)
    if as_json:
        found = [{**one.to_fields(), "part": str(one.part)} for one in damaged]
        print_json({"ok": not damaged, "parts": parts, "size_bytes": size_bytes, "damaged": found})
    else:
        if damaged:
            rows = [(str(one.part), one.reason, one.folder) for one in damaged]
            print_table("damaged", ("part", "what", "set aside as"), rows)
        verdict = "SOMETHING IS DAMAGED, see above" if damaged else "sound"
        click.echo(f"{counted(parts, 'part')}, {size(size_bytes)} read: {verdict}")
    return Damaged.exit_code if damaged else 0


def _settings(options: Mapping[str, Any]) -> DataNodeSettings:
    """Return what the options say; those that are not given have their defaults."""
    flight: dict[str, Any] = {name: options[name] for name in ("listen", "advertise_host")}
    if options["token_file"] is not None:
        flight["tokens"] = [{"name": "callers", "token": _token(options["token_file"])}]
    tls = {f"{name}_file": options[f"tls_{name}"] for name in ("cert", "key", "client_ca")}
    if any(tls.values()):
        flight["tls"] = {name: path for name, path in tls.items() if path}
    names = ["max_age", "max_size", "min_free", "cold_store", "cold_database"]
    names += ["quarantine_max_size", "quarantine_max_parts"]
    bounds = {name: options[name] for name in names if options[name]}
    try:
        return DataNodeSettings.model_validate({"flight": flight, **bounds})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = "-".join(str(part) for part in first["loc"] if part != "flight")
        where = where.replace("_", "-").removesuffix("-file")
        named = f"--{where}: " if where else ""
        raise BadConfig(f"{named}{first['msg']}", hint="see holdfast node --help") from error


def _token(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError) as error:
        raise BadConfig(
            "the token cannot be read", hint="give a text file with --token-file", path=str(path)
        ) from error
