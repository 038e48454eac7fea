"""What all configuration models share: strict models, keys, sizes, durations, paths, secrets."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, SecretStr

from holdfast.settings.keys import FileKeys
from holdfast.settings.path import LocalPath
from holdfast.settings.units import DurationS, SizeBytes

__all__ = ["DurationS", "FileSettings", "LocalPath", "Secret", "Settings", "SizeBytes"]

# Never shown by `repr`, by a log line or by `print-config`. Read it with `.get_secret_value()` when
# it is used, and keep no copy.
Secret = SecretStr


class Settings(BaseModel):
    """A part of the configuration: immutable, and an unknown key is an error."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,  # no bound is without a bound, and JSON cannot say it
        hide_input_in_errors=True,  # what was given in a secret's place may be the secret
    )


class FileSettings(FileKeys, Settings):
    """A part of the graph file, in which keys name no units."""
