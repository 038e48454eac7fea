"""Tags as they are typed: text, #NUMBER, or 0xHEX for any other bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from holdfast.operate.cli.output import Command


class _Tag(click.ParamType):  # type: ignore[type-arg]
    """A tag as a person types it."""

    name = "tag"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> bytes:
        from holdfast.store.filesets import tag_of

        if isinstance(value, bytes):
            return value
        try:
            if value.startswith("#"):
                return tag_of(int(value[1:]))
            return bytes.fromhex(value[2:]) if value.startswith("0x") else value.encode()
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no tag: text, #NUMBER of 64 bits, or 0x and hex digits")


TAG = _Tag()


def tag_option(what: str) -> Callable[[Command], Command]:
    """Let a command be told a tag."""
    return click.option("--tag", type=TAG, help=what)
