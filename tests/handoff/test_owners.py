"""Which data nodes own a part."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadInput
from holdfast.handoff.owners import PLACEMENTS_MAX, Owners, Placement

QUIVER = "3f2b1c00-0000-4000-8000-000000000001"
FIVE = ("a", "b", "c", "d", "e")


def test_all_nodes_own_everything_without_replicas() -> None:
    owners = Owners([Placement(0, FIVE)])
    assert owners.owners(QUIVER, 5, 9_000_000_000) == set(FIVE)
    assert list(owners.not_owned("a", QUIVER, 0, 9_000_000_000)) == []


def test_a_block_has_as_many_owners_as_replicas() -> None:
    owners = Owners([Placement(0, FIVE, 2, 100)])
    counted: Counter[str] = Counter()
    for block in range(1000):
        found = owners.owners(QUIVER, block * 100, block * 100 + 100)
        assert len(found) == 2
        counted.update(found)
    assert min(counted.values()) > 300  # of 400


def test_a_part_across_a_border_goes_to_the_owners_of_both_sides() -> None:
    owners = Owners([Placement(0, FIVE, 2, 100)])
    both = owners.owners(QUIVER, 0, 100) | owners.owners(QUIVER, 100, 200)
    assert owners.owners(QUIVER, 90, 110) == both


def test_scenario_24_the_order_of_the_configuration_means_nothing() -> None:
    with pytest.raises(BadInput, match="sorted"):
        Placement(0, ("b", "a"))
    with pytest.raises(BadInput):
        Placement(0, ("a", "a"))


def test_a_node_that_goes_changes_only_what_it_owned() -> None:
    before = Owners([Placement(0, FIVE, 2, 10)])
    after = before.without("c", [(0, 3000)])
    for seq in range(0, 3000, 10):
        old, new = (one.owners(QUIVER, seq, seq + 10) for one in (before, after))
        assert "c" not in new
        assert old - {"c"} <= new
        assert len(new) == 2


def test_what_was_accepted_keeps_its_owners_when_nodes_come() -> None:
    before = Owners([Placement(0, ("a", "b"))])
    after = before.changed(Placement(50, ("a", "b", "c")))
    assert after.owners(QUIVER, 0, 50) == {"a", "b"}
    assert after.owners(QUIVER, 40, 51) == {"a", "b", "c"}
    assert list(after.not_owned("c", QUIVER, 0, 200)) == [(0, 50)]


def test_without_rewrites_the_past_only_where_it_is_told_to() -> None:
    owners = Owners([Placement(0, ("a", "b")), Placement(50, ("a", "b", "c"))])
    owners = owners.without("b", [(20, 30), (40, 60), (80, 90)])
    wanted = {
        10: "ab",
        20: "a",
        29: "a",
        30: "ab",
        40: "a",
        50: "ac",
        60: "abc",
        85: "ac",
        90: "abc",
    }
    found = {seq: "".join(sorted(owners.owners(QUIVER, seq, seq + 1))) for seq in wanted}
    assert found == wanted


def test_the_same_placement_again_is_no_change() -> None:
    owners = Owners([Placement(0, FIVE, 2)])
    assert owners.changed(Placement(70, FIVE, 2)).placements == owners.placements


def test_changes_that_are_remembered_are_bounded() -> None:
    owners = Owners([])
    for seq in range(PLACEMENTS_MAX + 50):
        owners = owners.changed(Placement(seq, FIVE[: 1 + seq % 5]))
    assert len(owners.placements) == PLACEMENTS_MAX


@given(
    borders=st.lists(st.integers(1, 60), unique=True, max_size=4),
    replicas=st.integers(1, 5),
    block_seqs=st.integers(1, 30),
    name=st.sampled_from(FIVE),
)
def test_not_owned_is_what_owners_say_number_by_number(
    borders: list[int], replicas: int, block_seqs: int, name: str
) -> None:
    owners = Owners([Placement(0, FIVE, replicas, block_seqs)])
    for place, border in enumerate(sorted(borders)):
        owners = owners.changed(Placement(border, FIVE[place:], replicas, block_seqs))
    wanted = {seq for seq in range(80) if name not in owners.owners(QUIVER, seq, seq + 1)}
    intervals = list(owners.not_owned(name, QUIVER, 0, 80))
    assert {seq for start, end in intervals for seq in range(start, end)} == wanted
    assert all(one[1] < two[0] for one, two in pairwise(intervals))


def test_placements_survive_as_json() -> None:
    placement = Placement(7, FIVE, 3, 64)
    assert Placement.from_fields(placement.to_fields()) == placement


@pytest.mark.parametrize("wrong", [{"replicas": 0}, {"block_seqs": 0}])
def test_impossible_placements_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(BadInput):
        Placement(0, FIVE, **wrong)
