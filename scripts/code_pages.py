"""Write the reference pages that are nothing but the code: commands, errors, Spark, Python.

    python scripts/code_pages.py

Run it after a change of a command, an error, an option of Spark's source or the public classes; a
test fails while a page and the code disagree.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from holdfast import errors, quiver
from holdfast.dataflow.filesets.reader import FileSetOptions
from holdfast.dataflow.sink.options import SinkOptions
from holdfast.dataflow.source.options import SourceOptions
from holdfast.errors import HoldfastError
from holdfast.graph.schema import settings_of
from holdfast.operate.cli import ALIASES, EXIT_CODES, cli
from holdfast.settings import Settings

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
NOTE = "This page is written by `scripts/code_pages.py` from the code, and a test holds it to that."


CLI_HEAD = """\
`holdfast --help` and `holdfast COMMAND --help` say the same. `--json` prints results as one
JSON document. Colours and boxes are for terminals: in a pipe a row is a line, and `NO_COLOR`
turns colours off. `holdfast completion bash|zsh|fish` prints what your shell needs to complete
commands and options. What to run when: [operate](../operate.md).
"""

ERRORS_HEAD = """\
Every error that Holdfast raises on purpose is in `holdfast.errors`. Each has `message`, `hint`
(what to do next), `path` where there is one, and the exit code with which a command ends. A bug
is never one of these: it is an `AssertionError` that begins with `BUG:`. The guides say what to
do about those that [an embedded quiver](../guide/embed.md) and [a store](../guide/store.md)
raise.
"""

PYTHON_HEAD = """\
What `from holdfast.quiver import …` offers (`Quiver` and `QuiverConfig` also from `holdfast`).
Names that begin with `_`, and modules that are not named here or in
[extend](../guide/extend.md), may change in any release. The [guide](../guide/embed.md) shows
them at work; errors are in [errors](errors.md). Packages that add receivers, processors,
exporters or signals: [extend](../guide/extend.md).
"""


def cell(text: object) -> str:
    """Return a text as a cell of a table has it."""
    return " ".join(str(text).split()).replace("|", "\\|")


# ------------------------------------------------------------------------ commands


def cli_page() -> str:
    """Return every command, with its arguments and options."""
    parts = [
        "# Commands",
        "",
        NOTE,
        "",
        CLI_HEAD.rstrip(),
        "",
        "| exit code | meaning |",
        "|---:|---|",
        *(f"| {code} | {cell(text)} |" for code, text in EXIT_CODES.items()),
        "",
    ]
    for words, command in commands(cli, ("holdfast",)):
        parts += command_section(words, command)
    return "\n".join(parts).rstrip() + "\n"


def commands(
    group: click.Group, words: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command that does something, with the groups that lead to it."""
    context = click.Context(group, info_name=" ".join(words))
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name), command


def command_section(words: tuple[str, ...], command: click.Command) -> list[str]:
    """Return a command: how it is called, what it does, its options."""
    context = click.Context(command, info_name=" ".join(words))
    usage = command.collect_usage_pieces(context)
    section = [f"## {' '.join(words)}", "", f"```text\n{' '.join((*words, *usage))}\n```", ""]
    also = [alias for alias, name in ALIASES.items() if len(words) > 1 and words[1] == name]
    if also:
        section += [f"Also: `holdfast {' '.join((also[0], *words[2:]))}`.", ""]
    text = inspect.cleandoc(command.help or "").replace("\b\n", "").replace("\b", "")
    section += [*text.splitlines(), ""]
    rows = [
        f"| {', '.join(f'`{name}`' for name in option.opts + option.secondary_opts)} "
        f"| {option_default(option)} | {cell(option.help or '')} |"
        for option in command.params
        if isinstance(option, click.Option) and not option.hidden
    ]
    if rows:
        section += ["| option | default | |", "|---|---|---|", *rows, ""]
    return section


def option_default(option: click.Option) -> str:
    """Return the default of an option, where it is a value that can be written down."""
    if option.required:
        return "required"
    default = option.default
    shown = isinstance(default, str | int | float | Path) and not isinstance(default, bool)
    return f"`{default}`" if shown and str(default) else ""


# -------------------------------------------------------------------------- errors


def errors_page() -> str:
    """Return every error: when it is raised, and how a command ends with it."""
    found = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, HoldfastError)
    ]
    rows = [
        f"| `{kind.__name__}` | `{kind.__mro__[1].__name__}` | {kind.exit_code} "
        f"| {cell(inspect.getdoc(kind) or '')} |"
        for kind in found
    ]
    return "\n".join(
        [
            "# Errors",
            "",
            NOTE,
            "",
            ERRORS_HEAD.rstrip(),
            "",
            "| error | is a | exit code | when |",
            "|---|---|---:|---|",
            *rows,
            "",
        ]
    )


# --------------------------------------------------------------------------- Spark

