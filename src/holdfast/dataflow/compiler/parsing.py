"""Spark's own parser, for checks before anything is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import ParseException
from pyspark.sql import functions as F  # noqa: N812

from holdfast.dataflow.spec.checks import Parse, plausible

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark_parser(session: SparkSession) -> Parse:
    """Return what says what is wrong with an expression; the session must stay."""
    assert session is not None, "BUG: no session"

    def parse(text: str) -> str | None:
        try:
            F.expr(text)
        except ParseException as error:
            told = [line for line in str(error).splitlines() if line.strip()]
            return told[0] if told else "it cannot be parsed"
        return plausible(text)

    return parse
