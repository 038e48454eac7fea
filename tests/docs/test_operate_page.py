"""The operator's page names every command, and no other."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from holdfast import errors
from holdfast.operate.cli import COMMANDS, EXIT_CODES
from holdfast.operate.cli.quiver import command

PAGE = (Path(__file__).parents[2] / "docs" / "operate.md").read_text()


def test_every_command_is_on_the_page_and_every_command_on_it_exists() -> None:
    named = set(re.findall(r"`holdfast quiver ([a-z\-]+)", PAGE))
    assert named == set(command.commands)
    assert set(re.findall(r"`holdfast ([a-z\-]+)", PAGE)) <= set(COMMANDS)


def test_every_option_on_the_page_exists() -> None:
    for name, rest in re.findall(r"`holdfast quiver ([a-z\-]+) ([^`]*)`", PAGE):
        known = {option for p in command.commands[name].params for option in p.opts}
        assert set(re.findall(r"--[a-z\-]+", rest)) <= known


def test_the_exit_codes_are_those_of_the_command_line_and_of_the_errors() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", PAGE, re.MULTILINE)
    assert {int(code): text for code, text in rows} == EXIT_CODES
    raised = {
        kind.exit_code
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.HoldfastError)
    }
    assert raised <= EXIT_CODES.keys()
