"""What the guide imported under its former name is still there."""

from __future__ import annotations

import importlib

from holdfast.dead_letters import letter, queue, stored


def test_the_modules_of_the_former_package_are_those_of_the_new_one() -> None:
    assert importlib.import_module("holdfast.deadletter.letter") is letter
    assert importlib.import_module("holdfast.deadletter.office") is queue
    assert importlib.import_module("holdfast.deadletter.shelf") is stored
    assert queue.DeadLetters is queue.DeadLetterQueue
