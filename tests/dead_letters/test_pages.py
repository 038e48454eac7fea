"""The pages about dead letters say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
from tests.dead_letters.letters import START_NS, invalid, poison

from holdfast.dead_letters import letter as letter_module
from holdfast.dead_letters.letter import SECRET_NAMES, Letter
from holdfast.dead_letters.queue import ENVELOPE_BYTES, DeadLettersSettings
from holdfast.quiver import Position
from holdfast.settings.keys import key_of
from holdfast.signals.event import Event

DOCS = Path(__file__).parents[2] / "docs"
FORMAT = (DOCS / "format" / "dead-letter.md").read_text()
GUIDE = (DOCS / "guide" / "dead-letters.md").read_text()
PROBLEM = {"pointer": "/job", "rule": "required", "message": "`name` is missing"}


def test_every_key_of_a_letter_is_on_the_page() -> None:
    full = poison(1, problems=(PROBLEM,), headers={"a": "b"}, arrow_signal="rows").stored_headers()
    table = FORMAT.split("| key |")[1].split("\n\n")[0]
    keys = re.findall(r"^\| `(\w+)` \| ?(\w*)", table, re.MULTILINE)
    assert [key for key, _ in keys] == list(full)
    least = Letter(b"", "invalid", "ingest").stored_headers()
    assert [key for key, always in keys if always == "yes"] == list(least)


def test_the_example_is_a_letter() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", FORMAT, re.DOTALL)
    headers = {"user-agent": "openlineage-python"}
    letter = invalid(problems=(PROBLEM,), headers=headers, received_ns=START_NS)
    stored = orjson.loads(example)
    assert stored == letter.stored_headers()
    assert Letter.from_event(Event("q", Position(0), "openlineage", b"{", stored, 1)) == letter


def test_the_bounds_are_the_code_s() -> None:
    bounds = FORMAT.split("## Bounds")[1].split("## What")[0]
    assert f"{ENVELOPE_BYTES // 1024} kB" in bounds
    for number in (
        letter_module.WORD_CHARACTERS_MAX,
        letter_module.PLACE_CHARACTERS_MAX,
        letter_module.TEXT_CHARACTERS_MAX,
        letter_module.PROBLEMS_MAX,
        letter_module.HEADERS_MAX,
        letter_module.PROBLEMS_CHARACTERS_MAX,
        letter_module.HEADERS_CHARACTERS_MAX,
    ):
        assert f"{number:,} " in bounds or f"{number}," in bounds, number
    names = re.findall(r"`([\w-]+)`", bounds.split("one of")[1])
    assert names == list(SECRET_NAMES)


def test_every_option_is_in_the_guide_with_its_default() -> None:
    table = GUIDE.split("## Bounds")[1].split("\n\n")[1]
    rows = dict(re.findall(r"^\| `dead_letters\.([\w.]+)` \| (.+?) \|", table, re.MULTILINE))
    values = {}
    for name, part in DeadLettersSettings():
        for field, value in part:
            is_largest = field == "max_letter_bytes"
            values[f"{name}.{key_of(field)}"] = part.largest_bytes if is_largest else value
    assert sorted(rows) == sorted(values)
    for option, shown in rows.items():
        number, _, unit = shown.partition(" ")
        factor = {"": 1, "s": 1, "MB": 1 << 20, "GB": 1 << 30, "days": 86400}[unit]
        assert float(number) * factor == values[option], option
