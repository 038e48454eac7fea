"""The base of every configuration model: immutable, and an unknown key is an error."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A part of the configuration. Its field names are the keys of the file."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,  # no bound is without a bound, and JSON cannot say it
        hide_input_in_errors=True,  # what was given in a secret's place may be the secret
    )
