"""`holdfast up`: run a gateway."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import click

from holdfast.errors import BadConfig
from holdfast.graph.environment import caps_beyond_disks, missing_in_environment
from holdfast.graph.loader import Loaded, load
from holdfast.operate.cli.base.cases import DEFAULT_CASE, DEFAULT_FILE, write_case
from holdfast.operate.cli.base.output import finding_line, json_option

# When all is stopped: how long a user's own coroutines may take to end.
LAST_WAIT_S = 3.0

log = logging.getLogger("holdfast.operate")


@click.command()
@click.argument("config", type=click.Path(dir_okay=False), required=False)
@click.option(
    "--check",
    is_flag=True,
    help="Only check the file, its directories, ports, packages and exporters; start nothing.",
)
@click.option("--worker", type=int, hidden=True)
@click.option(
    "--data-node-list", help="Send copies to these data nodes, too: host:port,host:port,…"
)
@click.option(
    "--handoff-max-size-mb", type=int, help="What may wait for one data node. By default: no limit."
)
@click.option(
    "--handoff-store-max-size-mb", type=int, help="What the quiver may hold: its `size_cap`."
)
@click.option("--handoff-root-path", help="The directory of the quiver.")
@json_option
def command(
    config: str | None,
    check: bool,
    worker: int | None,
    as_json: bool,
    **data_nodes: str | int | None,
) -> None:
    """Run a gateway until it is stopped: receive, hold, deliver.

    Without CONFIG it runs ./holdfast.yaml, and writes that first if it is not there: lineage on
    127.0.0.1:5000, held on disk, delivered to Marquez and to files (`holdfast init`).

    SIGTERM stops it within `drain`, a second one immediately; SIGHUP reads CONFIG again. With
    --json the log is in JSON whatever CONFIG says.
    """
    if config is None:
        config = DEFAULT_FILE
        if not Path(config).exists() and not check:
            write_case(DEFAULT_CASE, Path(config))
            click.echo(f"wrote {config}; change it, and apply that with `kill -HUP`", err=True)
    loaded = load(config, flags={key: one for key, one in data_nodes.items() if one is not None})
    if check:
        _check(loaded)
        return
    _run(loaded, worker, as_json)


def _check(loaded: Loaded) -> None:
    """Raise what is missing on this machine, or say that the gateway can run here."""
    findings = missing_in_environment(loaded)
    if findings:
        raise BadConfig(
            "the machine is not ready for this configuration",
            hint="fix what is named above",
            path=loaded.document.file,
            findings=findings,
        )
    for found in (*loaded.warnings, *caps_beyond_disks(loaded)):
        click.echo(finding_line(found), err=True)
    click.echo(f"{loaded.document.file}: ready to run here")


def _run(loaded: Loaded, worker: int | None, as_json: bool) -> None:
    """Run one gateway, or the parent of several workers.

    The gateway is imported here: `--check` and `--help` do not need it. When everything of ours is
    closed, a timer ends the process if a user's coroutine keeps the loop alive.
    """
    from holdfast.operate import logs
    from holdfast.operate.supervisor import Supervisor
    from holdfast.operate.up import GatewayProcess, log_warnings, raise_open_files, suit_a_gateway

    settings = loaded.graph.settings.logging
    if as_json:
        settings = settings.model_copy(update={"format": "json"})
    handler = logs.set_up(settings, worker=worker)
    raise_open_files()
    suit_a_gateway()
    try:
        alone = worker is not None or loaded.graph.settings.workers == 1
        if worker is None:
            log_warnings(loaded)
        options = ["--json"] if as_json else []
        for key, value in loaded.flags.items():
            options += [f"--{key.replace('_', '-')}", str(value)]
        process = GatewayProcess(loaded, worker=worker) if alone else Supervisor(loaded, options)
        last_timer = threading.Timer(LAST_WAIT_S, _end_now, (handler,))
        last_timer.daemon = True
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(process.run())
                last_timer.start()
        finally:
            last_timer.cancel()
    finally:
        handler.close()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return uvloop's loop, or Python's own where there is no uvloop."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def _end_now(handler: logging.Handler) -> None:
    """Exit though a user's coroutine still runs: everything of ours is closed, nothing is lost."""
    log.warning("a function ignores its cancellation; the process exits without it")
    handler.close()
    os._exit(0)
