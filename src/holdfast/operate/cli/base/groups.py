"""How commands are grouped and completed: in a fixed order, each with an example and a guess.

Examples stand in one table and not with their commands, so that a test can hold them against the
commands that there are, and so that they are not forgotten one by one.
"""

from __future__ import annotations

import difflib

import click
from click.shell_completion import get_completion_class

EXAMPLES = {
    "demo": "demo",
    "init": "init openlineage --file gateway.yaml",
    "up": "up gateway.yaml",
    "status": "status gateway.yaml",
    "top": "top gateway.yaml",
    "report": "report gateway.yaml --since 2026-11-15T00:00:00+00:00",
    "send": "send events.ndjson --to http://127.0.0.1:5000",
    "node": "node --data ./node-a --listen 127.0.0.1:8816",
    "node scrub": "node scrub grpc://127.0.0.1:8816",
    "validate": "validate gateway.yaml",
    "print-config": "print-config gateway.yaml",
    "config schema": "config schema > graph-file.schema.json",
    "components": "components http",
    "graph": "graph gateway.yaml",
    "processors test": "processors test gateway.yaml events.jsonl",
    "console": "console gateway.yaml",
    "destination ls": "destination ls gateway.yaml",
    "destination pause": "destination pause marquez gateway.yaml",
    "destination resume": "destination resume marquez gateway.yaml",
    "destination skip": "destination skip marquez 4711 gateway.yaml --reason 'not a valid run'",
    "tap": "tap marquez gateway.yaml --limit 5",
    "handoff status": "handoff status gateway.yaml",
    "handoff ls": "handoff ls gateway.yaml --held",
    "handoff show": "handoff show 5f0c…:0-4711 gateway.yaml",
    "handoff pause": "handoff pause a gateway.yaml",
    "handoff resume": "handoff resume a gateway.yaml",
    "handoff rate": "handoff rate 20MB gateway.yaml --node a",
    "handoff retry": "handoff retry a gateway.yaml",
    "handoff release": "handoff release gateway.yaml --node a",
    "handoff discard": "handoff discard 5f0c…:0-4711 gateway.yaml --node a",
    "handoff drop": "handoff drop a gateway.yaml --before 2026-11-15T10:00:00+00:00",
    "handoff add": "handoff add c 10.0.0.3:8816 gateway.yaml",
    "handoff forget": "handoff forget a gateway.yaml --mode reassign",
    "handoff rebind": "handoff rebind a gateway.yaml",
    "handoff drain": "handoff drain a gateway.yaml --wait",
    "handoff gaps": "handoff gaps gateway.yaml",
    "handoff verify": "handoff verify gateway.yaml",
    "handoff repair": "handoff repair gateway.yaml --node a",
    "handoff syncpoint create": "handoff syncpoint create gateway.yaml",
    "handoff syncpoint wait": "handoff syncpoint wait TOKEN gateway.yaml --timeout 5m",
    "quiver ls": "quiver ls gateway.yaml",
    "quiver show": "quiver show data 12",
    "quiver sql": "quiver sql holdfast_data 'select count(*) from spans'",
    "quiver cat": "quiver cat data --slot events",
    "quiver ledger": "quiver ledger gateway.yaml --balance",
    "quiver metrics": "quiver metrics data",
    "quiver fsck": "quiver fsck data",
    "quiver scrub": "quiver scrub data --max-mb-s 50",
    "quiver replay": "quiver replay data --subscriber archive --from 100 --to 250",
    "quiver drop-subscriber": "quiver drop-subscriber data archive",
    "quiver backup": "quiver backup data /backup/data",
    "quiver restore": "quiver restore /backup/data data",
    "quiver salvage": "quiver salvage data salvaged",
    "explain": "explain 4711 gateway.yaml",
    "lineage lint": "lineage lint events.jsonl",
    "dead-letters ls": "dead-letters ls gateway.yaml",
    "dead-letters show": "dead-letters show gateway.yaml r42",
    "dead-letters fix": "dead-letters fix gateway.yaml r42",
    "dead-letters redrive": "dead-letters redrive gateway.yaml --destination marquez",
    "dead-letters purge": "dead-letters purge gateway.yaml r42",
    "dataflow validate": "dataflow validate pipelines.yaml",
    "dataflow graph": "dataflow graph pipelines.yaml",
    "dataflow explain": "dataflow explain pipelines.yaml",
    "dataflow test": "dataflow test pipelines.yaml pipelines_tests.yaml",
    "dataflow run": "dataflow run pipelines.yaml totals --once",
    "dataflow watermark": "dataflow watermark pipelines.yaml",
    "dataflow drain": "dataflow drain pipelines.yaml --close",
    "dataflow redrive": "dataflow redrive pipelines.yaml totals",
    "dataflow replay": "dataflow replay pipelines.yaml totals --into replayed",
    "store create": "store create --store ./store",
    "store info": "store info --store ./store",
    "store fsck": "store fsck --store ./store",
    "store scrub": "store scrub --store ./store",
    "store rebuild": "store rebuild --store ./store",
    "files ls": "files ls reports/monday --store ./store",
    "files cat": "files cat reports/monday daily.csv --store ./store",
    "files tags": "files tags reports/monday daily.csv --store ./store",
    "files put": "files put reports/monday ./reports --store ./store",
    "files get": "files get reports/monday ./restored --store ./store",
    "files cp": "files cp reports/monday daily.csv copy.csv --as reports/copy --store ./store",
    "files rm": "files rm reports/monday --store ./store",
    "files forget": "files forget reports/ --keep-daily 7 --keep-weekly 4 --store ./store",
    "files diff": "files diff reports/monday reports/tuesday --store ./store",
    "files log": "files log reports/tuesday --store ./store",
    "files commit": "files commit reports/week --from reports/monday --store ./store",
    "files compact": "files compact reports/week --as reports/compact --store ./store",
    "files export": "files export reports/monday reports.tar --store ./store",
    "files import": "files import old/archive backup.tar.gz --store ./store",
    "files index show": "files index show reports/monday --store ./store",
    "gc plan": "gc plan --store ./store",
    "gc run": "gc run --store ./store",
    "gc status": "gc status --store ./store",
    "gc end-lease": "gc end-lease 7 --store ./store",
    "gc serve": "gc serve --store ./store",
    "prove": "prove quiver --kills 20",
    "bench": "bench quiver",
    "doctor": "doctor",
    "completion": "completion bash > ~/.local/share/bash-completion/completions/holdfast",
}


