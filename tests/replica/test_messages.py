"""Messages come back as they went, and what is no message is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import BadInput
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.remote.wire import Fields
from holdfast.replica.messages import (
    AnswerKind,
    HealthPage,
    Holding,
    NodeHealth,
    PartAnswer,
    decode_intervals,
    decode_page,
    decode_part,
    decode_parts,
    digest,
    interval_fields,
    page_fields,
    page_of,
    part_fields,
)
from holdfast.replica.part import Part, PartFile, PartId
from holdfast.replica.transport import whole_health

A, B = "0f0e0d0c-0b0a-4908-8706-050403020100", "1f0e0d0c-0b0a-4908-8706-050403020100"
PART = Part(
    PartId(A, 3, 9),
    "0000000000000001-3-9-7-14",
    2,
    (PartFile("manifest", 8192), PartFile("bundles.arrow", 10), PartFile("000-a.b_c.arrow", 0)),
)
SETS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=6).map(IntervalSet)


def over_the_wire(fields: Any) -> Fields:
    return Fields(json.loads(json.dumps(fields)))


@given(
    st.sampled_from(AnswerKind),
    st.text(),
    st.none() | st.floats(0, 1e9, allow_nan=False),
)
def test_answers_come_back(kind: AnswerKind, reason: str, after_s: float | None) -> None:
    answer = PartAnswer(PART.id, kind, reason, after_s)
    assert PartAnswer.from_fields(over_the_wire(answer.to_fields())) == answer


def test_an_answer_of_a_newer_node_is_tried_again() -> None:
    fields = PartAnswer(PART.id, AnswerKind.ACK).to_fields() | {"answer": "paused"}
    answer = PartAnswer.from_fields(Fields(fields))
    assert answer.kind is AnswerKind.RETRY
    assert "paused" in answer.reason


def test_an_offer_comes_back() -> None:
    assert decode_part(over_the_wire(part_fields(PART))) == PART


@pytest.mark.parametrize(
    "lie",
    [
        {"part": None},
        {"part": [A, 9, 3]},
        {"part": ["..", 3, 9]},
        {"folder": "../x"},
        {"folder": "0000000000000001-3-10-7-14"},
        {"files": []},
        {"files": [["../manifest", 1]]},
        {"files": [["000-a/b.arrow", 1]]},
        {"files": [["manifest", -1]]},
        {"files": [["manifest", 1], ["manifest", 1]]},
        {"files": [["x.arrow", 1]]},
        {"files": {"manifest": 1}},
        {"segment_version": "2"},
    ],
    ids=str,
)
def test_an_offer_that_could_leave_its_folder_is_refused(lie: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        decode_part(Fields(part_fields(PART) | lie))


@pytest.mark.parametrize("given_parts", [None, "x", [7], [[]]], ids=str)
def test_offers_are_a_list_of_documents(given_parts: Any) -> None:
    with pytest.raises(BadInput):
        decode_parts(Fields({"parts": given_parts}))


@given(SETS)
def test_intervals_come_back(intervals: IntervalSet) -> None:
    assert decode_intervals(json.loads(json.dumps(interval_fields(intervals)))) == intervals


@pytest.mark.parametrize("given_sets", [None, 7, [[1]], [[2, 1]], [[-1, 2]], [[0, 2**80]]], ids=str)
def test_what_is_no_interval_is_refused(given_sets: Any) -> None:
    with pytest.raises(BadInput):
        decode_intervals(given_sets)


def test_pages_come_back_and_others_are_refused() -> None:
    page = HealthPage(A, "stored", 7)
    assert decode_page(json.loads(json.dumps(page_fields(page)))) == page
    assert decode_page(None) is None
    for wrong in ([A, "lost", 7], "x", [7]):
        with pytest.raises(BadInput):
            decode_page(wrong)


class PagedNode:
    """A node whose statement is given in small pages."""

    def __init__(self, holdings: list[Holding], limit: int) -> None:
        self.holdings = holdings
        self.limit = limit
        self.pages = 0

    def health(self, page: HealthPage | None = None, known_digest: str = "") -> NodeHealth:
        self.pages += 1
        shown, following = page_of(self.holdings, page, self.limit)
        whole = digest(self.holdings)
        if whole == known_digest:
            shown, following = (), None
        health = NodeHealth("n", "b", "1", (1, 2), 7, True, whole, shown, following)
        return NodeHealth.from_fields(over_the_wire(health.to_fields()))


@settings(max_examples=25)
@given(SETS, SETS, SETS, SETS, st.integers(1, 5))
def test_the_pages_of_a_statement_are_the_whole_of_it(
    one: IntervalSet, two: IntervalSet, three: IntervalSet, four: IntervalSet, limit: int
) -> None:
    holdings = [Holding(A, one, two), Holding(B, three, four)]
    node: Any = PagedNode(holdings, limit)
    health = whole_health(node)
    assert health.digest == digest(holdings)
    assert list(health.holdings) == [one for one in holdings if one.stored or one.seen]
    assert node.pages == max(1, -(-sum(len(s) for s in (one, two, three, four)) // limit))
    assert whole_health(node, health.digest).holdings == ()


def test_a_statement_that_changed_between_two_pages_says_so() -> None:
    holdings = [Holding(A, IntervalSet([(0, 1), (2, 3)]), IntervalSet([(0, 3)]))]
    node: Any = PagedNode(holdings, 2)
    ask = node.health

    def then_change(page: HealthPage | None = None, known_digest: str = "") -> NodeHealth:
        health: NodeHealth = ask(page, known_digest)
        holdings[0].stored.add(5, 6)
        return health

    node.health = then_change
    assert whole_health(node).digest == ""


@given(SETS, SETS)
def test_digests_are_equal_for_equal_holdings_alone(one: IntervalSet, two: IntervalSet) -> None:
    same = digest([Holding(A, one, one), Holding(B)]) == digest([Holding(A, two, two)])
    assert same == (one == two)
