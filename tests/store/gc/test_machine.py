"""Anything in any order, on SQLite and on PostgreSQL: I1 to I13 hold after every step."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from tests.store.gc.machine import StoreMachine
from tests.store.postgres import schema
from tests.support.examples import examples


def on_sqlite(folder: Path) -> type[StoreMachine]:
    """Return the machine, with a new database for each of its runs."""
    numbers = itertools.count()

    @contextmanager
    def new_url() -> Iterator[str]:
        path = folder / f"{next(numbers)}.sqlite"
        yield f"sqlite:///{path}"
        for leftover in folder.glob(f"{path.name}*"):
            leftover.unlink()

    class OnSqlite(StoreMachine):
        pass

    OnSqlite.new_url = staticmethod(new_url)
    return OnSqlite


def test_anything_in_any_order_on_sqlite(tmp_path: Path) -> None:
    run_state_machine_as_test(
        on_sqlite(tmp_path), settings=settings(max_examples=examples(15), stateful_step_count=25)
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_anything_in_any_order_for_long_on_sqlite(tmp_path: Path) -> None:
    run_state_machine_as_test(
        on_sqlite(tmp_path), settings=settings(max_examples=300, stateful_step_count=60)
    )


def on_postgres(url: str) -> type[StoreMachine]:
    """Return the machine, with a new schema for each of its runs."""

    def new_url() -> AbstractContextManager[str]:
        return schema(url)

    class OnPostgres(StoreMachine):
        pass

    OnPostgres.new_url = staticmethod(new_url)
    return OnPostgres


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_anything_in_any_order_on_postgres(postgres_url: str) -> None:
    run_state_machine_as_test(
        on_postgres(postgres_url), settings=settings(max_examples=60, stateful_step_count=40)
    )
