"""What every configuration model is made of: strict models, local paths, secrets."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, SecretStr

from holdfast.local_path import problem_of
from holdfast.settings.keys import FileKeys

# Never shown by `repr`, by a log line or by `print-config`. Read it with `.get_secret_value()` when
# it is used, and keep no copy.
Secret = SecretStr


def _is_local(value: str) -> str:
    problem = problem_of(value)
    if problem is not None:
        raise ValueError(problem)
    return value


# A path of this machine, never `s3://…`.
LocalPath = Annotated[str, AfterValidator(_is_local)]


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
