"""A real OAuth2 token endpoint, and a backend that takes nothing but its tokens."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote_plus

from tests.deliver.exporters.backend import Backend, Connection, Request, head

CLIENT_ID, CLIENT_SECRET = "gate way", "s3cret:+&é"


@dataclass
class Tokens:
    """What the endpoint gives out, and the backend believes."""

    given: int = 0
    valid: set[str] = field(default_factory=set)
    expires_in: Any = 3600
    forms: list[dict[str, str]] = field(default_factory=list)

    def endpoint(self) -> Backend:
        """Return the token endpoint; not started yet."""
        return Backend(steps=[self._give])

    def backend(self) -> Backend:
        """Return the backend; not started yet."""
        return Backend(steps=[self._check])

    def revoke(self) -> None:
        self.valid.clear()

    def _give(self, connection: Connection, request: Request) -> bool:
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        self.forms.append(form)
        if client_of(request, form) != (CLIENT_ID, CLIENT_SECRET):
            return reply(connection, 401, {"error": "invalid_client"})
        if form.get("grant_type") != "client_credentials":
            return reply(connection, 400, {"error": "unsupported_grant_type"})
        self.given += 1
        token = f"token-{self.given}"
        self.valid.add(token)
        fields = {"access_token": token, "token_type": "Bearer"}
        if self.expires_in is not None:
            fields["expires_in"] = self.expires_in
        return reply(connection, 200, fields)

    def _check(self, connection: Connection, request: Request) -> bool:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        return reply(connection, 201 if token in self.valid else 401, {})


def reply(connection: Connection, status: int, fields: dict[str, Any]) -> bool:
    body = json.dumps(fields).encode()
    connection.send(head(status, {"Content-Length": str(len(body))}) + body)
    return True


def client_of(request: Request, form: dict[str, str]) -> tuple[str, str]:
    """Return name and password, from where they were sent."""
    kind, _, encoded = request.headers.get("authorization", "").partition(" ")
    if kind != "Basic":
        return form.get("client_id", ""), form.get("client_secret", "")
    name, _, password = base64.b64decode(encoded).decode().partition(":")
    return unquote_plus(name), unquote_plus(password)
