"""The state directory of a pipeline, without Spark; and how far a watermark is behind."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.operate.test_drivers import QUERY
from tests.patience import PATIENCE_S
from tests.ports import free_port

from holdfast.dataflow.driver.progress import lag_s
from holdfast.dataflow.driver.state_dir import DrainRequest, StateDir
from holdfast.dataflow.driver.wire import QueryStatistics
from holdfast.errors import BadConfig, DirectoryLocked, PipelineFailed
from holdfast.operate.cli.dataflow.run import Display, exposed

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def test_one_driver_at_a_time(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "state")
    assert [state.is_running] == [False]
    with state.lock():
        assert [state.is_running] == [True]
        with pytest.raises(DirectoryLocked, match="another driver runs this pipeline"):
            state.lock()
    assert [state.is_running] == [False]


def test_a_driver_is_asked_and_answers(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "state")
    assert not state.ask_to_drain(close=True), "nobody is there to be asked"
    lock = state.lock()
    assert state.asked() is None
    assert state.ask_to_drain(close=True)
    answers: list[list[dict[str, object]]] = []
    waiting = threading.Thread(target=lambda: answers.append(state.wait_drained()))
    waiting.start()
    assert state.asked() == DrainRequest(close=True)
    assert state.asked() is None, "it is asked once"
    state.report_drained([QUERY.to_fields()])
    assert waiting.is_alive(), "it is not over while the driver has the lock"
    lock.close()
    waiting.join()
    assert [QueryStatistics.from_fields(one) for one in answers[0]] == [QUERY]


def test_what_was_asked_while_it_starts_is_heard_and_what_another_was_asked_is_not(
    tmp_path: Path,
) -> None:
    """A request between the lock and the first look must not be lost: somebody waits for it."""
    state, asking = StateDir(tmp_path / "state"), StateDir(tmp_path / "state")
    with state.lock():
        assert asking.ask_to_drain(close=True)
        assert state.asked() == DrainRequest(close=True)
        assert asking.ask_to_drain(close=True)
    # It died, and whoever asked did, too.
    with state.lock():
        assert state.asked() is None
        assert asking.ask_to_drain(close=False)
        assert state.asked() == DrainRequest(close=False)


def test_nobody_waits_for_ever_for_a_driver_that_does_not_listen(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "state")
    with state.lock():
        assert state.ask_to_drain(close=False)
        with pytest.raises(PipelineFailed, match=r"did not accept the request .* within 0.1 s"):
            state.wait_drained(patience_s=0.1)
        assert state.asked() is None, "nobody waits for it any more"


@pytest.mark.parametrize(
    ("error", "told"), [("it hurts", "it hurts"), (None, "it ended first")]
)  # fmt: skip
def test_whoever_asked_hears_that_it_failed(tmp_path: Path, error: str | None, told: str) -> None:
    state = StateDir(tmp_path / "state")
    with state.lock():
        # An answer to somebody else, from before.
        state.report_drained([])
        assert state.ask_to_drain(close=False)
        if error is not None:
            state.report_drained([], error)
    with pytest.raises(PipelineFailed, match=told):
        state.wait_drained()


def test_the_lag_is_told_while_somebody_waits() -> None:
    behind = (NOON - timedelta(seconds=40)).isoformat().replace("+00:00", "Z")
    assert lag_s(behind, NOON, is_waited_for=True) == 40
    assert lag_s(behind, NOON, is_waited_for=False) == 0
    assert lag_s(None, NOON, is_waited_for=True) is None
    assert lag_s("1970-01-01T00:00:00.000Z", NOON, is_waited_for=True) is None
    assert lag_s("+292278994-08-17T07:12:55.807Z", NOON, is_waited_for=True) == 0


def test_the_metrics_of_a_driver_alone_have_the_same_names() -> None:
    port = free_port()
    with Display(as_json=True) as display, exposed(f"127.0.0.1:{port}", "stats", display):
        display.show([QUERY])
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S
        ) as answer:
            text = answer.read().decode()
        assert 'pipeline_query_rows_total{pipeline="stats",query="events"} 100' in text
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/else", timeout=PATIENCE_S)
        refused.value.close()
        with (
            pytest.raises(BadConfig, match="metrics cannot be served"),
            exposed(f"127.0.0.1:{port}", "stats", display),
        ):
            pass
