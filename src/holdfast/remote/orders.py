"""What the owner tells the process that serves sealed data: one line of JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from holdfast.remote.gate import CallerToken
from holdfast.remote.reader import Secrets


@dataclass(frozen=True)
class ServedQuivers:
    """What the owner wants served."""

    directories: dict[str, str]
    host: str
    port: int
    max_calls: int
    message_bytes: int
    secrets: Secrets

    def encode(self) -> bytes:
        """Return one line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, line: str) -> ServedQuivers:
        """Return what `encode` gave."""
        fields = json.loads(line)
        given = fields.pop("secrets")
        credentials = tuple(
            CallerToken(one["name"], one["token"], tuple(one["rights"]))
            for one in given["credentials"]
        )
        certificate = given["certificate"] and tuple(given["certificate"])
        return cls(**fields, secrets=Secrets(credentials, certificate, given["client_ca"]))
