"""Paths in configuration files: of this machine, never `s3://…`."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from holdfast.local_path import problem_of


def _is_local(value: str) -> str:
    problem = problem_of(value)
    if problem is not None:
        raise ValueError(problem)
    return value


LocalPath = Annotated[str, AfterValidator(_is_local)]
