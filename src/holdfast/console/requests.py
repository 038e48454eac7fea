"""One request to the console, and the answers it can have: pages, parts of pages, JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any
from urllib.parse import parse_qs

from holdfast.console.access import header
from holdfast.errors import BadInput, HoldfastError, Overloaded, OwnerGone
from holdfast.receive.responses import Receive, Response, Scope

# Of the body of an action: an edited dead letter, and what encoding it in a form adds.
BODY_BYTES_MAX = 4 * 1024 * 1024
FIELDS_MAX = 100
NO_STORE = (b"cache-control", b"no-store")
HTML_TYPE = b"text/html; charset=utf-8"


class WrongBody(Exception):
    """The body of a request is too large, or no form."""


class Gone(Exception):
    """The client went away."""


@dataclass(frozen=True)
class ConsoleRequest:
    """What an answer may depend on."""

    path: str
    # What the path had where its pattern has names.
    names: Mapping[str, str]
    query: Mapping[str, str]
    form: Mapping[str, str]
    has_token: bool

    def text(self, name: str, default: str = "") -> str:
        """Return a field of the query or the form."""
        return self.form.get(name, self.query.get(name, default)).strip()

    def whole(self, name: str, default: int = 0) -> int:
        """Return a number of the query or the form."""
        given = self.text(name, str(default))
        if not re.fullmatch(r"[0-9]{1,18}", given):
            raise BadInput(f"`{name}` is not a number", hint="go back to the page and try again")
        return int(given)


async def form_of(scope: Scope, receive: Receive) -> dict[str, str]:
    """Return the fields of a form that was posted."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        body += message.get("body", b"")
        if len(body) > BODY_BYTES_MAX:
            raise WrongBody(f"the request is over {BODY_BYTES_MAX} bytes")
        if not message.get("more_body"):
            break
    kind = "".join(header(scope, b"content-type")).partition(";")[0].strip()
    if body and kind != "application/x-www-form-urlencoded":
        raise WrongBody("the request is no form")
    return _fields(body.decode("utf-8", "replace"))


def query_of(scope: Scope) -> dict[str, str]:
    """Return the fields of the query."""
    return _fields(scope.get("query_string", b"").decode("ascii", "replace"))


def _fields(text: str) -> dict[str, str]:
    try:
        found = parse_qs(text, keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        raise WrongBody(f"the request has more than {FIELDS_MAX} fields") from None
    return {name: values[-1] for name, values in found.items()}


def html(text: str, status: int = 200) -> Response:
    """Return a page, or a part of one."""
    return Response(status, text.encode(), (NO_STORE,), HTML_TYPE)


def document(value: object, status: int = 200) -> Response:
    """Return JSON. Records become objects, whatever they are made of."""
    text = json.dumps(plain_data(value), ensure_ascii=False, allow_nan=False)
    return Response(status, text.encode() + b"\n", (NO_STORE,))


def plain_data(value: object) -> Any:
    """Return a value as JSON has it."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain_data(asdict(value))
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain_data(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): plain_data(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_data(inner) for inner in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def status_of(error: HoldfastError) -> int:
    """Return the status that says whose turn it is: the user's, or to try again."""
    if isinstance(error, Overloaded | OwnerGone):
        return 503
    return 400 if isinstance(error, BadInput) else 500
