"""The settings of a quiver in a graph: small segments, and as large requests as ever."""

from __future__ import annotations

import pytest

from holdfast.graph.quiver_node import Config

MB = 1024 * 1024


@pytest.mark.parametrize(
    ("settings", "bundle_bytes"),
    [
        ({}, 65 * MB),
        ({"segment": {"target_size": "1MB"}}, 65 * MB),
        ({"segment": {"target_size": "128MB"}}, 128 * MB),
        ({"retention": {"size_cap": "256MB"}}, 16 * MB),
        ({"retention": {"size_cap": "4MB"}, "segment": {"target_size": "1MB"}}, MB),
    ],
)
def test_a_request_may_be_larger_than_a_segment_if_there_is_room(
    settings: dict[str, dict[str, str]], bundle_bytes: int
) -> None:
    assert Config.model_validate(settings).as_config().max_bundle_bytes == bundle_bytes


def test_segments_of_a_gateway_are_small() -> None:
    assert Config().as_config().segment.target_size_bytes == 16 * MB
