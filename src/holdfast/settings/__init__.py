"""Settings: what all configuration models share. Strict models, sizes, durations, secrets."""

from holdfast.settings.model import Settings
from holdfast.settings.secret import Secret
from holdfast.settings.units import DurationS, SizeBytes

__all__ = ["DurationS", "Secret", "Settings", "SizeBytes"]
