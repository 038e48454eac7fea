"""What all configuration models share: strict models, sizes, durations, paths, secrets."""

from holdfast.settings.model import Settings
from holdfast.settings.path import LocalPath
from holdfast.settings.secret import Secret
from holdfast.settings.units import DurationS, SizeBytes

__all__ = ["DurationS", "LocalPath", "Secret", "Settings", "SizeBytes"]
