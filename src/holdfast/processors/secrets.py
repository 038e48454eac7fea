"""Secrets inside of texts: credentials by their form, and values behind names like `password`.

The expressions here are Python's, and the texts are other people's, so each is written such that it
takes time in proportion to the text: repeats are possessive (`*+`, they never give back), or are
bounded, or end at a character that also ends the next try.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

# A quoted text up to its end, or to the end of everything if it has none: doubled quotes and
# escaped ones are part of it.
_QUOTED = r"""(?:'(?:[^'\\]++|\\.|'')*+'?+|"(?:[^"\\]++|\\.|"")*+"?+)"""
# Quotes that are escaped themselves: JSON inside of JSON.
_ESCAPED = r"""\\++["'][^"'\\]*+"""
_BARE = r"""[^\s,;&"'\\]++"""
_SCHEME = r"(?:(?i:bearer|basic|digest|negotiate|token)\s++)?+"

_QUOTED_VALUE = re.compile(_QUOTED, re.DOTALL)
_VALUE = re.compile(rf"{_SCHEME}(?:{_QUOTED}|{_ESCAPED}|{_BARE})", re.DOTALL)
# A name, and what stands between a name and its value.
_NAME = re.compile(
    r"""(?<![\w.\-])(?P<name>[\w.\-]++)(?P<between>[\\"']*+\s*+(?::?=>?|:)\s*+|[\\"']*+\s++)"""
)


class CredentialPattern(NamedTuple):
    """A form that credentials have."""

    # A text without this, in lower case, is not looked at.
    needs: str
    form: re.Pattern[str]
    # With {marker} for the secret.
    replacement: str


def _credential(needs: str, form: str, replacement: str = "{marker}") -> CredentialPattern:
    return CredentialPattern(needs, re.compile(form, re.DOTALL), replacement)


CREDENTIALS = (
    # User and password in a URI. A user alone is left: abfss://container@account is no secret.
    _credential("@", r"""(://)[^/?#\s"'<>@:]*+:[^/?#\s"'<>]*@""", r"\1{marker}@"),
    # But for HTTP a user alone is a token.
    _credential("@", r"""((?i:\bhttps?)://)[^/?#\s"'<>@:]++@""", r"\1{marker}@"),
    _credential(
        "jdbc:oracle", r"""((?i:\bjdbc:oracle:[a-z]{1,16}:))[^@\s"'<>]{1,512}+@""", r"\1{marker}@"
    ),
    _credential("bearer", r"((?i:\bbearer)\s++)[A-Za-z0-9._~+/=\-]{8,}+", r"\1{marker}"),
    _credential("basic", r"((?i:\bbasic)\s++)[A-Za-z0-9._~+/=\-]{8,}+", r"\1{marker}"),
    # AWS key ids.
    _credential("akia", r"\bAKIA[0-9A-Z]{16}\b"),
    _credential("asia", r"\bASIA[0-9A-Z]{16}\b"),
    _credential(
        "private key",
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,60}-----|\Z)",
    ),
    _credential("identified", rf"((?i:\bidentified\s++by)\s++){_QUOTED}", r"\1'{marker}'"),
)


def without_credentials(text: str, folded: str, marker: str) -> str:
    """Return a text with its credentials replaced; `folded` is the same in lower case."""
    for credential in CREDENTIALS:
        if credential.needs in folded:
            text = credential.form.sub(credential.replacement.replace("{marker}", marker), text)
    return text


def without_assignments(text: str, is_secret: Callable[[str], bool], marker: str) -> str:
    """Return a text in which the values behind secret names are replaced.

    Found are `name=value`, `name: value`, `name 'value'` and `--name value`. The value of any
    other name is looked through in its turn: it may be an assignment itself.
    """
    parts: list[str] = []
    done = 0
    for found in _NAME.finditer(text):
        if found.start() < done or not is_secret(found["name"].strip("-.")):
            continue
        is_loose = found["between"].isspace() and not found["name"].startswith("-")
        value = (_QUOTED_VALUE if is_loose else _VALUE).match(text, found.end())
        if value is not None:
            quote = value[0][0] if value[0][0] in "'\"" else ""
            parts += (text[done : found.end()], quote, marker, quote)
            done = value.end()
    return "".join((*parts, text[done:])) if parts else text
