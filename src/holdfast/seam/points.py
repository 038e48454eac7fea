"""Fault points: the named steps at which a test or a proof fails a call, or ends the process."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class FaultPoint(StrEnum):
    """The base of the steps of a package; each member says itself what happens at it."""

    description: str

    def __new__(cls, value: str, description: str = "") -> Self:
        """Return a member that is the string `value`, as it is passed to the seam as `at`.

        Every member has a description; only looking one up by its value needs none.
        """
        self = str.__new__(cls, value)
        self._value_ = value
        self.description = description
        return self