# Longer than any first sentence of a help.
SENTENCE_MAX = 200


class CommandGroup(click.Group):
    """Lists commands as they were added, with an example in each help; guesses mistyped ones."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names as they were added, without former ones."""
        return [name for name, command in self.commands.items() if command.name in (name, None)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, with the example of the path by which it was found."""
        command = self.find(cmd_name)
        path = f"{ctx.command_path} {cmd_name}".partition(" ")[2]
        if command is not None and path in EXAMPLES:
            command.epilog = f"\b\nExample:\n  holdfast {EXAMPLES[path]}"
        return command

    def find(self, name: str) -> click.Command | None:
        """Return the command of a name, if there is one."""
        return self.commands.get(name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is meant by the first argument, or say which one may be."""
        if args and not args[0].startswith("-") and self.find(args[0]) is None:
            ctx.fail(f"No such command {args[0]!r}. {self._advice(ctx, args[0])}")
        return super().resolve_command(ctx, args)

    def _advice(self, ctx: click.Context, typed: str) -> str:
        known = self.list_commands(ctx)
        close = difflib.get_close_matches(typed, known, n=2)
        if ctx.parent is None:
            # `replay` alone: somebody remembers the command, and not its group.
            inside = [path for path in EXAMPLES if path.endswith(f" {typed}")]
            close = inside or close
        if close:
            return f"Did you mean {' or '.join(map(repr, close))}?"
        return "" if ctx.parent is None else f"There are {', '.join(known)}."

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the first sentence of each command's help, and never the half of one."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, one.get_short_help_str(SENTENCE_MAX)) for name, one in found if one]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print a script with which SHELL completes commands and options.

    Write it where your shell looks for completions, or evaluate it in its start-up file.
    """
    kind = get_completion_class(shell)
    assert kind is not None, f"BUG: click does not know {shell}"
    click.echo(kind(ctx.find_root().command, {}, "holdfast", "_HOLDFAST_COMPLETE").source())
