"""`${env:NAME}`, `${env:NAME:-default}` and `${file:PATH}` in the scalars of a configuration.

Only explicit references are replaced, and only in values that are parsed already: what a variable
or a file holds is text, never YAML, so it cannot add keys or change a structure. A default stands
for an unset variable; one that is set and empty stays empty. `$${` is a plain `${`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

# A certificate chain fits; anything larger is a mistake.
FILE_BYTES_MAX = 1024 * 1024

_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<scheme>env|file):(?P<what>[^{}]*)(?P<end>\}?)")
_ENVIRONMENT = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>.*))?", re.DOTALL)
_BARE = re.compile(r"(?<!\$)\$\{[A-Za-z_][A-Za-z0-9_]*\}")


class BadReference(Exception):
    """A reference that cannot be replaced: what is wrong, and what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Substitution:
    """Replaces references by what an environment and a folder hold."""

    def __init__(
        self, environment: Mapping[str, str], base_dir: Path, *, keep_unknown: bool = False
    ) -> None:
        """With `keep_unknown`, text whose references are not known here stays as it is.

        Tools beside a gateway need its paths, not the secrets that only its own environment has.
        """
        self._environment = environment
        self._base_dir = base_dir
        self._keep_unknown = keep_unknown

    def apply(self, text: str) -> str:
        """Return the text with every reference replaced; raises `BadReference`."""
        if "${" not in text:
            return text
        try:
            return _REFERENCE.sub(self._replaced, text)
        except BadReference:
            if self._keep_unknown:
                return text
            raise

    def _replaced(self, found: re.Match[str]) -> str:
        if found["scheme"] is None:
            return "${"
        if not found["end"]:
            raise BadReference(
                f"the reference ${{{found['scheme']}:… has no end",
                "write ${env:NAME}, ${env:NAME:-default} or ${file:PATH}; $${ is a plain ${",
            )
        if found["scheme"] == "env":
            return self._variable(found["what"])
        return self._file(found["what"])

    def _variable(self, what: str) -> str:
        parts = _ENVIRONMENT.fullmatch(what)
        if parts is None:
            raise BadReference(
                f"{what.partition(':')[0]!r} is not the name of a variable",
                "write ${env:NAME} or ${env:NAME:-default}",
            )
        value = self._environment.get(parts["name"], parts["default"])
        if value is None:
            raise BadReference(
                f"the environment has no variable {parts['name']}",
                f"set it, or give a default: ${{env:{parts['name']}:-…}}",
            )
        return value

    def _file(self, name: str) -> str:
        path = self._base_dir / name
        try:
            if not name:
                raise FileNotFoundError("no path is given")
            with path.open("rb") as file:
                content = file.read(FILE_BYTES_MAX + 1)
            text = content.decode()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise BadReference(
                f"the file {name!r} cannot be read: {reason}",
                f"relative paths begin at the folder of the configuration, {self._base_dir}",
            ) from None
        if len(content) > FILE_BYTES_MAX:
            raise BadReference(
                f"the file {name!r} is over {FILE_BYTES_MAX} bytes", "name a smaller one"
            )
        # Editors and `echo` end a file with a line end that nobody means.
        return text.removesuffix("\n").removesuffix("\r")


def bare_references(text: str) -> list[str]:
    """Return what looks like a reference of another tool, such as `${HOME}`: it is not replaced."""
    return _BARE.findall(text)


def whole_reference(text: str) -> bool:
    """Whether the text is one reference and nothing else, and tells no default."""
    found = _REFERENCE.fullmatch(text)
    return found is not None and bool(found["end"]) and ":-" not in text


def escaped(text: str) -> str:
    """Return a text that means `text` when references in it are replaced."""
    return text.replace("${", "$${")
