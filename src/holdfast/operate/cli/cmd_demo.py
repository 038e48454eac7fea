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
from holdfast.operate.demo import Scene, play
from holdfast.prove.checker import Verdict


@click.command()
@click.option("--seed", type=int, help="Repeat the choices of another run (not its timing).")
@json_option
def command(seed: int | None, as_json: bool) -> int:
    """Append under load, kill -9, recover, scan; then a table that adds up."""
    chosen = random.SystemRandom().getrandbits(32) if seed is None else seed
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as temporary:
        if as_json:
            scene, verdict = play(Path(temporary), lambda _: None, chosen)
            print_json({"ok": verdict.ok, "kills": scene.kills, **asdict(verdict)})
        elif stdout.is_terminal:
            with Live(console=stdout, auto_refresh=False) as live:
                scene, verdict = play(
                    Path(temporary), lambda now: live.update(_picture(now), refresh=True), chosen
                )
            _print_balance(scene, verdict)
        else:
            scene, verdict = play(Path(temporary), _Narrator(), chosen)
            _print_balance(scene, verdict)
    return 0 if verdict.ok else 3


class _Narrator:
    """Tells what happens line by line, where there is no terminal to draw on."""

    def __init__(self) -> None:
        self._told = ""

    def __call__(self, scene: Scene) -> None:
        if scene.state != self._told:
            self._told = scene.state
            answered = f"{scene.answered:,} appends answered so far"
            click.echo(f"life {scene.life}: {scene.state} ({answered})")


def _picture(scene: Scene) -> Table:
    table = Table(title="holdfast demo", title_justify="left", title_style="bold", min_width=60)
    for name in ("process", "state", "answered", "per second", "kills"):
        table.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
    table.add_row(
        f"life {scene.life}",
        scene.state,
        f"{scene.answered:,}",
        f"{scene.answered_per_s:,.0f}",
        str(scene.kills),
    )
    return table


def _print_balance(scene: Scene, verdict: Verdict) -> None:
    rows = [
        ("accepted (answered with success)", verdict.accepted),
        ("+ unanswered, yet stored before the kill", verdict.unanswered_found),
        ("= found on disk, each with its right content", verdict.recovered),
        ("lost", verdict.lost),
        ("stored twice", verdict.duplicated),
        ("kills (kill -9)", scene.kills),
    ]
    print_table("every event accounted for", ("events", "count"), rows)
    good = verdict.ok and verdict.accepted + verdict.unanswered_found == verdict.recovered
    click.secho("Nothing accepted was lost." if good else "A PROMISE WAS BROKEN", bold=True)