SPARK_HEAD = """\
# Spark

{note}

`pip install '.[spark]'` brings Spark and a Java runtime. Spark finds the data source by itself:

```python
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
events = spark.read.format("holdfast").option("path", "data").load()
```

- **`spark.read`** reads what is sealed, once. With `archive` it reads what was
  [archived](../guide/archive.md), too (`pip install '.[spark,bucket]'` for a bucket). With
  `store` it reads the files of a commit.
- **`spark.readStream`** needs `subscriber`: under that name every quiver keeps how far the
  stream is, and keeps what it has not read. Give it Spark's `checkpointLocation` as
  `checkpoint` as well: then what Spark has committed is acknowledged at once, and freed.
- **`writeStream`** and `foreachBatch` write to a quiver, to Parquet files or to commits of a
  store, each batch exactly once: a batch that Spark repeats after a crash is recognised.

Options are text, as Spark has them: lists are written with commas, sizes as `64MB`, durations
as `10s`, times as `2026-11-15T10:00:00+00:00`. An option that does not exist is an error. For
whole pipelines, written as YAML and run beside a gateway, see
[pipelines](../guide/pipelines.md).

## Columns

The stored columns of the slot, in Spark's types (unsigned numbers become the next larger signed
type), or those of `table`. Before them stand the columns that Holdfast keeps for every row;
`_event_time` and `_seq` are those to filter by.

| added by | columns | meaning |
|---|---|---|
{columns}

## Watermark

With `watermark` the source claims event time itself: `_wm` never passes an event that was
accepted and not yet processed, whichever of several quivers it is in. `max_delay`,
`idle_after`, `max_hold` and `unreachable` say how long it waits for whom; `holdfast dataflow
watermark` says what it waits for.
"""


def spark_page() -> str:
    """Return the options of `spark.read`, `readStream` and `writeStream`."""
    columns = [
        "| `watermark` | `_wm`, `_wm_prev`, `_control` | its claim, the one before, no event |",
        "| `partial` | `_damaged_slots` | the damaged slots of the row's bundle |",
    ]
    parts = [SPARK_HEAD.format(note=NOTE, columns="\n".join(columns))]
    for title, model in (
        ("Options of a source", SourceOptions),
        ("Options of a sink", SinkOptions),
        ("Options of a commit (`store`)", FileSetOptions),
    ):
        parts += [f"## {title}", "", *option_table(model), ""]
    return "\n".join(parts).rstrip() + "\n"


def option_table(model: type[Settings]) -> Iterable[str]:
    """Return the rows of a model's options."""
    yield "| option | type | default | |"
    yield "|---|---|---|---|"
    for one in settings_of(model):
        default = f"`{one.default}`" if one.default not in ("", None) else ""
        yield f"| `{one.key}` | {cell(one.type)} | {cell(default)} | {cell(one.text)} |"


# -------------------------------------------------------------------------- Python


def python_page() -> str:
    """Return the public classes of the embedded quiver, with their methods."""
    parts = [
        "# Python API",
        "",
        NOTE,
        "",
        PYTHON_HEAD.rstrip(),
        "",
    ]
    for name in quiver.__all__:
        value = getattr(quiver, name)
        parts += class_section(name, value) if inspect.isclass(value) else []
    return "\n".join(parts).rstrip() + "\n"


def class_section(name: str, kind: type[Any]) -> list[str]:
    """Return a class: what it is, and its public methods and properties."""
    section = [f"## {name}", "", *(inspect.getdoc(kind) or "").splitlines(), ""]
    rows = []
    for member, value in vars(kind).items():
        if member.startswith("_"):
            continue
        made = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if inspect.isfunction(made):
            call = f"{member}({', '.join(parameters(made))})"
        elif isinstance(made, property):
            call = member
        else:
            continue
        told = inspect.getdoc(made) or ""
        rows.append(f"| `{cell(call)}` | {cell(told.partition(chr(10) * 2)[0])} |")
    return [*section, "| | |", "|---|---|", *rows, ""] if rows else section


def parameters(function: Any) -> Iterator[str]:
    """Yield the parameters of a function, without their types."""
    for one in inspect.signature(function).parameters.values():
        if one.name in ("self", "cls"):
            continue
        stars = "*" if one.kind is one.VAR_POSITIONAL else ""
        stars = "**" if one.kind is one.VAR_KEYWORD else stars
        optional = "=…" if one.default is not one.empty else ""
        yield f"{stars}{one.name}{optional}"


PAGES = {
    "cli": cli_page,
    "errors": errors_page,
    "python-api": python_page,
    "spark": spark_page,
}


def main() -> None:
    """Write the pages."""
    for name, page in PAGES.items():
        assert re.fullmatch(r"[a-z-]+", name)
        (REFERENCE / f"{name}.md").write_text(page())


if __name__ == "__main__":
    main()
