"""OpenLineage: what its events must look like, what they are called, and when they happened."""

from holdfast.signals.openlineage.names import OpenLineageExtractor
from holdfast.signals.openlineage.problem import Problem
from holdfast.signals.openlineage.validation import (
    EventKind,
    ValidationSettings,
    Validator,
    Verdict,
)

__all__ = [
    "EventKind",
    "OpenLineageExtractor",
    "Problem",
    "ValidationSettings",
    "Validator",
    "Verdict",
]
