"""A secret: never shown by `repr`, by a log line or by `print-config`."""

from __future__ import annotations

from pydantic import SecretStr

# Read it with `.get_secret_value()` at the moment it is used, and keep no copy.
Secret = SecretStr
