"""The command line. The module of a command is loaded when it is called.

`holdfast --help` and completion must answer at once, and importing everything takes seconds
(Arrow, pydantic, gRPC). So the table below has each command's one line of help.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import sys
from typing import Any

import click

from holdfast import __version__
from holdfast.errors import BadConfig, BadInput, HoldfastError, NotInstalled
from holdfast.extras import missing_extra
from holdfast.operate.cli.base.groups import CommandGroup
from holdfast.operate.cli.base.output import finding_line

# Command, its module (with its name there, unless `command`), one line for the help. The order is
# the order of the help.
COMMANDS = {
    "demo": (
        "cmd_demo",
        "Watch it keep its promise: a gateway, kill -9, a table that adds up.",
    ),
    "init": ("cmd_init", "Write a commented graph file to begin with, for one of five cases."),
    "up": ("cmd_up", "Run a gateway: receive, hold and deliver, as a graph file says."),
    "node": ("cmd_node", "Run a data node: keep the parts that senders hand over, each once."),
    "status": (
        "cmd_status",
        "Show the state of a gateway: what came in, what waits, what was lost.",
    ),
    "top": ("cmd_status:top_command", "Watch a gateway live: rates, what waits, how long."),
    "report": (
        "cmd_report",
        "Report what became of everything: nothing was lost, or exactly what.",
    ),
    "send": ("cmd_send", "Post the events of files to a gateway: NDJSON, OTLP JSON, Parquet."),
    "validate": (
        "cmd_config:validate_command",
        "Check a graph file: every key and type, then how it is connected.",
    ),
    "print-config": (
        "cmd_config:print_config_command",
        "Print a graph file with every default filled in.",
    ),
    "config": ("cmd_config:config_group", "Describe graph files: their JSON Schema."),
    "components": ("cmd_config:components_command", "List receivers, processors and exporters."),
    "graph": ("cmd_config:graph_command", "Draw a graph file as text or as a Mermaid chart."),
    "processors": ("cmd_config:processors_group", "Try the processors of a graph file on events."),
    "console": ("cmd_console", "Print the address of a gateway's console, with its token."),
    "destination": ("cmd_destination", "List the destinations of a gateway; pause, resume, skip."),
    "tap": ("cmd_destination:tap_command", "Sample the events that pass to a destination, live."),
    "handoff": ("cmd_handoff", "Show what waits for data nodes and what they lack; repair it."),
    "quiver": ("quiver", "Inspect a data directory, check it, change it, copy it."),
    "explain": ("cmd_explain", "Show what became of a bundle or a run, from receipt to outcome."),
    "lineage": ("cmd_lineage", "Check OpenLineage events without sending them anywhere."),
    "dead-letters": (
        "dlq",
        "Inspect dead letters: correct them, send them again, purge them. Also: dlq.",
    ),
    "dataflow": ("dataflow", "Run pipelines on Spark: sources, maps, windows, sinks."),
    "store": ("cmd_store", "Create a store for files; check it, repair it, show its totals."),
    "files": ("files", "Keep versions of files in a store: put, get, ls, diff, tar."),
    "gc": ("cmd_gc", "Delete chunks that nothing refers to: plan, run once, or serve."),
    "prove": ("cmd_prove", "Prove durability on this machine's disk, with real kills."),
    "bench": ("cmd_bench", "Measure speed on this machine."),
    "doctor": ("cmd_doctor", "Check what this machine has, and what it lacks."),
    "completion": (
        "base.groups:completion_command",
        "Print what a shell needs to complete commands.",
    ),
}


# Other names of commands.
ALIASES = {"dlq": "dead-letters"}
# The extra that a command is made for, where what it imports first is in another, too.
EXTRAS = {"store": "store", "files": "store", "gc": "store", "dataflow": "spark"}


def _stand_in(name: str, missing: NotInstalled) -> click.Command:
    """Return what a command is as long as its extra is not installed: help, and one clear line."""

    def say_so() -> None:
        raise missing

    return click.Command(
        name,
        callback=say_so,
        help=f"{COMMANDS[name][1]}\n\n\b\nNot installed here: {missing.message}.\n  {missing.hint}",
        context_settings={"ignore_unknown_options": True},
        params=[click.Argument(["words"], nargs=-1, expose_value=False)],
        add_help_option=True,
    )


class LazyGroup(CommandGroup):
    """A group whose commands are imported only when one is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(COMMANDS)

    def find(self, name: str) -> click.Command | None:
        """Import a command's module."""
        name = ALIASES.get(name, name)
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name][0].partition(":")
        try:
            found = importlib.import_module(f"holdfast.operate.cli.{module}")
        except ModuleNotFoundError as error:
            missing = missing_extra(error, EXTRAS.get(name))
            if missing is None:
                raise
            return _stand_in(name, missing)
        command: click.Command = getattr(found, attribute or "command")
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; one whose extra turns out to be missing says so in one line.

        Commands import by need, so a package may be missed when they run. Any other missing module
        is a bug, and shows its stack.
        """
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            missing = missing_extra(error, EXTRAS.get(ctx.invoked_subcommand or ""))
            if missing is None:
                raise
            raise missing from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help of all commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


# What the system says of a path that the user named wrongly.
WRONG_PATH = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS}
)
# What every command ends with; docs/operate.md has the same table.
EXIT_CODES = {
    0: "done, and nothing is lost",
    1: "it failed, or found nothing",
    2: "the command cannot be understood; nothing was changed",
    3: "a check failed",
    65: "bytes or bundles are lost or about to be; the command did its work and says which",
    75: "not now: the owner is gone, busy or at its limit; try again",
    77: "not allowed: a token or a right is missing",
    78: "the directory cannot be opened, the configuration is wrong, or an extra is not installed",
    130: "interrupted",
}
_EPILOG = "\b\nExit codes:\n" + "\n".join(f"{code:5}  {text}" for code, text in EXIT_CODES.items())


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EPILOG
)
@click.version_option(__version__, prog_name="holdfast")
def cli() -> None:
    """Holdfast keeps every event it accepted."""


def main() -> None:
    """Run the command line; errors become one clear message and an exit code."""
    try:
        outcome: Any = cli.main(standalone_mode=False)
    except HoldfastError as error:
        _report(error)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # `holdfast … | head` is no failure.
        sys.exit(0)  # the reader of our output had enough
    except OSError as error:
        # A path that was named and is not what it should be; anything else is a bug, and is shown.
        if error.filename is None or error.errno not in WRONG_PATH:
            raise
        told = BadInput(
            (error.strerror or str(error)).lower(),
            hint="check the path, and the rights of the user who runs this",
            path=os.fsdecode(error.filename) if not isinstance(error.filename, int) else None,
        )
        _report(told)
        sys.exit(told.exit_code)
    sys.exit(outcome if isinstance(outcome, int) else 0)


def _report(error: HoldfastError) -> None:
    """Print an error: what happened and what to do next; as JSON if the command was to print that.

    `--json` is looked for in the arguments themselves, because they may be what is wrong.
    """
    findings = error.findings if isinstance(error, BadConfig) else ()
    if "--json" in sys.argv:
        fields = {"error": type(error).__name__, "message": error.message, "hint": error.hint}
        more = {"findings": [found._asdict() for found in findings]} if findings else {}
        click.echo(json.dumps({**fields, "path": error.path, **more}), err=True)
        return
    for found in findings:
        click.echo(finding_line(found), err=True)
    where = f" [{error.path}]" if error.path else ""
    click.echo(f"{click.style('error', fg='red')}: {error.message}{where}", err=True)
    click.echo(f"{click.style('next', fg='yellow')}: {error.hint}", err=True)
