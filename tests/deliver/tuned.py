"""Settings of a destination with other constants: what users cannot set, and tests must."""

from __future__ import annotations

from types import new_class
from typing import ClassVar

from holdfast.deliver.settings import DeliverySettings

CONSTANTS = {
    "auth_retry_s",
    "breaker_failures",
    "breaker_open_s",
    "max_retry_after_s",
    "retry_initial_s",
    "window_events",
}


def tuned_settings(**values: object) -> DeliverySettings:
    """Return settings; constants among the values are those of a class of their own."""
    constants = {name: values.pop(name) for name in CONSTANTS & values.keys()}
    if not constants:
        return DeliverySettings.model_validate(values)
    annotations = dict.fromkeys(constants, ClassVar[object])
    body = {"__module__": __name__, "__annotations__": annotations, **constants}
    tuned = new_class("Tuned", (DeliverySettings,), exec_body=lambda space: space.update(body))
    assert issubclass(tuned, DeliverySettings)
    return tuned.model_validate(values)
