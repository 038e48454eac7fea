"""`holdfast gc`: collect what nothing refers to, once or always; look before, look after.

Nothing here is needed for a store to be right: garbage costs room and no more. What decides whether
a chunk may go is in the database, row by row, so several collectors may run, each in a shard of the
hashes or all in one, and any of them may be killed.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.errors import BadConfig, BadInput
from holdfast.operate.cli.base.asking import ask
from holdfast.operate.cli.base.groups import CommandGroup
from holdfast.operate.cli.base.output import (
    Command,
    json_option,
    leftover_rows,
    moment,
    print_json,
    print_table,
    printable,
    short_hash,
    size,
)
from holdfast.operate.cli.base.target import Target, store_options
from holdfast.operate.cli.base.work import spare_the_collector, stop_on_signals, wait_for_signal

if TYPE_CHECKING:
    from holdfast.store.gc.collector import Collector
    from holdfast.store.store import Store

CHUNKS_SHOWN = 20

_shard_option: Callable[[Command], Command] = click.option(
    "--shard", "shard_words", default="1/1", show_default=True, help="One of several: 2/8."
)
_objects_option: Callable[[Command], Command] = click.option(
    "--objects-per-s", type=click.FloatRange(min=0, min_open=True), help="Delete no faster."
)
_bytes_option: Callable[[Command], Command] = click.option(
    "--bytes-per-s", metavar="SIZE", help="Delete no faster, such as 50MB."
)
_grace_option: Callable[[Command], Command] = click.option(
    "--grace", metavar="DURATION", help="Leave orphans alone until they are so old, such as 24h."
)


@click.group(cls=CommandGroup)
def command() -> None:
    """Delete chunks that nothing refers to.

    Works beside writers and readers, and beside other collectors. `plan` shows what would go, `run`
    does it once, `serve` does it always and answers over gRPC.
    """
    spare_the_collector()


@command.command("plan")
@store_options
@_shard_option
@json_option
def plan_command(chosen: Target, shard_words: str, as_json: bool) -> None:
    """List what would be deleted now, and why; change nothing."""
    with _collector(chosen, shard_words, {}) as (_, collector):
        plan = collector.plan()
    totals = [
        {"reason": reason, "chunks": chunks, "bytes": size_bytes}
        for reason, (chunks, size_bytes) in plan.totals().items()
    ]
    if as_json:
        chunks = [
            {"chunk": one.key.hash.hex(), "generation": one.key.generation}
            | {"bytes": one.size_bytes, "reason": one.reason}
            for one in plan.chunks
        ]
        fields = {"lapsed_leases": plan.lapsed_leases, "unfinished": plan.unfinished_commits}
        print_json({**fields, "complete": plan.complete, "totals": totals, "chunks": chunks})
        return
    for lease in plan.lapsed_leases:
        click.echo(f"would end: {lease}, its lease lapsed")
    for name in plan.unfinished_commits:
        click.echo(f"would finish: commit {name}")
    rows = [(one["reason"], one["chunks"], size(int(str(one["bytes"])))) for one in totals]
    print_table("would go", ("reason", "chunks", "bytes"), rows)
    first = plan.chunks[:CHUNKS_SHOWN]
    shown = [(short_hash(one.key.hash), one.size_bytes, one.reason) for one in first]
    if shown:
        print_table(f"the first {len(shown)}", ("chunk", "bytes", "reason"), shown)
    if not plan.complete:
        click.echo("there is more than a plan lists")


@command.command("run")
@store_options
@_shard_option
@_objects_option
@_bytes_option
@_grace_option
@click.option("--sweep/--no-sweep", default=True, help="Look for objects without a row, too.")
@json_option
def run_command(
    chosen: Target, shard_words: str, sweep: bool, as_json: bool, **limits: object
) -> None:
    """Collect until nothing is left to collect."""
    with (
        _collector(chosen, shard_words, limits) as (store, collector),
        stop_on_signals(collector.stop),
    ):
        report = collector.collect()
        swept = collector.sweep() if sweep else None
    if as_json:
        fields = dataclasses.asdict(report)
        left = store.leftovers._asdict()
        sweep_fields = dataclasses.asdict(swept) if swept else None
        print_json({**fields, "sweep": sweep_fields, "temporary_files": left})
        return
    rows: list[tuple[str, object]] = [
        ("leases ended", report.leases_expired),
        ("leases lapsed, watched", report.leases_lapsed),
        ("commits finished", report.commits_finished),
        ("chunks deleted", report.objects_deleted),
        ("bytes, before compression", size(report.bytes_deleted)),
        ("references removed", report.references_removed),
    ]
    if swept:
        rows += [
            ("objects seen", swept.objects_seen),
            ("orphans deleted", swept.orphans_deleted),
            ("orphans too young", swept.orphans_kept),
        ]
        rows += [("not ours, left alone", name) for name in swept.unknown_names]
    rows += leftover_rows(store.leftovers)
    print_table("collected", ("what", "how much"), rows)


@command.command("status")
@store_options
@json_option
def status_command(chosen: Target, as_json: bool) -> None:
    """Show chunks by state, leases, commits, and what collectors did."""
    with chosen.open_store() as store:
        found = store.references.statistics()
    if as_json:
        print_json(found.to_json())
        return
    oldest_s = found.oldest_lease_age_s
    states = [
        (state.value, one.chunks, size(one.size_bytes)) for state, one in found.states.items()
    ]
    print_table("chunks, before compression", ("state", "chunks", "bytes"), states)
    leases = f"jobs: {found.jobs}, pins: {found.pins}, lapsed: {found.lapsed_leases}"
    age = "" if oldest_s is None else f", the oldest is open for {oldest_s:,.0f} s"
    click.echo(leases + age)
    leases_held = [
        (
            *(one.id, one.kind, printable(one.name), one.host, one.pid or None),
            *(moment(int(time_s * 1e9)) for time_s in (one.since_s, one.until_s)),
            one.verdict.value,
        )
        for one in found.leases
    ]
    if leases_held:
        lease_columns = ("lease", "kind", "what", "host", "pid", "since", "until", "state")
        print_table("leases, which keep chunks from the collector", lease_columns, leases_held)
    for state, count in sorted(found.commits.items()):
        click.echo(f"commits {state}: {count:,}")
    collectors = [
        (one.name, one.chunks, size(one.size_bytes), one.chunks_per_s, found.now_s - one.updated_s)
        for one in found.collectors
    ]
    columns = ("collector", "chunks", "bytes", "chunks/s", "seconds ago")
    print_table("collectors", columns, collectors)


@command.command("end-lease")
@click.argument("number", type=int)
@click.option("-y", "--yes", is_flag=True, help="End it though its process may be at work.")
@store_options
@json_option
def end_lease_command(number: int, yes: bool, chosen: Target, as_json: bool) -> None:
    """End a lease that `gc status` shows, so that what it holds can be collected.

    One whose process is certainly dead is ended without a question. Any other may be at work: its
    holder fails, and what it stored and did not commit is collected.
    """
    from holdfast.store.gc.watch import ENDED_BY_COLLECTORS

    with chosen.open_store() as store:
        # Ends it only if its process is certainly dead; else it is a question first, and a second
        # call.
        found = store.references.end_lease(number, sure=yes)
        if found is None:
            raise BadInput(
                f"there is no lease {number} that could be ended by hand",
                hint="`holdfast gc status` lists them",
            )
        if not yes and found.verdict not in ENDED_BY_COLLECTORS:
            who = f"{found.kind} {printable(found.name)} of {found.host} ({found.pid or '?'})"
            ask(f"{who} is {found.verdict}. End it, so that it fails?")
            store.references.end_lease(number, sure=True)
    if as_json:
        print_json(dataclasses.asdict(found))
    else:
        click.echo(f"ended: {found.kind} {printable(found.name)} of {found.host}")


@command.command("serve")
@store_options
@_shard_option
@_objects_option
@_bytes_option
@_grace_option
@click.option("--listen", default="127.0.0.1:7071", show_default=True, metavar="HOST:PORT")
@click.option("--token-file", type=click.Path(path_type=Path), help="One token per line.")
@click.option("--tls-key", type=click.Path(path_type=Path))
@click.option("--tls-certificate", type=click.Path(path_type=Path))
@json_option
def serve_command(
    chosen: Target,
    shard_words: str,
    listen: str,
    token_file: Path | None,
    tls_key: Path | None,
    tls_certificate: Path | None,
    as_json: bool,
    **limits: object,
) -> None:
    """Collect continuously, and answer over gRPC, until interrupted."""
    from holdfast.store.gc.service import GcService

    # From a file and never from an option: arguments of a process are visible to every user of the
    # machine.
    tokens = _read(token_file).decode().split() if token_file else []
    if bool(tls_key) != bool(tls_certificate):
        raise BadConfig(
            "a key without a certificate, or the other way round",
            hint="give both --tls-key and --tls-certificate, or neither",
        )
    pair = (_read(tls_key), _read(tls_certificate)) if tls_key and tls_certificate else None
    stop = threading.Event()
    with _collector(chosen, shard_words, limits) as (store, collector):
        service = GcService(
            collector, store.references, address=listen, tokens=tokens, certificate=pair
        )
        with stop_on_signals(stop.set):
            service.start()
            host = listen.rpartition(":")[0]
            if as_json:
                print_json({"listen": f"{host}:{service.port}", "shard": shard_words})
            else:
                click.echo(f"collecting shard {shard_words}; listening on {host}:{service.port}")
            wait_for_signal(stop)
        service.stop()


@contextmanager
def _collector(
    chosen: Target, shard_words: str, limits: dict[str, Any]
) -> Iterator[tuple[Store, Collector]]:
    """Open the store, and give a collector for one shard with the limits that were given."""
    from holdfast.store.chunks.settings import StoreSettings
    from holdfast.store.gc.collector import Collector
    from holdfast.store.gc.limits import Shard
    from holdfast.store.gc.settings import GcSettings
    from holdfast.store.store import Store

    # Only what was given: an option that is left out has the default of the settings, which is
    # written down once.
    settings_of = {"grace": "orphan_grace_s"}
    given = {
        settings_of.get(name, name): value for name, value in limits.items() if value is not None
    }
    shard = Shard.parse(shard_words)
    try:
        settings = StoreSettings(gc=GcSettings(**given))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    with Store.open(chosen.named, database=chosen.database, settings=settings) as store:
        yield store, Collector(store.references, store.objects, shard=shard, name="holdfast gc")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadConfig(
            f"a file cannot be read: {error.strerror}",
            hint="check its name and its rights",
            path=str(path),
        ) from error
