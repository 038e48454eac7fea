"""`holdfast demo`: watch it keep its promise."""

from __future__ import annotations

import random
import tempfile
from dataclasses import asdict
from pathlib import Path

import click
from rich.live import Live
from rich.table import Table

from holdfast.operate.cli.output import json_option, print_json, print_table, stdout
from holdfast.operate.demo import Play, Scene
from holdfast.prove.checker import Verdict
from holdfast.quiver import Balance, Outcome


@click.command()
@click.option("--seed", type=int, help="Repeat the choices of another run (not its timing).")
@json_option
def command(seed: int | None, as_json: bool) -> int:
    """Append and read under load, kill -9, recover; then a table that adds up."""
    chosen = random.SystemRandom().getrandbits(32) if seed is None else seed
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as temporary:
        if as_json:
            play = Play(Path(temporary), lambda _: None, chosen)
            verdict, accounts = play.run()
            print_json(_fields(play.scene, verdict, accounts))
            return 0 if verdict.ok else 3
        if stdout.is_terminal:
            with Live(console=stdout, auto_refresh=False) as live:
                play = Play(
                    Path(temporary), lambda now: live.update(_picture(now), refresh=True), chosen
                )
                verdict, accounts = play.run()
        else:
            play = Play(Path(temporary), _Narrator(), chosen)
            verdict, accounts = play.run()
    _print_balance(play.scene, verdict, accounts)
    return 0 if verdict.ok else 3


class _Narrator:
    """Tells what happens line by line, where there is no terminal to draw on."""

    def __init__(self) -> None:
        self._told = ""

    def __call__(self, scene: Scene) -> None:
        told = f"life {scene.life}: {scene.state}"
        if told != self._told:
            self._told = told
            readers = ", ".join(f"{n} {c:,}" for n, c in scene.acknowledged.items())
            dead = f" ({', '.join(scene.dead_readers)} is dead)" if scene.dead_readers else ""
            click.echo(f"{told}{dead}; bundles answered {scene.answered:,}, read {readers}")


def _picture(scene: Scene) -> Table:
    table = Table(title="holdfast demo", title_justify="left", title_style="bold", min_width=72)
    for name in ("process", "state", "answered", "per second", "kills"):
        table.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
    rate = f"{scene.answered_per_s:,.0f}"
    life = f"life {scene.life}"
    table.add_row(life, scene.state, f"{scene.answered:,}", rate, str(scene.kills))
    for name, count in scene.acknowledged.items():
        behind = f"{max(0, scene.answered - count):,} behind"
        state = "dead" if name in scene.dead_readers else behind
        table.add_row(name, state, f"{count:,}", "", "")
    return table


def _print_balance(scene: Scene, verdict: Verdict, accounts: list[Balance]) -> None:
    rows = [
        ("accepted (answered with success)", verdict.accepted),
        ("+ unanswered, yet stored before the kill", verdict.unanswered_found),
        ("= read back by each reader, with its right content", verdict.recovered),
        ("lost", verdict.lost),
        ("read again after it was acknowledged", verdict.duplicated),
        ("read again because it was in flight at a kill", verdict.redelivered_in_flight),
        ("kills (kill -9)", scene.kills),
    ]
    print_table("every event accounted for", ("events", "count"), rows)
    names = [outcome.name.lower() for outcome in Outcome]
    print_table(
        "the ledger, in events: accepted = outcomes + pending",
        ("subscriber", "accepted", *names, "pending", "holds"),
        (_account_row(account) for account in accounts),
    )
    good = verdict.ok and verdict.accepted + verdict.unanswered_found == verdict.recovered
    click.secho("Nothing accepted was lost." if good else "A PROMISE WAS BROKEN", bold=True)


def _account_row(account: Balance) -> tuple[object, ...]:
    outcomes = [counts.events for counts in account.outcomes.values()]
    events = (account.accepted.events, *outcomes, account.pending.events)
    return (account.subscriber, *events, account.holds)


def _fields(scene: Scene, verdict: Verdict, accounts: list[Balance]) -> dict[str, object]:
    ledger = [
        {
            "subscriber": account.subscriber,
            "accepted": account.accepted.events,
            **{o.name.lower(): counts.events for o, counts in account.outcomes.items()},
            "pending": account.pending.events,
            "holds": account.holds,
        }
        for account in accounts
    ]
    return {"ok": verdict.ok, "kills": scene.kills, **asdict(verdict), "ledger": ledger}
